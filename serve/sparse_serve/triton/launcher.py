"""Starts Triton on a model repository, knows when it answers, and leaves nothing behind when it stops."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

from sparse_serve.errors import ServerError
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.repository.entries import entry_models, overlay_repository
from sparse_serve.triton import probe
from sparse_serve.triton.installation import Mode, TritonInstallation, backend_directory, find_triton
from sparse_serve.triton.preflight import (
    claim_ports,
    ipv4_address,
    is_loopback,
    refuse_listening_arguments,
    remove_op_library,
    require_loopback,
    servable_models,
)

_ECHO_SECONDS = 0.2
_SHARED_MEMORY = Path("/dev/shm")
# Nobody needs these over the network; the key that would open them is thrown away.
_CLOSED_APIS = ("shared-memory", "model-repository", "trace", "logging")
_CLOSED_ABROAD = ("model-config", "statistics")


@dataclass(frozen=True)
class ServerOptions:
    """How to serve a repository.

    A port of 0 picks a free one; `environment` is added to the server's; `log_path` None keeps Triton's log
    only while it runs; `echo_log` copies it to stderr as it is written.
    """

    repository: Path
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    address: str = "127.0.0.1"
    mode: Mode = "auto"
    portable: bool = False
    extra_args: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    log_path: Path | None = None
    echo_log: bool = False
    start_seconds: float = 300.0
    stop_seconds: float = 30.0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.address)


class TritonServer:
    """A Triton server of our own, as a context manager.

    `start` returns when every model has answered an inference; `stop`, which every exit of the context
    runs, ends the server's processes and removes its shared memory and temporary files.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.models: tuple[str, ...] = ()
        self.installation: TritonInstallation | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._family: dict[int, psutil.Process] = {}
        self._log: _LogFile | None = None
        # Names this server's regions in /dev/shm, so that they can be removed even after kill -9.
        self._region_prefix = f"sparse_serve_{os.getpid()}_{secrets.token_hex(4)}_"
        self._folder = Path(tempfile.gettempdir(), f"sparse-serve-{os.getpid()}-{secrets.token_hex(4)}")
        self.http_port, self.grpc_port, self.metrics_port = (
            options.http_port,
            options.grpc_port,
            options.metrics_port,
        )

    def __enter__(self) -> "TritonServer":
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
    def log_path(self) -> Path:
        """Triton's own log."""
        return self.options.log_path or self._folder / "triton.log"

    def start(self) -> None:
        """Start Triton and wait until every model has answered an inference.

        Raises:
            OptionError: the bundled Triton would listen beyond loopback, or `extra_args` says where.
            RepositoryError: the repository or an entry cannot be served.
            OpLibraryError: an entry needs the op library and it is missing or not the installed one.
            ServerError: Triton was not found, a port is taken, or a model did not load.
        """
        if self._process is not None:
            raise ServerError("the server is running already")
        try:
            self._start()
        except OSError as error:
            self.stop()
            raise ServerError(f"Triton could not be started: {error}") from error
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        options = self.options
        refuse_listening_arguments(options.extra_args)
        repository = options.repository.absolute()
        self.models = servable_models(repository, portable=options.portable)
        self.installation = installation = find_triton(options.mode)
        if installation.kind == "bundled":
            require_loopback(options.address, installation.version)
        flags = installation.flags()
        self.http_port, self.grpc_port, self.metrics_port = claim_ports(
            ipv4_address(options.address), options.http_port, options.grpc_port, options.metrics_port
        )
        self._folder.mkdir(mode=0o700)
        if options.portable:
            repository = overlay_repository(repository, self._folder / "repository", remove_op_library)
        command = [
            str(installation.executable),
            *self._arguments(repository, backend_directory(installation, self._folder / "backends"), flags),
            *options.extra_args,
        ]
        self._log = _LogFile(self.log_path, echo=options.echo_log)
        self._process = subprocess.Popen(
            command,
            env={**installation.environment(), **options.environment},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log.stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._wait_until_ready(repository)
        self._remember_family()

    def _arguments(self, repository: Path, backends: Path | None, flags: frozenset[str]) -> list[str]:
        options = self.options
        address = ipv4_address(options.address)
        closed = _CLOSED_APIS if options.is_loopback else (*_CLOSED_APIS, *_CLOSED_ABROAD)
        key = f"{','.join(closed)}:sparse-serve={secrets.token_hex(16)}"
        wanted = [
            ("--model-repository", str(repository)),
            ("--backend-directory", None if backends is None else str(backends)),
            ("--model-control-mode", "none"),
            ("--disable-auto-complete-config", ""),
            ("--exit-on-error", "true"),
            ("--strict-readiness", "true"),
            ("--http-address", address),
            ("--grpc-address", address),
            ("--metrics-address", address),
            ("--http-port", str(self.http_port)),
            ("--grpc-port", str(self.grpc_port)),
            ("--metrics-port", str(self.metrics_port)),
            ("--allow-sagemaker", "false"),
            ("--allow-vertex-ai", "false"),
            ("--http-restricted-api", key),
            ("--grpc-restricted-protocol", key),
            ("--backend-config", f"python,shm-region-prefix-name={self._region_prefix}"),
            ("--backend-config", f"onnxruntime,shm-region-prefix-name={self._region_prefix}"),
        ]
        return [
            flag if value == "" else f"{flag}={value}"
            for flag, value in wanted
            if value is not None and flag in flags
        ]

    def _wait_until_ready(self, repository: Path) -> None:
        configs = {model: read_config(repository / model / CONFIG_NAME) for model in self.models}
        ours = entry_models(repository)
        deadline = time.monotonic() + self.options.start_seconds
        while not probe.is_ready(self.http_url):
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

    def _require_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise ServerError(f"Triton could not start: {self._log_reason()}")

    def _log_reason(self) -> str:
        return probe.reason_in_log(self.log_path.read_text(encoding="utf-8", errors="replace"))

    @property
    def returncode(self) -> int | None:
        """The exit status of the server's process, None while it runs."""
        return None if self._process is None else self._process.returncode

    def poll(self) -> int | None:
        """Look whether the server's process has ended and return its exit status, None while it runs."""
        return None if self._process is None else self._process.poll()

    def check(self) -> None:
        """Look whether the server and every Python stub that was there at the start still run.

        Triton calls a model ready though its stub has died, and never starts the stub again.

        Raises:
            ServerError: a process has ended.
        """
        if self.poll() is not None:
            if self.returncode is not None and self.returncode < 0:
                name = signal.Signals(-self.returncode).name
                raise ServerError(f"Triton was ended by {name}: serve again; its log is shown by --verbose")
            raise ServerError(f"Triton ended with status {self.returncode}: {self._log_reason()}")
        for process in self._family.values():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                raise ServerError(
                    f"process {process.pid} of Triton has died and a model answers no more: serve again"
                )

    def process_ids(self) -> list[int]:
        """Return the ids of the server's process and all its descendants, the server's first."""
        if self._process is None or self._process.poll() is not None:
            return []
        try:
            parent = psutil.Process(self._process.pid)
            return [parent.pid, *(child.pid for child in parent.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def _remember_family(self) -> None:
        for pid in self.process_ids():
            if pid not in self._family and psutil.pid_exists(pid):
                self._family[pid] = psutil.Process(pid)

    def kill(self) -> None:
        """Kill the server's processes at once; `stop` is still needed to clean up after them."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server and remove what it left; safe to call again. A second Ctrl-C stops it at once."""
        try:
            if self._process is not None:
                self._remember_family()
                self._terminate(self._process)
            else:
                self._kill_orphan()
        finally:
            self._process = None
            self._clean_up()

    def _terminate(self, process: subprocess.Popen[bytes]) -> None:
        try:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(self.options.stop_seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            pass
        finally:
            self._kill_family(process)

    def _kill_family(self, process: subprocess.Popen[bytes]) -> None:
        # The group first: it also holds children that appeared since the family was last looked at.
        self.kill()
        alive = [child for child in self._family.values() if child.is_running()]
        for child in alive:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()
        psutil.wait_procs(alive, timeout=5)
        self._family.clear()

    def _kill_orphan(self) -> None:
        """Kill a server whose start was interrupted after the fork, before this object knew of it."""
        for child in psutil.Process().children():
            with suppress(psutil.Error, ProcessLookupError):
                if any(self._region_prefix in argument for argument in child.cmdline()):
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()

    def _clean_up(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        for region in _SHARED_MEMORY.glob(f"{self._region_prefix}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)


class _LogFile:
    """A log that another process writes, copied to stderr on a thread if wanted."""

    def __init__(self, path: Path, *, echo: bool) -> None:
        self.stream = path.open("wb")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._echo, args=(path,), daemon=True)
        if echo:
            self._thread.start()

    def _echo(self, path: Path) -> None:
        with path.open(encoding="utf-8", errors="replace") as reader:
            while not self._closed.wait(_ECHO_SECONDS):
                shutil.copyfileobj(reader, sys.stderr)
            shutil.copyfileobj(reader, sys.stderr)

    def close(self) -> None:
        """Copy what is left and close the file."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self.stream.close()
