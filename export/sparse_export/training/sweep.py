"""The same run for several λ, and what each of them gave."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from sparse_export.checkpoint import AttentionSpec
from sparse_export.training.distributed import agreed, join_processes
from sparse_export.training.options import FinetuneOptions
from sparse_export.training.partial import PartialRun, refuse_occupied
from sparse_export.training.records import FinetuneRecord
from sparse_serve.errors import OptionError


def sweep_options(
    options: FinetuneOptions, lambdas: Sequence[float], output: Path
) -> dict[Path, FinetuneOptions]:
    """Return the options of each λ's run by its folder, `output/lambda_-4`.

    Raises:
        OptionError: a λ out of range or given twice.
    """
    runs = {
        output / f"lambda_{lambd:g}": replace(options, attention=AttentionSpec("sparsegen", lambd))
        for lambd in lambdas
    }
    if len(runs) < len(lambdas):
        raise OptionError(f"--lambda is {','.join(map('{:g}'.format, lambdas))}; give each λ once")
    return runs


def sweep(
    runs: dict[Path, FinetuneOptions],
    finetune: Callable[[Path, FinetuneOptions], FinetuneRecord],
    *,
    force: bool,
    resume: bool,
) -> list[FinetuneRecord]:
    """Make one checkpoint after the other, as `finetune` does; none if one would be refused its place.

    What was interrupted goes on with `resume`: finished checkpoints stay, the unfinished run continues.
    """
    processes = join_processes()
    with agreed():
        if processes.is_main_process and not resume:
            for folder in runs:
                refuse_occupied(PartialRun(folder), force=force, resume=resume)
    return [finetune(folder, options) for folder, options in runs.items()]


def sweep_tables(records: Sequence[FinetuneRecord]) -> Iterator[Table]:
    """Set the runs side by side: their figures, then ρ and support by layer."""
    figures = Table(box=None, pad_edge=False)
    for column in ("lambda", *records[0].metrics, "loss", "epoch", "rho", "keys per query"):
        figures.add_column(column, justify="right")
    for record in records:
        best = record.epochs[record.best_epoch - 1]
        count = len(record.layers)
        figures.add_row(
            f"{record.options.attention.lambd:g}",
            *(f"{value:.4f}" for value in (*best.metrics.values(), best.eval_loss)),
            f"{record.best_epoch} of {len(record.epochs)}",
            f"{sum(layer.rho for layer in record.layers) / count:.3f}",
            f"{sum(layer.support for layer in record.layers) / count:.1f}",
        )
    yield figures
    layers = Table(box=None, pad_edge=False, title="rho and keys per query, by layer", title_justify="left")
    layers.add_column("layer", justify="right")
    for record in records:
        layers.add_column(f"lambda {record.options.attention.lambd:g}", justify="right")
    for number, row in enumerate(zip(*(record.layers for record in records), strict=True), start=1):
        layers.add_row(str(number), *(f"{layer.rho:.3f} {layer.support:6.1f}" for layer in row))
    yield layers
