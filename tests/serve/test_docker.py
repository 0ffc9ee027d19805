"""The image without a container engine: its entry point, its health check, and what its build relies on."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import psutil
import pytest
from fake_triton import PRINTING_TRITON
from image_runs import entrypoint
from tiny_entry import PAIRS, SEVERAL, SPANS

from sparse_serve.op_library import LIBRARY_NAME, library_path, library_version
from sparse_serve.repository.manifest import OpLibrary
from sparse_serve.repository.releases import DEFAULT_RELEASE
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton import probe
from sparse_serve.triton.container import LIBRARY_LABEL
from sparse_serve.triton.installation import (
    TEXT_BACKEND_MODULES,
    TritonInstallation,
    backend_directory,
    find_triton,
)
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.preflight import claim_ports
from sparse_serve.triton.server import ServerOptions

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"

HARDENED = [
    "--model-control-mode=none",
    "--disable-auto-complete-config",
    "--exit-on-error=true",
    "--strict-readiness=true",
    "--exit-timeout-secs=8",
]


def launch_line(image: Path, *arguments: str, **environment: str) -> list[str]:
    output, errors = entrypoint(image, PRINTING_TRITON, *arguments, **environment).communicate(timeout=30)
    assert errors == ""
    return output.splitlines()


def test_the_launch_line_is_hardened(image: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    line = launch_line(image, "--log-verbose=1", ADMIN_KEY_FILE=str(tmp_path / "key"))
    closed = "shared-memory,model-config,model-repository,statistics,trace,logging:admin-key=secret"
    assert line == [
        "--model-repository=/models",
        *HARDENED,
        f"--http-restricted-api={closed}",
        f"--grpc-restricted-protocol={closed}",
        "--allow-vertex-ai=false",
        "--log-verbose=1",
    ]


@pytest.mark.parametrize("content", ["", "\n", "two keys", "a\nb", "a:b", None])
def test_a_file_without_a_key_is_refused(image: Path, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    process = entrypoint(image, PRINTING_TRITON, ADMIN_KEY_FILE=str(tmp_path / "key"))
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (2, "")
    assert re.fullmatch(r"error: ADMIN_KEY_FILE \S+ has no key: give .*\n", errors)


def test_a_key_that_docker_inspect_shows_is_refused(image: Path) -> None:
    process = entrypoint(image, PRINTING_TRITON, ADMIN_KEY="secret")
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (2, "")
    assert "secret" not in errors
    assert "its path into ADMIN_KEY_FILE" in errors


def test_without_a_key_the_closed_apis_get_a_random_one(image: Path) -> None:
    lines = [line for _ in range(2) for line in launch_line(image) if "-restricted-" in line]
    keys = {line.split(":no:header=")[1] for line in lines}
    assert (len(lines), len(keys)) == (4, 2)
    assert all(re.fullmatch("[0-9a-f]{32}", key) for key in keys)


def test_serve_and_the_image_start_triton_alike(
    image: Path, tmp_path: Path, make_spec: Callable[..., EntrySpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their flags differ in where something is, and in how long a stop takes."""
    write_entry(tmp_path / "models", make_spec())
    monkeypatch.setattr("sparse_serve.triton.launcher.require_loopback", lambda *_: None)
    monkeypatch.setattr(TritonInstallation, "has_onnxruntime", True)  # as the image's has
    options = ServerOptions(tmp_path / "models", 8000, 8001, 8002, address="0.0.0.0", mode="bundled")
    serves = TritonServer(options).launch_line().arguments[1:]
    known = "\n".join(f"  {flag} <value>" for flag in find_triton("bundled").flags())
    script = f"#!/bin/sh\nif [ \"$1\" = --help ]; then echo '{known}'; else printf '%s\\n' \"$@\"; fi\n"
    output, errors = entrypoint(image, script).communicate(timeout=30)
    assert errors == ""
    assert fixed(serves) == fixed(output.splitlines())
    assert {*HARDENED} - {"--exit-timeout-secs=8"} < {
        flag if value == "" else f"{flag}={value}" for flag, value in fixed(serves).items()
    }


def fixed(arguments: Sequence[str]) -> dict[str, object]:
    """The flags that are the same wherever Triton runs; of a header that opens APIs, its name alone."""
    flags = dict(argument.partition("=")[::2] for argument in arguments)
    found: dict[str, object] = {}
    for flag, value in flags.items():
        if "-restricted-" in flag:
            apis, _, key = value.partition(":")
            found[flag] = (sorted(apis.split(",")), key.partition("=")[0])
        elif not re.search("-(address|port|repository|directory|config|secs)$", flag) or value == "":
            found[flag] = value
    return found


