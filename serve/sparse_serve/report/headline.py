"""The sentence that a report opens with: what a model saves against what, and where it saves nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparse_serve.report.concluded import Baseline, Change, Quantity
from sparse_serve.report.document import Report
from sparse_serve.report.savings import change, limits, reference_of
from sparse_serve.report.titles import change_of, listed, load_title, percent, value

DENSE_FUSED: tuple[Baseline, ...] = ("packed_dense", "padded_fused")


@dataclass(frozen=True)
class Verdict:
    """What a model saves against the best fused dense twin at one length."""

    length: int
    baseline: Baseline
    change: Change


def headline(report: Report, model: str) -> str:
    """Return one sentence: what the model saves against what, and where it saves nothing."""
    if report.environment.remote is not None:
        where = report.environment.remote
        return f"{model} was measured as it runs at {where}, with nothing to compare it with."
    if not report.series(model, "model"):
        return f"{model} itself was not measured at {load_title(report.lightest)}: nothing can be compared."
    latency, memory = (verdicts(report, model, quantity) for quantity in ("latency_ms", "total_memory_bytes"))
    others = "; ".join(filter(None, (_eager_part(report, model), _precision_part(report, model))))
    if not latency and not memory:
        if others:
            return f"{model} was measured without a fused dense twin; {others}."
        return (
            f"{model} was measured without its dense twins, so that no saving can be told: export it "
            "--with-baselines."
        )
    noises = [
        report.noise_of(model, quantity, report.lightest) for quantity in ("latency_ms", "total_memory_bytes")
    ]
    parts = [_claim(latency, "p50 latency", noises[0])]
    parts += [_claim(memory, "memory", noises[1])] if memory else []
    against = "the best fused dense attention of the same weights"
    sentence = f"Against {against}, {model} {_join_claims(parts)}"
    return f"{sentence}; {others}." if others else f"{sentence}."


def verdicts(report: Report, model: str, quantity: Quantity) -> list[Verdict]:
    """Return what the model saves against the better of the fused dense variants, length by length."""
    found = []
    for ours in report.series(model, "model"):
        rivals = [
            (amount_of, saving.baseline, saved)
            for saving in report.savings
            if (saving.model, saving.length, (saving.concurrency, saving.request_rate))
            == (model, ours.length, ours.load)
            and saving.baseline in DENSE_FUSED
            and (saved := change_of(saving, quantity)) is not None
            and (rival := report.at(model, saving.baseline, ours.length, ours.load)) is not None
            and (amount_of := value(rival, quantity)) is not None
        ]
        if rivals:
            _, baseline, saved = min(rivals, key=lambda rival: rival[0])
            found.append(Verdict(ours.length, baseline, saved))
    return found


@dataclass(frozen=True)
class _Claim:
    """What is said of one quantity: what is saved where, what costs more, and where neither holds."""

    noun: str
    saved: str | None
    saved_at: int | None
    lost: str | None
    nothing: tuple[int, ...]
    interval: str

    @property
    def is_nothing(self) -> bool:
        return self.saved is None and self.lost is None

    def text(self, *, with_length: bool = True) -> str:
        """Return a verb and what it says."""
        if self.is_nothing:
            return f"saves no {self.noun} beyond noise at any length ({self.interval})"
        where = f" at {self.saved_at} tokens" if with_length else ""
        parts = [f"saves {self.saved} of the {self.noun}{where}"] if self.saved else []
        parts += [f"takes {self.lost}"] if self.lost else []
        if self.nothing:
            parts[-1] += f" (nothing beyond noise at {listed([str(length) for length in self.nothing])})"
        return " but ".join(parts)


def _claim(found: Sequence[Verdict], noun: str, noise: float | None) -> _Claim:
    real = [each for each in found if not each.change.is_noise]
    best = max((each for each in real if each.change.saved > 0), key=_rank, default=None)
    losses = [each for each in real if each.change.saved < 0]
    worst = max(losses, key=lambda each: (-_rank(each)[0], each.length), default=None)
    return _Claim(
        noun,
        None if best is None else percent(best.change.saved),
        None if best is None else best.length,
        None if worst is None else f"{percent(-worst.change.saved)} more {noun} at {worst.length} tokens",
        tuple(each.length for each in found if each.change.is_noise),
        _interval(found[-1], noun, noise),
    )


def _interval(verdict: Verdict, noun: str, noise: float | None) -> str:
    """Return between what a saving lies, for one that is not told from noise."""
    low, high = verdict.change.low, verdict.change.high
    if low is None or high is None:
        return "of one server each"
    interval = f"95 %: {low:+.1%} to {high:+.1%} of the {noun} at {verdict.length} tokens"
    if low <= 0 <= high or noise is None:
        return interval
    return f"{interval}, but the model lay up to {noise:.1%} from itself"


def _rank(verdict: Verdict) -> tuple[float, int]:
    """Rank by what is saved, to a percent, then by length."""
    return round(verdict.change.saved, 2), verdict.length


def _join_claims(claims: Sequence[_Claim]) -> str:
    """Return what is said of one or two quantities as one predicate."""
    if len(claims) == 2 and all(claim.is_nothing for claim in claims):
        intervals = "; ".join(dict.fromkeys(claim.interval for claim in claims))
        return f"saves neither {claims[0].noun} nor {claims[1].noun} beyond noise at any length ({intervals})"
    first, *others = claims
    is_alike = (
        len(claims) == 2
        and first.saved is not None
        and first.lost is None
        and (first.saved_at, first.nothing) == (others[0].saved_at, others[0].nothing)
    )
    if is_alike:
        second = others[0].text().removeprefix("saves ")
        return f"{first.text(with_length=False).partition(' (')[0]} and {second}"
    return " and ".join(claim.text() for claim in claims)


def _eager_part(report: Report, model: str) -> str:
    """Say what is saved against padded eager attention, the form papers compare with."""
    ours = report.series(model, "model")[-1]
    for saving in report.savings:
        point = (saving.model, saving.length, (saving.concurrency, saving.request_rate), saving.baseline)
        if point == (model, ours.length, ours.load, "padded_eager"):
            told = _told(saving.latency, saving.total_memory)
            return f"against padded eager attention it {told} at {saving.length} tokens"
    return ""


def _precision_part(report: Report, model: str) -> str:
    """Say what is saved against the same model in fp32, where that was measured too."""
    served = next((each for each in report.served if each.model == model), None)
    reference = model if served is None else reference_of(served, report.served)
    ours = report.series(model, "model")[-1]
    theirs = report.at(reference, "model", ours.length, ours.load)
    if reference == model or theirs is None:
        return ""
    noise = limits(report.noise)
    told = _told(
        *(change(ours, theirs, quantity, noise) for quantity in ("latency_ms", "total_memory_bytes"))
    )
    return told and f"against {reference} in fp32 it {told} at {ours.length} tokens"


def _told(latency: Change | None, memory: Change | None) -> str:
    """Return what is saved of latency and memory, and what is taken more, as a predicate."""
    known = [(found, noun) for found, noun in ((latency, "latency"), (memory, "memory")) if found]
    saved = [
        f"no {noun} beyond noise" if found.is_noise else f"{percent(found.saved)} of the {noun}"
        for found, noun in known
        if found.is_noise or found.saved > 0
    ]
    lost = [
        f"{percent(-found.saved)} more {noun}"
        for found, noun in known
        if not found.is_noise and found.saved <= 0
    ]
    parts = [f"saves {listed(saved)}"] if saved else []
    parts += [f"takes {listed(lost)}"] if lost else []
    return " but ".join(parts)
