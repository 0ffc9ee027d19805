"""Several tasks as a job of `sparse_export.training`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from rich.console import Console
from transformers import (
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from sparse_export.checkpoint import load_checkpoint, load_config, new_model
from sparse_export.encoders import projected_attention, relational
from sparse_export.encoders.projected_attention import ProjectedAttentionSettings
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.stored_files import StoredRecord, stored_record
from sparse_export.encoders.tokenizer import cut_length, load_padding_tokenizer
from sparse_export.multitask.freezing import freeze_all_but, freeze_encoder
from sparse_export.multitask.judging import figures_of_tasks, headlines, overall_score, table_of_tasks
from sparse_export.multitask.objectives import SimCSE, TasksLoss
from sparse_export.multitask.options import SCORE, MultitaskOptions
from sparse_export.multitask.plan import DataSet, TasksPlan
from sparse_export.multitask.rows import AllRows, read_all, read_tests, task_posed
from sparse_export.tasks import head_of, head_of_spec
from sparse_export.tasks.several_model import SeveralTasksModel
from sparse_export.tasks.trained import Encoded, TrainedHead
from sparse_export.training.batches import PlannedBatches
from sparse_export.training.calibration import set_aside
from sparse_export.training.distributed import join_processes, rows_per_pass
from sparse_export.training.dropout import set_dropout
from sparse_export.training.encoding import encode
from sparse_export.training.freezing import freeze
from sparse_export.training.job import Job, Training
from sparse_export.training.objectives import Objective
from sparse_export.training.records import TrainingRecord, TrialRecord
from sparse_export.training.run import train_checkpoint
from sparse_export.training.sources import Rows, Source
from sparse_export.training.testing import require_answerable, try_out
from sparse_serve.errors import OptionError
from sparse_serve.tasks import TASK_IDS, Task


@dataclass(frozen=True)
class MultitaskRecord(TrainingRecord):
    """What made a model of several tasks."""

    options: MultitaskOptions


def finetune_tasks(
    encoder: str | Path,
    tasks: Path,
    output: Path,
    options: MultitaskOptions,
    *,
    force: bool = False,
    resume: bool = False,
    console: Console | None = None,
) -> MultitaskRecord:
    """Fine-tune `encoder` for several tasks at once.

    Args:
        encoder: a Transformers folder, or the id of a model on the hub; to add tasks to, a checkpoint of
            several.
        tasks: the task file that `options.tasks` was read from.
        output: as the other arguments, the result and the errors those of `train_checkpoint`.
        options: how to train.
        force: see there.
        resume: see there.
        console: see there.
    """
    test = tasks if any(entry.test for entry in options.tasks.tasks.values()) else None
    record = train_checkpoint(
        MultitaskJob(options), encoder, tasks, output, test=test, force=force, resume=resume, console=console
    )
    return cast(MultitaskRecord, record)


@dataclass(frozen=True)
class MultitaskJob(Job[AllRows]):
    """An encoder with a head for each task of a task file, and adapters where they are asked for."""

    record: ClassVar[type[TrainingRecord]] = MultitaskRecord

    options: MultitaskOptions

    def read(
        self, train: Source, evaluation: Source | None, console: Console
    ) -> tuple[Rows[AllRows], Rows[AllRows], bool]:
        """Read the rows of all tasks."""
        assert isinstance(train, Path)
        return read_all(train, self.options, console)

    def prepare(self, encoder: str, train: AllRows, evaluation: AllRows) -> Training:
        """Put the heads and adapters on the encoder, and encode the rows."""
        options = self.options
        _require_contrast(options, join_processes().num_processes)
        entries = options.tasks.tasks
        tasks = {name: task_posed(entry, train[name]) for name, entry in entries.items()}
        model = self._model(encoder, tasks)
        spec = ModelSpec.of(model.config)
        tokenizer = load_padding_tokenizer(encoder, model.config, options.revision)
        learned = _kept_pattern(encoder, spec, options)
        max_length = cut_length(model.config, tokenizer, learned.max_length or options.max_length)
        numbers = {name: number for number, name in enumerate(spec.tasks) if name in tasks}
        heads = {name: cast(TrainedHead, head_of(task)) for name, task in tasks.items()}
        encoded = _Encoded(model, tokenizer, max_length, heads, numbers)
        rows: list[Encoded] = []
        sets: list[DataSet] = []
        calibration: list[Encoded] = []
        judged = {name: encoded.rows(name, each.own) for name, each in evaluation.items()}
        for name, each in train.items():
            for data, factor in zip((each.own, *each.extra), each.factors, strict=True):
                own: Sequence[Encoded] = encoded.rows(name, data)
                if options.learns:
                    own, aside = set_aside(own, judged[name], options.seed)
                    calibration += [_without_targets(row) for row in aside]
                sets.append(DataSet(name, len(rows), [len(row["input_ids"]) for row in own], factor))
                rows += own
        plan = TasksPlan(
            sets,
            options.batch_size,
            options.seed,
            options.sampling,
            options.epochs,
            options.steps_per_epoch,
            options.max_steps,
        )
        return Training(
            model,
            tokenizer,
            max_length,
            rows=rows,
            batches=PlannedBatches(plan),
            calibration=calibration,
            evaluation=[_without_targets(row) for each in judged.values() for row in each],
            collator=DataCollatorWithPadding(tokenizer),
            objectives=self._objectives(heads, numbers),
            answer=head_of_spec(spec).answer_padded,
            figures=figures_of_tasks(
                heads, entries, judged, {name: each.own for name, each in evaluation.items()}
            ),
            learning_rates={projected_attention.Projections.parameter_group: options.adapter_learning_rate},
            table=partial(table_of_tasks, entries),
            leaves_unused=True,
            rho_target=learned.rho_target,
        )

    def _model(self, encoder: str, tasks: Mapping[str, Task]) -> PreTrainedModel:
        """Return the model to be trained; what is not trained is frozen.

        Raises:
            OptionError: the encoder cannot have the adapters, or the tasks cannot be added to it.
        """
        options = self.options
        config = load_config(encoder, options.revision)
        own = ModelSpec.of(config)
        extensions: dict[str, Mapping[str, Any]] = {}
        if options.add_task:
            _require_addable(encoder, own, options, tasks)
            extensions = dict(own.extensions)
            tasks = {**own.tasks, **tasks}
        elif options.adapters:
            settings = _adapter_sizes(encoder, config, tasks, options)
            extensions[projected_attention.EXTENSION] = settings.to_json()
        if options.tasks.relational:
            extensions[relational.EXTENSION] = {"tasks": list(options.tasks.relational)}
        model = new_model(
            encoder,
            options.attention,
            tasks,
            options.seed,
            extensions=extensions,
            from_scratch=options.from_scratch,
            revision=options.revision,
        )
        set_dropout(model, options.dropout)
        if options.add_task:
            freeze_all_but(cast(SeveralTasksModel, model), tuple(options.tasks.tasks))
        elif options.freeze_encoder:
            freeze_encoder(model)
        elif options.freeze_layers is not None:
            freeze(model, options.freeze_layers)
        return model

    def _objectives(
        self, heads: Mapping[str, TrainedHead], numbers: Mapping[str, int]
    ) -> Sequence[Objective]:
        options = self.options
        weights = {numbers[name]: entry.loss_weight for name, entry in options.tasks.tasks.items()}
        loss = TasksLoss({numbers[name]: head for name, head in heads.items()}, weights)
        if options.simcse is None:
            return [loss]
        joined = [numbers[name] for name in options.simcse_tasks or numbers]
        simcse = SimCSE(options.simcse, options.simcse_weight, options.simcse_temperature, joined)
        return [loss, simcse]

    def read_test(self, source: Source) -> Rows[Any]:
        """Read the rows that the task file names to try the result on."""
        assert isinstance(source, Path)
        return read_tests(source, self.options)

    def require_testable(self, training: Training, train: AllRows, rows: Rows[Any]) -> None:
        """Refuse rows that are not of their task."""
        tasks = ModelSpec.of(training.model.config).tasks
        for name, own in rows.data.items():
            require_answerable(tasks[name], train[name].own, own)

    def test(self, model: PreTrainedModel, training: Training, rows: Rows[Any], folder: Path) -> TrialRecord:
        """Answer the rows of each task as they are served, into a folder of its name."""
        assert isinstance(model, SeveralTasksModel)
        figures: dict[str, float] = {}
        spec = ModelSpec.of(model.config)
        for name, own in rows.data.items():
            (folder / name).mkdir()
            head = cast(TrainedHead, head_of(spec.tasks[name]))
            tried = try_out(head, model.of(name), training.tokenizer, own, training.max_length, folder / name)
            figures |= {f"{name}.{metric}": value for metric, value in tried.metrics.items()}
        names = headlines(self.options.tasks.tasks)
        if figures.keys() >= set(names):
            figures = {SCORE: overall_score({name: figures[name] for name in names}), **figures}
        return TrialRecord(rows.record, figures)

    def load(self, folder: Path) -> PreTrainedModel:
        """Load a trained model with its tasks."""
        return load_checkpoint(folder)

    def labels(self, model: PreTrainedModel) -> Sequence[str]:
        """Return the names of the tasks."""
        return list(ModelSpec.of(model.config).tasks)


@dataclass(frozen=True)
class _Encoded:
    """Encodes rows as the tasks of a model take them."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    max_length: int
    heads: Mapping[str, TrainedHead]
    numbers: Mapping[str, int]

    def rows(self, task: str, data: Any) -> list[Encoded]:
        """Return labelled rows of a task, which say of which they are."""
        found = encode(self.heads[task], self.model, self.tokenizer, data, self.max_length)
        return [row | {TASK_IDS: [self.numbers[task]]} for row in found.rows]


