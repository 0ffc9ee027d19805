"""What a report says, in plain sentences: where the model saves, where it does not, and what to doubt."""

from collections.abc import Iterator, Sequence

from sparse_serve.profiling.report import Baseline, Measurement, Quantity, Report, Served, Variant

TITLES: dict[Variant, str] = {
    "model": "this model",
    "packed_dense": "packed dense",
    "padded_fused": "padded dense, fused",
    "padded_eager": "padded dense, eager",
    "portable": "portable fallback",
    "text": "text to answer",
}
DENSE_FUSED: tuple[Baseline, ...] = ("packed_dense", "padded_fused")
MIB = 2**20

_MOST_NAMED = 4

# Peak memory repeats to about this share, or to some pages that happened to be touched.
_MEMORY_NOISE = 0.03
_MEMORY_NOISE_BYTES = MIB // 2
_QUANTITY_TITLES: dict[Quantity, str] = {
    "latency_ms": "p50 latency",
    "memory_bytes": "peak memory above idle",
}
_NOISE_RULES: dict[Quantity, str] = {
    "latency_ms": "the greater of the two spreads",
    "memory_bytes": "3 % or half a MiB",
}


def read_model(report: Report, model: str) -> list[str]:
    """Return what the report says of one model."""
    return [
        *_tasks(report, model),
        *_against_fused(report, model, "latency_ms"),
        *_against_fused(report, model, "memory_bytes"),
        *_steps(report, model, "latency_ms"),
        *_steps(report, model, "memory_bytes"),
        *_eager(report, model),
        *_padding(report, model),
        *_sparsity(report, model),
        *_axes(report, model),
        *_growth(report, model),
        *_text(report, model),
        *_portable(report, model),
        *_concurrency(report, model),
    ]


def attention_title(served: Served) -> str:
    """Return in words what a model attends to, and with which weights."""
    normalizer = "softmax" if served.lambd is None else f"sparsegen-lin at λ = {served.lambd:g}"
    if served.pattern is not None:
        terms = served.pattern.split("+")
        kind = "AAA: " if "axis" in terms else "attention pattern "
        title = f"{kind}{' + '.join(terms)}, {normalizer} over the allowed pairs"
    elif served.lambd is not None:
        title = f"SSAF: {normalizer}"
    else:
        title = "full attention, softmax"
    return title


def read_doubts(report: Report) -> list[str]:
    """Return what a reader should know before trusting the figures."""
    unstable = [m for m in report.measurements if not m.stable]
    doubts = [
        f"All figures come from one machine with {report.environment.cpu.cores} cores on one day, over "
        "loopback; the client on the same machine took up to "
        f"{max(m.client_cores for m in report.measurements):.2f} of its cores.",
        "A difference is called noise where it is no greater than, in latency and throughput, "
        f"{_NOISE_RULES['latency_ms']} (a spread is how far the last three windows lie apart), and, in "
        f"memory, {_NOISE_RULES['memory_bytes']}.",
    ]
    if unstable:
        which = ", ".join(_point(m) for m in unstable[:_MOST_NAMED])
        more = " and others, marked ⚠ in the table" if len(unstable) > _MOST_NAMED else ""
        doubts.append(
            f"{len(unstable)} of {len(report.measurements)} latency measurements were not stable within "
            f"{report.settings.stability_percentage:g} % after {report.settings.max_trials} windows: "
            f"{which}{more}. Repeat on a quieter machine, or with a longer --measurement-interval."
        )
    doubts += [
        f"{absent.model}: {TITLES[absent.variant]} is absent: {absent.reason}." for absent in report.absent
    ]
    return doubts


def noise(ours: Measurement, theirs: Measurement, quantity: Quantity) -> float:
    """Return the relative difference below which the two are not to be told apart."""
    if quantity == "latency_ms":
        return max(ours.spread, theirs.spread)
    peak = theirs.memory_bytes.peak_above_idle
    return max(_MEMORY_NOISE, _MEMORY_NOISE_BYTES / peak) if peak else 1.0


def value(measurement: Measurement, quantity: Quantity) -> float:
    """Return the p50 latency in ms or the peak memory above idle in bytes."""
    if quantity == "latency_ms":
        return measurement.latency_ms.p50
    return float(measurement.memory_bytes.peak_above_idle)


def amount(number: float, quantity: Quantity) -> str:
    """Return a latency or memory with its unit."""
    return f"{number:.1f} ms" if quantity == "latency_ms" else f"{number / MIB:.1f} MiB"


def _point(measurement: Measurement) -> str:
    point = f"{measurement.model} {TITLES[measurement.variant]} at {measurement.length}"
    return point if measurement.concurrency == 1 else f"{point} × {measurement.concurrency} in flight"


