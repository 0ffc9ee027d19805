"""`sparse-serve finetune`: an encoder and labelled rows in, a checkpoint out, or one for each attention."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sparse_export.cli.config_file import ConfigFile
from sparse_export.cli.multitask import (
    AdapterHeads,
    AdapterLearningRate,
    Adapters,
    AdapterSize,
    AddTask,
    FreezeEncoder,
    SamplingOption,
    ShareProjections,
    SimcseOption,
    SimcseTasks,
    SimcseTemperature,
    SimcseWeight,
    StepsPerEpoch,
    Tasks,
)
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
from sparse_export.cli.training import (
    DEFAULT_TASK_NAME,
    MLM,
    BatchSize,
    Bf16,
    DatasetConfig,
    Dropout,
    EarlyStoppingPatience,
    Encoder,
    Epochs,
    EvalSplit,
    EvalSteps,
    Evaluation,
    Force,
    FreezeLayers,
    FromScratch,
    GradientAccumulationSteps,
    GradientCheckpointing,
    LabelColumn,
    LabelSmoothing,
    LearningRate,
    LrSchedulerType,
    MaxAnswerTokens,
    MaxEvalRows,
    MaxGradNorm,
    MaxLength,
    MaxSteps,
    MaxTrainRows,
    Metric,
    Nsp,
    PositionsOption,
    ReportTo,
    Resume,
    Revision,
    SaveSteps,
    Seed,
    Stride,
    Task,
    Test,
    TextColumn,
    TextPairColumn,
    Tf32,
    Train,
    TrainSplit,
    WarmupRatio,
    WeightDecay,
)
from sparse_serve.cli.options import Verbose, table_console
from sparse_serve.errors import OptionError
from sparse_serve.tasks import TASKS
from sparse_serve.tasks import Task as TaskOfRows

if TYPE_CHECKING:
    from sparse_export.training import TrainingOptions, TrainingRecord

# What only the one, or only the other, kind of training takes.
_OF_MLM = ("nsp", "positions")
_OF_TASKS = ("label_column", "label_smoothing", "max_answer_tokens", "stride", "test")
_OF_ROWS = ("train", "evaluation", "text_column", "text_pair_column", "dataset_config", "train_split")
_NOT_OF_SEVERAL = ("task", *_OF_MLM, *_OF_ROWS, *_OF_TASKS, "eval_split")
_OF_SEVERAL = (
    "add_task",
    "adapter_size",
    "adapter_heads",
    "share_projections",
    "adapter_learning_rate",
    "sampling",
    "steps_per_epoch",
    "simcse",
    "simcse_tasks",
    "simcse_weight",
    "simcse_temperature",
    "freeze_encoder",
)


def finetune_command(  # noqa: PLR0913  one parameter per option
    encoder: Encoder,
    *,
    train: Train = None,
    output: Annotated[Path, typer.Option(help="Folder for the checkpoint.", show_default=False)],
    evaluation: Evaluation = None,
    test: Test = None,
    text_column: TextColumn = None,
    text_pair_column: TextPairColumn = None,
    label_column: LabelColumn = None,
    dataset_config: DatasetConfig = None,
    train_split: TrainSplit = None,
    eval_split: EvalSplit = None,
    max_train_rows: MaxTrainRows = None,
    max_eval_rows: MaxEvalRows = None,
    max_length: MaxLength = None,
    task: Task = None,
    max_answer_tokens: MaxAnswerTokens = None,
    stride: Stride = None,
    nsp: Nsp = False,
    positions: PositionsOption = None,
    from_scratch: FromScratch = False,
    revision: Revision = None,
    tasks: Tasks = None,
    add_task: AddTask = False,
    adapters: Adapters = True,
    adapter_size: AdapterSize = None,
    adapter_heads: AdapterHeads = None,
    share_projections: ShareProjections = False,
    adapter_learning_rate: AdapterLearningRate = None,
    sampling: SamplingOption = None,
    steps_per_epoch: StepsPerEpoch = None,
    simcse: SimcseOption = None,
    simcse_tasks: SimcseTasks = None,
    simcse_weight: SimcseWeight = None,
    simcse_temperature: SimcseTemperature = None,
    freeze_encoder: FreezeEncoder = False,
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
    epochs: Epochs = 4,
    max_steps: MaxSteps = None,
    learning_rate: LearningRate = 2e-5,
    lr_scheduler_type: LrSchedulerType = "linear",
    warmup_ratio: WarmupRatio = 0.1,
    batch_size: BatchSize = 16,
    weight_decay: WeightDecay = 0.01,
    max_grad_norm: MaxGradNorm = 1.0,
    label_smoothing: LabelSmoothing = None,
    dropout: Dropout = None,
    freeze_layers: FreezeLayers = None,
    seed: Seed = 0,
    metric: Metric = None,
    eval_steps: EvalSteps = None,
    early_stopping_patience: EarlyStoppingPatience = None,
    report_to: ReportTo = None,
    bf16: Bf16 = False,
    tf32: Tf32 = False,
    gradient_accumulation_steps: GradientAccumulationSteps = 1,
    gradient_checkpointing: GradientCheckpointing = False,
    config: ConfigFile = None,
    resume: Resume = False,
    save_steps: SaveSteps = None,
    force: Force = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Fine-tune an encoder for a task with sparse (or softmax) attention, or pre-train it.

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
    given: dict[str, Any] = dict(locals())  # by the names of `TrainingOptions`
    with ending_cleanly():
        load_model_side(verbose=verbose, training=True)
        from sparse_export import training  # noqa: PLC0415

        with training.one_line():
            _train(given)


def _train(given: Mapping[str, Any]) -> None:
    from sparse_export import training  # noqa: PLC0415

    encoder, output, force, resume = (given[name] for name in ("encoder", "output", "force", "resume"))
    with training.said_once():
        make_options, train_with = _job(given)
        attentions = training.choose_attentions(
            encoder,
            given["attention"],
            _numbers(given["lambd"]),
            given["pattern_from"],
            given["seed"],
            given["revision"],
            keeps_softmax=given["add_task"],
        )
        learning = _taken(training.PatternOptions, given)
        rows, others = _rows(given)
        runs = training.runs_of(
            make_options,
            attentions,
            training.PatternOptions(**learning) if learning else None,
            given["dense_epochs"],
        )
        training.require_fitting(runs, encoder)
    run = partial(
        train_with,
        encoder,
        rows,
        **others,
        force=force,
        resume=resume,
        console=Console(stderr=True, soft_wrap=True),
    )
    records = training.sweep(runs, run, output, force=force, resume=resume)
    if training.is_first_process():
        if len(records) > 1:
            training.write_sweep(records, attentions, output)
        _show(records, output, as_json=given["as_json"])


def _job(
    given: Mapping[str, Any],
) -> tuple[Callable[..., "TrainingOptions"], Callable[..., "TrainingRecord"]]:
    """Return what makes the options of each run of a task, and what trains with them."""
    from sparse_export import pretraining, training  # noqa: PLC0415

    if given["tasks"] is not None:
        return _job_of_several(given)
    if given["train"] is None:
        raise OptionError("--train is missing: name the training rows, or with --tasks a file of tasks")
    task = given["task"] or DEFAULT_TASK_NAME
    _refuse(given, _OF_SEVERAL, "is for several tasks, which --tasks names; leave it out")
    if not given["adapters"]:
        raise OptionError("--no-adapters is for several tasks, which --tasks names; leave it out")
    if task == MLM:
        _refuse(given, _OF_TASKS, f"is for labelled rows, and --task {MLM} reads no labels; leave it out")
    else:
        _refuse(given, _OF_MLM, f"is for --task {MLM}, and this is --task {task}; leave it out")
    kind = next((kind for kind in TASKS.values() if kind.option == task), None)
    taken: type[TrainingOptions] = pretraining.PretrainOptions if kind is None else training.FinetuneOptions
    options = _taken(taken, given) | {"columns": _columns(given, kind)}
    for name in ("attention", "dense_epochs"):  # of each run
        options.pop(name, None)
    if kind is None:
        options.pop("task", None)
        return partial(pretraining.PretrainOptions, **options), pretraining.pretrain
    return partial(training.FinetuneOptions, **options | {"task": kind.type}), training.finetune


def _job_of_several(
    given: Mapping[str, Any],
) -> tuple[Callable[..., "TrainingOptions"], Callable[..., "TrainingRecord"]]:
    from sparse_export import multitask  # noqa: PLC0415

    _refuse(given, _NOT_OF_SEVERAL, "is said in the file of --tasks; leave it out")
    options = _taken(multitask.MultitaskOptions, given) | {"tasks": multitask.read_task_file(given["tasks"])}
    for name in ("attention", "dense_epochs"):  # of each run
        options.pop(name, None)
    if "simcse_tasks" in options:
        options["simcse_tasks"] = tuple(name.strip() for name in options["simcse_tasks"].split(","))
    return partial(multitask.MultitaskOptions, **options), multitask.finetune_tasks


def _rows(given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return where the training rows come from, and by keyword where others do."""
    from sparse_export import training  # noqa: PLC0415

    if given["tasks"] is not None:
        return given["tasks"], {}
    train, evaluation, test = training.sources_of(
        *(given[name] for name in ("train", "evaluation", "test")),
        *(given[name] for name in ("dataset_config", "train_split", "eval_split")),
    )
    return train, {"evaluation": evaluation} | ({} if test is None else {"test": test})


