"""`serve --mode docker`: the line it writes, and what it does with a stand-in for Docker."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fake_docker
import psutil
import pytest
import yaml
from sample_report import MIB
from serving import addresses, alive, leftovers, serve, wait_for

from command_line import exit_status, outcome, own_process
from sparse_serve.cli import app
from sparse_serve.client import Client
from sparse_serve.errors import OpLibraryError, RepositoryError, ServerError
from sparse_serve.profiling import memory, subjects
from sparse_serve.profiling.energy import PowerMeter
from sparse_serve.profiling.subjects import Place
from sparse_serve.report.document import read_report
from sparse_serve.repository.manifest import OpLibrary
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton import container as container_module
from sparse_serve.triton.container import (
    DEFAULT_IMAGE,
    LIBRARY_LABEL,
    ContainerOptions,
    ContainerServer,
)
from sparse_serve.triton.installation import backend_directory, find_triton
from sparse_serve.triton.preflight import claim_ports
from sparse_serve.triton.server import RepositoryView, ServerOptions

MakeSpec = Callable[..., EntrySpec]

DOCKER = Path(__file__).parents[2] / "docker"


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    monkeypatch.setenv("TMPDIR", str(own))


@pytest.fixture
def repository(tmp_path: Path, make_spec: MakeSpec) -> Path:
    write_entry(tmp_path / "models", make_spec())
    return tmp_path / "models"


def container_server(
    repository: Path, container: ContainerOptions | None = None, **changes: object
) -> ContainerServer:
    defaults = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    return ContainerServer(ServerOptions(repository, **{**defaults, **changes}), container)  # type: ignore[arg-type]


def parsed(line: str) -> Namespace:
    docker, command, *arguments = shlex.split(line)
    assert (docker, command) == ("docker", "run")
    return fake_docker.run_parser().parse_args(arguments)


def dry_run(
    repository: Path, capsys: pytest.CaptureFixture[str], *arguments: str, is_whole: bool = True
) -> tuple[str, str]:
    """Return the line, and what is said about it, which is nothing where it `is_whole` in itself."""
    status, output, notes = outcome(capsys, app, "serve", repository, "--dry-run", *arguments)
    assert (status, output.count("\n"), notes.count("\n")) == (0, 1, 0 if is_whole else 1), notes
    return output, notes


def test_the_line_gives_the_least_rights(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    http, grpc, metrics = claim_ports("127.0.0.1", 0, 0, 0)
    chosen = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    line = parsed(dry_run(repository, capsys, "--mode=docker", *chosen, "--", "--log-verbose=1")[0])
    assert line.rm
    assert line.read_only
    assert re.fullmatch(r"sparse_serve_\d+_\d+_[0-9a-f]{8}", line.name)
    assert (line.image, line.arguments) == (DEFAULT_IMAGE, ["--log-verbose=1"])
    assert (line.pull, line.user, line.tmpfs, line.shm_size) == ("never", "1000:1000", "/tmp", "256m")
    assert (line.cap_drop, line.security_opt) == (["ALL"], ["no-new-privileges:true"])
    assert line.volume == [f"{repository}:/models:ro"]
    assert line.publish == [
        f"127.0.0.1:{http}:8000",
        f"127.0.0.1:{grpc}:8001",
        f"127.0.0.1:{metrics}:8002",
    ]
    assert (line.memory, line.memory_swap, line.gpus) == (None, None, None)
    assert line.env == ["DRAIN_TIMEOUT=30"]


def test_the_line_and_compose_agree(repository: Path) -> None:
    line = parsed(str(container_server(repository).launch_line()))
    (service,) = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"].values()
    assert f"-t {service['image']} ." in (DOCKER / "serve.Dockerfile").read_text()
    assert service["image"] == line.image == DEFAULT_IMAGE
    assert (service["user"], service["read_only"], service["shm_size"]) == (line.user, True, line.shm_size)
    assert (service["cap_drop"], service["security_opt"]) == (line.cap_drop, line.security_opt)
    assert service["tmpfs"] == [line.tmpfs]
    assert all(volume.endswith(":/models:ro") for volume in service["volumes"])
    # What the entry point is asked to check, as serve asks it, and as it is without being asked.
    assert service["environment"]["VERIFY"] == "${VERIFY:-1}"
    assert service["environment"]["MANIFEST_DIGESTS"] == "${MANIFEST_DIGESTS:-}"
    assert [port.rsplit(":", 1)[1] for port in service["ports"]] == [
        port.rsplit(":", 1)[1] for port in line.publish
    ]


def test_what_is_asked_for_is_in_the_line(
    tmp_path: Path, make_spec: MakeSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "all my models"
    write_entry(repository, make_spec())
    asked = ["--host=0.0.0.0", "--image=registry.example/serve:1", "--gpus=device=0", "--memory=4g"]
    line = parsed(dry_run(repository, capsys, "--mode=docker", *asked)[0])
    assert line.image == "registry.example/serve:1"
    assert (line.gpus, line.memory, line.memory_swap) == ("device=0", "4g", "4g")
    assert all(published.startswith("0.0.0.0:") for published in line.publish)
    assert line.volume == [f"{repository}:/models:ro"]


def test_the_line_of_a_view_has_what_its_links_lead_to(repository: Path) -> None:
    """And the cores and the key that a profile wants."""
    place = Place(1, frozenset({3, 1}), PowerMeter(), "other:1")
    options = ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)
    server = place.server(options, RepositoryView(("tiny_model",), lambda _config: None))
    written = server.launch_line()
    line = parsed(str(written))
    overlay, key = map(str, written.scratch)
    assert (line.image, line.cpuset_cpus) == ("other:1", "1,3")
    assert line.volume == [f"{path}:{path}:ro" for path in (overlay, repository, key)]
    assert line.env == [f"MODEL_REPOSITORY={overlay}", "VERIFY=0", f"ADMIN_KEY_FILE={key}"]
    assert server.models == ("tiny_model",)
    assert set(server.grpc_headers) == {"triton-grpc-protocol-admin-key"}
    assert container_server(repository).grpc_headers == {}


@pytest.mark.parametrize(("portable", "scratch"), [([], 1), (["--portable"], 2)])
def test_other_modes_show_their_line_too(
    repository: Path, capsys: pytest.CaptureFixture[str], portable: list[str], scratch: int
) -> None:
    before = leftovers()
    arguments = ("--mode=bundled", *portable, "--", "--log-verbose=1")
    line, notes = dry_run(repository, capsys, *arguments, is_whole=False)
    assert leftovers() == before
    env, *words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words if not word.startswith(("-", "/")))
    assert (env, set(variables)) == ("env", {"LD_LIBRARY_PATH", "ORT_DISABLE_TELEMETRY", "PATH"})
    assert words[len(variables)] == str(find_triton("bundled").executable)
    assert (f"--model-repository={repository}" in words) == (not portable)
    assert words[-1] == "--log-verbose=1"
    paths = {path for word in words[len(variables) :] if (path := word.rpartition("=")[2]).startswith("/")}
    absent = {path for path in paths if not Path(path).exists()}
    assert len(absent) == scratch
    assert {note.split()[0] for note in notes.split("; ")} == absent
    assert "there only while serve runs" in notes


@pytest.mark.parametrize("mode", ["docker", "bundled"])
def test_a_dry_run_changes_and_claims_nothing(
    repository: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    interrupted = repository.parent / ".models.staging" / "other" / "new" / "other"
    interrupted.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = (f"--http-port={port}", "--grpc-port=0")
        _, notes = dry_run(repository, capsys, f"--mode={mode}", *ports, is_whole=False)
        assert "serve puts a free port in the place of 0" in notes
        assert interrupted.is_dir()
        with pytest.raises(ServerError, match=f"port {port} on 127.0.0.1 cannot be used"):
            container_server(repository, http_port=port).start()
    assert not interrupted.exists()


def test_container_options_in_the_environment_are_for_containers_only(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"IMAGE": "other:1", "GPUS": "all", "MEMORY": "4g"}.items():
        monkeypatch.setenv(f"SPARSE_SERVE_{name}", value)
    assert "other:1" not in dry_run(repository, capsys, "--mode=bundled", is_whole=False)[0]
    line = parsed(dry_run(repository, capsys, "--mode=docker")[0])
    assert (line.image, line.gpus, line.memory) == ("other:1", "all", "4g")
    status, _, errors = outcome(capsys, app, "serve", repository, "--mode=bundled", "--gpus=all")
    assert status == 2
    assert "--gpus all is the container's" in errors


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker command")
def test_docker_itself_understands_the_line(repository: Path) -> None:
    """With its daemon or without, it comes as far as looking for an image that nobody has."""
    container = ContainerOptions("sparse-serve.invalid/absent:test", gpus="all", memory="64m")
    line = container_server(repository, container, extra_args=("--log-verbose=1",)).launch_line()
    done = subprocess.run(line.arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 125
    assert re.search(r"Cannot connect to the Docker daemon|No such image|permission denied", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode=docker", "--portable"], "--portable is for a server without the op library"),
        (["--mode=docker", "--image=-v"], "--image '-v' is not what docker run takes there"),
        (["--mode=docker", "--memory=4x"], "--memory '4x' is no size; give a number with b, k, m or g"),
        (["--mode=docker", "--memory="], "--memory '' is not"),
        (["--mode=docker", "--", "--http-port=80"], "give --http-port before the --"),
        (["--image=other"], "--image other is the container's: give it with --mode docker"),
        (["--gpus=all"], "--gpus all is the container's"),
        (["--mode=bundled", "--memory=1g"], "--memory 1g is the container's"),
    ],
)
def test_options_that_do_not_go_together(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status, output, errors = outcome(capsys, app, "serve", repository, "--dry-run", *arguments)
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert message in errors


def test_repositories_that_a_container_cannot_serve(
    repository: Path, tmp_path: Path, make_spec: MakeSpec
) -> None:
    colon = tmp_path / "a:b"
    write_entry(colon, make_spec())
    with pytest.raises(RepositoryError, match="has a colon in its path"):
        container_server(colon).launch_line()
    labels = repository / "tiny" / "labels.txt"
    labels.chmod(0o600)
    with pytest.raises(RepositoryError, match=rf"{labels} cannot be read by user 1000.*chmod -R a\+rX"):
        container_server(repository).launch_line()
    os.chown(labels, 1000, 1000) if os.getuid() == 0 else labels.chmod(0o644)
    container_server(repository).launch_line()
    (repository / "tiny" / "1").chmod(0o744)
    with pytest.raises(RepositoryError, match="tiny/1 cannot be read by user 1000"):
        container_server(repository).launch_line()
    (repository / "tiny" / "1").chmod(0o755)
    elsewhere = tmp_path / "labels.txt"
    labels.rename(elsewhere)
    labels.symlink_to(elsewhere)
    with pytest.raises(RepositoryError, match=r"labels.txt is a link to .*, which is not in the repository"):
        container_server(repository).launch_line()
    with pytest.raises(RepositoryError, match=r"labels.txt is a link to .*which the container cannot follow"):
        container_server(repository, verify=False).launch_line()


def test_links_are_followed_as_in_the_container(repository: Path) -> None:
    graph = repository / "tiny_model" / "1" / "model.onnx"
    kept = graph.rename(repository / "kept.onnx")
    graph.symlink_to("../../kept.onnx")
    container_server(repository).launch_line()
    for target in (kept, Path("../../..", repository.name, "kept.onnx")):
        graph.unlink()
        graph.symlink_to(target)
        assert graph.is_file()
        with pytest.raises(RepositoryError, match=r"model.onnx is a link to .*container cannot follow"):
            container_server(repository).launch_line()
    for target in (Path("absent.onnx"), graph):
        graph.unlink()
        graph.symlink_to(target)
        with pytest.raises(RepositoryError, match=r"model.onnx is a link to .*, which is not there"):
            container_server(repository).launch_line()


def test_entries_for_two_op_libraries_are_refused(repository: Path, make_spec: MakeSpec) -> None:
    for version, name in ((1, "older"), (2, "newer")):
        library = OpLibrary(version=version, sha256="0" * 64)
        write_entry(repository, make_spec(name=name, op_library=library))
    with pytest.raises(OpLibraryError, match="wanted are 1 by 'older', 2 by 'newer'"):
        container_server(repository).launch_line()


@dataclass
class FakeDocker:
    """The state of the stand-in, which is the `docker` on PATH."""

    state: Path

    def calls(self, command: str) -> list[list[str]]:
        lines = (self.state / "calls").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call[0] == command]

    def container(self) -> psutil.Process:
        """The first process of the one container that runs."""
        (path,) = self.state.glob("sparse_serve_*")
        return psutil.Process(int(path.read_text()))

    def has_none(self) -> bool:
        return not list(self.state.glob("sparse_serve_*"))


@pytest.fixture
def docker(tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    """A Docker with our image, whose containers run its entry point and the bundled Triton."""
    state, programs = tmp_path / "docker", tmp_path / "bin"
    state.mkdir()
    programs.mkdir()
    (programs / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} {fake_docker.__file__} "$@"\n')
    (state / "images.json").write_text(json.dumps({DEFAULT_IMAGE: {LIBRARY_LABEL: "1"}, "plain": None}))
    installation = find_triton("bundled")
    environment = installation.environment()
    (image / "tritonserver").write_text(f'#!/bin/sh\nexec {installation.executable} "$@"\n')
    backends = f"--backend-directory={backend_directory(installation, tmp_path / 'backends')}"
    (state / "entrypoint").write_text(f'exec sh {image}/entrypoint.sh {backends} "$@"\n')
    inside = {
        "PATH": f"{image}:{environment['PATH']}",
        "LD_LIBRARY_PATH": environment["LD_LIBRARY_PATH"],
    }
    (state / "environment.json").write_text(json.dumps(inside))
    for program in (programs / "docker", image / "tritonserver"):
        program.chmod(0o755)
    monkeypatch.setenv("FAKE_DOCKER", str(state))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    found = FakeDocker(state)
    yield found
    assert found.has_none()


def test_a_container_serves_until_a_signal(repository: Path, docker: FakeDocker) -> None:
    process = serve(repository, "--mode=docker")
    urls = addresses(process)
    container = docker.container()
    family = [container, *container.children(recursive=True)]
    with Client(urls["http"]) as client, Client(urls["grpc"], "grpc") as other:
        assert client.classify("tiny", ["w1"]) == other.classify("tiny", ["w1"])
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    ((_, *stop),) = docker.calls("stop")
    assert stop[:2] == ["-t", "30"]
    assert not alive(family)
    assert docker.has_none()
    assert not leftovers(process.pid)


SHORT = ("--lengths=8", "--rounds=1", "--measurement-interval=20", "--max-trials=3")


@pytest.mark.slow
def test_profile_measures_containers(
    repository: Path, tmp_path: Path, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their memory, processor time and the statistics that the image keeps closed are seen."""
    before = leftovers()  # of a server that other tests share
    groups: list[tuple[int, str]] = []
    monkeypatch.setattr(subjects, "container_group", lambda *asked: groups.append(asked))
    where = (f"--model-repository={repository}", f"--output-dir={tmp_path}", f"--docker={DEFAULT_IMAGE}")
    assert exit_status(app, "profile", "tiny", *where, *SHORT, "--variants=model,text,portable") == 0
    report = read_report(tmp_path / "report.json")
    assert report.failures == ()
    assert {m.variant for m in report.measurements} == {"model", "text"}
    for m in report.measurements:
        assert m.memory_bytes is not None
        assert m.memory_bytes.at_rest.value > 10 * MIB
        assert m.breakdown_us is not None
        assert m.breakdown_us.server_compute_infer > 0
        assert m.cost.core_seconds
    assert {"tritonserver"} < {each.name for held in report.steady for each in held.processes}
    (absent,) = report.absent
    assert (absent.variant, absent.reason) == (
        "portable",
        "the image has the op library: measure it without --docker",
    )
    assert (report.environment.image, report.environment.op_library) == (
        f"{DEFAULT_IMAGE} (sha256:5eed)",
        None,
    )
    lines = [fake_docker.run_parser().parse_args(call[1:]) for call in docker.calls("run")]
    assert len(lines) == len(groups) == 4
    for line in lines:
        served, linked, key = (volume.split(":") for volume in line.volume)
        assert linked == [str(repository), str(repository), "ro"]
        told = {f"MODEL_REPOSITORY={served[0]}", "VERIFY=0", f"ADMIN_KEY_FILE={key[0]}"}
        assert told <= set(line.env)
        assert all(published.startswith("127.0.0.1:") for published in line.publish)
    assert docker.has_none()
    assert set(leftovers()) <= set(before)


