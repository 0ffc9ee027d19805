"""The text backend in this process: which tokens it asks the graph for, how many at once, and its limits."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import triton_stub as stub
from serving import wait_for
from text_front import MODEL, SPAN_OUTPUTS, Front, LoadFront, Shown, answer, request
from tiny_entry import MAX_LENGTH, SPANS, VOCABULARY
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.runs import RUN_TOKENS
from sparse_serve.triton.installation import backend_directory, find_triton

MakeSpec = Callable[..., EntrySpec]


def test_the_graph_gets_the_tokens_of_the_tokenizer(front: Front) -> None:
    model, graph = front
    answer(model, request("w1 w2", "w3"), request("unknown"))
    (call,) = graph.calls
    sent = {tensor.name(): tensor.as_numpy() for tensor in call.inputs}
    cls, sep, unknown = (VOCABULARY[token] for token in ("[CLS]", "[SEP]", "[UNK]"))
    w1, w2, w3 = (VOCABULARY[token] for token in ("w1", "w2", "w3"))
    assert sent["input_ids"].tolist() == [[cls, w1, w2, sep], [cls, w3, sep, 0], [cls, unknown, sep, 0]]
    assert sent["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]]
    assert all(array.dtype == np.int64 for array in sent.values())
    assert (call.model_name, call.model_version) == ("tiny_model", 1)


def test_pairs_and_single_texts_share_a_batch(front: Front) -> None:
    model, graph = front
    single, pair = answer(model, request("w1"), request("w1", pairs=("w2 w3",)))
    (call,) = graph.calls
    segments = {tensor.name(): tensor.as_numpy() for tensor in call.inputs}["token_type_ids"]
    assert segments.tolist() == [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    assert (single["token_count"].item(), pair["token_count"].item()) == (3, 6)
    assert single["logits"].tolist() != pair["logits"].tolist()


def test_long_texts_are_cut_from_the_right_and_flagged(front: Front) -> None:
    model, _ = front
    exact, longer = "w1 " * (MAX_LENGTH - 2), "w1 " * (MAX_LENGTH - 2) + "w2"
    (arrays,) = answer(model, request(exact, longer, "x" * 100_000, ("w3 " * 40_000)))
    assert arrays["truncated"][:, 0].tolist() == [False, True, False, True]
    assert arrays["token_count"][:, 0].tolist() == [MAX_LENGTH, MAX_LENGTH, 3, MAX_LENGTH]
    assert arrays["token_count"].dtype == np.int32
    np.testing.assert_array_equal(arrays["logits"][0], arrays["logits"][1])


def test_of_a_pair_the_longer_text_is_cut_first(front: Front) -> None:
    model, graph = front
    (arrays,) = answer(model, request("w1", pairs=("w2 " * 50,)))
    ids = graph.calls[0].inputs[0].as_numpy()[0].tolist()
    assert ids[:3] == [VOCABULARY["[CLS]"], VOCABULARY["w1"], VOCABULARY["[SEP]"]]
    assert arrays["truncated"].item()


def test_a_pair_of_long_texts_costs_its_bytes(front: Front) -> None:
    """The library would make a row of every two parts that it cuts off: here 10⁸ of them."""
    model, graph = front
    (arrays,) = answer(model, request("w1 " * 60_000, pairs=("w2 " * 60_000,)))
    (ids,) = graph.calls[0].inputs[0].as_numpy().tolist()
    room = MAX_LENGTH - 3
    assert ids.count(VOCABULARY["w1"]) == room // 2
    assert ids.count(VOCABULARY["w2"]) == room - room // 2
    assert arrays["truncated"].item()


def test_the_end_of_a_text_stays_where_the_left_is_cut(load_front: LoadFront) -> None:
    model, graph = load_front(truncation="left")
    long = " ".join(f"w{number}" for number in range(30))
    (arrays,) = answer(model, request(long))
    (ids,) = graph.calls[0].inputs[0].as_numpy().tolist()
    last = [VOCABULARY[f"w{number}"] for number in range(30)][2 - MAX_LENGTH :]
    assert ids == [VOCABULARY["[CLS]"], *last, VOCABULARY["[SEP]"]]
    assert arrays["truncated"].item()


def test_short_requests_do_not_wait_for_long_ones(load_front: LoadFront) -> None:
    model, graph = load_front(SPANS)
    let = Event()

    def hold_windows(call: stub.Request) -> None:
        if VOCABULARY["w7"] in call.inputs[0].as_numpy():
            assert let.wait(30)

    graph.fault = hold_windows
    long = request("w1", pairs=("w7 " * 2000,), names=SPAN_OUTPUTS)
    short = request("w1", pairs=("w2 w3",), names=SPAN_OUTPUTS)
    assert model.execute([long, short]) is None
    assert not short.answers.get(timeout=30).has_error()
    (response,) = model.execute([request("w1", pairs=("w2 w3",), names=SPAN_OUTPUTS)])
    assert not response.has_error()
    assert long.answers.empty()
    let.set()
    assert long.answers.get(timeout=30).arrays()["token_count"].item() > 2000
    model.finalize()


def test_the_time_that_a_long_request_waits_for_a_thread_is_counted(
    load_front: LoadFront, shown: Shown
) -> None:
    """By which an autoscaler sees that a server has too much to do."""
    model, graph = load_front()
    let = Event()
    graph.fault = lambda call: None if let.wait(30) else stub.Error("held")
    long = [request("w1 " * 5000) for _ in range(3)]
    assert model.execute(long) is None
    begun = time.perf_counter()
    wait_for(lambda: len(graph.calls) == 2)
    time.sleep(0.05)
    waited = time.perf_counter() - begun
    let.set()
    assert not any(each.answers.get(timeout=30).has_error() for each in long)
    model.meter.publish()
    stages = {dict(labels)["stage"]: n for labels, n in shown["sparse_serve_stage_seconds_total"].items()}
    assert stages["wait"] >= waited
    model.finalize()


@pytest.mark.parametrize("run_tokens", [None, 200, 1 << 20])
def test_windows_are_asked_for_so_many_tokens_at_a_time(
    load_front: LoadFront, run_tokens: int | None
) -> None:
    """By the configuration, which says how many fill what computes them, and the graph's rows."""

    def set_tokens(config: ModelConfig) -> None:
        if run_tokens is not None:
            config.parameters["run_tokens"].string_value = str(run_tokens)

    model, graph = load_front(SPANS, set_tokens, max_batch_size=500)
    (arrays,) = answer(model, request("w1", pairs=("w2 " * 1500,), names=SPAN_OUTPUTS))
    tokens = [int(call.inputs[1].as_numpy().sum()) for call in graph.calls]
    most = run_tokens or RUN_TOKENS
    assert max(tokens) <= most
    assert min(tokens[:-1], default=most) > most - MAX_LENGTH
    assert sum(tokens) == arrays["token_count"].item() > 1500
    if run_tokens == 1 << 20:
        assert [call.inputs[1].as_numpy().shape[0] for call in graph.calls[:-1]] == [500] * (len(tokens) - 1)


