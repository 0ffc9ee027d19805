"""What changed between two reports beyond the noise of both: latency, throughput, memory and quality."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sparse_serve.errors import OptionError
from sparse_serve.report.concluded import Quantity
from sparse_serve.report.document import Environment, Report
from sparse_serve.report.estimates import Estimate, estimate_change, estimate_ratio
from sparse_serve.report.measured import Measurement, Memory, Quality, Variant
from sparse_serve.report.titles import TITLES, load_title

Verdict = Literal["better", "worse", "noise", "gone", "new"]
Figure = tuple[str, Estimate, Estimate, list[float | None], int]
_SAME: tuple[Variant, ...] = ("model", "control")
# One row of 200 is 0.005, but 0.9 - 0.895 is a little more.
_ROUNDING = 1e-9


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

    Raises:
        OptionError: neither report has any of the variants.
    """
    differences: list[Difference] = []
    old, new = (
        {_key(m): m for m in report.measurements if m.variant in variants} for report in (before, after)
    )
    for key in [*old, *(key for key in new if key not in old)]:
        differences += _compare_point(before, after, old.get(key), new.get(key), tolerance)
    differences += _compare_quality(before, after, variants, max_loss)
    if not differences:
        known = dict.fromkeys(m.variant for report in (before, after) for m in report.measurements)
        raise OptionError(
            f"neither report has {' or '.join(variants)}; they have {', '.join(known) or 'no measurements'}: "
            "name one of these in --variants"
        )
    return Comparison(tuple(differences), tuple(_cautions(before, after, variants, max_loss)))


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
    for figure, one, other, noises, worse in _figures(before, after, old, new):
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
            _verdict(one, other, change, limit, worse),
        )
    for name, held, holds in _memories(old, new):
        if (held is None) != (holds is None):
            ends = (None if each is None else each.value for each in (held, holds))
            yield _in_one(title, name, *ends)


def _figures(before: Report, after: Report, old: Measurement, new: Measurement) -> Iterator[Figure]:
    """Yield what both have: its name, both figures, the noise of both reports, and 1 where more is worse."""

    def noise(quantity: Quantity) -> list[float | None]:
        return [report.noise_of(old.model, quantity, old.load) for report in (before, after)]

    yield "p50 latency, ms", old.latency_ms.p50, new.latency_ms.p50, noise("latency_ms"), 1
    if old.latency_ms.p99 is not None and new.latency_ms.p99 is not None:
        noises = [_p99_noise(report, old) for report in (before, after)]
        yield "p99 latency, ms", old.latency_ms.p99, new.latency_ms.p99, noises, 1
    yield "texts/s", old.texts_per_second, new.texts_per_second, noise("latency_ms"), -1
    quantities: tuple[Quantity, ...] = ("memory_bytes", "total_memory_bytes")
    for quantity, (name, one, other) in zip(quantities, _memories(old, new), strict=True):
        if one is not None and other is not None:
            yield name, one, other, noise(quantity), 1


def _memories(old: Measurement, new: Measurement) -> Iterator[tuple[str, Estimate | None, Estimate | None]]:
    one, other = old.memory_bytes, new.memory_bytes
    sides: dict[str, Callable[[Memory], Estimate]] = {
        "peak above idle, bytes": lambda memory: memory.above_idle,
        "peak in total, bytes": lambda memory: memory.total,
    }
    for name, side in sides.items():
        yield name, None if one is None else side(one), None if other is None else side(other)


def _p99_noise(report: Report, point: Measurement) -> float | None:
    """Return how far the model's p99 lay from itself in any round at this point; None where not known."""
    ours, again = (_p99_by_round(report, point, variant) for variant in _SAME)
    ratio = estimate_ratio(again, ours)
    return None if ratio is None else max(map(abs, ratio.servers))


def _p99_by_round(report: Report, point: Measurement, variant: Variant) -> dict[int, float]:
    found = report.at(point.model, variant, point.length, point.load)
    if found is None or found.latency_ms.p99 is None:
        return {}
    return dict(zip(found.rounds, found.latency_ms.p99.servers, strict=True))


def _verdict(one: Estimate, other: Estimate, change: Estimate | None, limit: float, worse: int) -> Verdict:
    """Return what a figure's change comes to; a rise from 0 is one however small, where the servers agree."""
    if one.value == 0 and other.value > 0:
        is_told = one.low is not None and other.low is not None and other.low > 0
        return ("worse" if worse > 0 else "better") if is_told else "noise"
    if change is None or change.low is None or change.high is None:
        return "noise"
    if change.low <= 0 <= change.high or abs(change.value) <= limit:
        return "noise"
    return "worse" if change.value * worse > 0 else "better"


