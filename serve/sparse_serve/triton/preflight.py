"""What must hold before Triton is started: servable models, a genuine op library, safe and free ports."""

import shutil
import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.cuda import require_gpu, require_server
from sparse_serve.errors import OpLibraryError, OptionError, RepositoryError, ServerError
from sparse_serve.op_library import LIBRARY_NAME, Device, library_version, verify_library
from sparse_serve.repository import staging
from sparse_serve.repository.agreement import entry_faults, library_faults
from sparse_serve.repository.check import (
    Level,
    label_faults,
    processor_faults,
    require_files,
    require_library_version,
    require_no_error,
    require_none,
)
from sparse_serve.repository.config import CONFIG_NAME, device_of, read_config
from sparse_serve.repository.contents import MANIFEST_NAME, access_faults, code_faults, pin_faults
from sparse_serve.repository.entries import Entry, find_entries, find_models, repository_path

# Triton's own options that open a port, and what is to be done instead of passing them through.
_LISTENING = {
    "--http-address": "give --host, before the --",
    "--grpc-address": "give --host, before the --",
    "--metrics-address": "give --host, before the --",
    "--http-port": "give --http-port before the --",
    "--grpc-port": "give --grpc-port before the --",
    "--metrics-port": "give --metrics-port before the --",
    "--allow-sagemaker": "it opens a port on every address; serve with the container in docker/",
    "--allow-vertex-ai": "it opens a port on every address; serve with the container in docker/",
}


def end_interrupted_exports(repository: Path) -> None:
    """Finish or discard what killed exports left in the repository.

    Raises:
        RepositoryError: there is no such repository, or it cannot be read or written.
    """
    repository_path(repository)
    try:
        staging.heal(repository)
    except OSError as error:
        raise RepositoryError(
            f"model repository {repository} holds an interrupted export that cannot be put right here: "
            f"{error.strerror}"
        ) from error


def remove_compiled_fronts(repository: Path) -> None:
    """Remove what Python has compiled where an entry of an earlier version was served from the repository.

    The server would run it without a look at the front that it was compiled from, and compiles that again.

    Raises:
        RepositoryError: it cannot be removed.
    """
    for compiled in repository.glob("*/*/__pycache__"):
        if (compiled.parent.parent / MANIFEST_NAME).is_file():
            try:
                shutil.rmtree(compiled)
            except OSError as error:
                raise RepositoryError(f"{compiled} cannot be removed: {error.strerror}; remove it") from error


