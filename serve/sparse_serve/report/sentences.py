"""What a report says of a model, in plain sentences: findings first, then what is worth knowing beyond."""

from collections.abc import Iterator, Sequence

from sparse_serve.report.concluded import Quantity, Split, Step
from sparse_serve.report.document import Report
from sparse_serve.report.estimates import Estimate
from sparse_serve.report.measured import GpuMemory, Measurement, Variant
from sparse_serve.report.titles import (
    PART_TITLES,
    QUANTITY_TITLES,
    STEP_TITLES,
    TITLES,
    amount,
    listed,
    load_title,
    step_of,
    time_parts,
    value,
)


def findings(report: Report, model: str) -> list[str]:
    """Return what a reader should know of a model, a sentence or two each, the most important first."""
    return [
        *_noise(report, model),
        *_memory_sides(report, model),
        *_steps(report, model, "latency_ms"),
        *_steps(report, model, "memory_bytes"),
        *_time(report, model),
        *_sparsity(report, model),
        *_capacity(report, model),
        *_checkpoint(report, model),
    ]


def details(report: Report, model: str) -> list[str]:
    """Return what is worth knowing beyond the findings."""
    return [
        *_tasks(report, model),
        *_padding(report, model),
        *_theory(report, model),
        *_growth(report, model),
        *_axes(report, model),
        *_text(report, model),
        *_eager_sparse(report, model),
        *_portable(report, model),
        *_concurrency(report, model),
        *_open_loop(report, model),
        *_sparsity_saves(report, model),
    ]


def _noise(report: Report, model: str) -> Iterator[str]:
    told = [
        f"{share:.1%} in {title}"
        for quantity, title in QUANTITY_TITLES.items()
        if (share := report.noise_of(model, quantity, report.lightest)) is not None
    ]
    if told:
        yield (
            f"Measured twice, the model lay up to {listed(told)} from itself in this run. What is no "
            "greater, or where servers do not agree, is called noise."
        )
    elif report.series(model, "model"):
        yield (
            "The model was not measured a second time, so that its noise in this run is not known; only "
            "where servers do not agree is a difference called noise."
        )


def _memory_sides(report: Report, model: str) -> Iterator[str]:
    """Say what the peak is above, in total and as deployed, at the longest length."""
    series = [m for m in report.series(model, "model") if m.memory_bytes is not None]
    if not series or series[-1].memory_bytes is None:
        return
    memory, length = series[-1].memory_bytes, series[-1].length
    said = (
        f"At {length} tokens requests take {amount(memory.above_idle.value, 'memory_bytes')} above "
        f"the {amount(memory.at_rest.value, 'memory_bytes')} that the server holds at rest: "
        f"{amount(memory.total.value, 'memory_bytes')} in total"
    )
    for held in report.steady:
        if (held.model, held.variant) == (model, "model"):
            known = held.pss or held.rss
            kind = "resident" if held.pss is None else "PSS, shared pages once"
            holds = f"{amount(known.value, 'memory_bytes')} ({kind})"
            said += f". As deployed, arena on, it holds {holds} after all of the load"
            if held.cgroup_peak is not None:
                peak = amount(held.cgroup_peak.value, "memory_bytes")
                said += f"; its control group was charged {peak} at most, with files that it read first"
            if held.gpu is not None:
                said += f", and {amount(held.gpu.value, 'memory_bytes')} on the GPU"
    yield f"{said}."
    if memory.gpu is not None and (told := ", ".join(_gpu_sides(memory.gpu))):
        yield f"On the GPU, at {length} tokens: {told}."


def _gpu_sides(memory: GpuMemory) -> Iterator[str]:
    sides = {
        "held by its processes": memory.held,
        "taken from the GPU at most while it answered": memory.taken,
        "in ONNX Runtime's CUDA arenas at most": memory.arena,
    }
    for side, figure in sides.items():
        if figure is not None:
            yield f"{amount(figure.value, 'memory_bytes')} {side}"


