"""A picture of a sweep: a figure against the size of a pattern, or against λ (the AAA paper, Figure 2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from sparse_export.training.attentions import Curve

_SIZE = (6.4, 4.0)  # inches
_DPI = 150
# Beyond this ratio of the largest size to the smallest, each doubling is one step of the abscissa.
_LINEAR = 8


def write_picture(curves: Sequence[Curve], values: Mapping[str, float], metric: str, path: Path) -> None:
    """Draw the curves of a sweep and write them as PNG.

    Args:
        curves: which runs are one another's neighbours; the others become lines across.
        values: the figure of each run.
        metric: what the figure is.
        path: of the PNG.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        points = sorted(curve.runs.items())
        label = f"{curve.varies} {f'with {curve.label}' if curve.label else 'alone'}"
        axes.plot([size for size, _ in points], [values[name] for _, name in points], marker="o", label=label)
    drawn = {name for curve in curves for name in curve.runs.values()}
    for number, name in enumerate(name for name in values if name not in drawn):
        axes.axhline(values[name], color="#666666", linestyle=("--", ":", "-.")[number % 3], label=name)
    sizes = sorted({size for curve in curves for size in curve.runs})
    if sizes[0] >= 0 and sizes[-1] > _LINEAR * max(1, sizes[0]):
        if sizes[0] > 0:
            axes.set_xscale("log", base=2)
        else:  # linear up to 1, so that 0 has a place
            axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    kinds = list(dict.fromkeys(curve.varies for curve in curves))
    axes.set_xlabel("λ" if kinds == ["lambda"] else f"size of the {' or '.join(kinds)} pattern")
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    if len(curves) > 1 or len(drawn) < len(values):
        axes.legend()
    figure.savefig(path, dpi=_DPI, facecolor="white")
