"""Ray Data runs a job: a reader for each group of files, and actors that answer its parts and write them.

A row of Ray's data set is a part, so that Ray may join and split blocks as it likes. An actor that dies is
started again and gets its part again; so is a reader.
"""

import logging
import os
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pyarrow as pa

from sparse_serve.classifier import Classifier
from sparse_serve.errors import JobError, OptionError, SparseServeError, first_line
from sparse_serve.extras import needing
from sparse_serve.processor import usable_cores
from sparse_serve.repository.check import require_files
from sparse_serve.repository.entries import read_entry
from sparse_serve.scoring import EXTRAS
from sparse_serve.scoring.answers import answer
from sparse_serve.scoring.parts import PartRecord, write_part
from sparse_serve.scoring.reading import InputColumns, InputFile, read_parts
from sparse_serve.scoring.storage import Location

# A part that costs so many workers their lives is what kills them.
_ATTEMPTS = 4
# A second part waits at each actor, so that none waits for Ray.
_PARTS_AT_AN_ACTOR = 2
_STORE_BYTES = 256 << 20
# Rows are read that many times as fast as they are answered, and more.
_ACTORS_A_READER = 8
_ANSWER_SECONDS, _ENDING_SECONDS = 5, 2
# Ray's folder has sockets in it, whose paths are 107 bytes long at most.
_LONGEST_FOLDER = 35
_logger = logging.getLogger("sparse_serve")


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        entry: the public folder of the entry.
        version: of the entry.
        threads: of each actor.
        task: of all texts, where the model has several and no column says it.
        groups: of files, by their numbers: those that are not finished.
        finished: the numbers of a group's parts that are there.
        columns: of the files.
        part_rows: how many rows a part has at most.
        output: the folder of the parts.
    """

    entry: Path
    version: int
    threads: int
    task: str | None
    groups: Mapping[int, tuple[InputFile, ...]]
    finished: Mapping[int, frozenset[int]]
    columns: InputColumns
    part_rows: int
    output: Location


def checked_classifier(path: Path, version: int | None, threads: int) -> Classifier:
    """Open the graph of an entry whose files are those of its export; the version is the highest for None.

    Raises:
        RepositoryError: there is no such entry or version, it is damaged, or its graph takes token ids.
        SparseServeError: what else `Classifier` raises.
    """
    found = read_entry(path)
    version = found.highest if version is None else version
    require_files(found.of_version(version), f"entry {path}")
    return Classifier(path, version=version, threads=threads)


class _Scorer:
    """An actor: answers parts and writes them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._classifier = checked_classifier(plan.entry, plan.version, plan.threads)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Write the parts of a batch; return their records."""
        return pa.table({"record": [self._score(part) for part in batch.to_pylist()]})

    def _score(self, part: Mapping[str, Any]) -> str:
        rows = pa.ipc.open_stream(part["rows"]).read_all()
        answered = answer(self._classifier, rows, self._plan.task)
        record = PartRecord(
            group=part["group"],
            number=part["number"],
            is_last=part["is_last"],
            rows=rows.num_rows,
            tokens=answered.tokens,
            truncated=answered.truncated,
            refused=answered.refused,
        )
        try:
            write_part(self._plan.output, record, answered.rows)
        except OSError as error:
            raise JobError(f"--output {self._plan.output} cannot be written: {error}") from error
        return record.model_dump_json()


class _Reader:
    """A task: reads the parts of groups that are not finished."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Yield parts, each a table of one row."""
        plan = self._plan
        for group in batch["group"].to_pylist():
            for part in read_parts(plan.groups[group], plan.columns, plan.part_rows, plan.finished[group]):
                content = pa.BufferOutputStream()
                with pa.ipc.new_stream(content, part.rows.schema) as stream:
                    stream.write_table(part.rows)
                yield pa.table(
                    {
                        "group": [group],
                        "number": [part.number],
                        "is_last": [part.is_last],
                        "rows": pa.array([content.getvalue().to_pybytes()], pa.large_binary()),
                    }
                )


def run(plan: Plan, workers: int | None, address: str | None) -> Iterator[PartRecord]:
    """Yield the records of parts as they are written.

    Args:
        plan: what is to be done.
        workers: how many actors; None for as many as there are cores for.
        address: of a Ray cluster, as `ray.init` has it; None for a Ray of this machine, which ends with the
            job.

    Raises:
        OptionError: there is no such cluster, or it has not enough cores.
        JobError: workers died at one part again and again, or the output cannot be written.
        SparseServeError: what a reader or an actor met.
    """
    with connected(address) as cores:
        actors = cores // plan.threads if workers is None else workers
        if actors < 1 or actors * plan.threads > cores:
            wanted = max(actors, 1)
            raise OptionError(
                f"--workers {wanted} of --threads {plan.threads} take {wanted * plan.threads} cores, Ray has "
                f"{cores}: give fewer"
            )
        try:
            yield from _records(plan, actors)
        except SparseServeError:
            raise
        except Exception as error:  # Ray's own wrap what a task met, and share no base
            raise _told(error) from error