def _without_targets(row: Encoded) -> Encoded:
    """Return a row for batches of several tasks, whose targets have no one shape; who judges knows them."""
    return row | {"labels": 0}


def _require_contrast(options: MultitaskOptions, processes: int) -> None:
    """Refuse SimCSE of texts that are each computed alone: there is no other to tell them from.

    Raises:
        OptionError: it is asked for, and parts of a batch have one row.
    """
    if options.simcse is None or rows_per_pass(options, processes) > 1:
        return
    raise OptionError(
        f"--simcse {options.simcse} tells rows apart that a process computes at once, and that is one row: "
        f"--batch-size ({options.batch_size}) over processes ({processes}) times "
        f"--gradient-accumulation-steps ({options.gradient_accumulation_steps}); give two rows or more, or "
        "leave it out"
    )


def _adapter_sizes(
    encoder: str, config: PreTrainedConfig, tasks: Mapping[str, Task], options: MultitaskOptions
) -> ProjectedAttentionSettings:
    """Return the sizes of the adapters, which where any are trained further are those that they have.

    Raises:
        OptionError: others are asked for, or they are none.
    """
    own = ModelSpec.of(config)
    stored = own.extensions.get(projected_attention.EXTENSION)
    size, heads, share = options.adapter_size, options.adapter_heads, options.share_projections
    if stored is None or options.from_scratch or not own.tasks.keys() & tasks.keys():
        return ProjectedAttentionSettings.scaled(config, size, heads, share_projections=share)
    trained = ProjectedAttentionSettings.of_json(stored)
    others = {
        f"--adapter-size {size}": size not in (None, trained.size),
        f"--adapter-heads {heads}": heads not in (None, trained.heads),
        "--share-projections": share and not trained.share_projections,
    }
    for option in (option for option, is_other in others.items() if is_other):
        raise OptionError(
            f"{option} is not how the adapters of {encoder} were trained, which are trained further: with "
            f"a width of {trained.size} in {trained.heads} heads, and projections "
            f"{'that all layers share' if trained.share_projections else 'in every layer'}; leave it out, or "
            "begin with an encoder without adapters"
        )
    return trained


