"""Starts the Triton of this machine on a model repository, and notices when a part of it has died."""

import math
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.errors import ServerError
from sparse_serve.op_library import LIBRARY_NAME
from sparse_serve.repository.config import CONFIG_NAME, TEXT_BACKEND, backend_of, read_config
from sparse_serve.repository.releases import DEFAULT_RELEASE
from sparse_serve.triton.connections import end_receiving, listens
from sparse_serve.triton.installation import (
    PYTHON,
    TritonInstallation,
    backend_directory,
    find_triton,
    in_python,
)
from sparse_serve.triton.preflight import (
    check_device,
    check_op_library,
    cuda_models,
    ipv4_address,
    refuse_blank_paths,
    refuse_listening_arguments,
    remove_op_library,
    require_fallback,
    require_loopback,
    servable_models,
)
from sparse_serve.triton.server import LaunchLine, RepositoryView, Server, ServerOptions

# Nobody needs these over the network. The header that opens them has a colon in its name, so that nobody can
# send it: its value is thrown away, but every user of the machine can read it in the command line.
_HEADER = "no:header"
_CLOSED_APIS = ("shared-memory", "model-repository", "trace", "logging")
_CLOSED_ABROAD = ("model-config", "statistics")

# Without these whoever can reach a port would reach these APIs, or more than loopback the port.
_PROTECTING = {
    "--http-port": ("--http-address", "--http-restricted-api"),
    "--grpc-port": ("--grpc-address", "--grpc-restricted-protocol"),
    "--metrics-port": ("--metrics-address",),
}

_REAP_SECONDS = 5.0
_STOP_INTERVAL = 0.1
_BURY_SECONDS, _BURY_INTERVAL = 0.5, 0.02

# The argument of a Python stub that names the model's instance, such as "reviews_model_0_0".
_INSTANCE = re.compile(r"(?P<model>[^/]+)_\d+_\d+")


def _require_flags(installation: TritonInstallation, flags: frozenset[str]) -> None:
    for port, protecting in _PROTECTING.items():
        missing = [flag for flag in protecting if port in flags and flag not in flags]
        if missing:
            raise ServerError(
                f"Triton at {installation.executable} does not know {missing[0]}, and its port would be open "
                f"to more than it should be: take release {DEFAULT_RELEASE}, or serve with --mode bundled"
            )


