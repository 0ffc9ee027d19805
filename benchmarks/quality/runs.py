"""The runs of the quality benchmarks: how they are trained, what is told of each, and their means."""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from rich.console import Console

from sparse_export.training import FinetuneOptions, FinetuneRecord, TrainingOptions, TrainingRecord, finetune
from sparse_serve.digests import file_digest

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from environment import columns

Run = Mapping[str, str]

_SETTINGS = ("max_train_rows", "epochs", "learning_rate", "batch_size", "from_scratch")


def settings(options: TrainingOptions) -> dict[str, str]:
    """What all runs of one file have in common."""
    return {name: str(getattr(options, name) or "") for name in _SETTINGS}


def inputs(setting: TrainingOptions, encoder: Path, train: Path, dev: Path) -> dict[str, str]:
    """What all runs of one file are made of, as `provenance` tells it."""
    return {
        "encoder_sha256": _encoder_digest(setting, encoder),
        "train_sha256": file_digest(train),
        "dev_sha256": file_digest(dev),
    }


def _encoder_digest(setting: TrainingOptions, encoder: Path) -> str:
    # Random weights are the seed's, whatever lies beside the architecture.
    return "" if setting.from_scratch else file_digest(encoder / "model.safetensors")


def refuse_other_settings(path: Path, runs: Sequence[Run], setting: TrainingOptions, **others: str) -> None:
    """End where the runs that are there already were made in another way than those to come."""
    for option, wanted in (settings(setting) | others).items():
        for run in runs:
            if run[option] != wanted:
                raise SystemExit(
                    f"{path} has runs with {option} {run[option] or 'none'}, now {wanted or 'none'}: "
                    "choose another --name or --results"
                )


def head(path: Path, rows: int | None, folder: Path) -> Path:
    """The first rows of a file, as a file."""
    if rows is None:
        return path
    part = folder / path.name
    part.write_text("".join(file_lines(path)[: rows + 1]), encoding="utf-8")
    return part


def file_lines(path: Path) -> list[str]:
    """The lines of a file of rows, which end where the package has them end."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return list(file)


def train_each(
    wanted: Mapping[tuple[str, str], FinetuneOptions],
    done: Collection[tuple[str, str]],
    encoder: Path,
    train: Path,
    dev: Path,
    checkpoint: Path,
) -> Iterator[tuple[str, FinetuneRecord]]:
    """Fine-tune what is wanted, by name and seed, and not done; yield each name and record.

    The checkpoint is there until the next one takes its place.
    """
    console = Console(stderr=True)
    for (name, seed), options in wanted.items():
        if (name, seed) in done:
            continue
        console.print(f"{train.parent.name}: {name}, seed {seed}")
        record = finetune(encoder, train, checkpoint, options, evaluation=dev, force=True, console=console)
        yield name, record


def provenance(record: TrainingRecord, encoder: Path) -> dict[str, str]:
    """How a run was made, and on what."""
    told = {
        "best_epoch": record.best_epoch,
        "seconds": record.seconds,
        "rows": record.train.rows,
        "dev_rows": record.evaluation.rows,
        **settings(record.options),
        **columns("cpu"),
        "device": record.device,
        "threads": record.threads,
        **columns("system"),
        **record.versions,
        "encoder_sha256": _encoder_digest(record.options, encoder),
        "train_sha256": record.train.sha256,
        "dev_sha256": record.evaluation.sha256,
    }
    return {column: str(value) for column, value in told.items()}


def interval(name: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, str]:
    """The mean of a figure over seeds and its 95 % interval (Student's t)."""
    margin = np.nan
    if len(values) > 1:
        margin = scipy.stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    figures = {
        name: values.mean(),
        f"{name}_low": values.mean() - margin,
        f"{name}_high": values.mean() + margin,
    }
    return {column: f"{figure:.4f}" for column, figure in figures.items()}