def _compare_quality(
    before: Report, after: Report, variants: Sequence[Variant], max_loss: float
) -> Iterator[Difference]:
    """Compare the tasks' headline metrics, whatever the rows; what is in one report alone is gone, or new."""
    old, new = (_qualities(report, variants) for report in (before, after))
    for key in [*old, *(key for key in new if key not in old)]:
        model, variant, metric = key
        one, other = (found[key].metrics[metric] if key in found else None for found in (old, new))
        what = f"{model}, {TITLES[variant]}"
        if one is None or other is None:
            yield _in_one(what, metric, one, other)
            continue
        change = other - one
        is_allowed = abs(change) <= max_loss + _ROUNDING
        verdict: Verdict = "noise" if is_allowed else "better" if change > 0 else "worse"
        yield Difference(what, metric, one, other, change / abs(one) if one else None, None, None, verdict)


def _qualities(report: Report, variants: Sequence[Variant]) -> dict[tuple[str, Variant, str], Quality]:
    return {(q.model, q.variant, q.metric): q for q in report.quality if q.variant in variants}


def _in_one(what: str, figure: str, before: float | None, after: float | None) -> Difference:
    """Return what is in one report alone."""
    verdict: Verdict = "new" if before is None else "gone"
    return Difference(what, figure, before, after, None, None, None, verdict)


def _other_machines(before: Environment, after: Environment) -> Iterator[str]:
    """Say what of the machines and servers is not the same."""
    told = (
        ("on different machines", _processor),
        ("under different kernels", lambda each: each.kernel),
        ("on different GPUs", _gpus),
        ("of different images", lambda each: each.image or "no image"),
        ("of different servers", lambda each: each.remote or "servers of profile's own"),
    )
    for what, of in told:
        if (one := of(before)) != (other := of(after)):
            yield f"they were made {what}: {one}, and {other}"


def _processor(environment: Environment) -> str:
    return f"{environment.cpu.model}, {environment.cpu.cores} cores"


def _gpus(environment: Environment) -> str:
    return ", ".join(f"{gpu.name} (driver {gpu.driver})" for gpu in environment.gpus or ()) or "none"


def _other_inputs(before: Report, after: Report) -> Iterator[str]:
    """Say where both have a length and batch, but other texts of it."""
    old, new = (
        {(each.model, each.length, each.batch): each for each in report.inputs} for report in (before, after)
    )
    for key in (key for key in old if key in new):
        one, other = old[key], new[key]
        if (one.row_lengths, one.tasks) != (other.row_lengths, other.tasks):
            model, length, _ = key
            yield (
                f"{model} was asked other texts of up to {length} tokens: {one.source}, "
                f"{one.mean_length:.1f} on average, and {other.source}, {other.mean_length:.1f}"
            )


def _cautions(before: Report, after: Report, variants: Sequence[Variant], max_loss: float) -> Iterator[str]:
    for name, report in (("first", before), ("second", after)):
        if report.partial is not None:
            yield f"the {name} report is a part: {report.partial}"
        if report.servers[1] < 2:
            yield f"the {name} report has one server each, so that nothing can be told from noise"
    yield from _other_machines(before.environment, after.environment)
    yield from _other_inputs(before, after)
    if before.settings.intra_op_threads != after.settings.intra_op_threads:
        yield (
            f"their sessions had {before.settings.intra_op_threads} and "
            f"{after.settings.intra_op_threads} threads"
        )
    old, new = (_qualities(report, variants) for report in (before, after))
    asked = {
        (old[key].file, old[key].rows, new[key].file, new[key].rows)
        for key in old
        if key in new and (old[key].file, old[key].rows) != (new[key].file, new[key].rows)
    }
    for file, rows, other_file, other_rows in sorted(asked):
        yield f"quality was measured on {rows} rows of {file} and on {other_rows} of {other_file}"
    changed = [key for key in old if key in new and old[key].metrics != new[key].metrics]
    least = min((found[key].rows for found in (old, new) for key in changed), default=0)
    if least and 0 < max_loss < 1 / least:
        yield (
            f"quality was measured on {least} rows, of which one is {1 / least:.4f}: --max-loss {max_loss:g} "
            "allows none"
        )