def _refuse(given: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    """Refuse the first option among `names` that is given."""
    for name in names:
        value = given[name]
        if value is not None and value is not False:
            option = "eval" if name == "evaluation" else name.replace("_", "-")
            raise OptionError(f"--{option}{'' if value is True else f' {value}'} {why}")


def _taken(options: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given of options by their names."""
    return {each.name: given[each.name] for each in fields(options) if given.get(each.name) is not None}


def _columns(given: Mapping[str, Any], kind: type[TaskOfRows] | None) -> Any:
    """Return the names of columns, where any is given."""
    names = [given[f"{name}_column"] for name in ("text", "text_pair", "label")]
    rows = (kind or TASKS["single_label_classification"]).rows
    return rows.named(*names) if any(names) else None


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(number) for number in text.split(",")] if text is not None else []
    except ValueError:
        raise OptionError(
            f"--lambda is {text!r}; it must be a number below 1, or several with commas between: -7,-4,0"
        ) from None


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
    epoch = f"epoch {record.best_epoch:.3g} of {record.epochs[-1].epoch:.3g}"
    return (
        f"{output}: {figures} on {record.evaluation.rows} rows ({epoch}){_learned(record)}{_tested(record)}"
    )


def _learned(record: "TrainingRecord") -> str:
    if record.rho is None or record.rho_without_band is None:
        return ""
    return (
        f"; rho {record.rho:.4f}, target {record.rho_target:.4f}, "
        f"{record.rho_without_band:.4f} without the fixed part"
    )


def _tested(record: "TrainingRecord") -> str:
    if record.test is None:
        return ""
    figures = ", ".join(f"{name} {value:.4f}" for name, value in record.test.metrics.items()) or "answers"
    return f"; test: {figures} on {record.test.data.rows} rows"
