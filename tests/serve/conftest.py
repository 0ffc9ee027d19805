"""Tiny entries, and one running Triton for all tests."""

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import onnx
import pytest
import triton_stub as stub
from loading_triton import Edit, LoadingTriton
from onnx import ModelProto
from text_front import MODEL, Front, LoadFront, Shown
from tiny_entry import (
    AAA,
    CLASSES,
    DOCKER,
    LAYERS,
    LEGACY,
    LONG,
    MAX_LENGTH,
    SEVERAL,
    SPANS,
    TAGS,
    VECTORS,
    tiny_graph,
    tiny_text_graph,
    tiny_tokenizer,
)
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.digests import file_digest
from sparse_serve.op_library import LIBRARY_NAME, library_path
from sparse_serve.repository.config import CONFIG_NAME, GRAPH_NAME, read_config, to_text
from sparse_serve.repository.manifest import Attention, Manifest, Versions
from sparse_serve.repository.signature import text_inputs
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.tasks import DEFAULT_TASK, MultiLabel, Regression, Several, Task
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import RepositoryView, ServerOptions


@pytest.fixture(scope="session")
def make_spec(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., EntrySpec]:
    """Specifications of tiny entries; keywords replace fields of spec and manifest, `task` what it answers.

    A task comes with a graph that answers it, or with `takes_text` has the signature of one that does.
    """
    folder = tmp_path_factory.mktemp("parts")
    tokenizer = tiny_tokenizer(folder / "tokenizer.json")
    graphs: dict[str, Path] = {}

    def graph_of(task: Task, *, takes_text: bool) -> Path:
        if (key := f"{task} {takes_text}") not in graphs:
            path = folder / f"{len(graphs)}.onnx"
            # The same numbers whichever tests run; with the 3, models answer something of every kind.
            seed = crc32(f"{task.type} 3".encode())
            if takes_text:
                graphs[key] = tiny_text_graph(path, text_inputs(task))
            else:
                graphs[key] = tiny_graph(path, task=task, seed=seed)
        return graphs[key]

    def make(task: Task = CLASSES, *, takes_text: bool = False, **changes: Any) -> EntrySpec:
        manifest = Manifest(
            name="tiny",
            versions=Versions(package="0"),
            opset=20,
            ir_version=9,
            triton_release="26.07",
            attention=Attention(normalizer="softmax"),
            tasks=dict(task.tasks) if isinstance(task, Several) else {DEFAULT_TASK: task},
            max_length=MAX_LENGTH,
            layers=LAYERS,
            op_library=None,
            tokenizer="graph" if takes_text else "server",
        )
        manifest = manifest.model_copy(
            update={key: value for key, value in changes.items() if key in Manifest.model_fields}
        )
        graph = changes.pop("graph", None) or graph_of(task, takes_text=takes_text)
        spec = EntrySpec(graph=graph, tokenizer=tokenizer, manifest=manifest)
        own = EntrySpec.__dataclass_fields__
        return replace(spec, **{key: value for key, value in changes.items() if key in own})

    return make


@pytest.fixture(scope="session")
def graph_with_domain_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_graph(tmp_path_factory.mktemp("domain") / GRAPH_NAME, domain_nodes=True)


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, make_spec: Callable[..., EntrySpec]
) -> Iterator[TritonServer]:
    """A running Triton with entries of each task."""
    repository = tmp_path_factory.mktemp("served")
    write_entry(repository, make_spec())
    write_entry(repository, make_spec(MultiLabel(("a", "b", "c")), name="topics", max_batch_size=4))
    write_entry(repository, make_spec(Regression(("value",)), name="value", metrics=True))
    write_entry(repository, make_spec(SPANS, name="spans", max_batch_size=8, metrics=True))
    write_entry(repository, make_spec(replace(SPANS, no_answer=True), name="unanswerable"))
    write_entry(repository, make_spec(TAGS, name="tags"))
    write_entry(repository, make_spec(VECTORS, name="vectors"))
    write_entry(repository, make_spec(SEVERAL, name="several", metrics=True))
    write_entry(repository, make_spec(name="documents", max_length=LONG))
    shutil.copytree(LEGACY, repository, dirs_exist_ok=True)
    axes = tiny_graph(tmp_path_factory.mktemp("axes") / GRAPH_NAME, axes=True)
    write_entry(repository, make_spec(name="aaa", graph=axes, attention=AAA, metrics=True))
    write_entry(repository, make_spec(name="strict", truncation="error"))
    options = ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)
    with TritonServer(options, RepositoryView(edit=with_one_instance)) as running:
        yield running