def _in_flight(number: int) -> str:
    return f"{number} request{'s' if number > 1 else ''} in flight"


def _hedge(ours: Measurement, theirs: Measurement, quantity: Quantity) -> str:
    """Return what is to be said beside two numbers that cannot be told apart."""
    limit = noise(ours, theirs, quantity)
    if abs(value(ours, quantity) - value(theirs, quantity)) > limit * value(theirs, quantity):
        return ""
    return f", within the noise of {limit:.0%}: {_NOISE_RULES[quantity]}"


def _tasks(report: Report, model: str) -> Iterator[str]:
    """Say which tasks the texts were of, where the model has several."""
    shares = report.task_shares(model, min(report.settings.lengths))
    if shares:
        named = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        yield f"It has several tasks, and was sent texts of each in turn: {named}."


def _against_fused(report: Report, model: str, quantity: Quantity) -> Iterator[str]:
    """Compare with the better of the fused dense variants, length by length."""
    saves: list[str] = []
    costs: list[str] = []
    ties: list[str] = []
    for ours in report.series(model, "model"):
        rivals = [rival for rival in _rivals(report, ours) if value(rival, quantity) > 0]
        if not rivals:
            continue
        best = min(rivals, key=lambda rival: value(rival, quantity))
        saved, hedge = 1 - value(ours, quantity) / value(best, quantity), _hedge(ours, best, quantity)
        detail = (
            f"{ours.length} tokens ({amount(value(ours, quantity), quantity)} against "
            f"{amount(value(best, quantity), quantity)} of {TITLES[best.variant]}, {-saved:+.0%}{hedge})"
        )
        group = ties if hedge else saves if saved > 0 else costs
        group.append(detail)
    if not (saves or costs or ties):
        return
    yield (
        f"Against the best fused dense variant, in {_QUANTITY_TITLES[quantity]}, "
        f"{_in_flight(report.lightest)}: "
        + "; ".join(
            f"{what} at {_list(found)}"
            for what, found in (("lower", saves), ("higher", costs), ("no difference beyond noise", ties))
            if found
        )
        + "."
    )
    if quantity == "latency_ms" and not saves:
        yield (
            "So the sparse model saves no time against fused dense attention at these lengths. At short "
            "lengths attention is a small part of the work and the linear layers are most of it: however "
            "sparse attention is, it has little to save there."
        )
    if quantity == "memory_bytes" and not saves and report.series(model, "packed_dense"):
        yield (
            "So sparsity saves no memory against packed dense attention: that kernel forms no L×L scores "
            "either, and there are none to leave out."
        )


def _rivals(report: Report, ours: Measurement) -> list[Measurement]:
    return [rival for variant in DENSE_FUSED if (rival := _at(report, ours, variant)) is not None]


def _eager(report: Report, model: str) -> Iterator[str]:
    ours, eager = report.series(model, "model"), report.series(model, "padded_eager")
    if ours and eager and ours[-1].length == eager[-1].length:
        yield (
            f"Against padded eager attention, the form papers compare with, at {ours[-1].length} tokens: "
            f"{_both(ours[-1], eager[-1], 'memory_bytes', 'peak above idle')} and "
            f"{_both(ours[-1], eager[-1], 'latency_ms', 'p50')}. The split below says how much is sparsity."
        )


def _steps(report: Report, model: str, quantity: Quantity) -> Iterator[str]:
    """Say, length by length, how much of padded fused attention each of the two steps to the model saves."""
    found = []
    for ours in report.series(model, "model"):
        packed, fused = (_at(report, ours, variant) for variant in DENSE_FUSED)
        if packed is None or fused is None or not value(fused, quantity):
            continue
        shares = []
        for before, after in ((fused, packed), (packed, ours)):
            share = (value(before, quantity) - value(after, quantity)) / value(fused, quantity)
            shares.append(f"{share:.0%}{' (noise)' if _hedge(after, before, quantity) else ''}")
        found.append(f"{' and '.join(shares)} at {ours.length} tokens")
    if found:
        packing = (
            "the packed kernel" if report.settings.batch_size == 1 else "packing, which drops the padding,"
        )
        yield (
            f"Of the {_QUANTITY_TITLES[quantity]} of {TITLES['padded_fused']}, {packing} and sparsity save "
            f"{_list(found)}."
        )


def _at(report: Report, ours: Measurement, variant: Variant) -> Measurement | None:
    point = (ours.length, ours.batch)
    return next((m for m in report.series(ours.model, variant) if (m.length, m.batch) == point), None)


