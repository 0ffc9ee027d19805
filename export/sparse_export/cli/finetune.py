"""`sparse-serve finetune`: an encoder and labelled rows in, a checkpoint out, or one for each attention."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from sparse_export.cli.options import Json, ending_cleanly, load_model_side
from sparse_export.cli.patterns import (
    Alpha,
    AlphaScheduleOption,
    Attention,
    DenseEpochs,
    FinalTemperature,
    Lambd,
    PatternFrom,
    PatternLearningRate,
    RhoTarget,
    Temperature,
)
from sparse_serve.cli_options import Verbose, table_console
from sparse_serve.data import TEXT_PAIR, Columns
from sparse_serve.errors import OptionError
from sparse_serve.tasks import ProblemType

if TYPE_CHECKING:
    from sparse_export.training import PatternOptions, TrainingOptions, TrainingRecord


class TaskKind(StrEnum):
    """What labels are, by the names of the command line."""

    CLASSIFICATION = "classification"
    MULTI_LABEL = "multi-label"
    REGRESSION = "regression"
    MLM = "mlm"


Positions = Literal["learned", "sinusoidal"]

_PROBLEM_TYPES: dict[TaskKind, ProblemType] = {
    TaskKind.CLASSIFICATION: "single_label_classification",
    TaskKind.MULTI_LABEL: "multi_label_classification",
    TaskKind.REGRESSION: "regression",
}


def finetune_command(  # noqa: PLR0913  one parameter per option
    encoder: Annotated[
        str, typer.Argument(help="Pretrained encoder: a hub id, or a folder.", show_default=False)
    ],
    *,
    train: Annotated[
        str,
        typer.Option(
            metavar="FILE|DATASET",
            help="Training rows: a .tsv, .csv or .jsonl file with named columns, or a data set of the "
            "`datasets` library: a hub id, or a folder of data files. With --task mlm also plain text, "
            ".txt, a text on each line.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the checkpoint.", show_default=False)],
    evaluation: Annotated[
        str | None,
        typer.Option(
            "--eval",
            envvar="SPARSE_SERVE_EVAL",
            metavar="FILE|DATASET",
            help="Rows that choose the best epoch. Without it a data set's split 'validation' does, or a "
            "tenth of the training rows is held out.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        TaskKind,
        typer.Option(
            help="What labels are: one name, a JSON array of names, or a number. mlm reads none: it "
            "pre-trains an encoder on texts, to tell masked tokens.",
        ),
    ] = TaskKind.CLASSIFICATION,
    nsp: Annotated[
        bool,
        typer.Option(
            "--nsp",
            help="mlm: also tell which segment follows which. Rows are sentences, blank ones stand between "
            "documents.",
        ),
    ] = False,
    positions: Annotated[
        Positions | None,
        typer.Option(
            help="mlm: learned position embeddings, or fixed sines and cosines, which need --from-scratch.",
            show_default="the encoder's",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Figure that chooses the best epoch: the loss, or accuracy, f1, matthews; multi-label: f1, "
            "f1_macro, accuracy; regression: pearson, spearman, mse; mlm: accuracy, perplexity, "
            "nsp_accuracy.",
            show_default="the task's first; mlm: loss",
        ),
    ] = None,
    attention: Attention = None,
    lambd: Lambd = None,
    pattern_from: PatternFrom = None,
    dense_epochs: DenseEpochs = None,
    rho_target: RhoTarget = None,
    alpha: Alpha = None,
    alpha_schedule: AlphaScheduleOption = None,
    temperature: Temperature = None,
    final_temperature: FinalTemperature = None,
    pattern_learning_rate: PatternLearningRate = None,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Random weights: only the encoder's architecture and tokenizer."),
    ] = False,
    freeze_layers: Annotated[
        int | None,
        typer.Option(help="Leave the embeddings and so many first layers as they are.", show_default="none"),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 4,
    early_stopping_patience: Annotated[
        int | None,
        typer.Option(help="End after so many epochs without a better one.", show_default="never"),
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of AdamW.")] = 2e-5,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", help="Rows per training step, over all processes.")
    ] = 16,
    gradient_accumulation_steps: Annotated[
        int, typer.Option(help="Parts in which each process computes its share of a batch: less memory.")
    ] = 1,
    weight_decay: Annotated[float, typer.Option(help="AdamW's weight decay.")] = 0.01,
    warmup_ratio: Annotated[
        float, typer.Option(help="Share of the steps over which the learning rate rises; then it falls to 0.")
    ] = 0.1,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens per row; longer rows are cut from the right.", show_default="the encoder's positions"
        ),
    ] = None,
    max_train_rows: Annotated[
        int | None, typer.Option(help="Use a random sample of so many training rows.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples, new weights, shuffling and dropout.")] = 0,
    text_column: Annotated[str, typer.Option(help="Column of the text.")] = "text_a",
    text_pair_column: Annotated[
        str | None,
        typer.Option(help="Column of the second text.", show_default=f"{TEXT_PAIR}, where there is one"),
    ] = None,
    label_column: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    dataset_config: Annotated[
        str | None, typer.Option(help="Configuration of a data set.", show_default="its only one")
    ] = None,
    train_split: Annotated[
        str | None, typer.Option(help="Split of a data set to train on.", show_default="train")
    ] = None,
    eval_split: Annotated[
        str | None, typer.Option(help="Split of a data set to evaluate on.", show_default="validation")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue this run where it was interrupted; without such a run, start it."
        ),
    ] = False,
    save_steps: Annotated[
        int | None,
        typer.Option(
            help="Steps after which a run can be resumed, besides each epoch.", show_default="epochs only"
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace a checkpoint that is already there, or an interrupted run."),
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Fine-tune an encoder into a text classifier with sparse (or softmax) attention, or pre-train it.

    The checkpoint is the best epoch's, in Transformers' format, and remembers its attention. It appears whole
    or not at all; meanwhile OUTPUT.partial holds what an interrupted run is resumed from. Progress goes to
    stderr.

    What each token attends to, by the names of --attention:

    softmax, sparsegen  all tokens; sparsegen gives most of them weight 0
    local2              tokens up to 2 away; any size, as in the next two
    global1             the first token attends to all, and all to it
    random1             tokens drawn for each, two for a size of 1
    axis                learned: who attends to all, and to whom all attend
    diagonal            learned: at what distances, by the task
    layer-diagonal      learned: at what distances, by task and layer

    The last six are patterns. They are joined by +, as in local2+global1; axis alone is axis+local2. What a
    pattern does not allow is never computed when served.

    In several processes: torchrun --nproc-per-node 2 --no-python sparse-serve finetune …
    """
    with ending_cleanly():
        load_model_side(verbose=verbose, training=True)
        from sparse_export import training  # noqa: PLC0415

        with training.one_line():
            with training.said_once():
                make_options, train_with = _job(task, nsp, positions, label_column)
                attentions = training.choose_attentions(
                    encoder, attention, _numbers(lambd), pattern_from, seed
                )
                learning = _learning(
                    rho_target=rho_target,
                    alpha=alpha,
                    alpha_schedule=None if alpha_schedule is None else alpha_schedule.value,
                    temperature=temperature,
                    final_temperature=final_temperature,
                    pattern_learning_rate=pattern_learning_rate,
                )
                make_options = partial(
                    make_options,
                    metric=metric,
                    from_scratch=from_scratch,
                    freeze_layers=freeze_layers,
                    epochs=epochs,
                    learning_rate=learning_rate,
                    batch_size=batch_size,
                    gradient_accumulation_steps=gradient_accumulation_steps,
                    weight_decay=weight_decay,
                    warmup_ratio=warmup_ratio,
                    max_length=max_length,
                    early_stopping_patience=early_stopping_patience,
                    save_steps=save_steps,
                    seed=seed,
                    max_train_rows=max_train_rows,
                    columns=Columns(text_column, text_pair_column, label_column),
                )
                train_rows, eval_rows = training.sources_of(
                    train, evaluation, dataset_config, train_split, eval_split
                )
                runs = training.runs_of(make_options, attentions, learning, dense_epochs)
                training.require_fitting(runs, encoder)
            run = partial(
                train_with,
                encoder,
                train_rows,
                evaluation=eval_rows,
                force=force,
                resume=resume,
                console=Console(stderr=True, soft_wrap=True),
            )
            records = training.sweep(runs, run, output, force=force, resume=resume)
            if training.is_first_process():
                if len(records) > 1:
                    training.write_sweep(records, attentions, output)
                _show(records, output, as_json=as_json)


