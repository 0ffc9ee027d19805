"""The command `profile`: latency, throughput and memory of models and their dense twins, as a report."""

import math
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn
from rich.progress import TextColumn as BarText

from sparse_serve.cli.checkpoints import exported, is_checkpoint
from sparse_serve.cli.options import (
    DEFAULT_REPOSITORY,
    ModelRepository,
    Program,
    Verbose,
    given,
    make_output_folder,
    read_size,
    table_console,
)
from sparse_serve.cli.profile_options import (
    BatchSize,
    CaCertificates,
    ClientCores,
    ConcurrencyRange,
    Docker,
    Evaluation,
    InputData,
    InputLengths,
    Inputs,
    Json,
    LabelColumn,
    LatencyBudget,
    Lengths,
    MaxTrials,
    MeasurementInterval,
    MemoryBudget,
    MemoryLimit,
    MinThroughput,
    OutputDir,
    Percentile,
    RequestDistribution,
    RequestRateRange,
    Rounds,
    StabilityPercentage,
    Task,
    TaskMix,
    TextColumn,
    TextPairColumn,
    Threads,
    Url,
    Variants,
)
from sparse_serve.cli.signals import ENDING, handled
from sparse_serve.cli.variants import variants_named
from sparse_serve.connection import checked_address
from sparse_serve.environment import available_cores
from sparse_serve.errors import OptionError, SparseServeError, refuse_without_effect
from sparse_serve.extras import needing
from sparse_serve.profiling.measure import StabilityRule
from sparse_serve.profiling.options import LENGTHS, MOST_CONCURRENT, ROUNDS, ProfileOptions
from sparse_serve.profiling.profile import profile
from sparse_serve.report.document import Report
from sparse_serve.report.files import write_report
from sparse_serve.report.measured import VARIANTS
from sparse_serve.report.terminal import show_report
from sparse_serve.report.trade import Budget

_MOST_RATES = 64
_ALL_LENGTHS = ",".join(map(str, LENGTHS))
_ALL_VARIANTS = ",".join(VARIANTS)

# Requests are made until each task has had its share.
_MOST_SHARES = 20


