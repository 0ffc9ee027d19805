"""One model of several tasks: on a real Triton by stock tritonclient, and its front and parts alone."""

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import triton_stub as stub
import tritonclient.grpc
from text_front import OUTPUTS, Front, LoadFront, Shown
from tiny_entry import CLASSES, MAX_LENGTH, SEVERAL, SPANS, WORDS, tiny_graph
from tokenizers import Tokenizer
from tritonclient.utils import InferenceServerException

from sparse_serve.errors import RepositoryError, TaskError
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.config import CONFIG_NAME, GRAPH_NAME, read_config
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.manifest import Manifest
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.tasks import TASK_IDS, Classification, Several
from sparse_serve.tasks.encoding import graph_inputs, load_tokenizer
from sparse_serve.triton.launcher import TritonServer
from stock_client import Array, column, infer

MakeSpec = Callable[..., EntrySpec]

PROTOCOLS = pytest.mark.parametrize("protocol", ["http", "grpc"])
NAMES = list(SEVERAL.tasks)
WIDTH = 5
KNOWN = "sentiment, paraphrase, sts, topics"


class Row(NamedTuple):
    """A text, its second text and the name of its task."""

    text: str
    pair: str
    task: str


def rows_of(number: int) -> list[Row]:
    """Rows of every length and of the tasks in turn."""
    return [
        Row(
            " ".join(WORDS[(row * word) % len(WORDS)] for word in range(row % (2 * MAX_LENGTH))),
            WORDS[row % len(WORDS)],
            NAMES[row % len(NAMES)],
        )
        for row in range(number)
    ]


def tensors_of(rows: Sequence[Row]) -> dict[str, Array]:
    texts, pairs, tasks = zip(*rows, strict=True)
    return {"TEXT": column(*texts), "TEXT_PAIR": column(*pairs), "TASK": column(*tasks)}


def ask(server: TritonServer, protocol: str, rows: Sequence[Row]) -> dict[str, Array]:
    return dict(zip(OUTPUTS, infer(server, protocol, "several", tensors_of(rows), *OUTPUTS), strict=True))


@pytest.fixture(scope="module")
def logits_of(make_spec: MakeSpec) -> Callable[[Row], Array]:
    """The logits that the graph itself gives for a row, alone, with the row's task: `(WIDTH,)`."""
    spec = make_spec(SEVERAL)
    session = onnxruntime.InferenceSession(spec.graph, providers=["CPUExecutionProvider"])
    tokenizer: Tokenizer = load_tokenizer(spec.tokenizer)

    def run(row: Row) -> Array:
        (encoded,) = SEVERAL.encode(tokenizer, [row.text], [row.pair], MAX_LENGTH)
        feed = graph_inputs(encoded.windows, 0) | {TASK_IDS: np.array([[NAMES.index(row.task)]])}
        logits: Array = session.run(["logits"], feed)[0][0]
        return logits

    return run


def require_answer(task: str, logits: Array, scores: Array, label: bytes) -> None:
    """See that scores and label follow from a row's logits as its own task has it."""
    width = SEVERAL.tasks[task].width
    assert np.isneginf(logits[width:]).all()
    assert (scores[width:] == 0).all()
    own, labels = logits[:width].astype(np.float64), SEVERAL.tasks[task].labels
    assert np.isfinite(own).all()
    if task == "sts":
        np.testing.assert_array_equal(scores[:1], logits[:1])  # no sigmoid and no softmax
        assert float(label) == pytest.approx(own[0])
    elif task == "topics":
        np.testing.assert_allclose(scores[:width], 1 / (1 + np.exp(-own)), rtol=1e-4, atol=1e-7)
        assert json.loads(label) == [name for name, logit in zip(labels, own, strict=True) if logit >= 0]
    else:
        np.testing.assert_allclose(scores[:width], np.exp(own) / np.exp(own).sum(), rtol=1e-4, atol=1e-7)
        assert label.decode() == labels[own.argmax()]


@PROTOCOLS
@pytest.mark.parametrize("task", NAMES)
def test_one_request_of_each_task(
    server: TritonServer, protocol: str, logits_of: Callable[[Row], Array], task: str
) -> None:
    row = Row("w1 w2 w3", "w4", task)
    found = ask(server, protocol, [row])
    shapes = {name: (array.shape, array.dtype.char) for name, array in found.items()}
    assert shapes == {
        "scores": ((1, WIDTH), "f"),
        "label": ((1, 1), "O"),
        "logits": ((1, WIDTH), "f"),
        "token_count": ((1, 1), "i"),
        "truncated": ((1, 1), "?"),
        "rho": ((1, 2), "f"),
    }
    np.testing.assert_allclose(found["logits"][0], logits_of(row), rtol=1e-5, atol=1e-5)
    require_answer(task, found["logits"][0], found["scores"][0], found["label"].item())


