"""The same run with several attentions, and what each of them gave."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from sparse_export.checkpoint import load_config
from sparse_export.encoders.tokenizer import cut_length, load_tokenizer
from sparse_export.training.attentions import Attentions
from sparse_export.training.distributed import agreed, join_processes
from sparse_export.training.options import LOSS, PatternOptions, TrainingOptions
from sparse_export.training.partial import PartialRun, refuse_occupied
from sparse_export.training.records import TrainingRecord
from sparse_serve.errors import CheckpointError

Records = Mapping[str, TrainingRecord]
"""What was made, by the names of the runs."""

_SCHEMA_VERSION = 1


def runs_of(
    make_options: Callable[..., TrainingOptions],
    attentions: Attentions,
    learning: PatternOptions | None,
    dense_epochs: int | None,
) -> dict[str, TrainingOptions]:
    """Return the options of each run by its name.

    Args:
        make_options: makes the options of a run from `attention`, `learning` and `dense_epochs`.
        attentions: of the runs.
        learning: of those that learn a pattern.
        dense_epochs: of those that have one.

    Raises:
        OptionError: an option out of range, or one that none of the runs has a use for.
    """
    specs = attentions.by_name.values()
    # What no run can use is given to all of them, to be refused.
    none_learns = not any(spec.learns for spec in specs)
    none_has_pattern = all(spec.pattern is None for spec in specs)
    runs = {}
    for name, spec in attentions.by_name.items():
        runs[name] = make_options(
            attention=spec,
            learning=learning if none_learns or spec.learns else None,
            dense_epochs=dense_epochs if none_has_pattern or spec.pattern is not None else None,
        )
    return runs


def require_fitting(runs: Mapping[str, TrainingOptions], encoder: str) -> None:
    """Refuse a pattern that is larger than the texts of its run, before an earlier run has been trained.

    Raises:
        OptionError: there is one, or the texts are to be longer than the encoder has positions for.
        CheckpointError: the encoder cannot be loaded.
    """
    patterns = [(options.attention.pattern, options.max_length) for options in runs.values()]
    if all(pattern is None for pattern, _ in patterns):
        return
    revision = next(iter(runs.values())).revision
    config, tokenizer = load_config(encoder, revision), load_tokenizer(encoder, revision)
    for pattern, max_length in patterns:
        if pattern is not None:
            pattern.require_within(cut_length(config, tokenizer, max_length))


def sweep(
    runs: Mapping[str, TrainingOptions],
    train: Callable[[Path, TrainingOptions], TrainingRecord],
    output: Path,
    *,
    force: bool,
    resume: bool,
) -> dict[str, TrainingRecord]:
    """Make the checkpoint `output`, or where there are several runs one after the other, `output/NAME`.

    None is made if one would be refused its place. What was interrupted goes on with `resume`: finished
    checkpoints stay, the unfinished run continues.
    """
    folders = {name: output / name if len(runs) > 1 else output for name in runs}
    processes = join_processes()
    with agreed():
        if processes.is_main_process and not resume:
            for folder in folders.values():
                refuse_occupied(PartialRun(folder), force=force, resume=resume)
    return {name: train(folders[name], options) for name, options in runs.items()}


def write_sweep(records: Records, attentions: Attentions, output: Path) -> None:
    """Write `sweep.json`, and as `sweep.png` what the figure that chooses epochs is along a size or λ.

    Each is whole or as it was.

    Raises:
        CheckpointError: they cannot be written.
    """
    metrics = {name: {**record.metrics, LOSS: record.best.eval_loss} for name, record in records.items()}
    runs = {
        name: {
            "attention": asdict(record.options.attention),
            "metrics": metrics[name],
            "best_epoch": record.best_epoch,
            "rho": _mean(layer.rho for layer in record.layers),
            "support": _mean(layer.support for layer in record.layers),
        }
        for name, record in records.items()
    }
    curves = [asdict(curve) for curve in attentions.curves]
    written = {"schema_version": _SCHEMA_VERSION, "runs": runs, "curves": curves}
    folder = PartialRun(output).output
    try:
        with _replacing(folder / "sweep.json") as path:
            path.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        if attentions.curves:
            from sparse_export.training.sweep_picture import write_picture  # noqa: PLC0415  matplotlib

            metric = next(iter(records.values())).options.selection_metric
            values = {name: figures[metric] for name, figures in metrics.items()}
            with _replacing(folder / "sweep.png") as path:
                write_picture(attentions.curves, values, metric, path)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoints are made, but not what compares them: {error.strerror} ({folder})"
        ) from error


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Have a file be written beside `path`, and put in its place when it is whole."""
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield beside
        beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def sweep_tables(records: Records) -> Iterator[Table]:
    """Set the runs side by side: their figures, then ρ and keys per query by layer."""
    first = next(iter(records.values()))
    figures = Table(box=None, pad_edge=False)
    figures.add_column("attention")
    for column in (*first.metrics, LOSS, "epoch", "rho", "keys per query"):
        figures.add_column(column, justify="right")
    layers = Table(box=None, pad_edge=False, title="rho and keys per query, by layer", title_justify="left")
    layers.add_column("layer", justify="right")
    for name, record in records.items():
        best = record.best
        label = name.replace("_", " ")
        figures.add_row(
            label,
            *(f"{value:.4f}" for value in (*best.metrics.values(), best.eval_loss)),
            f"{best.epoch:.3g} of {record.epochs[-1].epoch:.3g}",
            *_sparsity(record),
        )
        layers.add_column(label, justify="right")
    yield figures
    sparse = [record for record in records.values() if record.layers]
    for number in range(len(sparse[0].layers) if sparse else 0):
        cells = (record.layers[number] if record.layers else None for record in records.values())
        layers.add_row(
            str(number + 1),
            *("-" if each is None else f"{each.rho:.3f} {each.support:6.1f}" for each in cells),
        )
    yield layers


def _sparsity(record: TrainingRecord) -> tuple[str, str]:
    rho, support = (_mean(getattr(layer, name) for layer in record.layers) for name in ("rho", "support"))
    return ("0.000", "all") if rho is None or support is None else (f"{rho:.3f}", f"{support:.1f}")


def _mean(values: Iterator[float]) -> float | None:
    """Return the mean over layers; None for softmax, whose layers are not measured."""
    found = list(values)
    return sum(found) / len(found) if found else None