def profile_command(  # noqa: PLR0913  one parameter per option
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="Entries of the repository; or checkpoints, as paths or hub ids, which are exported for it.",
        ),
    ],
    *,
    model_repository: ModelRepository = DEFAULT_REPOSITORY,
    batch_size: BatchSize = 1,
    concurrency_range: ConcurrencyRange = None,
    request_rate_range: RequestRateRange = None,
    request_distribution: RequestDistribution = "poisson",
    lengths: Lengths = _ALL_LENGTHS,
    inputs: Inputs = None,
    input_data: InputData = None,
    input_lengths: InputLengths = None,
    task: Task = None,
    task_mix: TaskMix = None,
    variants: Variants = _ALL_VARIANTS,
    rounds: Rounds = ROUNDS,
    measurement_interval: MeasurementInterval = 1000,
    stability_percentage: StabilityPercentage = 10.0,
    percentile: Percentile = None,
    max_trials: MaxTrials = 10,
    threads: Threads = None,
    client_cores: ClientCores = 0,
    profile_url: Url = None,
    profile_ca_certificates: CaCertificates = None,
    docker: Docker = None,
    evaluation: Evaluation = None,
    text_column: TextColumn = None,
    text_pair_column: TextPairColumn = None,
    label_column: LabelColumn = None,
    memory_limit: MemoryLimit = None,
    memory_budget: MemoryBudget = None,
    latency_budget: LatencyBudget = None,
    min_throughput: MinThroughput = None,
    output_dir: OutputDir = Path("report"),
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure memory, latency and throughput of models and their dense twins.

    Starts servers of its own on free loopback ports and stops them. Ctrl-C leaves a report of what was
    measured, marked as a part, once there is a first latency.
    """
    with needing("profile", "serve,report"):  # what draws, before all is measured
        import matplotlib  # noqa: F401, PLC0415
    if concurrency_range is None and request_rate_range is None:
        concurrency_range = "1"
    if client_cores >= available_cores():
        raise OptionError(
            f"--client-cores {client_cores} leaves the servers none of the {available_cores()} cores: "
            "give fewer"
        )
    # Options of the environment may be meant for other commands: where they have no effect they have none.
    on_line = set(given(context, context.params))

    def refused(*names: str) -> dict[str, bool]:
        return {f"--{name.replace('_', '-')}": name in on_line for name in names}

    refuse_without_effect(
        (
            "--input-data, which has texts of its own",
            input_data is not None,
            refused("inputs", "input_lengths", "lengths"),
        ),
        ("--input-lengths", input_lengths is not None, refused("lengths")),
        ("no --eval", evaluation is None, refused("label_column")),
        (
            "neither --eval nor --input-data",
            evaluation is None and input_data is None,
            refused("text_column", "text_pair_column"),
        ),
        ("no --request-rate-range", request_rate_range is None, refused("request_distribution")),
        (
            "a running server (--url), whose settings and memory are its own",
            profile_url is not None,
            refused("threads", "memory_limit", "memory_budget"),
        ),
        (
            "no --concurrency-range, at which memory is measured",
            concurrency_range is None,
            refused("memory_budget"),
        ),
    )
    if profile_url is not None:
        if "variants" in on_line:
            raise OptionError("a running server (--url) has one variant, the model: leave out --variants")
        variants = _ALL_VARIANTS
        threads = memory_limit = None
        checked_address(profile_url, "grpc", profile_ca_certificates)
    elif profile_ca_certificates is not None:
        raise OptionError("--ca-certificates are for a running server: name it with --url")
    if profile_url is not None or concurrency_range is None:
        memory_budget = None
    if docker is not None and (profile_url is not None or not docker or docker.startswith("-")):
        raise OptionError(f"--docker '{docker}' is no image, or stands beside --url: give one of the two")
    names = list(dict.fromkeys(name.rstrip("/") for name in names))
    checkpoints = [name for name in names if is_checkpoint(name, model_repository)]
    if checkpoints and profile_url is not None:
        raise OptionError(f"a running server (--url) has entries: '{checkpoints[0]}' is a checkpoint")
    options = ProfileOptions(
        repository=model_repository,
        names=names,
        lengths=_lengths(lengths),
        concurrencies=_concurrencies(concurrency_range) if concurrency_range is not None else (),
        request_rates=_rates(request_rate_range) if request_rate_range is not None else (),
        request_distribution=request_distribution,
        variants=variants_named(variants),
        rounds=rounds,
        batch_size=batch_size,
        measurement_interval_ms=measurement_interval,
        rule=StabilityRule(stability_percentage, percentile, max_trials),
        threads=threads,
        client_cores=client_cores,
        inputs=inputs,
        input_data=input_data,
        input_lengths=input_lengths,
        evaluation=evaluation,
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
        task_mix=_task_mix(task, task_mix),
        url=profile_url,
        ca_certificates=profile_ca_certificates,
        image=docker,
        memory_limit=None if memory_limit is None else read_size("memory-limit", memory_limit),
        budget=Budget(
            None if memory_budget is None else read_size("memory-budget", memory_budget),
            latency_budget,
            min_throughput,
        ),
    )
    make_output_folder(output_dir)

    entries = set(names) - set(checkpoints)
    with (
        handled(_interrupt),
        exported(checkpoints, entries, model_repository, context.find_object(Program)) as made,
        ConsoleProgress(Console(stderr=True)) as progress,
    ):
        called = {each.checkpoint: name for name, each in made.items()}
        options = replace(options, names=[called.get(name, name) for name in names], exported=made)

        def keep(report_so_far: Callable[[], Report]) -> None:
            try:
                write_report(report_so_far(), output_dir)
            except SparseServeError as error:  # there may be room again when all is measured
                progress.notice(str(error))
            except Exception as error:  # what is still to be measured does not hang on it
                progress.notice(f"the report so far cannot be made: {error!r}")

        report = profile(options, progress, keep)
    show_report(report, table_console(stderr=as_json))
    for path in _written(report, output_dir):
        print(f"wrote {path}", file=sys.stderr)
    if as_json:
        print(report.to_json(), end="")
    if report.partial is not None:
        raise typer.Exit(130)


def _written(report: Report, folder: Path) -> list[Path]:
    """Write the report; where that cannot be, keep what was measured in a temporary folder.

    Raises:
        SparseServeError: it was not written where it should be; the message says where it is.
    """
    try:
        return write_report(report, folder)
    except Exception as error:
        try:
            with tempfile.NamedTemporaryFile(
                "w", prefix="sparse-serve-report-", suffix=".json", delete=False, encoding="utf-8"
            ) as spare:
                spare.write(report.to_json())
        except (OSError, ValueError):
            raise error from None
        reason = error if isinstance(error, SparseServeError) else f"the report cannot be made: {error!r}"
        raise SparseServeError(f"{reason}; what was measured is in {spare.name}: see report show") from error


class ConsoleProgress:
    """Progress on a terminal as a bar, elsewhere as one line per step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            BarText("{task.description}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._steps = self._done = 0

    def __enter__(self) -> "ConsoleProgress":
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def start(self, steps: int) -> None:
        """Begin to count towards `steps`."""
        self._steps = steps
        self._task = self._bar.add_task("starting servers", total=steps)

    def done(self, what: str) -> None:
        """Count one step."""
        self._done += 1
        if self._task is not None:
            self._bar.update(self._task, advance=1, description=what)
        if not self._console.is_terminal:
            print(f"{self._done} of {self._steps}: {what}", file=sys.stderr)

    def notice(self, message: str) -> None:
        """Print a line above the bar."""
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Stop the servers as Ctrl-C does; later signals do not disturb that."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    print("stopping the servers", file=sys.stderr)
    raise KeyboardInterrupt


def _concurrencies(text: str) -> tuple[int, ...]:
    parts = text.split(":")
    if len(parts) <= 3 and all(part.isdecimal() for part in parts):
        start = int(parts[0])
        end = int(parts[1]) if len(parts) > 1 else start
        step = int(parts[2]) if len(parts) > 2 else 1
        if 1 <= start <= end <= MOST_CONCURRENT and step >= 1:
            return tuple(range(start, end + 1, step))
    raise OptionError(
        f"--concurrency-range '{text}' is not START[:END[:STEP]] with START from 1 to END, END up to "
        f"{MOST_CONCURRENT} and STEP from 1: give for example 1:4, or 1:16:5 for 1, 6, 11 and 16"
    )


def _rates(text: str) -> tuple[float, ...]:
    parts = text.split(":")
    with suppress(ValueError):
        start = float(parts[0])
        end = float(parts[1]) if len(parts) > 1 else start
        step = float(parts[2]) if len(parts) > 2 else 1.0
        number = (end - start) / step + 1 if step > 0 else 0.0
        if len(parts) <= 3 and start > 0 and 1 <= number <= _MOST_RATES and math.isfinite(number):
            return tuple(start + place * step for place in range(int(number + 1e-9)))
    raise OptionError(
        f"--request-rate-range '{text}' is not START[:END[:STEP]] in requests a second, with START above 0, "
        f"END from START, STEP above 0 and {_MOST_RATES} rates at most: give for example 20, or 10:40:10"
    )


def _lengths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise OptionError(f"--lengths '{text}' is no list of token counts; give for example 64,128,256,512")
    return tuple(sorted({int(part) for part in parts}))


def _task_mix(task: str | None, mix: str | None) -> dict[str, int]:
    """Return the share of each task that is named; empty where none is."""
    if task is not None and mix is not None:
        raise OptionError("give --task for one task alone, or --task-mix for shares of several, not both")
    if task is not None:
        return {task: 1}
    if mix is None:
        return {}
    parts = [part.strip().rpartition("=") for part in mix.split(",")]
    shares = {name: int(share) for name, _, share in parts if share.isdecimal() and len(share) < 3}
    if len(shares) < len(parts) or min(shares.values()) < 1 or sum(shares.values()) > _MOST_SHARES:
        raise OptionError(
            f"--task-mix '{mix}' is not NAME=N,... with each name once and whole numbers from 1 that add up "
            f"to {_MOST_SHARES} at most: give for example sentiment=2,similarity=1"
        )
    return shares
