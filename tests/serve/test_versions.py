"""Versions that come and go while their model and another are asked: nobody gets an error, or a mixture."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from threading import Event

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from serving import addresses, serve, wait_for
from tiny_entry import SAMPLE, WORDS, tiny_graph

from sparse_serve.client import Client
from sparse_serve.connection import Protocol
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.tasks import Regression
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.preflight import claim_ports
from sparse_serve.triton.server import ServerOptions

MakeSpec = Callable[..., EntrySpec]
Logits = tuple[float, ...]
Answers = dict[str, Logits]
Urls = Mapping[Protocol, str]

POLLING = ("--model-control-mode=poll", "--repository-poll-secs=1")
TEXTS = [" ".join(WORDS[start : start + 3]) for start in range(8)]
RETRIES = 20


def ask(url: str, model: str, protocol: Protocol = "grpc") -> Answers:
    with Client(url, protocol, RETRIES) as client:
        replies = client.classify(model, TEXTS)
    return {text: reply.logits for text, reply in zip(TEXTS, replies, strict=True)}


class Traffic:
    """Clients of two models over both protocols, which keep what they are answered."""

    def __init__(self, urls: Urls, models: tuple[str, str], retries: int) -> None:
        self.answers: dict[str, list[tuple[str, Logits]]] = {model: [] for model in models}
        self._urls, self._retries, self._stop = urls, retries, Event()
        self._pool = ThreadPoolExecutor(4)

    def __enter__(self) -> "Traffic":
        asked = [(protocol, model) for protocol in self._urls for model in self.answers]
        self._clients = [self._pool.submit(self._ask, *each) for each in asked]
        self.go_on()
        return self

    def go_on(self) -> None:
        """Wait until both models have been asked some more."""
        before = {model: len(found) for model, found in self.answers.items()}
        wait_for(lambda: all(len(found) > before[model] + 10 for model, found in self.answers.items()))

    def _ask(self, protocol: Protocol, model: str) -> None:
        with Client(self._urls[protocol], protocol, self._retries) as client:
            for text in cycle(TEXTS):
                if self._stop.wait(0.005):  # the tests beside it need the processor too
                    return
                (reply,) = client.classify(model, [text])
                self.answers[model].append((text, reply.logits))

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for client in self._clients:
            client.result()


def assert_answers(found: list[tuple[str, Logits]], *right: Answers) -> None:
    """See that each answer is that of a version, and that every version has answered."""
    for text, logits in found:
        assert any(np.allclose(logits, each[text], atol=1e-5) for each in right), (text, logits)
    for each in right:
        assert any(np.allclose(logits, each[text], atol=1e-5) for text, logits in found)


@pytest.mark.slow
def test_versions_are_changed_by_restarts_that_clients_ride_out(tmp_path: Path, make_spec: MakeSpec) -> None:
    """As the repository's page says: export another version, serve again; delete its folders, serve again."""
    repository = tmp_path / "models"
    write_entry(repository, make_spec())
    write_entry(repository, make_spec(Regression(("value",)), name="value"))
    http, grpc, metrics = claim_ports("127.0.0.1", 0, 0, 0)
    ports = (f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}")
    urls: Urls = {"http": f"127.0.0.1:{http}", "grpc": f"127.0.0.1:{grpc}"}

    def start() -> "subprocess.Popen[str]":
        process = serve(repository, *ports)
        addresses(process)
        return process

    def restart(process: "subprocess.Popen[str]") -> "subprocess.Popen[str]":
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        return start()

    process = start()
    try:
        first, value = ask(urls["grpc"], "tiny"), ask(urls["grpc"], "value")
        with Traffic(urls, ("tiny", "value"), RETRIES) as traffic:
            newer = tiny_graph(tmp_path / "newer.onnx", seed=99)
            write_entry(repository, make_spec(version=2, graph=newer))
            process = restart(process)
            traffic.go_on()
            second = ask(urls["grpc"], "tiny")
            for model in read_entry(repository / "tiny").models:
                shutil.rmtree(repository / model / "2")
            process = restart(process)
            traffic.go_on()
            assert ask(urls["grpc"], "tiny") == first
        assert second != first
        assert_answers(traffic.answers["value"], value)
        assert_answers(traffic.answers["tiny"], first, second)
    finally:
        process.kill()
        process.communicate()


def test_a_text_graph_changes_its_version_while_it_is_asked(tmp_path: Path, make_spec: MakeSpec) -> None:
    """Triton's own polling does it, as such an entry is one model."""
    repository = tmp_path / "models"
    write_entry(repository, make_spec())
    shutil.copytree(SAMPLE, repository / "sample")
    changed = onnx.load(SAMPLE / "1" / "model.onnx")
    (weight,) = (each for each in changed.graph.initializer if each.name == "model.classifier.weight")
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
    onnx.save(changed, tmp_path / "model.onnx")
    manifest = read_entry(SAMPLE).manifest.model_copy(update={"version": 2})
    spec = EntrySpec(graph=tmp_path / "model.onnx", tokenizer=SAMPLE / "tokenizer.json", manifest=manifest)
    options = ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0, extra_args=POLLING)
    with TritonServer(options) as server:
        urls: Urls = {"http": server.http_url, "grpc": server.grpc_url}
        first, tiny = ask(urls["grpc"], "sample"), ask(urls["grpc"], "tiny")
        with Traffic(urls, ("sample", "tiny"), retries=0) as traffic:
            write_entry(repository, spec)
            wait_for(lambda: ask(urls["grpc"], "sample") != first)
            second = ask(urls["grpc"], "sample")
            server.check()
            traffic.go_on()
            shutil.rmtree(repository / "sample" / "2")
            wait_for(lambda: ask(urls["grpc"], "sample") == first)
            traffic.go_on()
        server.check()
    assert_answers(traffic.answers["tiny"], tiny)
    assert_answers(traffic.answers["sample"], first, second)
