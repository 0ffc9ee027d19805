"""Runs the image of docker/ on a model repository, with the least rights that serving needs."""

import json
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import psutil

from sparse_serve.errors import OpLibraryError, OptionError, RepositoryError, ServerError
from sparse_serve.repository.check import require_library_version
from sparse_serve.repository.entries import find_entries, find_models
from sparse_serve.triton import guard, probe
from sparse_serve.triton.preflight import (
    check_device,
    ipv4_address,
    refuse_listening_arguments,
    servable_models,
)
from sparse_serve.triton.server import LaunchLine, RepositoryView, Server, ServerOptions

DEFAULT_IMAGE = "sparse-serve"
# Set by docker/serve.Dockerfile, for what can be known of an image before it runs.
LIBRARY_LABEL = "sparse-serve.op-library-version"

_MODELS = "/models"
_USER = 1000
# The Python backend exchanges tensors with Triton here; Docker's default of 64 MB is soon full.
_SHARED_MEMORY = "256m"
_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
_DOCKER_SECONDS = 60.0
_GRACE_SECONDS = 15.0
_PROBE_SECONDS = 5.0
_END_SECONDS = 1.0
_MEMORY = re.compile(r"[1-9][0-9]*[bkmg]?", re.IGNORECASE)


@dataclass(frozen=True)
class ContainerOptions:
    """What is the container's own: `gpus`, `memory` and `cpuset` as `docker run` takes them.

    Without `gpus` it has all of them where a model computes on one, else none; without `memory` no limit,
    without `cpuset` all cores. With `tells_statistics` they are open to who has a key of this process's own.
    """

    image: str = DEFAULT_IMAGE
    gpus: str | None = None
    memory: str | None = None
    cpuset: str | None = None
    tells_statistics: bool = False


@dataclass(frozen=True)
class Image:
    """An image that Docker has here: its id, and the version of its op library where it says so."""

    id: str
    library_version: int | None


def find_image(name: str) -> Image:
    """Ask Docker for an image.

    Raises:
        ServerError: there is no Docker, it does not answer, or it does not have the image.
    """
    if shutil.which("docker") is None:
        raise ServerError("no docker on PATH: install Docker Engine, or serve without a container")
    _docker("version", failure="Docker does not answer: start it, or get the right to use it")
    missing = (
        f"image '{name}' is not here: docker pull it, or build it in a clone of sparse-serve with "
        f"docker build -f docker/serve.Dockerfile -t {DEFAULT_IMAGE} ."
    )
    told = _docker("image", "inspect", "--format", "{{.Id}} {{json .Config.Labels}}", name, failure=missing)
    identity, _, labels = told.partition(" ")
    version = str((json.loads(labels) or {}).get(LIBRARY_LABEL))
    return Image(identity, int(version) if version.isdecimal() else None)