@PROTOCOLS
def test_tasks_share_a_batch(server: TritonServer, protocol: str, logits_of: Callable[[Row], Array]) -> None:
    rows = rows_of(32)
    found = ask(server, protocol, rows)
    for number, row in enumerate(rows):
        np.testing.assert_allclose(found["logits"][number], logits_of(row), rtol=1e-5, atol=1e-5)
        require_answer(row.task, found["logits"][number], found["scores"][number], found["label"][number, 0])
    assert found["truncated"].any()


@PROTOCOLS
def test_a_stranger_of_another_task_changes_nothing(server: TritonServer, protocol: str) -> None:
    rows = rows_of(12)
    together, reverse = ask(server, protocol, rows), ask(server, protocol, rows[::-1])
    for number, row in enumerate(rows):
        alone = ask(server, protocol, [row])
        for name in OUTPUTS:
            for other in (together[name][number], reverse[name][len(rows) - 1 - number]):
                if name != "label":
                    np.testing.assert_allclose(other, alone[name][0], atol=1e-5)
                elif row.task == "sts":
                    assert float(other[0]) == pytest.approx(float(alone[name].item()), abs=1e-5)
                else:
                    assert other == alone[name][0]


def test_concurrent_requests_of_different_tasks(server: TritonServer) -> None:
    """They meet in dynamic batches, together with some that cannot be answered; each gets its own."""
    rows = rows_of(20)
    expected = ask(server, "grpc", rows)

    def work(number: int) -> None:
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:

            def send(row: Row) -> Any:
                inputs = []
                for name, values in tensors_of([row]).items():
                    inputs.append(tritonclient.grpc.InferInput(name, [1, 1], "BYTES"))
                    inputs[-1].set_data_from_numpy(values)
                return client.infer("several", inputs)

            for step in range(15):
                index = (3 * number + step) % len(rows)
                result = send(rows[index])
                logits, scores = (result.as_numpy(name)[0] for name in ("logits", "scores"))
                np.testing.assert_allclose(logits, expected["logits"][index], atol=1e-5)
                require_answer(rows[index].task, logits, scores, result.as_numpy("label").item())
                with pytest.raises(InferenceServerException, match="there is no task 'absent'"):
                    send(rows[index]._replace(task="absent"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


@PROTOCOLS
@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("several", {"TEXT": column("w1")}, f"input TASK is missing: name one of {KNOWN} for each text"),
        (
            "several",
            {"TEXT": column("w1", "w2"), "TASK": column("sts", "STS")},
            f"there is no task 'STS'; this model's are {KNOWN}",
        ),
        ("several", {"TEXT": column("w1"), "TASK": column("")}, f"there is no task ''; .* {KNOWN}"),
        (
            "several",
            {"TEXT": column("w1"), "TASK": column(b"st\xff")},
            "TASK 1 of the request must be UTF-8, got .* byte 2",
        ),
        ("several", {"TEXT": column("w1", "w2"), "TASK": column("sts")}, "batch"),
        ("several", {"TASK": column("sts")}, "input TEXT is missing"),
        ("tiny", {"TEXT": column("w1"), "TASK": column("sts")}, "unexpected inference input 'TASK'"),
    ],
)
def test_faults_are_one_line_and_the_next_request_is_answered(
    server: TritonServer, protocol: str, name: str, inputs: dict[str, Array], message: str
) -> None:
    with pytest.raises(InferenceServerException, match=message) as raised:
        infer(server, protocol, name, inputs, "label")
    assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert "\n" not in raised.value.message()
    assert ask(server, protocol, [Row("w1", "w2", "sts")])["label"].shape == (1, 1)


@pytest.fixture
def front(load_front: LoadFront, shown: Shown) -> Front:
    """With metrics."""
    return load_front(SEVERAL, metrics=True, max_batch_size=4)


def request(**columns: Array | None) -> stub.Request:
    tensors = [stub.Tensor(name, array) for name, array in columns.items() if array is not None]
    return stub.Request(tensors, ("label", "logits"))