def with_one_instance(config: ModelConfig) -> None:
    """Have but one process of what is asked by few tests: each takes a second to start."""
    if config.name != "tiny":
        config.instance_group[0].count = 1


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate and key of localhost, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run(
        [*line, *names, "-keyout", folder / "key.pem", "-out", folder / "only.pem"],
        check=True,
        capture_output=True,
    )
    both = folder / "tls.pem"
    both.write_text((folder / "only.pem").read_text() + (folder / "key.pem").read_text())
    return both


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def checking_modules() -> list[str]:
    """What of the package the image's build puts beside the check of its entry point."""
    build = (DOCKER / "serve.Dockerfile").read_text().replace("\\\n", " ")
    (command,) = (line for line in build.splitlines() if "cp --parents --target-directory=/check " in line)
    return [word for word in command.split() if word.startswith("sparse_serve/")]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """What the image has in /opt/sparse-serve, as the build puts it there."""
    home = tmp_path / "image"
    (home / "lib").mkdir(parents=True)
    for name in ("entrypoint.sh", "check_entries.py", "healthcheck.py"):
        shutil.copy2(DOCKER / name, home / name)
    for name in checking_modules():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(DOCKER.parent / "serve" / name, home / name)
    shutil.copy2(library_path(), home / "lib" / LIBRARY_NAME)
    digest = f"{file_digest(library_path())}  {LIBRARY_NAME}\n"
    (home / "lib" / f"{LIBRARY_NAME}.sha256").write_text(digest)
    return home


@pytest.fixture(scope="module")
def questions_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions on contexts of up to 150 tokens, which are more windows than the graph takes at a time."""
    rows = []
    for number in range(20):
        context = " ".join(f"w{(number + word) % 30}" for word in range(1 + 8 * number))
        answer = context.split()[number // 2]
        row: dict[str, object] = {
            "question": f"w{number}",
            "context": context,
            "answer": "",
            "answer_start": "",
        }
        if number % 4:
            row |= {"answer": [answer], "answer_start": [context.index(answer)]}
        rows.append(row)
    path = tmp_path_factory.mktemp("questions") / "dev.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadingTriton]:
    started = LoadingTriton(tmp_path_factory.mktemp("triton"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def graph_of_ids(tmp_path_factory: pytest.TempPathFactory) -> ModelProto:
    """A graph of token ids, whose Gather fails on one that is none."""
    return onnx.load(tiny_graph(tmp_path_factory.mktemp("graphs") / "tiny.onnx"))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What the metrics port shows of fronts that are loaded from here on."""
    shown: Shown = {}
    monkeypatch.setattr(stub.MetricFamily, "ports", shown)
    return shown


@pytest.fixture
def load_front(
    tmp_path: Path, make_spec: Callable[..., EntrySpec], monkeypatch: pytest.MonkeyPatch
) -> LoadFront:
    """Write an entry, its configuration edited by `edit`, and load its text backend here."""

    def load(task: Task = CLASSES, edit: Edit = lambda config: None, **changes: Any) -> Front:
        public = write_entry(tmp_path, make_spec(task, **changes))
        config = read_config(public / CONFIG_NAME)
        edit(config)
        (public / CONFIG_NAME).write_text(to_text(config))
        graph = stub.Graph(tmp_path / f"{public.name}_model")
        monkeypatch.setattr(stub.Request, "call", graph, raising=False)
        return stub.load_model(MODEL, public), graph

    return load


@pytest.fixture
def front(load_front: LoadFront) -> Front:
    return load_front()