class ContainerServer(Server):
    """A container of our image, by way of the `docker` on PATH; published on the options' address."""

    def __init__(
        self,
        options: ServerOptions,
        container: ContainerOptions | None = None,
        view: RepositoryView | None = None,
    ) -> None:
        super().__init__(options, view)
        self.container = container or ContainerOptions()
        self._key = secrets.token_hex(16)
        self._found: tuple[int, str] | None = None
        self._probed = 0.0
        self._is_faulty = False

    @property
    def name(self) -> str:
        """The container's name."""
        return self._mark.rstrip("_")

    def launch_line(self, *, claim_ports: bool = False) -> LaunchLine:
        """Check that the repository can be served, and return the `docker run` that `start` runs.

        As `Server.launch_line`; Docker itself is not asked for anything.

        Raises:
            OptionError: `portable` is set, an option is malformed, or `extra_args` says where to listen.
            RepositoryError: the repository or an entry cannot be served, or not be read in the container.
            OpLibraryError: two entries need different versions of the op library.
            DeviceError: a model computes on a GPU, and there is none that can be used.
            ServerError: a port is taken.
        """
        options = self.options
        if options.portable:
            raise OptionError("--portable is for a server without the op library, and the image has it")
        refuse_listening_arguments(options.extra_args)
        self._refuse_options_in_values()
        self.models = servable_models(
            self.repository, self.view.models, verify=options.verify, pins=options.pins
        )
        self.device = check_device(self.repository, self.models)
        _require_one_library(self.repository)
        _require_mode(self.repository, self.repository)
        require_readable(find_models(self.repository), self.repository)
        if claim_ports:
            self._claim_ports()
        scratch = [self._overlay] * self._is_changed + [self._key_file] * self.container.tells_statistics
        command = ("docker", "run", *self._flags(), self.container.image, *options.extra_args)
        return LaunchLine(command, {}, tuple(scratch))

    def _refuse_options_in_values(self) -> None:
        container = self.container
        values = {"image": container.image, "gpus": container.gpus, "memory": container.memory}
        for option, value in values.items():
            if value is not None and (not value or value.startswith("-")):
                raise OptionError(f"--{option} '{value}' is not what docker run takes there")
        if container.memory is not None and not _MEMORY.fullmatch(container.memory):
            raise OptionError(
                f"--memory '{container.memory}' is no size; give a number with b, k, m or g behind it, "
                "such as 4g"
            )
        if ":" in str(self.repository) or (self._is_changed and ":" in str(self.repository.resolve())):
            raise RepositoryError(
                f"model repository '{self.repository}' has a colon in its path, which docker takes for the "
                "end of it: rename it, or serve a link to it from a path without"
            )

    def _flags(self) -> list[str]:
        container = self.container
        address = ipv4_address(self.options.address)
        published = (self.http_port, self.grpc_port, self.metrics_port)
        flags = [
            *("--rm", "--pull", "never", "--name", self.name),
            *("--user", f"{_USER}:{_USER}", "--read-only", "--tmpfs", "/tmp"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"),
            *("--shm-size", _SHARED_MEMORY),
        ]
        for source, target in self._volumes().items():
            flags += ["--volume", f"{source}:{target}:ro"]
        for port, inside in zip(published, _PORTS.values(), strict=True):
            flags += ["--publish", f"{address}:{port}:{inside}"]
        if container.memory is not None:
            # Without a limit of its own, as much again may be swapped out, and latency with it.
            flags += ["--memory", container.memory, "--memory-swap", container.memory]
        if container.cpuset is not None:
            flags += ["--cpuset-cpus", container.cpuset]
        gpus = "all" if container.gpus is None and self.device == "cuda" else container.gpus
        if gpus is not None:
            flags += ["--gpus", gpus]
        for name, value in {**self._variables(), **self.options.environment}.items():
            flags += ["--env", f"{name}={value}"]
        return flags

    def _volumes(self) -> dict[Path, Path]:
        """Return what the container sees of this machine, and where.

        A view is at its own path, and what its links lead to.
        """
        own = [self._overlay, self.repository.resolve()] if self._is_changed else []
        key = [self._key_file] if self.container.tells_statistics else []
        served = {} if self._is_changed else {self.repository: Path(_MODELS)}
        return served | {path: path for path in (*own, *key)}

    def _variables(self) -> dict[str, str]:
        """Return what the image's entry point is told: to check what is checked here, and no more.

        Of a view, whose links it would refuse, it checks less.
        """
        view = {"MODEL_REPOSITORY": str(self._overlay), "VERIFY": "0"}
        key = {"ADMIN_KEY_FILE": str(self._key_file)} if self.container.tells_statistics else {}
        if self._is_changed:
            return view | key
        pins = " ".join(f"{name}={digest}" for name, digest in self.options.pins.items())
        return {
            **({"MANIFEST_DIGESTS": pins} if pins else {}),
            **({} if self.options.verify else {"VERIFY": "0"}),
            **key,
        }

    @property
    def _key_file(self) -> Path:
        return self._folder / "key"

    @property
    def grpc_headers(self) -> Mapping[str, str]:
        """The key, as Triton's gRPC wants it."""
        return {"triton-grpc-protocol-admin-key": self._key} if self.container.tells_statistics else {}

    @property
    def id(self) -> str:
        """The container's id, which its control group has in its name.

        Raises:
            ServerError: Docker does not tell it.
        """
        return self._inspected()[1]

    def process_ids(self) -> list[int]:
        """Return the ids, on this machine, of the container's first process and all its descendants.

        None once it has ended.

        Raises:
            ServerError: they are not to be seen from here.
        """
        if self.poll() is not None or self._process is None:
            return []
        try:
            first = psutil.Process(self._inspected()[0])
            family = [first, *first.children(recursive=True)]
            is_seen = any(each.name() == "tritonserver" for each in family)
        except (psutil.NoSuchProcess, ValueError):
            is_seen = False
        if not is_seen:
            self._require_unended()
            raise ServerError(
                f"the processes of container {self.name} are not to be seen from here: measure it where "
                "Docker Engine runs, or as a running server by its address"
            )
        return [each.pid for each in family]

    def _inspected(self) -> tuple[int, str]:
        """Return the id of the container's first process on Docker's machine, and its own."""
        if self._found is None:
            failure = f"Docker does not tell of container {self.name}"
            told = _docker("inspect", "--format", "{{.State.Pid}} {{.Id}}", self.name, failure=failure)
            pid, _, identity = told.strip().partition(" ")
            self._found = int(pid), identity
        return self._found

    def _prepare(self) -> None:
        """Check that Docker runs and has an image that fits the repository.

        Raises:
            ServerError: there is no Docker, it does not answer, or it does not have the image.
            OpLibraryError: the image has another version of the op library than an entry was made for.
        """
        name = self.container.image
        version = find_image(name).library_version
        if version is not None:
            remedy = "export it again, or build the image of its release"
            require_library_version(find_entries(self.repository), version, f"image '{name}' has", remedy)
        self._found = None
        self._write_overlay()
        if self.container.tells_statistics:
            self._key_file.write_text(self._key, encoding="ascii")
        # Whatever this process's umask is, the container's user reads what it is given.
        given = [self._key_file, self._overlay, *self._overlay.rglob("*")]
        for path in (path for path in given if path.exists() and not path.is_symlink()):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def _end_command(self) -> Sequence[str]:
        # Killing the client leaves the container running.
        return ("docker", "rm", "--force", self.name)

    def check(self) -> None:
        """Look whether the container runs and, every few seconds, whether each model still answers.

        These inferences are counted in Triton's statistics and metrics as any others.

        Raises:
            ServerError: the container has ended, or a model answers no more.
        """
        self._require_unended()
        if time.monotonic() - self._probed < _PROBE_SECONDS:
            return
        try:
            for model, config in self._entry_configs.items():
                probe.require_alive(self.http_url, model, config, _PROBE_SECONDS)
        except ServerError:
            if self._process is not None:  # the container's end says more than a broken connection
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_SECONDS)
            self._require_unended()
            self._is_faulty = True
            raise
        self._probed = time.monotonic()

    def _require_unended(self) -> None:
        status = self.poll()
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            raise ServerError(f"docker run was ended by {name}, and its container with it: serve again")
        if status is not None:
            raise ServerError(f"the container ended with status {status}: {self._log_reason()}")

    def kill(self) -> None:
        """Kill the container at once; `stop` is still needed to clean up after it."""
        _try_docker("kill", self.name)
        super().kill()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        # Triton would wait for what a dead model never answers.
        patience = 0.0 if self._is_faulty else self.options.stop_seconds
        stop = ("stop", "-t", f"{patience:.0f}", self.name)
        if process.poll() is None and _try_docker(*stop, seconds=patience):
            process.wait(_GRACE_SECONDS)

    def _clean_up(self) -> None:
        # A client that still runs may be about to make the container, and one that has died left it running.
        if self._guard is not None:
            guard.kill(self._mark)
            _try_docker("rm", "--force", self.name)
        super()._clean_up()