def test_an_interrupted_profile_leaves_no_container(
    repository: Path, tmp_path: Path, docker: FakeDocker
) -> None:
    where = (f"--model-repository={repository}", f"--output-dir={tmp_path}", f"--docker={DEFAULT_IMAGE}")
    command = own_process("profile", "tiny", *where, *SHORT, "--variants=model")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: not docker.has_none())
    container = docker.container()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert not alive([container])
    assert docker.has_none()
    assert not leftovers(process.pid)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--docker=absent", "--variants=model"], 1, "image 'absent' is not here: docker pull it"),
        (["--docker=-v"], 2, "--docker '-v' is no image"),
        (["--docker=sparse-serve", "--url=127.0.0.1:8001"], 2, "or stands beside --url"),
    ],
)
def test_a_profile_without_its_image_is_refused(
    repository: Path,
    tmp_path: Path,
    docker: FakeDocker,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    where = (f"--model-repository={repository}", f"--output-dir={tmp_path}", "--lengths=8")
    found, _, errors = outcome(capsys, app, "profile", "tiny", *where, *arguments)
    assert (found, errors.count("\n")) == (status, 1)
    assert message in errors


def test_processes_that_are_elsewhere_are_not_measured(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = container_server(repository)
    with subprocess.Popen(["sleep", "60"]) as other:
        monkeypatch.setattr(server, "_process", other)
        monkeypatch.setattr(server, "_found", (other.pid, "id"))
        with pytest.raises(ServerError, match="are not to be seen from here: measure it where Docker Engine"):
            server.process_ids()
        other.kill()
    with pytest.raises(ServerError, match="docker run was ended by SIGKILL"):
        server.check()
    assert server.process_ids() == []


def test_the_group_of_a_container_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, mounts = tmp_path / "groups", tmp_path / "mounts"
    mounts.write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    monkeypatch.setattr(memory, "_MOUNTS", mounts)
    monkeypatch.setattr(memory, "_LISTING", str(groups))
    groups.write_text("0::/system.slice/docker-abc.scope/init\n")
    assert memory.container_group(1, "abc") == Path("/sys/fs/cgroup/system.slice/docker-abc.scope")
    assert memory.container_group(1, "xyz") is None


def test_a_second_signal_kills_the_container(repository: Path, docker: FakeDocker) -> None:
    process = serve(repository, "--mode=docker")
    addresses(process)
    docker.container().suspend()  # it will not stop by itself
    process.send_signal(signal.SIGINT)
    wait_for(lambda: docker.calls("stop"))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(docker.calls("kill")) == 1


def test_a_killed_launcher_takes_its_container_along(repository: Path, docker: FakeDocker) -> None:
    process = serve(repository, "--mode=docker")
    addresses(process)
    container = docker.container()
    family = [container, *container.children(recursive=True)]
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(family))
    wait_for(lambda: docker.has_none() and not leftovers(process.pid))


def test_an_ended_container_ends_the_command(repository: Path, docker: FakeDocker) -> None:
    process = serve(repository, "--mode=docker")
    addresses(process)
    os.killpg(docker.container().pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("error: the container ended with status 137: ")
    assert not leftovers(process.pid)


def test_a_killed_client_leaves_no_container(repository: Path, docker: FakeDocker) -> None:
    process = serve(repository, "--mode=docker")
    addresses(process)
    container = docker.container()
    family = [container, *container.children(recursive=True)]
    client = container.parent()
    assert client is not None
    client.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("error: docker run was ended by SIGKILL")
    wait_for(lambda: not alive(family))
    assert docker.has_none()
    assert not leftovers(process.pid)


def test_a_changed_repository_is_no_fault_of_the_container(
    repository: Path, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_module, "_PROBE_SECONDS", 0.0)
    with container_server(repository) as server:
        (repository / "tiny" / "config.pbtxt").write_text("half {")
        server.check()
        shutil.rmtree(repository / "tiny_model")
        server.check()


def test_a_dead_model_ends_the_command(repository: Path, docker: FakeDocker) -> None:
    """The container goes on, and calls the model ready."""
    process = serve(repository, "--mode=docker")
    addresses(process)
    stubs = [child for child in docker.container().children(recursive=True) if "stub" in child.name()]
    next(stub for stub in stubs if "/tiny/" in stub.cmdline()[1]).kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.fullmatch("error: model 'tiny' does not answer: .*not healthy.*", errors.splitlines()[-1])


def test_what_the_container_says_of_a_failed_start_is_reported(repository: Path, docker: FakeDocker) -> None:
    (docker.state / "entrypoint").write_text("echo 'error: an unfit library' >&2\nexit 1\n")
    with pytest.raises(ServerError, match="Triton could not start: error: an unfit library"):
        container_server(repository).start()


def test_a_docker_that_cannot_serve_is_explained(
    repository: Path, docker: FakeDocker, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServerError, match="image 'absent' is not here: docker pull it, or build it"):
        container_server(repository, ContainerOptions("absent")).start()
    library = OpLibrary(version=2, sha256="0" * 64)
    write_entry(repository, make_spec(name="newer", op_library=library))
    with pytest.raises(OpLibraryError, match=f"image '{DEFAULT_IMAGE}' has version 1: export it again"):
        container_server(repository).start()
    # An image that does not say what it has says so in its own words.
    with pytest.raises(ServerError, match="entry 'newer' was made for version 2"):
        container_server(repository, ContainerOptions("plain")).start()
    (docker.state / "images.json").unlink()
    with pytest.raises(ServerError, match=r"Docker does not answer: start it.*Cannot connect"):
        container_server(repository).start()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServerError, match="no docker on PATH: install Docker Engine"):
        container_server(repository).start()
