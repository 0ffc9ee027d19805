"""What is written about a run: beside the weights of its checkpoint as `finetune.json`."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from sparse_export.training.distributed import on_cpu
from sparse_export.training.options import FinetuneOptions, TrainingOptions
from sparse_export.training.schedule import Stage
from sparse_serve import __version__

# Options on which no more than the last bits of a gradient depend.
_NOT_IN_OBJECTIVE = frozenset(
    {"gradient_accumulation_steps", "gradient_checkpointing", "report_to", "save_steps"}
)


@dataclass(frozen=True)
class DataRecord:
    """A source of rows as it was used: `rows` of its `total_rows`.

    Attributes:
        source: a file's path, or a data set's name, configuration and split.
        sha256: of the file's bytes; of a data set's rows, each as a line of JSON.
        rows: how many were used.
        total_rows: how many there are.
        revision: a data set's commit on the hub, or what `datasets` identifies it by; None for a file.
    """

    source: str
    sha256: str
    rows: int
    total_rows: int
    revision: str | None = None


@dataclass(frozen=True)
class EpochRecord:
    """Means over the training rows since the evaluation before, and over the evaluation rows.

    Losses are in nats, and mean squared errors for regression; the training loss includes what a learned
    pattern lacks of its ρ target.

    Attributes:
        epoch: how many are over: 1, 2, …, and within an epoch a fraction.
        step: optimiser steps that are over.
        train_loss: over the training rows.
        eval_loss: over the evaluation rows.
        metrics: over the evaluation rows.
        stage: of a pattern's training: "dense", where the model attends to everything, "annealing", or
            "final". Only a final one can be the best.
        rho: share of pairs that the pattern, as it is served, does not allow (AAA, Eq. 9), a mean over the
            evaluation rows and layers, and 0 of a dense epoch; None without a pattern.
        rho_without_band: that of the pattern's learned part alone, without the band and all else that is
            fixed; None where nothing is learned.
    """

    epoch: int | float
    step: int
    train_loss: float
    eval_loss: float
    metrics: Mapping[str, float]
    stage: Stage = "final"
    rho: float | None = None
    rho_without_band: float | None = None


@dataclass(frozen=True)
class MaskSparsity:
    """One layer's pattern as it is served: means over texts.

    Attributes:
        rho: share of pairs that are not allowed.
        rho_without_band: that of the learned part alone; None where nothing is learned.
        rows_on: share of tokens whose row is on, learned or global: they attend to all.
        columns_on: share of tokens whose column is on: all attend to them.
        rows_on_count: how many rows of a text are on.
        columns_on_count: how many columns of a text are on.
        diagonals: offsets that are on, fixed or learned, each on both sides.
    """

    rho: float
    rho_without_band: float | None
    rows_on: float
    columns_on: float
    rows_on_count: float
    columns_on_count: float
    diagonals: Sequence[int]


@dataclass(frozen=True)
class LayerSparsity:
    """One layer's attention.

    Attributes:
        rho: share of weights that are zero.
        support: keys per query, with a weight other than zero.
        mask: of a pattern, what it allows; None without one.
    """

    rho: float
    support: float
    mask: MaskSparsity | None = None


@dataclass(frozen=True)
class CalibrationRecord:
    """The training rows that were set aside to set the thresholds of a learned pattern on.

    Attributes:
        rows: how many, windows of long ones each by itself.
        seed: draws them.
        rho: of the best epoch on them.
        shift: what was added to every logit of the pattern at the end of the best epoch.
    """

    rows: int
    seed: int
    rho: float
    shift: float


@dataclass(frozen=True)
class TrialRecord:
    """How a checkpoint did on rows that had no part in its making; without labels there are no metrics."""

    data: DataRecord
    metrics: Mapping[str, float]

    def to_json(self) -> str:
        """Return it as a file holds it."""
        return json.dumps(asdict(self), indent=2) + "\n"


@dataclass(frozen=True)
class RunSettings:
    """What decides the outcome of a run: where two agree in all of it, one can be finished for the other.

    Attributes:
        encoder: folder or hub id of the encoder.
        encoder_digest: sha256 over the config, weights and tokenizer in that folder; the commit of a hub id,
            None where that is not known.
        options: how to train.
        train: the training rows.
        evaluation: the rows that choose the best epoch.
        held_out: whether these are a share of the training source, taken out of training.
        processes: how many train together.
        tested_on: the rows that the result is tried on, which no weight depends on; None where it is not.
    """

    encoder: str
    encoder_digest: str | None
    options: TrainingOptions
    train: DataRecord
    evaluation: DataRecord
    held_out: bool
    processes: int
    tested_on: DataRecord | None

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Tell in which settings a stored run, as parsed JSON, was another one: "epochs (4, now 5)"."""
        return differences(asdict(self), stored)

    def training_differences(self, stored: Mapping[str, Any], *, in_objective: bool = False) -> list[str]:
        """Tell in which settings a stored run was trained otherwise, whatever it was to be tried on.

        Those `in_objective` leave out what no more than the last bits of a gradient depend on: one run may
        go on as the other.
        """
        settings = asdict(self)
        del settings["tested_on"]
        free = _NOT_IN_OBJECTIVE if in_objective else frozenset()
        if settings["options"].get("simcse") is not None:  # which tells rows apart that are computed at once
            free -= {"gradient_accumulation_steps"}
        return differences(settings, stored, free)