def test_grpc_with_tls(image: Path) -> None:
    files = {"GRPC_SERVER_CERT": "/c.pem", "GRPC_SERVER_KEY": "/k.pem", "GRPC_ROOT_CERT": "/r.pem"}
    line = launch_line(image, MODEL_REPOSITORY="/else where", **files)
    assert "--model-repository=/else where" in line
    for flag in (
        "--grpc-use-ssl=true",
        "--grpc-server-cert=/c.pem",
        "--grpc-server-key=/k.pem",
        "--grpc-use-ssl-mutual=true",
        "--grpc-root-cert=/r.pem",
    ):
        assert flag in line
    for present in (["GRPC_ROOT_CERT"], ["GRPC_SERVER_CERT"], ["GRPC_SERVER_KEY", "GRPC_ROOT_CERT"]):
        process = entrypoint(image, PRINTING_TRITON, **{name: files[name] for name in present})
        assert "needs GRPC_SERVER_CERT and GRPC_SERVER_KEY, both" in process.communicate(timeout=30)[1]
        assert process.returncode == 2


def refusal(image: Path, **environment: str) -> str:
    """Return the one line with which the entry point refuses to start Triton."""
    process = entrypoint(image, PRINTING_TRITON, **environment)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (1, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors


def test_a_changed_library_is_refused(image: Path) -> None:
    library = image / "lib" / LIBRARY_NAME
    library.write_bytes(library.read_bytes() + b"\0")
    assert f"{library} is not the op library this image was built with" in refusal(image)
    library.unlink()
    assert f"{library} is not the op library this image was built with" in refusal(image)


def test_an_image_without_the_recorded_digest_is_refused(image: Path) -> None:
    (image / "lib" / f"{LIBRARY_NAME}.sha256").unlink()
    assert "is not the op library this image was built with" in refusal(image)


def test_entries_for_another_version_of_the_library_are_refused(
    image: Path, tmp_path: Path, make_spec: Callable[..., EntrySpec]
) -> None:
    repository = tmp_path / "models"
    write_entry(repository, make_spec(name="plain"))
    write_entry(repository, make_spec(name="same", op_library=OpLibrary(version=1, sha256="0" * 64)))
    assert f"--model-repository={repository}" in launch_line(image, MODEL_REPOSITORY=str(repository))
    write_entry(repository, make_spec(name="newer", op_library=OpLibrary(version=2, sha256="0" * 64)))
    expected = (
        "entry 'newer' was made for version 2 of the op library, the image has version 1: export it again"
    )
    assert expected in refusal(image, MODEL_REPOSITORY=str(repository))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"op_library": 1}',
        '{"op_library": {}}',
        '{"op_library": null, "files": {}, "version": 1e999}',
    ],
)
def test_an_unreadable_manifest_is_refused(image: Path, tmp_path: Path, content: str) -> None:
    manifest = tmp_path / "models" / "broken" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(content)
    assert f"manifest {manifest} cannot be read" in refusal(image, MODEL_REPOSITORY=str(tmp_path / "models"))


