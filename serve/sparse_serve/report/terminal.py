"""A report on a terminal: the sentence, and a table of what was measured."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparse_serve.errors import in_brief
from sparse_serve.report.comparison import Comparison, Difference
from sparse_serve.report.concluded import Change
from sparse_serve.report.document import Report
from sparse_serve.report.headline import headline
from sparse_serve.report.measured import Measurement
from sparse_serve.report.titles import MIB, TITLES, load_title

_GREY = "grey50"
_VERDICTS = {"better": "green", "worse": "bold red", "gone": "bold red", "new": "cyan", "noise": _GREY}


def show_report(report: Report, console: Console) -> None:
    """Print the headline of each model, and its measurements at the lowest load beside what it saves."""
    if report.partial is not None:
        console.print(Text(f"A part of a report: {report.partial}.", style="bold red"))
    for model in report.models():
        console.print(Text(headline(report, model)))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("model", "variant"):
        table.add_column(title)
    for title in (
        "tokens",
        "p50 ms",
        "p99 ms",
        "texts/s",
        "MiB above idle",
        "MiB in total",
        "time",
        "memory",
    ):
        table.add_column(title, justify="right")
    for measurement in report.measurements:
        if measurement.load == report.lightest:
            table.add_row(*_row(report, measurement), style="" if measurement.stable else _GREY)
    console.print(table)
    for failure in report.failures:
        where = "" if failure.length is None else f", {failure.length} tokens"
        what = f"{failure.model}, {TITLES[failure.variant]}{where}: failed in round {failure.round}"
        console.print(Text(f"{what} ({failure.stage}): {failure.reason}", style="red"))
    console.print(
        Text(
            f"{load_title(report.lightest)}; time and memory (in total): what the model saves against that "
            "row, or noise; ~ was not stable",
            style=_GREY,
        )
    )
    if report.pick is not None:
        console.print(Text(f"{report.pick.model or 'none'}: {report.pick.reason}"))
        for line in (report.pick.export, report.pick.serve):
            if line:
                console.print(Text(f"  {line}"), soft_wrap=True)


def _row(report: Report, m: Measurement) -> Iterator[Text | str]:
    p50 = f"{'' if m.stable else '~'}{m.latency_ms.p50.value:.2f}"
    yield from (Text(in_brief(m.model)), TITLES[m.variant], str(m.length), p50)
    yield "–" if m.latency_ms.p99 is None else f"{m.latency_ms.p99.value:.2f}"
    yield f"{m.texts_per_second.value:.1f}"
    memory = m.memory_bytes
    yield "–" if memory is None else f"{memory.above_idle.value / MIB:.1f}"
    yield "–" if memory is None else f"{memory.total.value / MIB:.1f}"
    saving = next(
        (
            each
            for each in report.savings
            if (each.model, each.baseline, each.length, (each.concurrency, each.request_rate))
            == (m.model, m.variant, m.length, m.load)
        ),
        None,
    )
    yield _change(saving.latency if saving else None)
    yield _change(saving.total_memory if saving else None)


def _change(change: Change | None) -> Text:
    if change is None:
        return Text("")
    saved = f"{round(change.saved, 2) + 0.0:+.0%}"
    if change.is_noise:  # in a log there are no colours
        return Text(f"noise {saved}", style=_GREY)
    return Text(saved, style="green" if change.saved > 0 else "red")


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print what changed, and how much could not be told from noise."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("what", "figure"):
        table.add_column(title)
    for title in ("before", "after", "change", "95 %"):
        table.add_column(title, justify="right")
    table.add_column("")
    changed = [each for each in comparison.differences if each.verdict != "noise"]
    for each in changed:
        table.add_row(*_difference_row(each))
    if changed:
        console.print(table)
    console.print(
        f"{len(changed)} of {len(comparison.differences)} figures changed beyond noise, "
        f"{len(comparison.regressions)} for the worse",
        highlight=False,
    )


def _difference_row(each: Difference) -> Iterator[Text | str]:
    yield from (Text(in_brief(each.what)), Text(in_brief(each.figure)))
    for number in (each.before, each.after):
        yield "–" if number is None else f"{number:,.4g}" if abs(number) < 1e5 else f"{number:,.0f}"
    yield "–" if each.change is None else f"{each.change:+.1%}"
    yield "" if each.low is None or each.high is None else f"{each.low:+.1%} to {each.high:+.1%}"
    yield Text(each.verdict, style=_VERDICTS[each.verdict])