def servable_models(
    repository: Path,
    wanted: Sequence[str] | None = None,
    *,
    verify: bool = True,
    pins: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return the names of the repository's models.

    Only those that are `wanted`, if given. Whatever Triton would load or open for an entry must be what this
    package writes, and no model may name an op library that is not this package's: to load one is to run it.
    With `verify`, the files of their entries must be those that its export recorded, and of every model
    nothing may lead out of the repository or be for everybody to write. `pins` are the digests that the
    manifests of entries, by name, must have.

    Raises:
        RepositoryError: the repository cannot be served, a model names a foreign library, or an entry's
            configurations, labels or, with `verify`, files are not those of its export, or its manifest is
            not the pinned one.
    """
    models = tuple(path.name for path in find_models(repository) if wanted is None or path.name in wanted)
    if not models:
        raise RepositoryError(f"model repository {repository} holds no model: export one into it first")
    unfit = f"model repository {repository} is not fit to serve"
    for hidden in sorted(repository.glob(f".*/{CONFIG_NAME}")):
        raise RepositoryError(
            f"{unfit}: Triton would load the hidden folder {hidden.parent.name} as a model: remove it"
        )
    for model in models:
        config = read_config(repository / model / CONFIG_NAME)
        for message in library_faults(config, model):
            raise RepositoryError(f"{unfit}: {message}")
        if verify:
            require_none(access_faults(repository / model), unfit)
    require_none(pin_faults(repository, pins or {}), unfit)
    entries = _entries(repository, models)
    for entry in entries:
        subject = _unfit(entry)
        require_none(code_faults(entry.folders, is_legacy=entry.manifest.is_legacy), subject)
        require_no_error(((Level.error, message) for message in entry_faults(entry)), subject)
        # An index without a label would be answered by an error, at the first text of that class.
        require_no_error(label_faults(entry), subject)
    if verify:
        for entry in entries:
            require_files(entry, _unfit(entry))
    return models


def processor_warnings(repository: Path, models: Sequence[str]) -> list[str]:
    """Return what this processor computes wrong with of the entries that have one of the models."""
    return [message for entry in _entries(repository, models) for _, message in processor_faults(entry)]


def _unfit(entry: Entry) -> str:
    return f"entry '{entry.name}' is not fit to serve"


def _entries(repository: Path, models: Sequence[str]) -> list[Entry]:
    """Return the entries that have one of the models."""
    return [entry for entry in find_entries(repository) if set(entry.models).intersection(models)]


def refuse_blank_paths(repository: Path, temporary: Path) -> None:
    """Refuse a repository, and a folder for temporary files, where Triton's Python backend cannot start.

    Raises:
        RepositoryError: the repository's absolute path has a blank.
        ServerError: that of the folder has one.
    """
    if _has_blank(repository):
        raise RepositoryError(
            f"model repository '{repository.absolute()}' has a blank in its path, where Triton's "
            "Python backend stops: rename it, or serve a link to it from a path without"
        )
    if _has_blank(temporary):
        raise ServerError(
            f"the folder for temporary files, '{temporary}', has a blank in its path, where Triton's Python "
            "backend stops: set TMPDIR to one without, such as /tmp"
        )


def _has_blank(path: Path) -> bool:
    return any(character.isspace() for character in str(path.absolute()))


def cuda_models(repository: Path, models: Sequence[str]) -> list[str]:
    """Return those of the models that are computed on a GPU."""
    return [model for model in models if device_of(read_config(repository / model / CONFIG_NAME)) == "cuda"]


def check_device(repository: Path, models: Sequence[str]) -> Device:
    """Return what the models need for their instances: "cuda" where those of one are on a GPU.

    Raises:
        DeviceError: that is so, and this machine has no GPU that can be used.
    """
    on_gpu = cuda_models(repository, models)
    if not on_gpu:
        return "cpu"
    require_gpu(f"model '{on_gpu[0]}'")
    return "cuda"


def check_op_library(repository: Path, models: Sequence[str], device: Device = "cpu") -> Path | None:
    """Verify the op library if one of the models needs it, and return its path; None where none does.

    Its digest is held against the installed package's record, its version against the manifests. One library
    is loaded: where models compute on a GPU, that which has kernels for both.

    Raises:
        OpLibraryError: the op library is missing, not the installed one, or of another version.
        DeviceError: it was built for a newer driver than this machine has.
    """
    needing = [
        model
        for model in models
        if LIBRARY_NAME in read_config(repository / model / CONFIG_NAME).model_operations.op_library_filename
    ]
    if not needing:
        return None
    try:
        library = verify_library(device)
    except OpLibraryError as error:
        raise OpLibraryError(
            f"model '{needing[0]}' needs the op library, but {error}; --portable serves without it, slower"
        ) from error
    if device == "cuda":
        require_server(f"model '{needing[0]}'")
    for entry in _entries(repository, models):
        # Nothing takes the place of a tokenizer in the graph.
        remedy = "export it again" + ("" if entry.takes_text else ", or serve with --portable")
        require_library_version([entry], library_version(library), "installed is", remedy)
    return library


def require_fallback(repository: Path, models: Sequence[str]) -> None:
    """Refuse to serve without the op library a graph that has its tokenizer in it.

    Raises:
        OptionError: one of the models is such a graph.
    """
    for entry in _entries(repository, models):
        if entry.takes_text and entry.name in models:
            raise OptionError(
                f"--portable cannot serve '{entry.name}': its tokenizer is in the graph, and no standard "
                "operator can take its place; export it with --tokenizer server"
            )


def remove_op_library(config: ModelConfig) -> None:
    """Take the op library out of a configuration: the graph's own functions are run instead."""
    names = [name for name in config.model_operations.op_library_filename if name != LIBRARY_NAME]
    config.model_operations.ClearField("op_library_filename")
    config.model_operations.op_library_filename.extend(names)


def ipv4_address(host: str) -> str:
    """Return the IPv4 address of `host`: Triton's HTTP takes neither names nor IPv6.

    Raises:
        ServerError: there is none.
    """
    if not host:  # which is every address to the resolver
        raise ServerError("address '' cannot be listened on: give an IPv4 address, 0.0.0.0 for all")
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise ServerError(f"address '{host}' cannot be listened on: {error}; give an IPv4 address") from error


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`.

    Raises:
        ServerError: `host` has no IPv4 address.
    """
    return ip_address(ipv4_address(host)).is_loopback


def require_loopback(host: str, release: str | None) -> None:
    """Refuse to have the bundled Triton of that release listen beyond this machine.

    Raises:
        OptionError: `host` is not loopback.
        ServerError: `host` has no IPv4 address.
    """
    if not is_loopback(host):
        raise OptionError(
            f"--host {host} is open to the network, and the bundled Triton {release} has known "
            "vulnerabilities: listen on 127.0.0.1, or serve with the container in docker/ or with a newer "
            "tritonserver on PATH"
        )


def refuse_listening_arguments(arguments: Sequence[str]) -> None:
    """Keep where Triton listens out of the arguments that are passed through to it.

    Raises:
        OptionError: an argument sets an address or a port.
    """
    for argument in arguments:
        name = argument.partition("=")[0]
        for option, instead in _LISTENING.items():
            # Triton takes the beginning of an option for the option.
            if len(name) > len("--") and option.startswith(name):
                raise OptionError(f"Triton's own option {argument} is not passed through: {instead}")


def claim_ports(address: str, http: int, grpc: int, metrics: int) -> tuple[int, int, int]:
    """Return the three ports after checking that each can be bound; 0 becomes a free port.

    Raises:
        OptionError: two of them are one.
        ServerError: a port is taken or not allowed.
    """
    given = [port for port in (http, grpc, metrics) if port]
    if len(set(given)) < len(given):  # which can be bound twice, as long as nobody listens
        raise OptionError(
            f"--http-port {http}, --grpc-port {grpc} and --metrics-port {metrics} are not three ports: give "
            "three"
        )
    claims: list[socket.socket] = []
    try:
        # All are held at once, so that no two get the same free port.
        for protocol, port in (("http", http), ("grpc", grpc), ("metrics", metrics)):
            claims.append(_claim(address, port, f"--{protocol}-port"))
        http, grpc, metrics = (claim.getsockname()[1] for claim in claims)
        return http, grpc, metrics
    finally:
        for claim in claims:
            claim.close()


def _claim(address: str, port: int, flag: str) -> socket.socket:
    claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        claim.bind((address, port))
    except OSError as error:
        claim.close()
        raise ServerError(
            f"port {port} on {address} cannot be used: {error.strerror}; choose another with {flag}"
        ) from error
    return claim
