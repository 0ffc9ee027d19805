"""What can be said of the image without a container engine: its entry point, health check and build file."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparse_serve.op_library import LIBRARY_NAME
from sparse_serve.repository.entries import EntrySpec, write_entry
from sparse_serve.repository.releases import DEFAULT_RELEASE
from sparse_serve.triton.installation import backend_directory, find_triton
from sparse_serve.triton.preflight import claim_ports

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"

FAKE_TRITON = """#!/bin/sh
if [ "$1" = --help ]; then
  echo "  --allow-vertex-ai <boolean>" >&2
  exit 1
fi
printf '%s\\n' "$@"
"""

HARDENED = [
    "--model-control-mode=none",
    "--disable-auto-complete-config",
    "--exit-on-error=true",
    "--strict-readiness=true",
]


def entrypoint(folder: Path, triton: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Run the entry point with `triton` as the `tritonserver` on its PATH."""
    folder.mkdir(exist_ok=True)
    (folder / "tritonserver").write_text(triton)
    (folder / "tritonserver").chmod(0o755)
    return subprocess.Popen(
        ["sh", str(DOCKER / "entrypoint.sh"), *arguments],
        env=environment | {"PATH": f"{folder}:{environment.get('PATH', os.environ['PATH'])}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launch_line(folder: Path, *arguments: str, **environment: str) -> list[str]:
    output, errors = entrypoint(folder, FAKE_TRITON, *arguments, **environment).communicate(timeout=30)
    assert errors == ""
    return output.splitlines()


def test_the_launch_line_is_hardened(tmp_path: Path) -> None:
    line = launch_line(tmp_path, "--log-verbose=1", ADMIN_KEY="secret")
    closed = "shared-memory,model-config,model-repository,statistics,trace,logging:admin-key=secret"
    assert line == [
        "--model-repository=/models",
        *HARDENED,
        f"--http-restricted-api={closed}",
        f"--grpc-restricted-protocol={closed}",
        "--allow-vertex-ai=false",
        "--log-verbose=1",
    ]


def test_without_a_key_the_closed_apis_get_a_random_one(tmp_path: Path) -> None:
    keys = {line.split("admin-key=")[1] for line in launch_line(tmp_path) if "--http-restricted" in line}
    keys |= {line.split("admin-key=")[1] for line in launch_line(tmp_path) if "--http-restricted" in line}
    assert len(keys) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", key) for key in keys)


def test_grpc_with_tls(tmp_path: Path) -> None:
    files = {"GRPC_SERVER_CERT": "/c.pem", "GRPC_SERVER_KEY": "/k.pem", "GRPC_ROOT_CERT": "/r.pem"}
    line = launch_line(tmp_path, MODEL_REPOSITORY="/else where", **files)
    assert "--model-repository=/else where" in line
    for flag in (
        "--grpc-use-ssl=true",
        "--grpc-server-cert=/c.pem",
        "--grpc-server-key=/k.pem",
        "--grpc-use-ssl-mutual=true",
        "--grpc-root-cert=/r.pem",
    ):
        assert flag in line
    process = entrypoint(tmp_path, FAKE_TRITON, GRPC_ROOT_CERT="/r.pem")
    assert "without GRPC_SERVER_CERT" in process.communicate(timeout=30)[1]
    assert process.returncode == 2


def healthcheck(repository: Path, port: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(DOCKER / "healthcheck.py")],
        env={**os.environ, "MODEL_REPOSITORY": str(repository), "HTTP_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_real_triton_starts_by_the_entry_point_and_is_healthy(
    tmp_path: Path, make_spec: Callable[..., EntrySpec]
) -> None:
    repository = tmp_path / "models"
    write_entry(repository, make_spec())
    installation = find_triton("bundled")
    backends = backend_directory(installation, tmp_path / "backends")
    environment = installation.environment()
    http, grpc, metrics = claim_ports("127.0.0.1", 0, 0, 0)
    process = entrypoint(
        tmp_path / "bin",
        f'#!/bin/sh\nexec {shlex.quote(str(installation.executable))} "$@"\n',
        f"--backend-directory={backends}",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        MODEL_REPOSITORY=str(repository),
        PATH=environment["PATH"],
        LD_LIBRARY_PATH=environment["LD_LIBRARY_PATH"],
    )
    try:
        deadline = time.monotonic() + 60
        while (result := healthcheck(repository, http)).returncode and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        assert (result.returncode, result.stderr) == (0, "")
        write_entry(repository, make_spec(name="absent"))
        assert "absent answers 4" in healthcheck(repository, http).stderr
    finally:
        process.terminate()
        process.communicate(timeout=60)
    stopped = healthcheck(repository, http)
    assert stopped.returncode == 1
    assert "absent does not answer" in stopped.stderr


def test_an_empty_repository_is_not_healthy(tmp_path: Path) -> None:
    result = healthcheck(tmp_path, 1)
    assert (result.returncode, result.stderr) == (1, f"no entry in {tmp_path}\n")


def instructions() -> list[tuple[str, str]]:
    text = (DOCKER / "serve.Dockerfile").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], " ".join(line.split()[1:])) for line in lines]


def test_the_image_is_built_on_the_supported_release() -> None:
    assert ("ARG", f"TRITON_IMAGE=nvcr.io/nvidia/tritonserver:{DEFAULT_RELEASE}-py3") in instructions()
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert bases == ["python:3.12-slim-bookworm", "${TRITON_IMAGE}"]


def test_the_library_lies_on_the_library_path() -> None:
    copied = [rest.split()[-1] for word, rest in instructions() if word == "COPY" and LIBRARY_NAME in rest]
    assert copied == [f"/opt/sparse-serve/lib/{LIBRARY_NAME}"]
    assert ("ENV", "LD_LIBRARY_PATH=/opt/sparse-serve/lib:${LD_LIBRARY_PATH}") in instructions()


def test_the_image_runs_unprivileged_and_checks_its_health() -> None:
    words = [word for word, _ in instructions()]
    assert ("USER", "1000:1000") in instructions()
    assert words.index("USER") > max(index for index, word in enumerate(words) if word == "RUN")
    assert any("healthcheck.py" in rest for word, rest in instructions() if word == "HEALTHCHECK")
    assert ("ENTRYPOINT", '["/opt/sparse-serve/entrypoint.sh"]') in instructions()


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


def test_compose_serves_the_repository_read_only_on_loopback() -> None:
    yaml = pytest.importorskip("yaml")
    service = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["triton"]
    assert service["user"] == "1000:1000"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
