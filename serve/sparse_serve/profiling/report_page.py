"""`report.html`: one self-contained page with plots, a reading in words, tables and the environment."""

from collections.abc import Iterator
from importlib.resources import files
from itertools import count, product
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from sparse_serve.profiling.reading import MIB, TITLES, attention_title, read_doubts, read_model
from sparse_serve.profiling.report import QUANTITIES, VARIANTS, Measurement, Report, Variant

TEMPLATE = "report.html.j2"

# Okabe and Ito's palette, which colour-blind readers can tell apart; one colour per variant everywhere.
COLORS: dict[Variant, str] = {
    "model": "#0072b2",
    "packed_dense": "#56b4e9",
    "padded_fused": "#009e73",
    "padded_eager": "#d55e00",
    "portable": "#8c8c8c",
    "text": "#e69f00",
}
_STEP_COLORS = {"fusion": "#009e73", "padding_removal": "#56b4e9", "sparsity": "#0072b2"}
_STEP_TITLES = {
    "fusion": "fusing (eager → fused)",
    "padding_removal": "packing (fused → packed dense)",
    "sparsity": "sparsity (packed dense → this model)",
}
_DASHES = ("solid", "dash", "dot", "dashdot")
_LENGTH_SHADES = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")


def write_page(report: Report, folder: Path) -> None:
    """Write `report.html` into an existing folder."""
    (folder / "report.html").write_text(to_html(report), encoding="utf-8")