class TritonServer(Server):
    """The `tritonserver` on PATH, or the bundled one, as processes of this machine."""

    def __init__(self, options: ServerOptions, view: RepositoryView | None = None) -> None:
        super().__init__(options, view)
        self.installation: TritonInstallation | None = None
        self._op_library: Path | None = None
        self._family: dict[psutil.Process, str] = {}

    def launch_line(self, *, claim_ports: bool = False) -> LaunchLine:
        """Check that the repository can be served, and return the command that `start` runs.

        Raises:
            OptionError: the bundled Triton would listen beyond loopback, `extra_args` says where, or what is
                to be served without the op library needs it.
            RepositoryError: the repository or an entry cannot be served.
            OpLibraryError: an entry needs the op library and it is missing or not the installed one.
            DeviceError: a model computes on a GPU, and there is none that can be used.
            ServerError: Triton was not found, computes on no GPU where a model does, cannot start from the
                folder for temporary files, or a port is taken.
        """
        options = self.options
        refuse_listening_arguments(options.extra_args)
        self.models = servable_models(
            self.repository, self.view.models, verify=options.verify, pins=options.pins
        )
        self.device = device = check_device(self.repository, self.models)
        self._op_library = None
        if options.portable:
            require_fallback(self.repository, self.models)
        else:
            self._op_library = check_op_library(self.repository, self.models, device)
        self.installation = installation = find_triton(options.mode)
        if device == "cuda":
            installation.require_cuda_backend(cuda_models(self.repository, self.models)[0])
        if installation.kind == "bundled":
            require_loopback(options.address, installation.version)
        backends = self._backends_of_models()
        installation.require_backends(backends)
        if in_python(backends):
            refuse_blank_paths(self.repository, self._folder.parent)
        flags = installation.flags()
        _require_flags(installation, flags)
        if claim_ports:
            self._claim_ports()
        arguments = self._arguments(installation, flags)
        return LaunchLine(
            (str(installation.executable), *arguments, *options.extra_args),
            {**installation.variables(self._library_folders), **options.environment},
            (
                *self._library_folders,
                *(
                    folder
                    for folder in (self._overlay, self._backends)
                    if any(argument.endswith(f"={folder}") for argument in arguments)
                ),
            ),
        )

    def _arguments(self, installation: TritonInstallation, flags: frozenset[str]) -> list[str]:
        options = self.options
        address = ipv4_address(options.address)
        closed = _CLOSED_APIS if options.is_loopback else (*_CLOSED_APIS, *_CLOSED_ABROAD)
        key = f"{','.join(closed)}:{_HEADER}={secrets.token_hex(16)}"
        wanted = [
            ("--model-repository", str(self._overlay if self._is_changed else self.repository)),
            ("--backend-directory", str(self._backends)),
            ("--model-control-mode", "none"),
            ("--disable-auto-complete-config", ""),
            ("--exit-on-error", "true"),
            ("--strict-readiness", "true"),
            # Where two models load at the same moment that have the same ops, ONNX Runtime may fail one of
            # them. This package's backend sees to that itself.
            ("--model-load-thread-count", "1" if installation.has_onnxruntime else None),
            ("--exit-timeout-secs", str(math.ceil(options.stop_seconds))),
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
            *(
                ("--backend-config", f"{backend},shm-region-prefix-name={self._mark}")
                for backend in (PYTHON, TEXT_BACKEND)
            ),
        ]
        return [
            flag if value == "" else f"{flag}={value}"
            for flag, value in wanted
            if value is not None and flag in flags
        ]

    @property
    def _backends(self) -> Path:
        return self._folder / "backends"

    @property
    def _library_folders(self) -> tuple[Path, ...]:
        """Where the op library has the name that entries call it by; before all others, if it has another."""
        has_name = self._op_library is None or self._op_library.name == LIBRARY_NAME
        return () if has_name else (self._folder / "lib",)

    def _prepare(self) -> None:
        for folder in self._library_folders:
            assert self._op_library is not None
            folder.mkdir()
            (folder / LIBRARY_NAME).symlink_to(self._op_library)
        if self.installation is not None:
            backend_directory(self.installation, self._backends, self._backends_of_models())
        self._write_overlay()

    def _backends_of_models(self) -> list[str]:
        return [backend_of(read_config(self.repository / model / CONFIG_NAME)) for model in self.models]

    @property
    def _is_changed(self) -> bool:
        return self.options.portable or super()._is_changed

    def _edit(self, config: ModelConfig) -> None:
        if self.options.portable:
            remove_op_library(config)
        super()._edit(config)

    def _is_ready(self) -> bool:
        # Another process may have taken the port since it was found free, and answer in our place.
        return listens(self.process_ids(), self.http_port) and super()._is_ready()

    def _wait_until_ready(self) -> None:
        super()._wait_until_ready()
        self._family = self._stubs()

    def check(self) -> None:
        """Look whether the server and every Python stub that it has started still run.

        Triton calls a model ready though its stub has died, and never starts the stub again. Where Triton
        itself ends one, as it takes another version of the model, that one has a successor.

        Raises:
            ServerError: a process has ended.
        """
        status = self.poll()
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            raise ServerError(f"Triton was ended by {name}: serve again; its log is shown by --verbose")
        if status is not None:
            raise ServerError(f"Triton ended with status {status}: {self._log_reason()}")
        family = self._stubs()
        for process, model in self._missing(family).items():
            raise ServerError(
                f"model '{model}' answers no more, its process {process.pid} has died: serve again"
            )
        self._family = family

    def process_ids(self) -> list[int]:
        """Return the ids of the server's process and all its descendants, the server's first."""
        if self._process is None or self._process.poll() is not None:
            return []
        return [self._process.pid, *(child.pid for child in self._descendants())]

    def _descendants(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _stubs(self) -> dict[psutil.Process, str]:
        """Return the Python stubs that there are, dead ones too, and the models that they serve."""
        models = {each: self._family.get(each) or _served_by(each) for each in self._descendants()}
        return {stub: model for stub, model in models.items() if model is not None}

    def _missing(self, family: Mapping[psutil.Process, str]) -> dict[psutil.Process, str]:
        """Return who has died since the last look, but for those whom Triton has replaced."""
        dead = {each: model for each, model in self._family.items() if _is_dead(each)}
        alive = {model for each, model in family.items() if not _is_dead(each)}
        return {each: model for each, model in dead.items() if model not in alive or _is_left_dead(each)}

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        # A request to a model that has lost its process ends in an error too, but a second late each, one
        # after another, and Triton would wait for them all.
        is_whole = not self._missing(self._stubs())
        self._family |= dict.fromkeys(self._descendants(), "?")
        if not is_whole:
            return
        process.terminate()
        deadline = time.monotonic() + self.options.stop_seconds
        while process.poll() is None and time.monotonic() < deadline:
            end_receiving(self.process_ids(), self.http_port)
            time.sleep(_STOP_INTERVAL)

    def _clean_up(self) -> None:
        super()._clean_up()
        psutil.wait_procs(list(self._family), timeout=_REAP_SECONDS)  # init reaps them
        self._family = {}


def _served_by(process: psutil.Process) -> str | None:
    """Return the model that a Python stub serves, as its command line names it; None for what is none."""
    try:
        instances = filter(None, map(_INSTANCE.fullmatch, process.cmdline()))
    except psutil.NoSuchProcess:
        return None
    return next((found["model"] for found in instances), None)


def _is_left_dead(process: psutil.Process) -> bool:
    """Tell whether a process has died and its parent, which has not ended it, does not want to know."""
    deadline = time.monotonic() + _BURY_SECONDS
    try:
        while process.status() == psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return True
            time.sleep(_BURY_INTERVAL)
    except psutil.NoSuchProcess:
        pass
    return False


def _is_dead(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
