"""Measures entries of a model repository: memory, latency, sparsity and quality of every variant.

options → plans (entries, variants found, texts) → rounds of fresh servers → findings → Report
"""

from collections.abc import Callable
from functools import partial

from sparse_serve.errors import SparseServeError
from sparse_serve.profiling.options import ProfileOptions
from sparse_serve.profiling.plan import make_plan, steps
from sparse_serve.profiling.record import report_of
from sparse_serve.profiling.run import Findings, Progress, Run
from sparse_serve.report.document import Report


def profile(
    options: ProfileOptions,
    progress: Progress,
    on_round: Callable[[Callable[[], Report]], object] = lambda _report_so_far: None,
) -> Report:
    """Measure every variant of every entry at every length and load, in several rounds of fresh servers.

    What fails is left out and said; what was measured before Ctrl-C is reported as a part, if some latency
    was. `on_round` is given what makes the report so far, after each round that something follows.

    Raises:
        OptionError: a length or batch beyond what an entry takes.
        RepositoryError: an entry is missing or malformed.
        DataError: the texts or labels cannot be read or used.
        DeviceError: an entry computes on a GPU, and this machine has none that can be used.
        ServerError: nothing could be measured.
        KeyboardInterrupt: no latency was measured yet.
    """
    plans = [make_plan(name, options) for name in options.names]
    for absent in (absent for plan in plans for absent in plan.absent):
        progress.notice(f"{absent.model} {absent.variant} is left out: {absent.reason}")
    progress.start(sum(steps(plan, options) for plan in plans))
    run = Run(options, progress)
    found = Findings()
    limit = options.memory_limit if options.url is None else None
    partial_reason = None
    try:
        for number in range(1, options.rounds + 1):
            run.measure(plans, number, found)
            if number < options.rounds and found.latency:
                ended = f"it ended after {number} of {options.rounds} rounds"
                on_round(partial(report_of, plans, found, run, ended))
        if limit is not None:
            if found.latency:
                ended = "it ended before it was found what fits the memory limit"
                on_round(partial(report_of, plans, found, run, ended))
            for plan in plans:
                run.find_capacity(plan, limit, found)
    except KeyboardInterrupt:
        if not found.latency:
            raise
        partial_reason = "it was interrupted"
    if not found.latency:
        raise run.first_error or SparseServeError("nothing could be measured")
    return report_of(plans, found, run, partial_reason)