def to_html(report: Report) -> str:
    """Return the report as one HTML page that needs nothing else, the network included."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["mib"] = lambda number: f"{number / MIB:,.1f}"
    environment.filters["percent"] = lambda share: "–" if share is None else f"{share:+.0%}"
    source = (files("sparse_serve") / "profiling" / "templates" / TEMPLATE).read_text(encoding="utf-8")
    numbers = count(1)

    def draw(figure: go.Figure | None) -> Markup:
        return Markup() if figure is None else _embed(figure, next(numbers))

    return environment.from_string(source).render(
        report=report,
        titles=TITLES,
        colors=COLORS,
        style=Markup((files("sparse_serve") / "page.css").read_text(encoding="utf-8")),
        plotly=Markup(get_plotlyjs()),
        readings={model: read_model(report, model) for model in report.models()},
        doubts=read_doubts(report),
        memory=draw(memory_figure(report)),
        latency=draw(latency_figure(report)),
        throughput=draw(throughput_figure(report)),
        splits={model: draw(split_figure(report, model)) for model in report.models()},
        sparsity={model: draw(sparsity_figure(report, model)) for model in report.models()},
        axes={model: draw(axes_figure(report, model)) for model in report.models()},
        attention={served.model: attention_title(served) for served in report.served},
    )


def memory_figure(report: Report) -> go.Figure:
    """Peak memory above idle against length, both logarithmic, with the theory for eager attention."""
    figure = _figure("length in tokens", "peak memory above idle, MiB")
    for model, variant, series, style in _lines(report):
        figure.add_scatter(
            x=[m.length for m in series],
            y=[m.memory_bytes.peak_above_idle / MIB or None for m in series],
            name=_name(report, model, variant),
            hovertemplate="%{y:.2f} MiB at %{x} tokens",
            **style,
        )
    for found in report.growth:
        lengths = _lengths(report)
        figure.add_scatter(
            x=lengths,
            y=[found.theory * length**2 / MIB for length in lengths],
            name="eager scores, theory",
            mode="lines",
            line={"color": COLORS["padded_eager"], "dash": "dot", "width": 1.5},
            hovertemplate="%{y:.2f} MiB at %{x} tokens",
        )
    _logarithmic(figure, report)
    return figure


def latency_figure(report: Report) -> go.Figure:
    """p50 latency against length, both logarithmic; whiskers reach p99."""
    figure = _figure("length in tokens", "latency p50, ms (whisker: p99)")
    for model, variant, series, style in _lines(report):
        figure.add_scatter(
            x=[m.length for m in series],
            y=[m.latency_ms.p50 for m in series],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [m.latency_ms.p99 - m.latency_ms.p50 for m in series],
                "arrayminus": [0] * len(series),
                "thickness": 1,
            },
            name=_name(report, model, variant),
            hovertemplate="%{y:.1f} ms at %{x} tokens",
            **style,
        )
    _logarithmic(figure, report)
    return figure


def throughput_figure(report: Report) -> go.Figure:
    """p50 latency against throughput along the concurrency: a curve per variant, for a chosen length."""
    figure = _figure("throughput, texts/s", "latency p50, ms")
    lengths, drawn = _lengths(report), []
    for length, (model, variant, _, style) in product(lengths, _lines(report)):
        sweep = report.sweep(model, variant, length)
        if sweep:
            drawn.append(length)
            figure.add_scatter(
                x=[m.texts_per_second for m in sweep],
                y=[m.latency_ms.p50 for m in sweep],
                text=[f"{m.concurrency} in flight<br>p99 {m.latency_ms.p99:.1f} ms" for m in sweep],
                name=_name(report, model, variant),
                hovertemplate="%{text}<br>%{x:.1f} texts/s, %{y:.1f} ms",
                visible=length == lengths[-1],
                **style,
            )
    buttons = [
        {
            "label": f"{length} tokens",
            "method": "restyle",
            "args": ["visible", [each == length for each in drawn]],
        }
        for length in lengths
    ]
    menu = {"type": "buttons", "direction": "right", "active": len(lengths) - 1, "buttons": buttons}
    place = {"x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "showactive": True}
    figure.update_layout(updatemenus=[menu | place], margin={"t": 60})
    figure.update_yaxes(type="log", **_decades([m.latency_ms.p50 for m in report.measurements]))
    figure.update_xaxes(type="log", **_decades([m.texts_per_second for m in report.measurements]))
    return figure


def sparsity_figure(report: Report, model: str) -> go.Figure | None:
    """ρ by layer, a line per length; None where it was not measured."""
    series = [m for m in report.series(model, "model") if m.sparsity is not None]
    if not series:
        return None
    figure = _figure("layer", "ρ: weights that are exactly zero, %")
    for shade, measurement in zip(_shades(len(series)), series, strict=True):
        if measurement.sparsity is not None:
            layers = list(range(1, len(measurement.sparsity.rho) + 1))
            figure.add_scatter(
                x=layers,
                y=[100 * rho for rho in measurement.sparsity.rho],
                text=[f"{kept:.1f} keys kept" for kept in measurement.sparsity.keys_kept],
                name=f"{measurement.length} tokens",
                mode="lines+markers",
                line={"color": shade},
                hovertemplate="%{y:.1f} %, %{text}",
            )
    figure.update_xaxes(dtick=1)
    figure.update_yaxes(range=[0, 102])
    figure.update_layout(showlegend=True)
    return figure


def axes_figure(report: Report, model: str) -> go.Figure | None:
    """Rows and columns that are on by layer, a line per length; None where attention has no axes."""
    series = [
        (measurement.length, measurement.sparsity.axes)
        for measurement in report.series(model, "model")
        if measurement.sparsity is not None and measurement.sparsity.axes is not None
    ]
    if not series:
        return None
    figure = make_subplots(rows=1, cols=2, subplot_titles=("rows on, % of tokens", "columns on, % of tokens"))
    for shade, (length, axes) in zip(_shades(len(series)), series, strict=True):
        by_axis = ((axes.rows_on, axes.rows_on_count), (axes.columns_on, axes.columns_on_count))
        for column, (shares, counts) in enumerate(by_axis, start=1):
            figure.add_scatter(
                x=list(range(1, len(shares) + 1)),
                y=[100 * share for share in shares],
                text=[f"{found:.1f}" for found in counts],
                name=f"{length} tokens",
                legendgroup=f"{length}",
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": shade},
                hovertemplate="%{y:.2f} %: %{text} of them",
                row=1,
                col=column,
            )
    _style(figure)
    figure.update_layout(margin={"l": 50, "r": 20, "t": 40, "b": 55}, showlegend=True)
    figure.update_xaxes(title="layer", dtick=1)
    figure.update_yaxes(rangemode="tozero")
    return figure


def split_figure(report: Report, model: str) -> go.Figure | None:
    """What each step from padded eager attention to this model saves; None where no step was measured."""
    if not any(split.model == model for split in report.splits):
        return None
    titles = ("peak memory above idle saved, MiB", "p50 latency saved, ms")
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=0.09)
    for column, quantity in enumerate(QUANTITIES, start=1):
        point = (model, quantity, report.lightest)
        found = [
            split for split in report.splits if (split.model, split.quantity, split.concurrency) == point
        ]
        unit = MIB if quantity == "memory_bytes" else 1
        for step, title in _STEP_TITLES.items():
            values = [getattr(split, step) for split in found]
            if any(value is not None for value in values):
                figure.add_bar(
                    x=[f"{split.length}" for split in found],
                    y=[None if value is None else value / unit for value in values],
                    name=title,
                    legendgroup=step,
                    showlegend=column == 1,
                    marker_color=_STEP_COLORS[step],
                    hovertemplate="%{y:.2f} at %{x} tokens",
                    row=1,
                    col=column,
                )
    _style(figure)
    figure.update_layout(barmode="group", margin={"l": 50, "r": 20, "t": 60, "b": 55})
    figure.update_xaxes(title="length in tokens", type="category")
    figure.update_yaxes(zeroline=True, zerolinecolor="#888")
    return figure


def _lines(report: Report) -> Iterator[tuple[str, Variant, list[Measurement], dict[str, Any]]]:
    """Yield what each line of a plot over lengths shows, and how it is drawn."""
    for number, model in enumerate(report.models()):
        for variant in VARIANTS:
            if series := report.series(model, variant):
                width = 3 if variant == "model" else 2
                dash = _DASHES[number % len(_DASHES)]
                line = {"color": COLORS[variant], "width": width, "dash": dash}
                yield model, variant, series, {"mode": "lines+markers", "line": line, "marker": {"size": 7}}


def _name(report: Report, model: str, variant: Variant) -> str:
    title = TITLES[variant]
    return title if len(report.models()) == 1 else f"{model}: {title}"


def _figure(x_title: str, y_title: str) -> go.Figure:
    figure = go.Figure()
    _style(figure)
    figure.update_xaxes(title=x_title)
    figure.update_yaxes(title=y_title)
    return figure


def _style(figure: go.Figure) -> None:
    figure.update_layout(
        template="plotly_white",
        height=430,
        margin={"l": 70, "r": 20, "t": 20, "b": 55},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#222"},
        legend={"orientation": "h", "y": -0.22, "yanchor": "top"},
        hoverlabel={"namelength": -1},
    )


def _lengths(report: Report) -> list[int]:
    return sorted({measurement.length for measurement in report.measurements})


def _logarithmic(figure: go.Figure, report: Report) -> None:
    lengths = _lengths(report)
    figure.update_xaxes(type="log", tickvals=lengths, ticktext=[str(length) for length in lengths])
    drawn = [value for trace in figure.data for value in trace.y if value]
    figure.update_yaxes(type="log", **_decades(drawn))


def _decades(values: list[float]) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 of every decade, written out: plotly's own lose the decade."""
    positive = [value for value in values if value > 0]
    if not positive:
        return {}
    ticks = [base * 10.0**power for power in range(-3, 8) for base in (1, 2, 5)]
    shown = [tick for tick in ticks if min(positive) / 3 <= tick <= max(positive) * 3]
    return {"tickvals": shown, "ticktext": [f"{tick:,.10g}" for tick in shown]}


def _shades(number: int) -> list[str]:
    last = len(_LENGTH_SHADES) - 1
    return [_LENGTH_SHADES[round(last * (index + 1) / number)] for index in range(number)]


def _embed(figure: go.Figure, number: int) -> Markup:
    # plotly escapes <, > and / in its JSON, so that no name can end the script element.
    return Markup(
        figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"figure-{number}",
            config={"displaylogo": False, "responsive": True},
        )
    )