def _require_one_library(repository: Path) -> None:
    wanted = {
        entry.manifest.op_library.version: entry.name
        for entry in find_entries(repository)
        if entry.manifest.op_library is not None
    }
    if len(wanted) > 1:
        listed = ", ".join(f"{version} by '{name}'" for version, name in sorted(wanted.items()))
        raise OpLibraryError(
            f"one image has one version of the op library, wanted are {listed}: export the older ones again"
        )


def require_readable(models: Iterable[Path], repository: Path) -> None:
    """Find what the container's user, who is no root, cannot reach below models of a repository.

    Raises:
        RepositoryError: there is something.
    """
    below = [path for model in models for path in (model, *model.rglob("*"))]
    for path in filter(Path.is_symlink, below):
        _require_followable(path, repository.resolve())
    for path in below:
        _require_mode(path, repository)


def _require_mode(path: Path, repository: Path) -> None:
    if not _may_read(path.stat()):
        raise RepositoryError(
            f"{path} cannot be read by user {_USER}, as whom the container runs: chmod -R a+rX {repository}"
        )


def _require_followable(link: Path, root: Path) -> None:
    """Refuse a link that leads nowhere, or does so once the repository `root` is mounted at another path."""
    target = link.readlink()
    if not link.exists():
        raise RepositoryError(f"{link} is a link to {target}, which is not there: remove it, or export again")
    # The container has none of the folders above the repository, not even on the way back into it.
    way = accumulate(target.parts, lambda at, part: (at / part).resolve(), initial=link.parent.resolve())
    if not all(step.is_relative_to(root) for step in way):
        raise RepositoryError(
            f"{link} is a link to {target}, which the container cannot follow: copy the file, or link to it "
            "by a relative path inside the repository"
        )


def _may_read(status: os.stat_result) -> bool:
    owner_class = 6 if status.st_uid == _USER else 3 if status.st_gid == _USER else 0
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else 0)
    return status.st_mode >> owner_class & needed == needed


def _docker(*arguments: str, failure: str) -> str:
    """Return what a docker command prints.

    Raises:
        ServerError: it fails; says `failure` and Docker's own last line.
    """
    try:
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=_DOCKER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerError(f"{failure} ({error})") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ServerError(f"{failure} ({lines[-1] if lines else f'status {done.returncode}'})")
    return done.stdout


def _try_docker(*arguments: str, seconds: float = 0.0) -> bool:
    """Run a docker command that may fail: the container it names can be gone, or not there yet."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, timeout=_DOCKER_SECONDS + seconds, check=False
        )
        return done.returncode == 0
    return False