def clocks(report: Report) -> str | None:
    """Say what the GPU's clocks were while requests ran; None where it did not tell."""
    uses = [m.gpu for m in report.measurements if m.gpu is not None]
    low = min((use.sm_clock_low_mhz for use in uses if use.sm_clock_low_mhz is not None), default=None)
    high = max((use.sm_clock_high_mhz for use in uses if use.sm_clock_high_mhz is not None), default=None)
    if low is None or high is None:
        return None
    ran = f"{low:.0f} MHz throughout" if low == high else f"{low:.0f} to {high:.0f} MHz"
    limits = dict.fromkeys(limit for use in uses for limit in use.clock_limits)
    return f"{ran}, while requests ran" + (f"; lowered by {', '.join(limits)}" if limits else "")


def _steps(report: Report, model: str, quantity: Quantity) -> Iterator[str]:
    """Say, at the longest length, what each step from padded eager attention to the model saves."""
    found = _splits_of(report, model, quantity)
    if not found:
        return
    split = found[-1]
    told = [
        f"{title} {_signed(step, quantity)}"
        for name, title in STEP_TITLES.items()
        if (step := step_of(split, name))
    ]
    start = report.at(split.reference, "padded_eager", split.length, report.lightest)
    whole = None if start is None else value(start, quantity)
    of_whole = f", of {amount(whole, quantity)} padded and eager," if whole is not None else ""
    where = f"In {QUANTITY_TITLES[quantity]} at {split.length} tokens{of_whole}"
    yield f"{where} the steps save: {'; '.join(told)}."


def _splits_of(report: Report, model: str, quantity: Quantity) -> list[Split]:
    return sorted(
        (
            split
            for split in report.splits
            if (split.model, split.quantity, (split.concurrency, split.request_rate))
            == (model, quantity, report.lightest)
        ),
        key=lambda split: split.length,
    )


def _signed(step: Step, quantity: Quantity) -> str:
    if step.is_noise:
        return f"{amount(step.saved, quantity)} (noise)"
    return amount(step.saved, quantity) if step.saved > 0 else f"takes {amount(-step.saved, quantity)} more"


def _time(report: Report, model: str) -> Iterator[str]:
    for measurement in report.series(model, "model")[-1:]:
        if measurement.breakdown_us is not None:
            parts = time_parts(measurement.breakdown_us)
            whole = sum(parts.values())
            named = sorted(parts.items(), key=lambda part: -part[1])[:3]
            told = [f"{PART_TITLES[name]} {ms / whole:.0%}" for name, ms in named if ms / whole >= 0.005]
            is_text = any(each.model == model and each.takes_text for each in report.served)
            within = "; tokenising is in compute, as the graph does it" if is_text else ""
            yield f"Of the mean latency at {measurement.length} tokens: {listed(told)}{within}."


def _sparsity(report: Report, model: str) -> Iterator[str]:
    for measurement in report.series(model, "model")[-1:]:
        if measurement.sparsity is not None:
            rho, kept = measurement.sparsity.rho, measurement.sparsity.keys_kept
            yield (
                f"At {measurement.length} tokens {_span(rho, '.1%')} of the attention weights are exactly "
                f"zero, by layer: a query keeps {_span(kept, '.1f')} keys on average. Where the answer is "
                "read from the first token, the last layer's are those of that token's query."
            )


def _capacity(report: Report, model: str) -> Iterator[str]:
    for found in report.capacity:
        if (found.model, found.variant) == (model, "model"):
            limit = amount(found.limit, "memory_bytes")
            if found.longest_text is None:
                yield f"Within {limit} not even the shortest text fits."
            else:
                yield (
                    f"Within {limit} fit a text of {found.longest_text} tokens and a batch of "
                    f"{found.largest_batch or 0} texts of {found.batch_length}"
                    f"{', the most that it takes' if found.is_all else ''}; both were sent."
                )


def _tasks(report: Report, model: str) -> Iterator[str]:
    """Say which tasks the texts were of, where the model has several."""
    if shares := report.task_shares(model, report.longest(model)):
        named = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        yield f"It has several tasks, and was sent texts of each in turn: {named}."


def _checkpoint(report: Report, model: str) -> Iterator[str]:
    for served in report.served:
        if served.model == model and served.checkpoint is not None:
            yield (
                f"{model} was exported from {served.checkpoint} for this report, and is in no repository: "
                f"`{served.command}` puts it there."
            )