@dataclass(frozen=True)
class TrainingRecord(RunSettings):
    """What made a checkpoint.

    Attributes:
        labels: names of what is answered; none of a language model.
        max_length: tokens at which rows were cut.
        epochs: every evaluation.
        best_epoch: after how many epochs the model was best, whose weights the checkpoint has.
        layers: how sparse each layer attends on the evaluation rows; empty for softmax.
        calibration: rows on which a learned pattern was brought to its target; None where nothing is learned.
        rho_target: ρ that a learned pattern was trained towards, in this run or, where tasks were added to
            it, in the one before; None where nothing is learned.
        rho: that of the best epoch, of a pattern; None without one.
        rho_without_band: that of the best epoch, of what is learned alone; None where nothing is.
        test: how the checkpoint did on rows that had no part in its making; None where it was not tried.
        seconds: of the last start of the run.
        device: what it ran on.
        threads: of each process.
        versions: of the packages it stands on.
    """

    labels: Sequence[str]
    max_length: int
    epochs: Sequence[EpochRecord]
    best_epoch: int | float
    layers: Sequence[LayerSparsity]
    calibration: CalibrationRecord | None
    rho_target: float | None
    rho: float | None
    rho_without_band: float | None
    test: TrialRecord | None
    seconds: float
    device: str
    threads: int
    versions: Mapping[str, str]
    schema_version: int = 5

    @property
    def best(self) -> EpochRecord:
        """The evaluation of the model that was kept."""
        return next(each for each in self.epochs if each.epoch == self.best_epoch)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the model that was kept."""
        return self.best.metrics


@dataclass(frozen=True)
class FinetuneRecord(TrainingRecord):
    """What made a fine-tuned model."""

    options: FinetuneOptions


def stored_settings(path: Path) -> Mapping[str, Any] | None:
    """Read settings or a record from JSON; None where there is none that can be read."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored if isinstance(stored, dict) else None


def differences(
    current: Mapping[str, Any], stored: Mapping[str, Any], left_out: Set[str] = frozenset()
) -> list[str]:
    """Tell what of `current` was otherwise in `stored`, which is parsed JSON: "epochs (4, now 5)"."""
    now = dict(_leaves(json.loads(json.dumps(current))))
    before = dict(_leaves({name: stored.get(name) for name in current}))
    return [
        f"{name} ({before.get(name)}, now {now.get(name)})"
        for name in dict.fromkeys((*now, *before))
        if name not in left_out and now.get(name) != before.get(name)
    ]


def environment() -> dict[str, Any]:
    """Return what the last bits of a run depend on besides its settings."""
    device = "cpu" if on_cpu() else str(torch.accelerator.current_accelerator())
    return {"device": device, "threads": torch.get_num_threads(), "versions": versions()}


def versions() -> dict[str, str]:
    """Return the versions of what training stands on."""
    return {
        "sparse_serve": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            # The options go by the names of the command line.
            yield from _leaves(inner, prefix if name == "options" else f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner
