"""The plots of a report, each drawn from the report alone; None where there is nothing to draw."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from sparse_serve.report.concluded import BASELINES, Quantity, Saving
from sparse_serve.report.document import Report
from sparse_serve.report.estimates import Estimate
from sparse_serve.report.measured import VARIANTS, Measurement, Variant
from sparse_serve.report.svg import INK, MUTED, PAPER, Drawing, draw
from sparse_serve.report.titles import (
    MIB,
    PART_TITLES,
    QUANTITY_TITLES,
    STEP_TITLES,
    TITLES,
    change_of,
    load_title,
    quality_title,
    step_of,
    time_parts,
)

# Okabe and Ito's palette, which colour-blind readers can tell apart; one colour per variant everywhere.
COLORS: dict[Variant, str] = {
    "model": "#0072b2",
    "control": "#cc79a7",
    "packed_dense": "#56b4e9",
    "padded_fused": "#009e73",
    "padded_eager": "#d55e00",
    "padded_sparse": "#f0e442",
    "portable": "#8c8c8c",
    "text": "#e69f00",
}
_STEP_COLORS = {"fusion": "#009e73", "packing": "#56b4e9", "precision": "#e69f00", "sparsity": "#0072b2"}
_PART_COLORS = dict(
    zip(
        PART_TITLES,
        ("#f0e442", "#e69f00", "#d55e00", "#cc79a7", "#0072b2", "#56b4e9", "#8c8c8c"),
        strict=True,
    )
)
_DASHES = ("-", "--", ":", "-.")
_LENGTH_SHADES = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")
_BAR = 0.8


def savings_figure(report: Report, model: str, quantity: Quantity) -> Markup | None:
    """What the model saves of a quantity against each dense baseline, by length; what is noise is grey."""
    found = [
        (saving, change)
        for saving in report.savings
        if saving.model == model
        and (saving.concurrency, saving.request_rate) == report.lightest
        and (change := change_of(saving, quantity)) is not None
    ]
    if not found:
        return None
    baselines = [
        baseline for baseline in BASELINES if any(saving.baseline == baseline for saving, _ in found)
    ]
    lengths = sorted({saving.length for saving, _ in found})
    width = _BAR / len(baselines)
    title = f"{QUANTITY_TITLES[quantity]} that {model} saves"

    def place(saving: Saving) -> float:
        column = baselines.index(saving.baseline) - (len(baselines) - 1) / 2
        return lengths.index(saving.length) + column * width

    def paint(drawing: Drawing) -> None:
        axes = drawing.axes
        for saving, change in found:
            x, y = place(saving), 100 * change.saved
            bar = _bar(axes, x, y, width, COLORS[saving.baseline], is_noise=change.is_noise)
            bounds = ""
            if change.low is not None and change.high is not None:
                low, high = 100 * change.low, 100 * change.high
                axes.plot([x, x], [low, high], color=INK, lw=1, zorder=3)
                bounds = f", 95 %: {low:+.1f} to {high:+.1f} %"
            verdict = ": noise" if change.is_noise else ""
            against = TITLES[saving.baseline]
            drawing.tip(bar, f"against {against}, {saving.length} tokens: {y:+.1f} % saved{bounds}{verdict}")
        for baseline in baselines:
            axes.bar(0, 0, color=COLORS[baseline], label=f"against {TITLES[baseline]}")
        if any(change.is_noise for _, change in found):
            axes.bar(0, 0, color=MUTED, hatch="///", edgecolor=PAPER, lw=0, label="noise")
        noise = report.noise_of(model, quantity, report.lightest)
        if noise is not None:
            axes.axhspan(-100 * noise, 100 * noise, color=MUTED, alpha=0.25, lw=0, zorder=0)
        axes.axhline(0, color=INK, lw=0.8)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
        axes.set_xlabel("length in tokens")
        axes.set_ylabel("saved, %")
        axes.set_title(QUANTITY_TITLES[quantity])
        drawing.legend()

    return draw(paint, title)


def length_figure(report: Report, quantity: Quantity) -> Markup | None:
    """Latency or memory against length, both logarithmic; crosses are what theory expects of memory."""
    lines = list(_lines(report, quantity))
    if not lines:
        return None

    def paint(drawing: Drawing) -> None:
        axes = drawing.axes
        unit = 1 if quantity == "latency_ms" else MIB
        for title, variant, dash, series in lines:
            points = [(m, found) for m in series if (found := _estimate(m, quantity)) and found.value > 0]
            xs = [m.length for m, _ in points]
            axes.plot(
                xs,
                [estimate.value / unit for _, estimate in points],
                color=COLORS[variant],
                ls=dash,
                lw=2.2 if variant == "model" else 1.4,
                label=title,
            )
            for m, estimate in points:
                _dot(drawing, m, estimate, unit, f"{title}, {m.length} tokens", quantity)
        if quantity == "memory_bytes":
            for theory in report.expected:
                if any(theory.variant == variant for _, variant, _, _ in lines):
                    expects = (theory.activations + theory.scores) / MIB
                    (cross,) = axes.plot(
                        theory.length,
                        expects,
                        "x",
                        color=COLORS[theory.variant],
                        ms=6,
                        label="× as theory expects",
                    )
                    what = f"{TITLES[theory.variant]}, {theory.length} tokens, in theory: {expects:.1f} MiB"
                    drawing.tip(cross, f"{what}, of which scores {theory.scores / MIB:.1f}")
        axes.set_xlabel("length in tokens")
        axes.set_ylabel("ms" if quantity == "latency_ms" else "MiB")
        axes.set_title(QUANTITY_TITLES[quantity])
        _logarithmic(axes, report.lengths())
        drawing.legend()

    return draw(paint, f"{QUANTITY_TITLES[quantity]} against length")


def _dot(
    drawing: Drawing, m: Measurement, estimate: Estimate, unit: float, name: str, quantity: Quantity
) -> None:
    """Draw a point of a variant with its interval, hollow where it was unstable."""
    is_doubtful = quantity == "latency_ms" and not m.stable
    color = MUTED if is_doubtful else COLORS[m.variant]
    name_of_unit = "ms" if quantity == "latency_ms" else "MiB"
    bounds = ""
    if estimate.low is not None and estimate.high is not None:
        low, high = estimate.low / unit, estimate.high / unit
        drawing.axes.plot([m.length, m.length], [low, high], color=color, lw=1)
        bounds = f", 95 %: {low:.2f} to {high:.2f}"
    (dot,) = drawing.axes.plot(
        m.length, estimate.value / unit, "o", color=color, mfc=PAPER if is_doubtful else color, ms=5
    )
    unstable = ", not stable" if is_doubtful else ""
    drawing.tip(dot, f"{name}: {estimate.value / unit:.2f} {name_of_unit}{bounds}{unstable}")


def composition_figure(report: Report, model: str) -> Markup | None:
    """What the servers hold in total at the longest length, beside what theory expects, by variant."""
    length = report.longest(model)
    rows = [
        (variant, m.memory_bytes)
        for variant in VARIANTS
        if variant != "control"
        and (m := report.at(model, variant, length, report.lightest)) is not None
        and m.memory_bytes is not None
    ]
    if not rows:
        return None
    theory = {each.variant: each for each in report.expected if (each.model, each.length) == (model, length)}
    weight, activation, score = "#b08968", "#56b4e9", "#d55e00"

    def paint(drawing: Drawing) -> None:
        axes = drawing.axes

        def segment(y: float, left: float, size: float, color: str, what: str) -> float:
            (bar,) = axes.barh(y, size / MIB, 0.34, left=left / MIB, color=color, lw=0)
            drawing.tip(bar, f"{what}: {size / MIB:.1f} MiB")
            return left + size

        for row, (variant, memory) in enumerate(rows):
            name = TITLES[variant]
            left = segment(row - 0.19, 0, memory.at_rest.value, MUTED, f"{name}, at rest, measured")
            segment(
                row - 0.19, left, memory.above_idle.value, COLORS[variant], f"{name}, above idle, measured"
            )
            if variant in theory:
                each = theory[variant]
                left = segment(row + 0.19, 0, each.weights, weight, f"{name}, weights, in theory")
                left = segment(
                    row + 0.19, left, each.activations, activation, f"{name}, activations, in theory"
                )
                segment(row + 0.19, left, each.scores, score, f"{name}, scores, in theory")
        for color, label in (
            (MUTED, "measured: at rest"),
            (COLORS["model"], "measured: above idle"),
            (weight, "theory: weights"),
            (activation, "theory: activations"),
            (score, "theory: N² scores"),
        ):
            axes.barh(0, 0, color=color, label=label)
        axes.set_yticks(range(len(rows)), [TITLES[variant] for variant, _ in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("MiB")
        axes.set_title(f"Memory in total at {length} tokens")
        drawing.legend()

    return draw(paint, f"memory of {model} in total and in theory", height=1.6 + 0.55 * len(rows))


def throughput_figure(report: Report, length: int) -> Markup | None:
    """p50 latency against throughput along the load at one length: a curve per variant and kind of load."""
    curves = [
        (f"{_name(report, model, variant)}{', open loop' if is_open else ''}", variant, is_open, sweep)
        for model in report.models()
        for variant in VARIANTS
        if variant != "control"
        for is_open in (False, True)
        if len(sweep := report.sweep(model, variant, length, is_open=is_open)) > (0 if is_open else 1)
    ]
    if not curves:
        return None

    def paint(drawing: Drawing) -> None:
        axes = drawing.axes
        for title, variant, is_open, sweep in curves:
            color = COLORS[variant]
            xs = [m.texts_per_second.value for m in sweep]
            ys = [m.latency_ms.p50.value for m in sweep]
            axes.plot(xs, ys, color=color, ls="--" if is_open else "-", lw=1.4, label=title)
            for m, x, y in zip(sweep, xs, ys, strict=True):
                fill = color if m.stable else PAPER
                (dot,) = axes.plot(
                    x, y, "s" if is_open else "o", color=color if m.stable else MUTED, mfc=fill, ms=5
                )
                p99 = "" if m.latency_ms.p99 is None else f", p99 {m.latency_ms.p99.value:.1f} ms"
                unstable = "" if m.stable else ", not stable"
                drawing.tip(dot, f"{title}, {load_title(m.load)}: {x:.1f} texts/s, {y:.1f} ms{p99}{unstable}")
        axes.set_xlabel("throughput, texts/s")
        axes.set_ylabel("p50 latency, ms")
        axes.set_title(f"Latency against throughput, {length} tokens")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        drawing.legend()

    return draw(paint, f"latency against throughput at {length} tokens")


def time_figure(report: Report, model: str) -> Markup | None:
    """Where the mean latency of each variant goes, at the longest length and lowest load."""
    length = report.longest(model)
    rows = [
        (variant, time_parts(m.breakdown_us))
        for variant in VARIANTS
        if variant not in ("control", "portable")
        and (m := report.at(model, variant, length, report.lightest)) is not None
        and m.breakdown_us is not None
    ]
    if not rows:
        return None

    def paint(drawing: Drawing) -> None:
        axes = drawing.axes
        for row, (variant, parts) in enumerate(rows):
            left = 0.0
            for name, ms in parts.items():
                (bar,) = axes.barh(
                    row, ms, 0.6, left=left, color=_PART_COLORS[name], label=PART_TITLES[name], lw=0
                )
                drawing.tip(bar, f"{TITLES[variant]}, {PART_TITLES[name]}: {ms:.2f} ms")
                left += ms
        axes.set_yticks(range(len(rows)), [TITLES[variant] for variant, _ in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("ms")
        axes.set_title(f"Where the time goes at {length} tokens")
        drawing.legend()

    return draw(paint, f"where the time of {model} goes", height=1.9 + 0.4 * len(rows))


def split_figure(report: Report, model: str, quantity: Quantity) -> Markup | None:
    """What each step from padded eager attention to this model saves, by length; what is noise is grey."""
    found = [
        split
        for split in report.splits
        if (split.model, split.quantity, (split.concurrency, split.request_rate))
        == (model, quantity, report.lightest)
    ]
    steps = [name for name in STEP_TITLES if any(step_of(split, name) for split in found)]
    if not steps:
        return None
    width, unit = _BAR / len(steps), 1 if quantity == "latency_ms" else MIB

    def paint(drawing: Drawing) -> None:
        axes = drawing.axes
        name_of_unit = "ms" if quantity == "latency_ms" else "MiB"
        for place, split in enumerate(found):
            for number, name in enumerate(steps):
                step = step_of(split, name)
                if step is None:
                    continue
                x, y = place + (number - (len(steps) - 1) / 2) * width, step.saved / unit
                bar = _bar(axes, x, y, width, _STEP_COLORS[name], is_noise=step.is_noise)
                if step.low is not None and step.high is not None:
                    axes.plot([x, x], [step.low / unit, step.high / unit], color=INK, lw=1, zorder=3)
                verdict = ": noise" if step.is_noise else ""
                drawing.tip(
                    bar, f"{STEP_TITLES[name]}, {split.length} tokens: {y:+.2f} {name_of_unit}{verdict}"
                )
        for name in steps:
            axes.bar(0, 0, color=_STEP_COLORS[name], label=STEP_TITLES[name])
        axes.axhline(0, color=INK, lw=0.8)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(found)), [str(split.length) for split in found])
        axes.set_xlabel("length in tokens")
        axes.set_ylabel(f"saved, {name_of_unit}")
        axes.set_title(QUANTITY_TITLES[quantity])
        drawing.legend(columns=1)

    return draw(paint, f"steps to {model} in {QUANTITY_TITLES[quantity]}", height=3.9)


def sparsity_figure(report: Report, model: str) -> Markup | None:
    """ρ by layer, a line per length."""
    series = [(m.length, m.sparsity) for m in report.series(model, "model") if m.sparsity is not None]
    lines = [
        (
            length,
            [100 * rho for rho in sparsity.rho],
            [f"{kept:.1f} keys kept" for kept in sparsity.keys_kept],
        )
        for length, sparsity in series
    ]
    return _by_layer(lines, "ρ: weights that are exactly zero, %", most=102) if lines else None


def axes_figure(report: Report, model: str, *, rows: bool) -> Markup | None:
    """Rows or columns that are on by layer, a line per length; None where attention has no axes."""
    series = [
        (m.length, m.sparsity.axes)
        for m in report.series(model, "model")
        if m.sparsity is not None and m.sparsity.axes is not None
    ]
    lines = [
        (
            length,
            [100 * share for share in (axes.rows_on if rows else axes.columns_on)],
            [f"{found:.1f} of them" for found in (axes.rows_on_count if rows else axes.columns_on_count)],
        )
        for length, axes in series
    ]
    return _by_layer(lines, f"{'rows' if rows else 'columns'} on, % of tokens") if lines else None


def _by_layer(
    lines: Sequence[tuple[int, list[float], list[str]]], title: str, most: float | None = None
) -> Markup:
    def paint(drawing: Drawing) -> None:
        axes = drawing.axes
        for shade, (length, values, told) in zip(_shades(len(lines)), lines, strict=True):
            layers = range(1, len(values) + 1)
            axes.plot(layers, values, color=shade, lw=1.6, label=f"{length} tokens")
            for layer, share, more in zip(layers, values, told, strict=True):
                (dot,) = axes.plot(layer, share, "o", color=shade, ms=5)
                drawing.tip(dot, f"layer {layer}, {length} tokens: {share:.2f} %, {more}")
        axes.set_xticks(range(1, max(len(values) for _, values, _ in lines) + 1))
        axes.set_xlabel("layer")
        axes.set_title(title)
        axes.set_ylim(0, most)
        drawing.legend()

    return draw(paint, f"{title} by layer")


def inputs_figure(report: Report, model: str) -> Markup | None:
    """The distribution of the texts' true lengths; None where they were all cut to a few."""
    lengths = [length for each in report.inputs if each.model == model for length in each.row_lengths]
    if len(set(lengths)) < 12:
        return None

    def paint(drawing: Drawing) -> None:
        counts, edges, bars = drawing.axes.hist(lengths, bins=24, color=COLORS["model"], rwidth=0.92)
        for number, bar in enumerate(bars):  # type: ignore[arg-type]
            span = f"{edges[number]:.0f} to {edges[number + 1]:.0f} tokens"
            drawing.tip(bar, f"{span}: {counts[number]:.0f} texts")
        drawing.axes.set_xlabel("length of a text in tokens")
        drawing.axes.set_ylabel("texts")

    return draw(paint, f"lengths of the texts sent to {model}", height=2.6)


def trade_figure(report: Report, quantity: Quantity) -> Markup | None:
    """Quality of the models against memory or latency; who is dominated is grey."""
    points = [
        (point, x, point.quality)
        for point in report.trade
        if (x := point.latency_ms if quantity == "latency_ms" else point.total_memory) is not None
        and point.quality is not None
    ]
    if not points:
        return None
    unit = 1 if quantity == "latency_ms" else MIB

    def paint(drawing: Drawing) -> None:
        axes = drawing.axes
        for point, x, y in points:
            color = MUTED if point.dominated_by else COLORS["model"]
            (dot,) = axes.plot(x / unit, y, "o", color=color, ms=7)
            axes.annotate(point.model, (x / unit, y), xytext=(6, 4), textcoords="offset points", color=INK)
            worse = f"; dominated by {', '.join(point.dominated_by)}" if point.dominated_by else ""
            cost = f"{x / unit:.1f} {'ms' if unit == 1 else 'MiB'}"
            drawing.tip(dot, f"{point.model}: {cost}, {point.metric} {y:.4f}{worse}")
        axes.margins(0.2)
        axes.set_ylabel(quality_title(report) or "quality")
        axes.set_xlabel("p50 latency, ms" if unit == 1 else "peak memory in total, MiB")
        axes.set_title(f"{points[0][0].length} tokens")

    return draw(paint, f"quality against {QUANTITY_TITLES[quantity]}")


def _bar(axes: Axes, x: float, y: float, width: float, color: str, *, is_noise: bool) -> Rectangle:
    """Draw one of several bars side by side; grey and hatched where it is noise."""
    drawn = axes.bar(
        x,
        y,
        0.92 * width,
        color=MUTED if is_noise else color,
        hatch="///" if is_noise else None,
        edgecolor=PAPER,
        lw=0,
    )
    return drawn.patches[0]


def _lines(report: Report, quantity: Quantity) -> Iterator[tuple[str, Variant, str, list[Measurement]]]:
    """Yield what each line of a plot over lengths is called, its variant, dash and measurements."""
    for number, model in enumerate(report.models()):
        for variant in VARIANTS:
            series = report.series(model, variant)
            drawn = [found.value > 0 for m in series if (found := _estimate(m, quantity)) is not None]
            if any(drawn) and variant != "control":
                yield _name(report, model, variant), variant, _DASHES[number % len(_DASHES)], series


def _estimate(measurement: Measurement, quantity: Quantity) -> Estimate | None:
    if quantity == "latency_ms":
        return measurement.latency_ms.p50
    memory = measurement.memory_bytes
    if memory is None:
        return None
    return memory.above_idle if quantity == "memory_bytes" else memory.total


def _name(report: Report, model: str, variant: Variant) -> str:
    title = TITLES[variant]
    return title if len(report.models()) == 1 else f"{model}: {title}"


def _logarithmic(axes: Axes, lengths: Sequence[int]) -> None:
    """Scale both axes by logarithms, with ticks at the lengths and at 1, 2 and 5 of every decade."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    low, high = axes.get_ylim()
    ticks = [base * 10.0**power for power in range(-4, 9) for base in (1, 2, 5)]
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())


def _plain(number: float, _place: int | None = None) -> str:
    return f"{number:,.10g}"


def _shades(number: int) -> list[str]:
    last = len(_LENGTH_SHADES) - 1
    return [_LENGTH_SHADES[round(last * (index + 1) / number)] for index in range(number)]
