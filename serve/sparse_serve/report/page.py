"""`report.html`: one self-contained page that opens with what was saved, in a sentence and a figure."""

from importlib.resources import files

from jinja2 import Environment
from markupsafe import Markup

from sparse_serve.report import figures
from sparse_serve.report.concluded import Change
from sparse_serve.report.document import Report
from sparse_serve.report.doubts import read_doubts
from sparse_serve.report.estimates import Estimate
from sparse_serve.report.headline import headline
from sparse_serve.report.sentences import clocks, details, findings
from sparse_serve.report.titles import MIB, TITLES, attention_title, load_title, servers_title

_FOLDER = files("sparse_serve") / "report" / "templates"


def to_html(report: Report) -> str:
    """Return the report as one HTML page that needs nothing else, the network included."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["mib"] = lambda number: "–" if number is None else f"{number / MIB:,.1f}"
    environment.filters["over"] = _over_servers
    environment.filters["change"] = _change
    environment.filters["number"] = lambda number, form: "–" if number is None else format(number, form)
    environment.filters["inputs_figure"] = lambda model: figures.inputs_figure(report, model)
    models = report.models()
    return environment.from_string(_read("report.html.j2")).render(
        report=report,
        titles=TITLES,
        colors=figures.COLORS,
        load_title=load_title,
        servers=servers_title(report),
        style=Markup((files("sparse_serve") / "page.css").read_text(encoding="utf-8") + _read("report.css")),
        script=Markup(_read("report.js")),
        headlines={model: headline(report, model) for model in models},
        findings={model: findings(report, model) for model in models},
        details={model: details(report, model) for model in models},
        doubts=read_doubts(report),
        figures=figures,
        clocks=clocks(report),
        attention={served.model: attention_title(served) for served in report.served},
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _over_servers(estimate: Estimate | None, form: str = ".1f", unit: float = 1) -> Markup:
    """Return the cell of a figure over servers with its interval, where it has one; a dash for none."""
    if estimate is None:
        return Markup('<td data-sort="">–</td>')
    value = format(estimate.value / unit, form)
    bounds = Markup("")
    if estimate.low is not None and estimate.high is not None:
        low, high = format(estimate.low / unit, form), format(estimate.high / unit, form)
        bounds = Markup(" <small>{} to {}</small>").format(low, high)
    return Markup('<td data-sort="{}">{}{}</td>').format(estimate.value, value, bounds)


def _change(change: Change | None) -> Markup:
    """Return the cell of a saving, grey where it is noise."""
    if change is None:
        return Markup('<td data-sort="">–</td>')
    bounds = ""
    if change.low is not None and change.high is not None:
        bounds = f"{change.low:+.1%} to {change.high:+.1%}"
    kind = ' class="noise"' if change.is_noise else ""
    return Markup('<td{} data-sort="{}">{} <small>{}</small></td>').format(
        Markup(kind), change.saved, f"{change.saved:+.1%}", f"{bounds}{' noise' if change.is_noise else ''}"
    )
