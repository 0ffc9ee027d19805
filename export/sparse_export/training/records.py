"""What is written about a run: beside the weights of its checkpoint as `finetune.json`."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from sparse_export.training.distributed import on_cpu
from sparse_export.training.options import FinetuneOptions
from sparse_serve import __version__

RECORD_NAME = "finetune.json"


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
    """Means over one epoch's training rows and over the evaluation rows after it.

    Losses are in nats, and mean squared errors for regression.
    """

    epoch: int
    train_loss: float
    eval_loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class LayerSparsity:
    """One layer's attention: `rho`, the share of weights that are zero, and `support`, keys per query."""

    rho: float
    support: float


@dataclass(frozen=True)
class RunSettings:
    """What decides the outcome of a run: where two agree in all of it, one can be finished for the other.

    Attributes:
        encoder: folder or hub id of the encoder.
        options: how to train.
        train: the training rows.
        evaluation: the rows that choose the best epoch.
        held_out: whether these are a share of the training source, taken out of training.
        processes: how many train together.
    """

    encoder: str
    options: FinetuneOptions
    train: DataRecord
    evaluation: DataRecord
    held_out: bool
    processes: int

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Tell in which settings a stored run, as parsed JSON, was another one: "epochs (4, now 5)"."""
        return differences(asdict(self), stored)


@dataclass(frozen=True)
class FinetuneRecord(RunSettings):
    """What made a checkpoint.

    Attributes:
        labels: names of the logits.
        max_length: tokens at which rows were cut.
        epochs: every epoch that was trained.
        best_epoch: the one whose weights the checkpoint has, from 1.
        layers: how sparse each layer attends on the evaluation rows; empty for softmax.
        seconds: of the last start of the run.
        device: what it ran on.
        threads: of each process.
        versions: of the packages it stands on.
    """

    labels: Sequence[str]
    max_length: int
    epochs: Sequence[EpochRecord]
    best_epoch: int
    layers: Sequence[LayerSparsity]
    seconds: float
    device: str
    threads: int
    versions: Mapping[str, str]
    schema_version: int = 2

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the best epoch."""
        return self.epochs[self.best_epoch - 1].metrics


def stored_settings(path: Path) -> Mapping[str, Any] | None:
    """Read settings or a record from JSON; None where there is none that can be read."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored if isinstance(stored, dict) else None


def differences(current: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Tell what of `current` was otherwise in `stored`, which is parsed JSON: "epochs (4, now 5)"."""
    now = dict(_leaves(json.loads(json.dumps(current))))
    before = dict(_leaves({name: stored.get(name) for name in current}))
    return [
        f"{name} ({before.get(name)}, now {now.get(name)})"
        for name in dict.fromkeys((*now, *before))
        if now.get(name) != before.get(name)
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