def _padding(report: Report, model: str) -> Iterator[str]:
    shares = [inputs.padding_share for inputs in report.inputs if inputs.model == model]
    if not report.series(model, "model") or not shares:
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


_NOT_IN_THEORY = (
    "; theory counts the buffers of BERT's layers in fp32, and not those of other layers and types, what the "
    "server takes to hand a request on, and that blocks of less than 64 KiB may be there at rest"
)


def _theory(report: Report, model: str) -> Iterator[str]:
    """Say how far measured memory is from theory at the longest length, and what theory leaves out."""
    length = report.longest(model)
    for theory in report.expected:
        measured = report.at(model, theory.variant, theory.length, (1, None))
        if (
            (theory.model, theory.length) != (model, length)
            or theory.variant in ("control", "text")
            or measured is None
            or measured.memory_bytes is None
        ):
            continue
        expects = theory.activations + theory.scores
        ratio = measured.memory_bytes.above_idle.value / expects
        cause = _NOT_IN_THEORY if abs(ratio - 1) > 0.15 else ""
        yield (
            f"{TITLES[theory.variant].capitalize()} at {length} tokens: "
            f"{amount(measured.memory_bytes.above_idle.value, 'memory_bytes')} measured above idle, "
            f"{amount(expects, 'memory_bytes')} expected (activations "
            f"{amount(theory.activations, 'memory_bytes')}, scores {amount(theory.scores, 'memory_bytes')}), "
            f"a ratio of {ratio:.2f}{cause}."
        )


def _growth(report: Report, model: str) -> Iterator[str]:
    for found in report.growth:
        if found.model == model:
            yield (
                f"Memory of padded eager attention grows by {found.measured:.0f} bytes per squared token; "
                f"theory ({found.live_copies} live score tensors of {found.heads} heads and a mask, × batch "
                f"{found.batch} × 4 bytes) says {found.theory:.0f}: a ratio of {found.ratio:.2f}."
            )


def _axes(report: Report, model: str) -> Iterator[str]:
    for measurement in report.series(model, "model")[-1:]:
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


def _text(report: Report, model: str) -> Iterator[str]:
    text, ours = report.series(model, "text"), report.series(model, "model")
    if text and ours and text[-1].length == ours[-1].length:
        whole, graph = text[-1].latency_ms.p50.value, ours[-1].latency_ms.p50.value
        yield (
            f"From text to answer, tokenisation included, a request of {text[-1].length} tokens takes "
            f"{whole:.1f} ms where the graph alone takes {graph:.1f} ms."
        )


def _eager_sparse(report: Report, model: str) -> Iterator[str]:
    if longest := _beside(report, model, "padded_sparse"):
        times, length = longest
        yield (
            f"The same sparse attention, eager on padded rows, takes {times:.1f} times as long at {length} "
            "tokens: so much are packing and a kernel that never forms L×L scores worth to it."
        )


def _portable(report: Report, model: str) -> Iterator[str]:
    if longest := _beside(report, model, "portable"):
        times, length = longest
        yield (
            f"Without the op library the same file takes {times:.1f} times as long at {length} "
            "tokens: the fallback is for portability, not for speed."
        )


def _beside(report: Report, model: str, variant: Variant) -> tuple[float, int] | None:
    """Return how many times as long as the model a variant takes, and at which length: the longest."""
    theirs, ours = report.series(model, variant), report.series(model, "model")
    if not theirs or not ours or theirs[-1].length != ours[-1].length:
        return None
    return theirs[-1].latency_ms.p50.value / ours[-1].latency_ms.p50.value, ours[-1].length


def _concurrency(report: Report, model: str) -> Iterator[str]:
    """Say what more requests in flight bring, at the longest length."""
    longest = report.longest(model)
    sweep = report.sweep(model, "model", longest)
    if len(sweep) < 2:
        return
    first, last = sweep[0], sweep[-1]
    best = max(sweep, key=lambda measurement: measurement.texts_per_second.value)
    yield (
        f"From {first.concurrency} to {load_title(last.load)}, at {longest} tokens, p50 latency goes "
        f"from {amount(first.latency_ms.p50.value, 'latency_ms')} to "
        f"{amount(last.latency_ms.p50.value, 'latency_ms')}; throughput "
        f"{_rise(first.texts_per_second, last.texts_per_second)}"
        f"{_peak(best, last)}."
    )


