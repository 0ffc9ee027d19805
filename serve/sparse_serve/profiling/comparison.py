"""What changed between two reports beyond the noise of both: latency, throughput, memory and quality."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sparse_serve.profiling.estimates import Estimate, estimate_change
from sparse_serve.profiling.report import Measurement, Quality, Quantity, Report, Variant
from sparse_serve.profiling.titles import TITLES, load_title

Verdict = Literal["better", "worse", "noise", "gone", "new"]


@dataclass(frozen=True)
class Difference:
    """One figure in both reports, and whether it changed for better or worse.

    `before` and `after` are in the figure's own unit; of `change`, a share of `before`, `low` and `high` are
    the 95 % interval. None where one of the reports has not the figure.
    """

    what: str
    figure: str
    before: float | None
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """All differences, and what makes the two reports hard to compare."""

    differences: tuple[Difference, ...]
    cautions: tuple[str, ...]

    @property
    def regressions(self) -> list[Difference]:
        """What became worse, or is no longer there."""
        return [each for each in self.differences if each.verdict in ("worse", "gone")]


def compare(
    before: Report, after: Report, variants: Sequence[Variant], tolerance: float, max_loss: float
) -> Comparison:
    """Compare two reports point by point.

    Args:
        before: the one that is held to.
        after: the one that is judged.
        variants: what of them is compared.
        tolerance: a share; lesser changes are noise whatever the servers say.
        max_loss: how much of a task's headline metric may be lost.
    """
    differences: list[Difference] = []
    old, new = (
        {_key(m): m for m in report.measurements if m.variant in variants} for report in (before, after)
    )
    for key in [*old, *(key for key in new if key not in old)]:
        differences += _compare_point(before, after, old.get(key), new.get(key), tolerance)
    differences += _compare_quality(before, after, variants, max_loss)
    return Comparison(tuple(differences), tuple(_cautions(before, after)))


def _key(m: Measurement) -> tuple[object, ...]:
    return (m.model, m.variant, m.length, m.batch, m.load)


def _title(m: Measurement) -> str:
    return f"{m.model}, {TITLES[m.variant]}, {m.length} tokens × {m.batch}, {load_title(m.load)}"


def _compare_point(
    before: Report, after: Report, old: Measurement | None, new: Measurement | None, tolerance: float
) -> Iterator[Difference]:
    known = old or new
    if known is None:
        return
    title = _title(known)
    if old is None or new is None:
        yield Difference(title, "all", None, None, None, None, None, "new" if old is None else "gone")
        return
    pairs: list[tuple[str, Quantity, Estimate, Estimate, int]] = [
        ("p50 latency, ms", "latency_ms", old.latency_ms.p50, new.latency_ms.p50, 1),
        ("texts/s", "latency_ms", old.texts_per_second, new.texts_per_second, -1),
    ]
    if old.memory_bytes is not None and new.memory_bytes is not None:
        pairs += [
            (
                "peak above idle, bytes",
                "memory_bytes",
                old.memory_bytes.above_idle,
                new.memory_bytes.above_idle,
                1,
            ),
            ("peak in total, bytes", "total_memory_bytes", old.memory_bytes.total, new.memory_bytes.total, 1),
        ]
    for figure, quantity, one, other, worse in pairs:
        noises = [report.noise_of(old.model, quantity, old.load) for report in (before, after)]
        limit = max([tolerance, *(noise for noise in noises if noise is not None)])
        change = estimate_change(one.servers, other.servers)
        yield Difference(
            title,
            figure,
            one.value,
            other.value,
            None if change is None else change.value,
            None if change is None else change.low,
            None if change is None else change.high,
            _verdict(change, limit, worse),
        )
    if old.memory_bytes is not None and new.memory_bytes is None:
        yield Difference(title, "memory", old.memory_bytes.total.value, None, None, None, None, "gone")


def _verdict(change: Estimate | None, limit: float, worse: int) -> Verdict:
    if change is None or change.low is None or change.high is None:
        return "noise"
    if change.low <= 0 <= change.high or abs(change.value) <= limit:
        return "noise"
    return "worse" if change.value * worse > 0 else "better"


def _compare_quality(
    before: Report, after: Report, variants: Sequence[Variant], max_loss: float
) -> Iterator[Difference]:
    def of(report: Report) -> dict[tuple[str, Variant, str, int], Quality]:
        return {(q.model, q.variant, q.metric, q.rows): q for q in report.quality if q.variant in variants}

    old, new = of(before), of(after)
    for key in [key for key in old if key in new]:
        one, other = old[key].metrics[key[2]], new[key].metrics[key[2]]
        change = other - one
        verdict: Verdict = "noise" if abs(change) <= max_loss else "better" if change > 0 else "worse"
        share = change / one if one else None
        yield Difference(f"{key[0]}, {TITLES[key[1]]}", key[2], one, other, share, None, None, verdict)


def _cautions(before: Report, after: Report) -> Iterator[str]:
    for name, report in (("first", before), ("second", after)):
        if report.partial is not None:
            yield f"the {name} report is a part: {report.partial}"
        if report.settings.rounds < 2:
            yield f"the {name} report has one server each, so that nothing can be told from noise"
    if (before.environment.cpu, before.environment.kernel) != (
        after.environment.cpu,
        after.environment.kernel,
    ):
        yield (
            f"they were made on different machines: {before.environment.cpu.model}, "
            f"{before.environment.cpu.cores} cores, and {after.environment.cpu.model}, "
            f"{after.environment.cpu.cores} cores"
        )
    if before.settings.intra_op_threads != after.settings.intra_op_threads:
        yield (
            f"their sessions had {before.settings.intra_op_threads} and "
            f"{after.settings.intra_op_threads} threads"
        )