def test_only_the_request_at_fault_gets_an_error(front: Front) -> None:
    model, graph = front
    good = request(TEXT=column("w1", "w2"), TASK=column("sts", "topics"))
    faulty = {
        f"input TASK is missing: name one of {KNOWN} for each text": request(TEXT=column("w1")),
        f"there is no task 'x'; this model's are {KNOWN}": request(TEXT=column("w1"), TASK=column("x")),
        "TEXT has 1 rows, TASK has 2: give each text one": request(
            TEXT=column("w1"), TASK=column("sts", "sts")
        ),
        "TASK 1 of the request must be UTF-8, got invalid start byte at byte 0": request(
            TEXT=column("w1"), TASK=column(b"\xff")
        ),
    }
    responses = model.execute([good, *faulty.values(), good])
    assert [response.has_error() for response in responses] == [False, True, True, True, True, False]
    assert [response.error().message() for response in responses[1:5]] == list(faulty)
    assert {response.error().code() for response in responses[1:5]} == {stub.Error.INVALID_ARG}
    (call,) = graph.calls
    sent = {tensor.name(): tensor.as_numpy() for tensor in call.inputs}
    assert sent[TASK_IDS].dtype == np.int64
    assert sent[TASK_IDS].tolist() == [[2], [3], [2], [3]]


def test_texts_are_counted_by_task(front: Front, shown: Shown) -> None:
    """Seven rows are two batches of the graph, and a request that fails is not counted."""
    model, graph = front
    graph.fault = lambda call: stub.Error("no") if (call.inputs[0].as_numpy() == 13).any() else None
    assert shown["sparse_serve_texts_total"].keys() == {
        (("model", "tiny"), ("task", name), ("version", "1")) for name in NAMES
    }
    responses = model.execute(
        [
            request(TEXT=column(*["w1"] * 5), TASK=column("sts", "sts", "topics", "sts", "sentiment")),
            request(TEXT=column("w9"), TASK=column("sts")),
            request(TEXT=column("w1"), TASK=column("topics")),
        ]
    )
    assert [response.has_error() for response in responses] == [False, True, False]
    model.meter.publish()
    counted = shown["sparse_serve_texts_total"]
    assert {dict(labels)["task"]: number for labels, number in counted.items()} == {
        "sentiment": 1,
        "paraphrase": 0,
        "sts": 3,
        "topics": 2,
    }


def test_an_entry_of_several_tasks(tmp_path: Path, make_spec: MakeSpec) -> None:
    public = write_entry(tmp_path, make_spec(SEVERAL, name="several"))
    assert {finding.level for finding in check_entry(public)} == {Level.ok}
    manifest = read_entry(public).manifest
    assert list(manifest.tasks) == NAMES
    assert manifest.task == SEVERAL
    assert not (public / "labels.txt").exists()
    config = read_config(public / CONFIG_NAME)
    assert [(each.name, each.optional) for each in config.input] == [
        ("TEXT", False),
        ("TEXT_PAIR", True),
        ("TASK", True),
    ]
    assert not any(output.label_filename for output in config.output)


@pytest.mark.parametrize(
    ("tasks", "graph", "message"),
    [
        (SEVERAL, CLASSES, "has no input task_ids, by which rows of the tasks sentiment, .* are told apart"),
        (CLASSES, SEVERAL, "has the input task_ids, but one task"),
        (
            Several(tasks={"a": CLASSES, "b": Classification(tuple("abcdef"))}),
            SEVERAL,
            r"gives logits FP32 \[-1, 5\] for several tasks: FP32 \[-1, 6\] is needed",
        ),
    ],
)
def test_a_graph_of_other_tasks_is_refused(
    tmp_path: Path, make_spec: MakeSpec, tasks: Several, graph: Several, message: str
) -> None:
    other = tiny_graph(tmp_path / GRAPH_NAME, task=graph)
    with pytest.raises(RepositoryError, match=message):
        write_entry(tmp_path / "models", make_spec(tasks, graph=other))
    assert not (tmp_path / "models" / "tiny").exists()
    # Where the file was changed since, `check` says so.
    public = write_entry(tmp_path / "models", make_spec(tasks))
    other.replace(public.parent / "tiny_model" / "1" / GRAPH_NAME)
    assert any(re.search(message, finding.message) for finding in check_entry(public))


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"a b": CLASSES, "b": CLASSES}, "'a b' cannot name a task: at most 64 letters, digits, _ and -"),
        (
            {"a": CLASSES, "reader": SPANS},
            "task reader is question answering, which answers other tensors than classification and "
            "regression do: serve it as an entry of its own, with `export --single-task reader`",
        ),
        ({}, "one or more"),
    ],
)
def test_tasks_that_one_entry_cannot_answer_are_refused(
    tmp_path: Path, make_spec: MakeSpec, tasks: dict[str, Classification], message: str
) -> None:
    spec = make_spec()
    with pytest.raises(TaskError, match=message):
        Manifest(**{**dict(spec.manifest), "tasks": tasks})
    public = write_entry(tmp_path, spec)
    record = json.loads((public / "manifest.json").read_text())
    record["tasks"] = {name: task.to_json() for name, task in tasks.items()}
    (public / "manifest.json").write_text(json.dumps(record))
    with pytest.raises(RepositoryError, match=f"manifest.json: .*{message}"):
        check_entry(public)
