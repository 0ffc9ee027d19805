"""Fine-tuning an encoder into a sparse-attention classifier, with Transformers' `Trainer`.

The defaults are those of the SSAF paper for SST-2: Adam at 2e-5, batches of 16, 4 epochs. Adam is meant as in
BERT's own code: with a weight decay of 0.01, 10 % warm-up and linear decay. The epoch that does best on the
evaluation rows is kept, the first of equals.
"""

import json
import math
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from sparse_export.checkpoint import AttentionSpec, load_tokenizer, new_classifier, save_classifier
from sparse_export.metrics import HEADLINE, task_metrics
from sparse_serve import __version__
from sparse_serve.data import Columns, TextData, hold_out, label_ids, read_data
from sparse_serve.digests import file_digest
from sparse_serve.errors import CheckpointError, DataError, OptionError

RECORD_NAME = "finetune.json"
HOLD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class FinetuneOptions:
    """How to train.

    Attributes:
        attention: what the model attends with, in training and ever after.
        epochs: passes over the training rows.
        learning_rate: peak of the schedule: reached after `warmup_ratio` of the steps, then falling to 0.
        batch_size: rows per step.
        weight_decay: AdamW's, on all weights but biases and norms; 0 is plain Adam.
        warmup_ratio: share of the steps in [0, 1) during which the learning rate rises.
        max_length: tokens per row, longer rows are cut from the right; None takes what the encoder has
            positions for. Batches are padded to their own longest row, so short texts cost nothing extra.
        seed: seeds the row sample, the hold-out, the new head, shuffling and dropout. On a CPU, with the same
            number of threads, equal seeds give equal weights to the bit.
        max_train_rows: use a sample of so many rows of the file (what is held out comes off it); None = all.

    Raises:
        OptionError: a value out of its range.
    """

    attention: AttentionSpec = field(default_factory=lambda: AttentionSpec("sparsegen", -4.0))
    epochs: int = 4
    learning_rate: float = 2e-5
    batch_size: int = 16
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    max_length: int | None = None
    seed: int = 0
    max_train_rows: int | None = None

    def __post_init__(self) -> None:
        accepted: Sequence[tuple[str, bool, str]] = (
            ("epochs", self.epochs >= 1, "at least 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0 and finite"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0 and finite"),
            ("warmup_ratio", 0 <= self.warmup_ratio < 1, "at least 0 and below 1"),
            ("max_length", self.max_length is None or self.max_length >= 3, "at least 3"),
            ("seed", 0 <= self.seed < 2**32, "from 0 to 4294967295"),
            ("max_train_rows", self.max_train_rows is None or self.max_train_rows >= 2, "at least 2"),
        )
        for name, is_accepted, what in accepted:
            if not is_accepted:
                raise OptionError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be {what}")


@dataclass(frozen=True)
class DataRecord:
    """A data file as it was used: `rows` of its `total_rows`."""

    path: str
    sha256: str
    rows: int
    total_rows: int


@dataclass(frozen=True)
class EpochRecord:
    """Means over one epoch's training rows and over the evaluation rows after it; losses are in nats."""

    epoch: int
    train_loss: float
    eval_loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class FinetuneRecord:
    """What made a checkpoint: written beside its weights as `finetune.json`.

    `held_out` says that the evaluation rows are a share of the training file, taken out of training.
    `best_epoch` counts from 1 and is the one whose weights the checkpoint has.
    """

    encoder: str
    labels: Sequence[str]
    options: FinetuneOptions
    max_length: int
    train: DataRecord
    evaluation: DataRecord
    held_out: bool
    epochs: Sequence[EpochRecord]
    best_epoch: int
    seconds: float
    device: str
    threads: int
    versions: Mapping[str, str]
    schema_version: int = 1

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the best epoch."""
        return self.epochs[self.best_epoch - 1].metrics

    def to_json(self) -> str:
        """The record as an indented JSON object."""
        return json.dumps(asdict(self), indent=2)


def finetune(
    encoder: str | Path,
    train: Path,
    output: Path,
    options: FinetuneOptions,
    *,
    evaluation: Path | None = None,
    columns: Columns | None = None,
    force: bool = False,
    console: Console | None = None,
) -> FinetuneRecord:
    """Fine-tune `encoder` on the file `train` and write the best epoch's checkpoint to the folder `output`.

    The checkpoint is written beside `output` and renamed into place when it is whole; whatever fails before
    leaves `output` as it was.

    Args:
        encoder: a Transformers folder, or the id of a model on the hub.
        train: TSV, CSV or JSONL file; its labels, sorted, become the model's.
        output: folder to be made; one with files in it is refused unless `force` replaces it.
        options: how to train.
        evaluation: file that chooses the best epoch; None holds out a tenth of the training rows by the seed.
        columns: names of the columns in both files.
        force: replace the checkpoint that is at `output`.
        console: where progress is shown; None = nowhere.

    Raises:
        OptionError: `options.max_length` exceeds the encoder's positions.
        DataError: a data file that cannot be read, or has fewer than two labels.
        CheckpointError: the encoder cannot be loaded, `output` cannot be written, or training diverged.
    """
    started = time.monotonic()
    console = console or Console(quiet=True)
    with _staged(output, force) as folder:
        train_data, eval_data = _read(train, evaluation, columns, options, console)
        model = new_classifier(encoder, options.attention, train_data.labels, options.seed)
        tokenizer = load_tokenizer(encoder)
        max_length = _max_length(model, options)
        trainer = Trainer(
            model=model,
            args=_training_arguments(options, folder / "epochs"),
            data_collator=DataCollatorWithPadding(tokenizer),
            train_dataset=_encode(tokenizer, train_data, train_data.labels, max_length),
            eval_dataset=_encode(tokenizer, eval_data, train_data.labels, max_length),
            processing_class=tokenizer,
            compute_metrics=_compute_metrics,
        )
        trainer.remove_callback(PrinterCallback)
        with _progress(console) as progress:
            trainer.add_callback(_Report(progress))
            trainer.train()
        # Truncation is how this run encoded, not a property of the tokenizer.
        tokenizer.backend_tokenizer.no_truncation()
        save_classifier(trainer.model, tokenizer, folder / "checkpoint")
        epochs = _epoch_records(trainer.state.log_history)
        record = FinetuneRecord(
            encoder=str(encoder),
            labels=train_data.labels,
            options=options,
            max_length=max_length,
            train=_data_record(train_data),
            evaluation=_data_record(eval_data),
            held_out=evaluation is None,
            epochs=epochs,
            best_epoch=max(epochs, key=lambda epoch: (epoch.metrics[HEADLINE], -epoch.epoch)).epoch,
            seconds=round(time.monotonic() - started, 1),
            device=str(trainer.model.device),
            threads=torch.get_num_threads(),
            versions=_versions(),
        )
        (folder / "checkpoint" / RECORD_NAME).write_text(record.to_json() + "\n", encoding="utf-8")
    return record


@contextmanager
def _staged(output: Path, force: bool) -> Iterator[Path]:
    """A scratch folder beside `output`; its `checkpoint` becomes `output` on success, the rest vanishes."""
    output = output.expanduser().resolve()
    occupied = output.exists() and (not output.is_dir() or any(output.iterdir()))
    if occupied and not force:
        raise CheckpointError(
            f"{output} exists and is not empty; choose another --output or replace it with --force"
        )
    if occupied and not (output / "config.json").is_file():
        raise CheckpointError(
            f"{output} is not a checkpoint (it has no config.json), so --force will not replace it"
        )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
            folder = Path(scratch)
            yield folder
            _swap(folder / "checkpoint", output, folder / "replaced")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        where = getattr(error, "filename", None) or output
        raise CheckpointError(f"{output} was not written: {reason} ({where})") from error


def _swap(new: Path, output: Path, aside: Path) -> None:
    replaces = output.exists()
    if replaces:
        output.rename(aside)
    try:
        new.rename(output)
    except OSError:
        if replaces:
            aside.rename(output)
        raise


def _read(
    train: Path, evaluation: Path | None, columns: Columns | None, options: FinetuneOptions, console: Console
) -> tuple[TextData, TextData]:
    train_data = read_data(train, columns, max_rows=options.max_train_rows, seed=options.seed)
    if len(train_data.labels) < 2:
        raise DataError(
            f"data file {train} has the one label {train_data.labels[0]!r}; a classifier needs two or more"
        )
    if evaluation is not None:
        eval_data = read_data(evaluation, columns)
    else:
        train_data, eval_data = hold_out(train_data, HOLD_OUT_SHARE, options.seed)
        console.print(
            f"no --eval: {len(eval_data.rows)} of {len(train_data.rows) + len(eval_data.rows)} training rows "
            f"(seed {options.seed}) are held out to choose the best epoch"
        )
    console.print(f"{len(train_data.rows)} rows to train on, {len(eval_data.rows)} to evaluate on")
    return train_data, eval_data


def _max_length(model: PreTrainedModel, options: FinetuneOptions) -> int:
    positions: int = model.config.max_position_embeddings
    if options.max_length is not None and options.max_length > positions:
        raise OptionError(
            f"--max-length is {options.max_length}; the encoder has positions for {positions} tokens"
        )
    return options.max_length or positions


def _encode(
    tokenizer: PreTrainedTokenizerFast, data: TextData, labels: Sequence[str], max_length: int
) -> list[dict[str, Any]]:
    """One dict per row: token ids (and segment ids), unpadded, and `labels`, the class index."""
    encoded = tokenizer(
        [row.text for row in data.rows],
        [row.text_pair for row in data.rows] if data.has_pairs else None,
        padding=False,
        truncation=True,
        max_length=max_length,
        return_attention_mask=False,
    )
    columns = {**encoded, "labels": label_ids(data, labels)}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _training_arguments(options: FinetuneOptions, folder: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=64,
        weight_decay=options.weight_decay,
        warmup_steps=options.warmup_ratio,  # below 1, Transformers reads a share of all steps
        lr_scheduler_type="linear",
        optim="adamw_torch_fused",
        train_sampling_strategy="group_by_length",
        seed=options.seed,
        data_seed=options.seed,
        eval_strategy="epoch",
        logging_strategy="epoch",
        logging_nan_inf_filter=False,
        save_strategy="best",
        save_only_model=True,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=HEADLINE,
        greater_is_better=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def _compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    return task_metrics(prediction.predictions, prediction.label_ids)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class _Report(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """A bar over the steps, one line per epoch, and an end to a run whose loss is no number any more."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("training", total=None)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._progress.update(self._task, total=state.max_steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._progress.update(self._task, completed=state.global_step)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float],
        **_: Any,
    ) -> None:
        if not math.isfinite(metrics["eval_loss"]):
            raise CheckpointError(
                f"training diverged: the evaluation loss is {metrics['eval_loss']} after epoch "
                f"{state.epoch:.0f}; lower --learning-rate"
            )
        self._progress.console.print(
            f"epoch {state.epoch:.0f} of {args.num_train_epochs:.0f}: "
            f"evaluation loss {metrics['eval_loss']:.4f}, {HEADLINE} {metrics[f'eval_{HEADLINE}']:.4f}"
        )


def _epoch_records(log_history: Sequence[Mapping[str, float]]) -> list[EpochRecord]:
    losses = [entry["loss"] for entry in log_history if "loss" in entry]
    evaluations = [entry for entry in log_history if "eval_loss" in entry]
    return [
        EpochRecord(number, loss, entry["eval_loss"], {HEADLINE: entry[f"eval_{HEADLINE}"]})
        for number, (loss, entry) in enumerate(zip(losses, evaluations, strict=True), start=1)
    ]


def _data_record(data: TextData) -> DataRecord:
    return DataRecord(str(data.path), file_digest(data.path), len(data.rows), data.total_rows)


def _versions() -> dict[str, str]:
    return {
        "sparse_serve": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