def _peak(best: Measurement, last: Measurement) -> str:
    """Say where throughput is greatest, if that is not at the highest load, beyond the servers' intervals."""
    least, most = best.texts_per_second.low, last.texts_per_second.high
    if least is None or most is None or least <= most:
        return ""
    return f", after {best.texts_per_second.value:.1f} with {load_title(best.load)}"


def _rise(before: Estimate, after: Estimate) -> str:
    """Say whether throughput rises or falls, or how far its servers agree."""
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return f"is {before.value:.1f} and {after.value:.1f} texts/s, of one server each"
    if after.low <= before.high and before.low <= after.high:
        return f"stays at {before.value:.1f} texts/s, as far as the servers agree"
    verb = "rises" if after.value > before.value else "falls"
    share = after.value / before.value - 1
    return f"{verb} from {before.value:.1f} to {after.value:.1f} texts/s ({share:+.0%})"


def _open_loop(report: Report, model: str) -> Iterator[str]:
    """Say what becomes of latency where requests arrive at a rate, at the longest length."""
    longest = report.longest(model)
    sweep = report.sweep(model, "model", longest, is_open=True)
    if sweep:
        told = [f"{amount(m.latency_ms.p50.value, 'latency_ms')} at {m.request_rate:g}/s" for m in sweep]
        yield (
            f"Where requests of {longest} tokens arrive at a rate ({report.settings.request_distribution}), "
            f"whatever is in flight, p50 latency is {listed(told)}."
        )


def _sparsity_saves(report: Report, model: str) -> Iterator[str]:
    """Say of sparsity, where it is no proven gain, whether it is a loss or not told from noise."""
    served = next((each for each in report.served if each.model == model), None)
    if served is not None and served.lambd is None and served.pattern is None:
        return  # its packed dense twin is the same graph
    quantities: tuple[Quantity, ...] = ("latency_ms", "memory_bytes")
    for quantity in quantities:
        found = [
            (split.length, step) for split in _splits_of(report, model, quantity) if (step := split.sparsity)
        ]
        losses = [(length, step) for length, step in found if not step.is_noise]
        noun = QUANTITY_TITLES[quantity]
        if not found or any(step.saved > 0 for _, step in losses):
            continue
        if losses:
            length, step = losses[-1]
            told = f"takes {amount(-step.saved, quantity)} more {noun} at {length} tokens"
            yield f"Against packed dense attention sparsity itself {told}{_bounds(step, quantity, sign=-1)}."
            continue
        length, step = found[-1]
        lengths = listed([str(each) for each, _ in found])
        yield (
            f"What sparsity itself saves in {noun} is not told from noise at {lengths} tokens: "
            f"{amount(step.saved, quantity)} at {length}"
            f"{_bounds(step, quantity, report.noise_of(model, quantity, report.lightest))}"
            f"{_scores_in_theory(report, model, length) if quantity == 'memory_bytes' else ''}."
        )


def _scores_in_theory(report: Report, model: str, length: int) -> str:
    """Say that theory expects no memory to be saved by sparsity, where dense attention forms no scores."""
    for theory in report.expected:
        if (theory.model, theory.variant, theory.length, theory.scores) == (model, "packed_dense", length, 0):
            return "; theory expects nothing, as packed dense attention forms no L×L scores either"
    return ""


def _bounds(step: Step, quantity: Quantity, noise: float | None = None, sign: int = 1) -> str:
    """Return the interval of a step, with the other sign where it is told as a loss.

    Where 0 is not in it, so that it is `noise` alone that it is not told from, that is said.
    """
    if step.low is None or step.high is None:
        return ", of one server each"
    low, high = sorted((sign * step.low, sign * step.high))
    beyond = "" if noise is None or low <= 0 <= high else f"; the model lay up to {noise:.1%} from itself"
    return f" (95 %: {amount(low, quantity)} to {amount(high, quantity)}{beyond})"