@pytest.mark.parametrize(
    ("parameters", "texts", "message"),
    [
        (
            {"max_text_bytes": "8"},
            ("w1 w2 w3", "w1 w2 w3 w4"),
            "input 'TEXT' has a text of 11 bytes: give at",
        ),
        ({"max_request_bytes": "10"}, ("w1 w2", "w3 w4 w5"), "the texts of the request have 13 bytes: give"),
    ],
)
def test_limits_are_the_operators(
    load_front: LoadFront, parameters: dict[str, str], texts: tuple[str, ...], message: str
) -> None:
    def set_limits(config: ModelConfig) -> None:
        for key, value in parameters.items():
            config.parameters[key].string_value = value

    model, _ = load_front(edit=set_limits)
    refused, answered = stub.answers_of(model, request(*texts), request(texts[0]))
    error = refused.error()
    assert error is not None
    assert error.message().startswith(message)
    assert error.code() == stub.Error.INVALID_ARG
    assert not answered.has_error()


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u00a0"])
def test_blank_texts_are_valid(front: Front, text: str) -> None:
    (arrays,) = answer(front[0], request(text))
    assert arrays["token_count"].item() == 2
    assert np.isfinite(arrays["scores"]).all()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('key: "tasks"', 'key: "task"', r"config\.pbtxt is missing or malformed \('tasks'\): export"),
        ('string_value: "16"', 'string_value: "sixteen"', r"malformed \(invalid literal .*'sixteen'\)"),
        ('string_value: "{', 'string_value: "', "malformed"),
        ('string_value: "1048576"', 'string_value: "1e6"', r"malformed \(max_text_bytes is '1e6': give a"),
        (
            '{\\"default\\": {',
            '{\\"a\\": {\\"type\\": \\"regression\\", \\"labels\\": [\\"x\\"]}, \\"b\\": {',
            r"malformed \(2 tasks for the inputs input_ids,attention_mask,token_type_ids\): export",
        ),
    ],
)
def test_parameters_that_cannot_be_read_are_named_at_load(
    tmp_path: Path, make_spec: MakeSpec, old: str, new: str, message: str
) -> None:
    config = write_entry(tmp_path, make_spec()) / "config.pbtxt"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new, 1))
    with pytest.raises(Exception, match=message) as raised:
        stub.load_model(MODEL, config.parent)
    assert type(raised.value).__name__ == "TritonModelException"
    assert "\n" not in str(raised.value)


def test_an_entry_of_a_task_that_the_front_does_not_know_is_refused_at_load(
    tmp_path: Path, make_spec: MakeSpec
) -> None:
    public = write_entry(tmp_path, make_spec())
    config = public / "config.pbtxt"
    config.write_text(config.read_text().replace("single_label_classification", "translation"))
    with pytest.raises(Exception, match=r"task 'translation' is not known here, .*: upgrade") as raised:
        stub.load_model(MODEL, public)
    assert type(raised.value).__name__ == "TritonModelException"
    assert "\n" not in str(raised.value)


BARE = """
import importlib.util, sys
from types import ModuleType
sys.path.append({packages!r})
sys.modules["triton_python_backend_utils"] = ModuleType("triton_python_backend_utils")
specification = importlib.util.spec_from_file_location("model", {model!r})
module = importlib.util.module_from_spec(specification)
specification.loader.exec_module(module)
own = [name for name in sys.modules if name.split(".")[0] == "sparse_serve"]
assert all(sys.modules[name].__file__.startswith({backend!r}) for name in own), own
foreign = [name for name in ("onnx", "pydantic", "tritonclient", "sklearn", "torch") if name in sys.modules]
print(len(own), foreign)
"""


def test_the_backend_needs_no_installed_package(tmp_path: Path) -> None:
    """The container's Python has numpy and tokenizers; without `site`, nothing finds sparse_serve."""
    backends = backend_directory(find_triton("bundled"), tmp_path / "backends")
    backend = backends / "sparse_serve_text"
    packages = str(Path(np.__file__).parents[1])
    code = BARE.format(packages=packages, model=str(backend / "model.py"), backend=str(backend))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    count, foreign = done.stdout.split(maxsplit=1)
    assert int(count) > 10
    assert foreign.strip() == "[]"