def _records(plan: Plan, actors: int) -> Iterator[PartRecord]:
    import ray.data  # noqa: PLC0415  see connected

    if not _logger.isEnabledFor(logging.DEBUG):
        for name in ("ray", "ray.data"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    groups = [{"group": number} for number in plan.groups]
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # max_task_retries has no other door so far
        context = ray.data.DataContext.get_current().copy()
        # Of any size: a block for each part, which is what actors are given one by one.
        context.target_max_block_size = 1
        context.enable_progress_bars = False
        stack.enter_context(ray.data.DataContext.current(context))
        parts = ray.data.from_items(groups, override_num_blocks=len(groups)).map_batches(
            _Reader(plan),
            batch_size=None,
            batch_format="pyarrow",
            # Reading is little beside answering: it takes no core from the actors, but few at a time do it.
            num_cpus=0,
            compute=ray.data.TaskPoolStrategy(size=max(1, actors // _ACTORS_A_READER)),
        )
        records = parts.map_batches(
            _Scorer,
            fn_constructor_args=[plan],
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=plan.threads,
            compute=ray.data.ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=_PARTS_AT_AN_ACTOR),
            max_task_retries=_ATTEMPTS - 1,
        )
        for batch in records.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for record in pa.table(batch)["record"].to_pylist():
                yield PartRecord.model_validate_json(record)


@contextmanager
def connected(address: str | None) -> Iterator[int]:
    """Have Ray, and tell how many cores it has. One that this process has already stays as it is.

    Raises:
        OptionError: there is no such cluster.
    """
    with ExitStack() as stack:
        if address is not None:
            _require_answering(address)
        stack.enter_context(_environment(is_local=address is None))
        import ray  # noqa: PLC0415  it reads the environment

        if not ray.is_initialized():
            quiet = not _logger.isEnabledFor(logging.DEBUG)
            options: dict[str, Any] = {
                "log_to_driver": not quiet,
                "logging_level": logging.CRITICAL if quiet else logging.INFO,
            }
            if address is None:
                folder = stack.enter_context(
                    TemporaryDirectory(
                        prefix="sparse-serve-", dir=_short_folder(), ignore_cleanup_errors=True
                    )
                )
                options |= {
                    "num_cpus": usable_cores(),
                    "include_dashboard": False,
                    "object_store_memory": _STORE_BYTES,
                    "_temp_dir": folder,
                }
            stack.enter_context(_ending(ray.shutdown))
            try:
                with _own_signals(), _without_stderr() if quiet else nullcontext():
                    ray.init(address or "local", **options)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise OptionError(
                    f"there is no Ray to work with at {address or 'this machine'}: {first_line(error)}; "
                    "give --address the host:port of a cluster's head, with RAY_AUTH_MODE=token where that "
                    "is asked for, or leave it out"
                ) from error
        yield int(ray.cluster_resources().get("CPU", 0))


def _require_answering(address: str) -> None:
    """See that something listens at a host:port: Ray itself would try for minutes.

    Raises:
        OptionError: nothing does.
    """
    host, _, port = address.rpartition(":")
    if "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise OptionError(
            f"--address {address}: nothing answers there ({first_line(error)}); give the host:port of a Ray "
            "cluster's head, auto, or no --address"
        ) from error


def require_ray() -> None:
    """See that Ray Data is installed.

    Raises:
        MissingPackageError: it is not.
    """
    with needing("score", EXTRAS):
        version("ray")


@contextmanager
def _environment(*, is_local: bool) -> Iterator[None]:
    """Set what Ray reads in the environment, for as long as it is in use.

    It keeps its log lines off the terminal. A Ray of our own reports to nobody, has a token of its own, and
    listens on loopback: what says so is meant for other systems, and is read when Ray is imported.
    """
    wanted = {"RAY_BACKEND_LOG_LEVEL": "fatal"}
    if is_local:
        wanted |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_TOKEN": token_hex(),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }
    added = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _ending(shutdown: Callable[[], None]) -> Iterator[None]:
    """Shut Ray down at the end, and whatever it has started: agents look for their node for a minute."""
    own = psutil.Process()
    others = set(own.children(recursive=True))
    try:
        yield
    finally:
        started = set(own.children(recursive=True)) - others
        shutdown()
        _, left = psutil.wait_procs(started, timeout=_ENDING_SECONDS)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what SIGTERM does here: Ray takes it, and exits where one comes while it starts."""
    kept = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    try:
        yield
    except SystemExit:
        if not is_main:
            raise
        signal.signal(signal.SIGTERM, kept)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, kept)


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Keep off the terminal what Ray's C++ side says as it starts: Python's logging has no say in it."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _short_folder() -> str | None:
    """Return where Ray's folder may be; None for the usual place."""
    return None if len(tempfile.gettempdir()) <= _LONGEST_FOLDER else "/tmp"


def _told(error: BaseException) -> SparseServeError:
    """Return what a user is told of an error of Ray's: ours, if a task met one."""
    from ray.exceptions import ActorUnavailableError, RayActorError, WorkerCrashedError  # noqa: PLC0415

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, SparseServeError):
            return seen
        seen = getattr(seen, "cause", None) or seen.__cause__
    if isinstance(error, ActorUnavailableError | RayActorError | WorkerCrashedError):
        return JobError(
            f"{_ATTEMPTS} workers died at one part, for want of memory or of a fault of the model; what is "
            "finished is kept: the same command goes on, with fewer --workers in less memory"
        )
    return JobError(f"Ray gave up: {type(error).__name__}: {first_line(error)}; the same command goes on")
