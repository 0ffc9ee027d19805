"""A pod as `deploy` writes it, run here: the bundled Triton by the image's entry point, and HAProxy."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import yaml
from haproxy import HAPROXY, needs_haproxy
from image_runs import entrypoint
from serving import wait_for
from tiny_entry import DOCKER

from command_line import exit_status
from sparse_serve.cli import app
from sparse_serve.deploy.gateway import CONFIG
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton.installation import backend_directory, find_triton

pytestmark = pytest.mark.slow

PORTS = (8000, 8001, 8002, 8404, 18000, 18001)


@dataclass(frozen=True)
class Pod:
    """A running pod: its containers as written, and the port of this machine for each of theirs."""

    server: dict[str, Any]
    gateway: dict[str, Any]
    ports: dict[int, int]
    environment: dict[str, str]
    processes: dict[str, "subprocess.Popen[Any]"]

    def get(self, port: int, path: str) -> tuple[int, str]:
        """Status and body of what a port of the pod answers; 0 where nothing does."""
        try:
            with urlopen(f"http://127.0.0.1:{self.ports[port]}{path}", timeout=10) as response:
                return response.status, response.read().decode()
        except URLError as error:
            return getattr(error, "code", 0), ""

    def probe(self, container: dict[str, Any], name: str) -> bool:
        """Do what a probe of a container says, as the kubelet does."""
        probe = container[f"{name}Probe"]
        if "httpGet" in probe:
            return self.get(probe["httpGet"]["port"], probe["httpGet"]["path"])[0] == 200
        python, script = probe["exec"]["command"]
        assert (python, script) == ("python3", "/opt/sparse-serve/healthcheck.py")
        check = [sys.executable, str(DOCKER / "healthcheck.py")]
        limit = probe["timeoutSeconds"]
        return subprocess.run(check, env=self.environment, timeout=limit, check=False).returncode == 0


def free_ports(wanted: Iterable[int]) -> dict[int, int]:
    """A free port of this machine for each of these."""
    with ExitStack() as held:
        sockets = {port: held.enter_context(socket.create_server(("127.0.0.1", 0))) for port in wanted}
        return {port: each.getsockname()[1] for port, each in sockets.items()}


@contextmanager
def running(folder: Path, image: Path, models: Path, scratch: Path) -> Iterator[Pod]:
    """Run the containers of the manifests in a folder, with ports of this machine in the place of theirs."""
    written = [each for path in folder.glob("*.yaml") for each in yaml.safe_load_all(path.read_text())]
    (listed,) = (
        each["spec"].get("template", each)["spec"]["containers"]
        for each in written
        if each.get("kind") in ("Deployment", "ServingRuntime")
    )
    server, gateway = listed
    ports = free_ports(PORTS)
    installation = find_triton("bundled")
    needed = installation.environment()
    regions = f"sparse_serve_pod_{ports[8000]}_"
    environment = {each["name"]: each["value"] for each in server["env"]} | {
        "MODEL_REPOSITORY": str(models),
        "HTTP_PORT": str(ports[18000]),
        "PATH": needed["PATH"],
        "LD_LIBRARY_PATH": needed["LD_LIBRARY_PATH"],
    }
    line = [
        re.sub("(?<=-port=)[0-9]+", lambda found: str(ports[int(found[0])]), each) for each in server["args"]
    ]
    assert sum(each != was for each, was in zip(line, server["args"], strict=True)) == 3
    config = (folder / "gateway" / CONFIG).read_text()
    for port, ours in ports.items():
        config, found = re.subn(rf"(?<=[ 1]:){port}\b", str(ours), config)
        assert found or port == 8002
    (folder / "gateway" / CONFIG).write_text(config)
    processes: dict[str, subprocess.Popen[Any]] = {}
    try:
        processes["server"] = entrypoint(
            image,
            f'#!/bin/sh\nexec {shlex.quote(str(installation.executable))} "$@"\n',
            *line,
            f"--backend-directory={backend_directory(installation, scratch / 'backends')}",
            f"--backend-config=python,shm-region-prefix-name={regions}",
            f"--backend-config=sparse_serve_text,shm-region-prefix-name={regions}",
            **environment,
        )
        with (scratch / "log").open("wb") as log:
            processes["gateway"] = subprocess.Popen(
                [HAPROXY or "", "-db", "-f", folder / "gateway" / CONFIG], stdout=log, stderr=log
            )
        yield Pod(server, gateway, ports, environment, processes)
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
        for region in Path("/dev/shm").glob(f"{regions}*"):
            region.unlink()


def metric_names(expressions: list[str]) -> set[str]:
    return {name for each in expressions for name in re.findall(r"\b(?:nv|haproxy|sparse_serve)_\w+", each)}


@needs_haproxy
@pytest.mark.parametrize("target", ["kubernetes", "kserve"])
def test_a_pod_starts_answers_and_ends(
    target: str, image: Path, tmp_path: Path, make_spec: Callable[..., EntrySpec]
) -> None:
    models, out = tmp_path / "models", tmp_path / "out"
    write_entry(models, make_spec(metrics=True))
    arguments = ["--target", target, "--output-dir", str(out), "--model-repository", str(models)]
    assert exit_status(app, "deploy", "tiny", *arguments, "--request-timeout", "2") == 0
    with running(out, image, models, tmp_path) as pod:
        gateway, server = pod.processes["gateway"], pod.processes["server"]
        # The gateway lives, and is not ready before the server is.
        wait_for(lambda: pod.probe(pod.gateway, "liveness"))
        wait_for(lambda: server.poll() is not None or pod.probe(pod.server, "readiness"), 60)
        assert server.poll() is None, server.communicate()[1]
        assert pod.probe(pod.server, "startup")
        assert pod.probe(pod.server, "liveness")
        text = np.array([[b"w1 w2"]], object)
        for api, port in ((tritonclient.http, 8000), (tritonclient.grpc, 8001)):
            with api.InferenceServerClient(f"127.0.0.1:{pod.ports[port]}") as client:
                tensor = api.InferInput("TEXT", [1, 1], "BYTES")
                tensor.set_data_from_numpy(text)
                assert client.infer("tiny", [tensor]).as_numpy("token_count").tolist() == [[4]]
        assert pod.get(8000, "/v2/models/other")[0] == 404
        counted = pod.get(8002, "/metrics")[1] + pod.get(8404, "/metrics")[1]
        panels = json.loads((out / "monitoring" / "dashboard.json").read_text())["panels"]
        asked = [target["expr"] for panel in panels for target in panel["targets"]]
        rule = yaml.safe_load((out / "monitoring" / "prometheusrule.yaml").read_text())
        asked += [each["expr"] for each in rule["spec"]["groups"][0]["rules"]]
        assert all(metric_names([each]) for each in asked)
        assert metric_names(asked) - set(re.findall(r"^(\w+)[{ ]", counted, re.MULTILINE)) == set()
        # By which the alert of entries that take text goes.
        assert 'nv_inference_request_failure{model="tiny",reason="BACKEND",' in counted
        # A hung server is found by an inference, which readiness and liveness both are.
        hung = {**pod.environment, "HEALTH_SECONDS": "1"}
        os.kill(server.pid, signal.SIGSTOP)
        check = [sys.executable, str(DOCKER / "healthcheck.py")]
        assert subprocess.run(check, env=hung, capture_output=True, check=False).returncode == 1
        os.kill(server.pid, signal.SIGCONT)
        # Ended as the kubelet ends them: the gateway by its image's stop signal, then the server.
        gateway.send_signal(signal.SIGUSR1)
        assert gateway.wait(30) == 0
        server.terminate()
        assert server.wait(30) == 0
