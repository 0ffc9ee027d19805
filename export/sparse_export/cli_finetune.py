"""`sparse-serve finetune`: an encoder and labelled rows in, a checkpoint out, or one for each λ."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sparse_export.cli_options import DEFAULT_LAMBD, AttentionKind, Json, ending_cleanly, load_model_side
from sparse_serve.cli_options import Verbose, table_console
from sparse_serve.data import TEXT_PAIR, Columns
from sparse_serve.errors import OptionError
from sparse_serve.tasks import ProblemType

if TYPE_CHECKING:
    from sparse_export.training import FinetuneRecord


class TaskKind(StrEnum):
    """What labels are, by the names of the command line."""

    CLASSIFICATION = "classification"
    MULTI_LABEL = "multi-label"
    REGRESSION = "regression"


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
            "`datasets` library: a hub id, or a folder of data files.",
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
        TaskKind, typer.Option(help="What labels are: one name, a JSON array of names, or a number.")
    ] = TaskKind.CLASSIFICATION,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Figure that chooses the best epoch: the loss, or accuracy, f1, matthews; multi-label: f1, "
            "f1_macro, accuracy; regression: pearson, spearman, mse.",
            show_default="the task's first",
        ),
    ] = None,
    attention: Annotated[
        AttentionKind, typer.Option(help="Normaliser of the attention scores.")
    ] = AttentionKind.SPARSEGEN,
    lambd: Annotated[
        str | None,
        typer.Option(
            "--lambda",
            envvar="SPARSE_SERVE_LAMBDA",
            metavar="NUMBER[,NUMBER…]",
            help="Sparsegen's λ, below 1: the larger, the sparser. The paper uses -3 to -7. Several make one "
            "checkpoint each, OUTPUT/lambda_-4 and so on, and a table.",
            show_default=f"{DEFAULT_LAMBD:g} with sparsegen",
        ),
    ] = None,
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
    """Fine-tune an encoder into a text classifier with sparse (or softmax) attention.

    The checkpoint is the best epoch's, in Transformers' format, and remembers its attention. It appears whole
    or not at all; meanwhile OUTPUT.partial holds what an interrupted run is resumed from. Progress goes to
    stderr.

    In several processes: torchrun --nproc-per-node 2 --no-python sparse-serve finetune …
    """
    with ending_cleanly():
        load_model_side(verbose=verbose, training=True)
        from sparse_export import training  # noqa: PLC0415
        from sparse_export.checkpoint import AttentionSpec  # noqa: PLC0415

        with training.said_once():
            if lambd is None and attention is AttentionKind.SPARSEGEN:
                lambd = f"{DEFAULT_LAMBD:g}"
            lambdas = _numbers(lambd)
            options = training.FinetuneOptions(
                attention=AttentionSpec(attention.value, lambdas[0] if lambdas else None),
                problem_type=_PROBLEM_TYPES[task],
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
            runs = training.sweep_options(options, lambdas, output) if len(lambdas) > 1 else {output: options}
        run = partial(
            training.finetune,
            encoder,
            train_rows,
            evaluation=eval_rows,
            force=force,
            resume=resume,
            console=Console(stderr=True, soft_wrap=True),
        )
        records = training.sweep(runs, run, force=force, resume=resume)
        if training.is_first_process():
            _show(records, output, as_json=as_json)


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(number) for number in text.split(",")] if text is not None else []
    except ValueError:
        raise OptionError(
            f"--lambda is {text!r}; it must be a number below 1, or several with commas between: -7,-4,0"
        ) from None


def _show(records: Sequence["FinetuneRecord"], output: Path, *, as_json: bool) -> None:
    from sparse_export.training import sweep_tables  # noqa: PLC0415

    if as_json:
        several = [asdict(record) for record in records]
        typer.echo(json.dumps(several if len(several) > 1 else several[0], indent=2))
    elif len(records) > 1:
        table_console().print(*sweep_tables(records), sep="\n\n")
    else:
        typer.echo(_summary(records[0], output))


def _summary(record: "FinetuneRecord", output: Path) -> str:
    figures = ", ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
    epoch = f"epoch {record.best_epoch} of {len(record.epochs)}"
    return f"{output}: {figures} on {record.evaluation.rows} rows ({epoch})"
