"""What every way of running Triton has in common: a start that ends in answers, an end without leftovers."""

import os
import secrets
import shlex
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.cuda import MEMORY_REMEDY, is_out_of_memory
from sparse_serve.errors import ServerError
from sparse_serve.op_library import Device
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.repository.entries import entry_models, overlay_repository
from sparse_serve.triton import guard, probe
from sparse_serve.triton.installation import Mode
from sparse_serve.triton.log import LogFile, reason_in_log
from sparse_serve.triton.preflight import (
    claim_ports,
    end_interrupted_exports,
    ipv4_address,
    is_loopback,
    remove_compiled_fronts,
)

# What Triton's log says where it cannot listen; between our look at a free port and that, others can take it.
_PORT_TAKEN = ("already in use", "already allocated")
# What the Python backend of Triton 24.10 ends with at its start, once in a while on a busy machine.
_LOCK_LOST = "boost::interprocess::lock_exception"
_ATTEMPTS = 3


@dataclass(frozen=True)
class ServerOptions:
    """How to serve a repository.

    A port of 0 picks a free one; with `verify`, every file is first held against the digest of its export,
    and the manifests of the entries that `pins` names against the digests there;
    `environment` is added to the server's; `log_path` None keeps Triton's log only while it runs; `echo_log`
    copies it to stderr as it is written; `stop_seconds` is how long a stop waits for requests in flight;
    `control_group` is the folder of a cgroup that the server's processes are put into.
    """

    repository: Path
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    address: str = "127.0.0.1"
    mode: Mode = "auto"
    portable: bool = False
    verify: bool = True
    pins: Mapping[str, str] = field(default_factory=dict)
    extra_args: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    log_path: Path | None = None
    echo_log: bool = False
    start_seconds: float = 300.0
    stop_seconds: float = 30.0
    control_group: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.address)


@dataclass(frozen=True)
class RepositoryView:
    """What is served of a repository: these of its models, their configurations changed in place by `edit`.

    None means all models, and as they are.
    """

    models: Sequence[str] | None = None
    edit: Callable[[ModelConfig], None] | None = None


@dataclass(frozen=True)
class LaunchLine:
    """A command, and the variables that are set for it beside this process's own.

    `scratch` are the folders it names that are there only while the server runs.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    scratch: tuple[Path, ...] = ()

    def __str__(self) -> str:
        """The line as a shell takes it."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join([*(["env", *variables] if variables else []), *self.arguments])


