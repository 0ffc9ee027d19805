"""What a reader should know before trusting a report's figures."""

from collections.abc import Iterator

from sparse_serve.report.document import Report
from sparse_serve.report.measured import Measurement
from sparse_serve.report.titles import TITLES, load_title, servers_title

_MOST_NAMED = 4


def read_doubts(report: Report) -> list[str]:
    """Return what a reader should know before trusting the figures."""
    settings = report.settings
    doubts = []
    if report.partial is not None:
        doubts.append(f"This is a part of the report: {report.partial}.")
    doubts += _whence(report)
    doubts += _unsent(report)
    late = [m for m in report.measurements if (m.late_share or 0.0) > 0.01]
    if late:
        worst = max(late, key=lambda m: m.late_share or 0.0)
        doubts.append(
            f"In the open loop up to {worst.late_share:.0%} of the requests were sent late, having waited "
            f"for this client ({_point(worst)}); the wait is in their latency."
        )
    unstable = [m for m in report.measurements if not m.stable]
    if unstable:
        which = ", ".join(_point(m) for m in unstable[:_MOST_NAMED])
        more = " and others, grey in the tables" if len(unstable) > _MOST_NAMED else ""
        doubts.append(
            f"{len(unstable)} of {len(report.measurements)} latency measurements were not stable within "
            f"{settings.stability_percentage:g} % after {settings.max_trials} windows: "
            f"{which}{more}. Repeat on a quieter machine, or with a longer --measurement-interval."
        )
    doubts += [
        f"{failure.model}: {TITLES[failure.variant]} failed in round {failure.round} ({failure.stage}): "
        f"{failure.reason.rstrip('.')}."
        for failure in report.failures
    ]
    doubts += [
        f"{absent.model}: {TITLES[absent.variant]} is absent: {absent.reason}." for absent in report.absent
    ]
    return doubts


def _whence(report: Report) -> Iterator[str]:
    """Say of how many servers the figures are, and of which machine."""
    settings, remote = report.settings, report.environment.remote
    servers, several = servers_title(report), report.servers[1] > 1
    most = max((m.client_cores for m in report.measurements), default=0.0)
    cores = report.environment.cpu.cores
    if remote is not None:
        intervals = (
            "intervals are 95 % over the visits: another server of the same model may lie outside them"
            if several
            else "one visit has no interval"
        )
        yield f"Each figure is the mean of {servers} to one running server, {remote}; {intervals}."
        yield (
            f"All figures come from one day; the measuring client took up to {most:.2f} of the {cores} cores "
            "of its own machine, which may be the server's."
        )
        return
    intervals = (
        "intervals are 95 %, by bootstrap over the servers, as wide as Student's t for so few"
        if several
        else "one server has no interval, so that every difference counts as noise"
    )
    yield f"Each figure is the mean of {servers} of its variant; {intervals}."
    client = (
        "had cores of its own"
        if settings.client_has_own_cores
        else f"shared the servers' cores and took up to {most:.2f} of them"
    )
    yield (
        f"All figures come from one machine with {cores} cores on one day, over loopback; the measuring "
        f"client {client}."
    )


def _unsent(report: Report) -> Iterator[str]:
    """Say of which inputs not all requests were sent while it counted, unless all are equally long."""
    for inputs in report.inputs:
        rows, batch = inputs.row_lengths, inputs.batch
        sent = [
            m.distinct_requests
            for m in report.measurements
            if (m.model, m.length) == (inputs.model, inputs.length)
        ]
        are_alike = all(rows[start : start + batch] == rows[:batch] for start in range(0, len(rows), batch))
        if not are_alike and sent and min(sent) < inputs.requests:
            yield (
                f"Of the {inputs.requests} requests of {inputs.source}, as few as {min(sent)} were sent to "
                f"{inputs.model} while it counted, drawn at random for each round; more --rounds or a longer "
                "--measurement-interval send more of them."
            )


def _point(measurement: Measurement) -> str:
    point = f"{measurement.model} {TITLES[measurement.variant]} at {measurement.length}"
    return point if measurement.concurrency == 1 else f"{point}, {load_title(measurement.load)}"