def _kept_pattern(encoder: str, spec: ModelSpec, options: MultitaskOptions) -> StoredRecord:
    """Return what is known of how a pattern was trained that stays as it is; nothing of any other.

    Raises:
        OptionError: rows are to be cut at another length than it was trained at, which the tasks that are
            there are answered at.
    """
    pattern = spec.attention.pattern
    if pattern is None or not options.add_task:
        return StoredRecord()
    record = stored_record(encoder, options.revision) or StoredRecord()
    if options.max_length is not None and record.max_length not in (None, options.max_length):
        raise OptionError(
            f"--max-length {options.max_length} is not the {record.max_length} tokens at which the pattern "
            f"{pattern.name} of {encoder} was trained, and --add-task leaves that as it is: leave it out"
        )
    return record


def _require_addable(
    encoder: str, spec: ModelSpec, options: MultitaskOptions, tasks: Mapping[str, Task]
) -> None:
    if not spec.names_tasks:
        raise OptionError(
            f"--add-task needs a checkpoint of several tasks, and {encoder} has none by name: train it with "
            "--tasks first"
        )
    if taken := [name for name in tasks if name in spec.tasks]:
        raise OptionError(
            f"--add-task: {encoder} has {', '.join(taken)} already; rename them in the task file"
        )
    if options.tasks.relational:
        raise OptionError(
            "--add-task leaves all other tasks as they are: take relational out of the task file"
        )
    learning_rate = options.adapter_learning_rate
    if (
        learning_rate != MultitaskOptions.adapter_learning_rate
        and projected_attention.EXTENSION not in spec.extensions
    ):
        raise OptionError(
            f"--adapter-learning-rate {learning_rate:g} has no effect: {encoder} has no adapters, and "
            "--add-task adds none; leave it out"
        )
    if options.attention != spec.attention:
        raise OptionError(
            f"--add-task leaves the encoder as it is, which attends by {spec.attention.name}, not by "
            f"{options.attention.name}: leave out --attention and --lambda"
        )