class Server(ABC):
    """A Triton of our own, as a context manager.

    `start` returns when every model has answered an inference; `stop`, which every exit of the context
    runs, ends the server's processes and removes its shared memory and temporary files. A guard does the
    same where this process cannot, having been killed.
    """

    def __init__(self, options: ServerOptions, view: RepositoryView | None = None) -> None:
        self.options = options
        self.view = view or RepositoryView()
        self.models: tuple[str, ...] = ()
        self.device: Device = "cpu"
        # As they were at the start: the repository may change under a server, which goes on as it is.
        self._entry_configs: dict[str, ModelConfig] = {}
        self.http_port, self.grpc_port, self.metrics_port = (
            options.http_port,
            options.grpc_port,
            options.metrics_port,
        )
        # In the environment of the server's processes and in the names of its regions in /dev/shm, so that
        # both are found even after kill -9.
        token = secrets.token_hex(4)
        self._mark = guard.mark_of(os.getpid(), token)
        self._folder = Path(tempfile.gettempdir(), guard.folder_of(os.getpid(), token))
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._log: LogFile | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        """Where HTTP is served, as `host:port`."""
        return f"{self._client_host}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """Where gRPC is served, as `host:port`."""
        return f"{self._client_host}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """Where Prometheus metrics are served."""
        return f"http://{self._client_host}:{self.metrics_port}/metrics"

    @property
    def _client_host(self) -> str:
        address = ipv4_address(self.options.address)
        return "127.0.0.1" if address == "0.0.0.0" else address

    @property
    def repository(self) -> Path:
        """The repository's absolute path."""
        return self.options.repository.absolute()

    @property
    def log_path(self) -> Path:
        """Triton's own log."""
        return self.options.log_path or self._folder / "triton.log"

    @abstractmethod
    def launch_line(self, *, claim_ports: bool = False) -> LaunchLine:
        """Check that the repository can be served, and return the command that `start` runs.

        Nothing on disk is changed. With `claim_ports`, which `start` sets, the ports are checked to be free,
        and one that is free takes the place of 0.

        Raises:
            OptionError: an option is not for this way of serving.
            RepositoryError: the repository or an entry cannot be served.
            OpLibraryError: an entry needs the op library and it is missing or not the right one.
            DeviceError: a model computes on a GPU, and there is none that can be used.
            ServerError: Triton was not found, or a port is taken.
        """

    @property
    def grpc_headers(self) -> Mapping[str, str]:
        """What a client sends to be told of the server's statistics."""
        return {}

    @abstractmethod
    def process_ids(self) -> list[int]:
        """Return the ids of the server's process and all its descendants, the server's first.

        None once it has ended.

        Raises:
            ServerError: they are not to be seen from here.
        """

    @abstractmethod
    def check(self) -> None:
        """Look whether the server and every model still answer; cheap enough for every second.

        Raises:
            ServerError: they do not.
        """

    def start(self) -> None:
        """Start Triton and wait until every model has answered an inference.

        Raises:
            SparseServeError: as `launch_line`.
            ServerError: Triton did not start, or a model did not load.
        """
        if self._process is not None:
            raise ServerError("the server is running already")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start()
                return
            except OSError as error:
                self.stop()
                raise ServerError(f"Triton could not be started: {error}") from error
            except BaseException as error:
                self.stop()
                if attempt == _ATTEMPTS or not self._failed_by_chance(error):
                    raise

    def _failed_by_chance(self, error: BaseException) -> bool:
        """Tell whether Triton lost a race, with itself or for a port that was free when looked at."""
        if not isinstance(error, ServerError):
            return False
        ports = (self.options.http_port, self.options.grpc_port, self.options.metrics_port)
        lost_a_port = 0 in ports and any(said in str(error) for said in _PORT_TAKEN)
        return lost_a_port or _LOCK_LOST in str(error)

    def _start(self) -> None:
        guard.clear(Path(tempfile.gettempdir()))
        end_interrupted_exports(self.repository)
        remove_compiled_fronts(self.repository)
        line = self.launch_line(claim_ports=True)
        self._guard = guard.start(self._mark, self._folder, self._end_command())
        self._folder.mkdir(mode=0o700)
        self._prepare()
        self._log = LogFile(self.log_path, echo=self.options.echo_log)
        self._process = subprocess.Popen(
            [*self._join(), *line.arguments],
            env={**os.environ, **line.environment, guard.MARK_VARIABLE: self._mark},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log.stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._wait_until_ready()

    def _join(self) -> Sequence[str]:
        """Return what joins the control group and becomes the server, where one is asked for."""
        if self.options.control_group is None:
            return ()
        # What is taken before a process is moved stays charged to the group that it comes from.
        members = self.options.control_group / "cgroup.procs"
        return ("/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(members))

    def _end_command(self) -> Sequence[str]:
        """Return what ends the server where killing its processes does not."""
        return ()

    @abstractmethod
    def _prepare(self) -> None:
        """Do what the command relies on, and writing it does not."""

    @property
    def _overlay(self) -> Path:
        """The view of the repository that is served, where it is not the repository itself."""
        return self._folder / "repository"

    @property
    def _is_changed(self) -> bool:
        return self.view != RepositoryView()

    def _edit(self, config: ModelConfig) -> None:
        if self.view.edit is not None:
            self.view.edit(config)

    def _write_overlay(self) -> None:
        if self._is_changed:
            overlay_repository(self.repository, self._overlay, self._edit, self.models)

    def _claim_ports(self) -> None:
        options = self.options
        self.http_port, self.grpc_port, self.metrics_port = claim_ports(
            ipv4_address(options.address), options.http_port, options.grpc_port, options.metrics_port
        )

    def _wait_until_ready(self) -> None:
        configs = {model: read_config(self.repository / model / CONFIG_NAME) for model in self.models}
        ours = entry_models(self.repository)
        self._entry_configs = {model: config for model, config in configs.items() if model in ours}
        deadline = time.monotonic() + self.options.start_seconds
        while not self._is_ready():
            self._require_running()
            if time.monotonic() > deadline:
                raise ServerError(
                    f"Triton was not ready after {self.options.start_seconds:g} s: {self._log_reason()}"
                )
            time.sleep(0.05)
        for model, config in configs.items():
            remaining = deadline - time.monotonic()
            try:
                probe.infer(self.http_url, model, config, remaining, may_refuse=model not in ours)
            except ServerError:
                self._require_running()  # if it has died, its log says more
                raise

    def _is_ready(self) -> bool:
        return probe.is_ready(self.http_url)

    def _require_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise ServerError(f"Triton could not start: {self._log_reason()}")

    def _log_reason(self) -> str:
        reason = reason_in_log(self.log_path.read_text(encoding="utf-8", errors="replace"))
        is_full = self.device == "cuda" and is_out_of_memory(reason)
        return f"{reason}; {MEMORY_REMEDY}" if is_full else reason

    def poll(self) -> int | None:
        """Look whether the server's process has ended and return its exit status, None while it runs."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """Kill the server's processes at once; `stop` is still needed to clean up after them."""
        guard.kill(self._mark)

    def stop(self) -> None:
        """Stop the server and remove what it left; safe to call again. A second Ctrl-C stops it at once."""
        try:
            if self._process is not None:
                with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    self._end(self._process)
        finally:
            self._clean_up()

    @abstractmethod
    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the server in good order, within `stop_seconds`, its requests in flight answered."""

    def _clean_up(self) -> None:
        guard.end(self._mark, self._folder)
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