def _job(
    task: TaskKind, nsp: bool, positions: Positions | None, label_column: str
) -> tuple[Callable[..., "TrainingOptions"], Callable[..., "TrainingRecord"]]:
    """Return what makes the options of a task, and what trains with them."""
    from sparse_export import pretraining, training  # noqa: PLC0415

    if task is TaskKind.MLM:
        if label_column != Columns().label:
            raise OptionError(f"--label-column {label_column}: --task mlm reads no labels; leave it out")
        return partial(pretraining.PretrainOptions, nsp=nsp, positions=positions), pretraining.pretrain
    for option, is_given in (("--nsp", nsp), (f"--positions {positions}", positions is not None)):
        if is_given:
            raise OptionError(f"{option} is for --task mlm, and this is --task {task}; leave it out")
    return partial(training.FinetuneOptions, problem_type=_PROBLEM_TYPES[task]), training.finetune


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(number) for number in text.split(",")] if text is not None else []
    except ValueError:
        raise OptionError(
            f"--lambda is {text!r}; it must be a number below 1, or several with commas between: -7,-4,0"
        ) from None


def _learning(**given: Any) -> "PatternOptions | None":
    """Return how a pattern is learned, where any of it was given."""
    from sparse_export.training import PatternOptions  # noqa: PLC0415

    options = {name: value for name, value in given.items() if value is not None}
    return PatternOptions(**options) if options else None


def _show(records: Mapping[str, "TrainingRecord"], output: Path, *, as_json: bool) -> None:
    from sparse_export.training import sweep_tables  # noqa: PLC0415

    several = [asdict(record) for record in records.values()]
    if as_json:
        typer.echo(json.dumps(several if len(several) > 1 else several[0], indent=2))
    elif len(several) > 1:
        table_console().print(*sweep_tables(records), sep="\n\n")
    else:
        (record,) = records.values()
        typer.echo(_summary(record, output))


def _summary(record: "TrainingRecord", output: Path) -> str:
    figures = ", ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
    epoch = f"epoch {record.best_epoch} of {len(record.epochs)}"
    return f"{output}: {figures} on {record.evaluation.rows} rows ({epoch}){_learned(record)}"


def _learned(record: "TrainingRecord") -> str:
    if record.rho is None or record.rho_without_band is None:
        return ""
    return (
        f"; rho {record.rho:.4f}, target {record.rho_target:.4f}, "
        f"{record.rho_without_band:.4f} without the fixed part"
    )