def _both(ours: Measurement, theirs: Measurement, quantity: Quantity, name: str) -> str:
    mine, other = (amount(value(each, quantity), quantity) for each in (ours, theirs))
    return f"{mine} against {other} ({name}{_hedge(ours, theirs, quantity)})"


def _padding(report: Report, model: str) -> Iterator[str]:
    shares = [inputs.padding_share for inputs in report.inputs if inputs.model == model]
    if not report.series(model, "model"):
        return
    if report.settings.batch_size == 1:
        yield (
            "Requests hold one text each, so nothing is padded: the step from padded fused to packed dense "
            "shows two dense kernels against each other and no removed padding. Profile with -b 8 for that."
        )
    else:
        yield (
            f"Of the tokens in padded requests, {max(shares):.0%} are padding; "
            "packed variants do not compute them."
        )


def _sparsity(report: Report, model: str) -> Iterator[str]:
    measured = [m for m in report.series(model, "model") if m.sparsity is not None]
    for measurement in measured[-1:]:
        if measurement.sparsity is not None:
            rho, kept = measurement.sparsity.rho, measurement.sparsity.keys_kept
            yield (
                f"At {measurement.length} tokens {_span(rho, '.1%')} of the attention weights are exactly "
                f"zero, by layer: a query keeps {_span(kept, '.1f')} keys on average. Where the answer is "
                "read from the first token, the last layer's are those of that token's query."
            )


def _axes(report: Report, model: str) -> Iterator[str]:
    measured = [m for m in report.series(model, "model") if m.sparsity is not None]
    for measurement in measured[-1:]:
        if measurement.sparsity is not None and measurement.sparsity.axes is not None:
            axes = measurement.sparsity.axes
            yield (
                f"At {measurement.length} tokens, by layer, {_span(axes.rows_on, '.2%')} of a text's tokens "
                f"have their row on, and read every key: {_span(axes.rows_on_count, '.1f')} of them. "
                f"{_span(axes.columns_on, '.2%')} have their column on, and are read by every query: "
                f"{_span(axes.columns_on_count, '.1f')}."
            )


def _span(values: Sequence[float], form: str) -> str:
    least, most = (format(extreme, form) for extreme in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def _growth(report: Report, model: str) -> Iterator[str]:
    for found in report.growth:
        if found.model == model:
            yield (
                f"Memory of padded eager attention grows by {found.measured:.0f} bytes per squared token; "
                f"theory ({found.live_copies} live score tensors × batch {found.batch} × {found.heads} heads "
                f"× 4 bytes) says {found.theory:.0f}: a ratio of {found.ratio:.2f}."
            )


def _text(report: Report, model: str) -> Iterator[str]:
    text, ours = report.series(model, "text"), report.series(model, "model")
    if text and ours and text[-1].length == ours[-1].length:
        yield (
            f"From text to answer, tokenisation included, a request of {text[-1].length} tokens takes "
            f"{text[-1].latency_ms.p50:.1f} ms where the graph alone takes {ours[-1].latency_ms.p50:.1f} ms"
            f"{_hedge(text[-1], ours[-1], 'latency_ms')}."
        )


def _portable(report: Report, model: str) -> Iterator[str]:
    portable, ours = report.series(model, "portable"), report.series(model, "model")
    if portable and ours and portable[-1].length == ours[-1].length:
        times = portable[-1].latency_ms.p50 / ours[-1].latency_ms.p50
        yield (
            f"Without the op library the same file takes {times:.1f} times as long at {ours[-1].length} "
            "tokens: the fallback is for portability, not for speed."
        )


def _concurrency(report: Report, model: str) -> Iterator[str]:
    """Say what more requests in flight bring, at the longest length."""
    longest = max(measurement.length for measurement in report.measurements)
    sweep = report.sweep(model, "model", longest)
    if len(sweep) < 2:
        return
    first, last = sweep[0], sweep[-1]
    best = max(sweep, key=lambda measurement: measurement.texts_per_second)
    lowest, gain = first.texts_per_second, best.texts_per_second / first.texts_per_second - 1
    limit = noise(first, best, "latency_ms")
    rise = f"throughput rises from {lowest:.1f} to {best.texts_per_second:.1f} texts/s ({gain:+.0%})"
    if gain <= limit:
        rule = _NOISE_RULES["latency_ms"]
        rise = f"throughput stays at {lowest:.1f} texts/s, within the noise of {limit:.0%}: {rule}"
    yield (
        f"From {first.concurrency} to {_in_flight(last.concurrency)}, at {longest} tokens, p50 latency goes "
        f"from {amount(first.latency_ms.p50, 'latency_ms')} to {amount(last.latency_ms.p50, 'latency_ms')}; "
        f"{rise}."
    )


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