def healthcheck(
    image: Path, repository: Path, port: int, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-I", "-S", str(image / "healthcheck.py")],
        env={**os.environ, "MODEL_REPOSITORY": str(repository), "HTTP_PORT": str(port), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_real_triton_starts_by_the_entry_point_and_is_healthy(
    image: Path, tmp_path: Path, make_spec: Callable[..., EntrySpec]
) -> None:
    repository = tmp_path / "models"
    write_entry(repository, make_spec())
    write_entry(repository, make_spec(SPANS, name="reader"))
    write_entry(repository, make_spec(SEVERAL, name="several"))
    write_entry(repository, make_spec(PAIRS, name="pairs", takes_text=True))
    installation = find_triton("bundled")
    backends = backend_directory(installation, tmp_path / "backends")
    environment = installation.environment()
    http, grpc, metrics = claim_ports("127.0.0.1", 0, 0, 0)
    regions = f"sparse_serve_image_{http}_"
    process = entrypoint(
        image,
        f'#!/bin/sh\nexec {shlex.quote(str(installation.executable))} "$@"\n',
        f"--backend-directory={backends}",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        f"--backend-config=python,shm-region-prefix-name={regions}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        DRAIN_TIMEOUT="1",  # it would wait for the model that has been killed
        MODEL_REPOSITORY=str(repository),
        PATH=environment["PATH"],
        LD_LIBRARY_PATH=environment["LD_LIBRARY_PATH"],
    )
    try:
        deadline = time.monotonic() + 60
        while (result := healthcheck(image, repository, http)).returncode and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        assert (result.returncode, result.stderr) == (0, "")
        stubs = psutil.Process(process.pid).children(recursive=True)
        for stub in stubs:
            if "/tiny/1/model.py" in stub.cmdline()[1]:
                stub.kill()
        assert probe.is_ready(f"127.0.0.1:{http}")
        assert re.search("^tiny answers 500: .*not healthy", healthcheck(image, repository, http).stderr)
        write_entry(repository, make_spec(name="absent"))
        assert "absent answers 4" in healthcheck(image, repository, http).stderr
    finally:
        process.terminate()
        process.wait(
            timeout=60
        )  # before what is read: stubs that are left go once the server has been reaped
        process.communicate(timeout=60)
        for region in Path("/dev/shm").glob(f"{regions}*"):
            region.unlink()
    stopped = healthcheck(image, repository, http)
    assert stopped.returncode == 1
    assert "absent does not answer" in stopped.stderr


def test_an_empty_repository_is_not_healthy(image: Path, tmp_path: Path) -> None:
    result = healthcheck(image, tmp_path, 1)
    assert (result.returncode, result.stderr) == (1, f"no entry in {tmp_path}\n")


class SlowAnswer(BaseHTTPRequestHandler):
    """Classifies any text, after a while."""

    def do_POST(self) -> None:
        time.sleep(0.1)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("text", ["", "input {", 'input { name: "TEXT" dims: x }', "max_batch_size: {}"])
def test_an_entry_that_cannot_be_asked_is_not_healthy(image: Path, tmp_path: Path, text: str) -> None:
    entry = tmp_path / "entry"
    entry.mkdir()
    (entry / "manifest.json").write_text("{}")
    if text:
        (entry / "config.pbtxt").write_text(text)
    result = healthcheck(image, tmp_path, 1)
    assert result.returncode == 1
    assert re.fullmatch(
        r"entry cannot be asked: configuration \S+ (is malformed|cannot be read).*\n", result.stderr
    )


def test_all_entries_share_one_time_limit(image: Path, tmp_path: Path) -> None:
    """Each answers in time, all together do not."""
    for number in range(20):
        (tmp_path / f"entry{number:02}").mkdir()
        (tmp_path / f"entry{number:02}" / "manifest.json").write_text("")
        (tmp_path / f"entry{number:02}" / "config.pbtxt").write_text("")
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowAnswer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        patient = healthcheck(image, tmp_path, server.server_port, HEALTH_SECONDS="60")
        hurried = healthcheck(image, tmp_path, server.server_port, HEALTH_SECONDS="1")
        server.shutdown()
    assert (patient.returncode, patient.stderr) == (0, "")
    assert hurried.returncode == 1
    assert re.fullmatch(r"entry\d\d does not answer: 1 s are over\n", hurried.stderr)


def instructions() -> list[tuple[str, str]]:
    text = (DOCKER / "serve.Dockerfile").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], " ".join(line.split()[1:])) for line in lines]


def test_the_image_is_built_on_the_supported_release() -> None:
    assert ("ARG", f"TRITON_IMAGE=nvcr.io/nvidia/tritonserver:{DEFAULT_RELEASE}-py3") in instructions()


def test_what_the_image_is_built_on_can_be_given_by_digest() -> None:
    """Each base is an argument, by default of a tag that says a version, and the image says which it was."""
    found = instructions()
    defaults = dict(rest.split("=", 1) for word, rest in found if word == "ARG" and "=" in rest)
    stages = [rest for word, rest in found if word == "FROM"]
    bases = [re.fullmatch(r"\$\{(\w+)\}( AS build)?", each) for each in stages]
    assert all(bases), stages
    for base in bases:
        assert base is not None
        assert re.fullmatch(r"[\w./-]+:\d[\w.-]*", defaults[base[1]])
    assert ("LABEL", 'org.opencontainers.image.base.name="${TRITON_IMAGE}"') in found
    after = found[found.index(("FROM", "${TRITON_IMAGE}")) :]
    assert ("ARG", "TRITON_IMAGE") in after  # or it is empty there


def test_the_image_says_which_op_library_it_has() -> None:
    assert ("LABEL", f'{LIBRARY_LABEL}="{library_version(library_path())}"') in instructions()


def test_the_image_has_the_text_backend_that_the_package_has() -> None:
    """The build's commands, run on the source tree, make the backend that `serve` makes."""
    (build,) = (
        rest for word, rest in instructions() if word == "RUN" and "/backend/sparse_serve_text" in rest
    )
    copies = [shlex.split(part) for part in build.split("&&") if part.strip().startswith("cp ")]
    found = {}
    for _, *sources, target in copies:
        for source in sources:
            if source != "-r":
                found[source] = target
    below = "$backend/sparse_serve/"
    assert found.pop("triton/text_backend/model.py") == "$backend/"
    assert set(found) == set(TEXT_BACKEND_MODULES)
    for source, target in found.items():
        folder = source.rpartition("/")[0]
        assert target == (f"{below}{folder}/" if folder else below)
    assert ("COPY", "--from=build /backend/ /opt/tritonserver/backends/") in instructions()
    assert ("COPY", "--from=build /check/ /opt/sparse-serve/") in instructions()


def test_everything_the_build_copies_exists_and_is_not_ignored() -> None:
    ignore = (DOCKER / "serve.Dockerfile.dockerignore").read_text().splitlines()
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
        else:
            sources = re.findall(r"--mount=type=bind,source=([^,]+)", rest)
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignore
