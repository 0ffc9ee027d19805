"""What this package's onnxruntime backend answers in a real Triton, whatever a request is."""

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from loading_triton import (
    Array,
    Columns,
    LoadingTriton,
    Model,
    assert_refused,
    assert_same,
    gathering,
    tokens,
    with_parameter,
)
from onnx import ModelProto, TensorProto, helper, numpy_helper
from serving import wait_for
from tokenizers import normalizers
from tritonclient.grpc.service_pb2 import InferStatistics
from tritonclient.utils import InferenceServerException

from graph_session import open_graph
from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_serve.repository.config import CONFIG_NAME
from sparse_serve.repository.tunable import DEFAULT_REQUEST_BYTES, DEFAULT_TEXT_BYTES
from sparse_serve.runs import RUN_TOKENS
from tokenizing import shaped_model, word_piece


def test_requests_are_concatenated_and_split_again(triton: LoadingTriton, graph_of_ids: ModelProto) -> None:
    model = triton.load(graph_of_ids, gathering(4))
    requests = [tokens([[2, 5, 3]]), tokens([[2, 6, 3], [2, 7, 3]]), tokens([[2, 8, 3]])]
    session = open_graph(graph_of_ids)
    answers = model.together(*requests)
    wait_for(lambda: model.runs() == {4: 1})
    for answer, columns in zip(answers, requests, strict=True):
        logits, rho = session.run(["logits", "rho"], columns)
        assert_same(answer, {"logits": logits, "rho": rho})


def test_only_the_guilty_request_fails(triton: LoadingTriton, graph_of_ids: ModelProto) -> None:
    model = triton.load(graph_of_ids, gathering(3))
    good = tokens([[2, 5, 3]])
    first, second, third = model.together(good, tokens([[2, 10_000, 3]]), good)
    assert_refused(second, "10000")
    assert_same(first, third)


def test_a_request_without_rows_is_refused(triton: LoadingTriton, graph_of_ids: ModelProto) -> None:
    model = triton.load(graph_of_ids)
    for columns, shape in [(tokens([[2, 5, 3]]), [0, 3]), (tokens(np.zeros((0, 0), np.int64)), [0, 0])]:
        answer = model.begin(columns, shape=shape).exception(timeout=60)
        assert_refused(answer, "input 'input_ids' has no rows: give at least one")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([2**32 - 1, 0], "rows: give at most 64"),  # which Triton 24.10 takes for −1 rows of no bytes
        ([3, 6148914691236517206], ""),  # two elements, modulo 2⁶⁴
        ([2**31, 2**33], ""),
        ([1, -2], ""),
    ],
)
def test_shapes_that_no_memory_holds_are_refused(
    triton: LoadingTriton, graph_of_ids: ModelProto, shape: list[int], message: str
) -> None:
    """By Triton or by the backend; nothing is allocated for them."""
    ids = np.full((1, 2), 5)

    def edit(config: Any) -> None:
        config.input[0].dims[:] = [-1]

    model, wide = triton.load(graph_of_ids), triton.load(echo_graph(), edit)
    empty = np.zeros((1, 0), np.int64) if 0 in shape else ids
    answers = [model.begin(tokens(empty), shape=shape).exception(timeout=60)]
    answers.append(wide.begin({"TEXT": np.array([[b"a", b"b"]], object)}, shape=shape).exception(timeout=60))
    for answer in answers:
        assert_refused(answer, "")
    if message:
        assert_refused(answers[0], message)
    assert len(model.ask(tokens(ids))["logits"]) == 1


def echo_graph() -> ModelProto:
    """A graph that echoes texts of any shape."""
    kind = TensorProto.STRING
    tensors = [helper.make_tensor_value_info(name, kind, ["batch", "texts"]) for name in ("TEXT", "echo")]
    node = helper.make_node("Identity", ["TEXT"], ["echo"])
    made = helper.make_graph([node], "echo", tensors[:1], tensors[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_axes_that_differ_are_refused_where_they_would_broadcast(
    triton: LoadingTriton, graph_of_ids: ModelProto
) -> None:
    model = triton.load(graph_of_ids)
    (answer,) = model.together(tokens([[2, 5, 3]], mask=[[1]]))
    assert_refused(answer, "input 'attention_mask' has sequence 1, input 'input_ids' has 3: they must be")


def test_each_request_gets_the_outputs_that_it_asks_for(
    triton: LoadingTriton, graph_of_ids: ModelProto
) -> None:
    model = triton.load(graph_of_ids, gathering(2))
    begun = [model.begin(tokens([[2, 5, 3]]), "rho"), model.begin(tokens([[2, 6, 3]]), "logits", "rho")]
    answers = [each.result(timeout=60) for each in begun]
    assert [set(answer) for answer in answers] == [{"rho"}, {"logits", "rho"}]
    wait_for(lambda: model.runs() == {2: 1})


def test_rows_are_run_so_many_tokens_at_a_time(triton: LoadingTriton, graph_of_ids: ModelProto) -> None:
    model = triton.load(graph_of_ids)
    rows = 40
    ids = np.full((rows, 64), 5)
    mask = np.ones_like(ids)
    mask[0, 1:] = 0
    answer = model.ask(tokens(ids, mask))
    most = RUN_TOKENS // 64
    wait_for(lambda: model.runs() == Counter([most, most, rows - 2 * most]))
    logits, rho = open_graph(graph_of_ids).run(["logits", "rho"], tokens(ids, mask))
    assert_same(answer, {"logits": logits, "rho": rho})


def test_without_a_batch_a_request_is_computed_as_it_is(triton: LoadingTriton) -> None:
    """Of a model with `max_batch_size: 0`: its first axis is no row, nor do outputs have rows."""
    number = TensorProto.INT64
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["numbers", "numbers"], ["doubled"], axis=0),
            helper.make_node("Neg", ["numbers"], ["negative"]),
        ],
        "without_rows",
        [helper.make_tensor_value_info("numbers", number, ["batch", 2])],
        [
            helper.make_tensor_value_info("doubled", number, ["batch", 2]),
            helper.make_tensor_value_info("negative", number, ["batch", 2]),
        ],
    )

    def edit(config: Any) -> None:
        config.max_batch_size = 0
        config.ClearField("dynamic_batching")
        for tensor in (*config.input, *config.output):
            tensor.dims[:] = [-1, *tensor.dims]

    model = triton.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), edit
    )
    for numbers in np.arange(6000).reshape(3000, 2), np.zeros((0, 2), np.int64):
        doubled = np.concatenate([numbers] * 2)
        assert_same(model.ask({"numbers": numbers}), {"doubled": doubled, "negative": -numbers})


@pytest.fixture(scope="module")
def reading_graph() -> ModelProto:
    """A tokenizer in the graph, and its text as it came."""
    tokenizer = word_piece("[UNK] [CLS] [SEP] [MASK] a b é", normalizers.BertNormalizer(lowercase=False))
    graph = shaped_model(derive_tables(tokenizer), 8, pairs=True)
    graph.graph.node.append(helper.make_node("Identity", ["TEXT"], ["echo"]))
    graph.graph.output.append(helper.make_tensor_value_info("echo", TensorProto.STRING, ["batch", 1]))
    del graph.graph.output[:]
    graph.graph.output.extend(
        helper.make_tensor_value_info(name, kind, ["batch", 1])
        for name, kind in [
            ("token_count", TensorProto.INT32),
            ("truncated", TensorProto.BOOL),
            ("invalid_at", TensorProto.INT32),
            ("echo", TensorProto.STRING),
        ]
    )
    return graph


def texts(*rows: tuple[bytes, bytes]) -> Columns:
    columns = (np.array(column, object)[:, None] for column in zip(*rows, strict=True))
    return dict(zip(("TEXT", "TEXT_PAIR"), columns, strict=True))


def test_bytes_reach_the_graph_as_they_are(triton: LoadingTriton, reading_graph: ModelProto) -> None:
    """What is no text, and NUL, of requests in one run with others; text comes back as it went."""
    requests = [
        texts((b"a b", b"a")),
        texts((b"a", b""), (b"a\x00\xff b", b"b"), ("é".encode(), b"a b")),
        texts((b"", b"b\x00\xe4\xb8"), (b"\xed\xa0\x80", b"\xff")),
        texts((b"a\x00b", "é 中 😀".encode())),
    ]
    model = triton.load(reading_graph, gathering(7))
    answers = model.together(*requests)
    wait_for(lambda: model.runs() == {7: 1})
    columns = [answer for answer in answers if isinstance(answer, dict)]
    assert [each["invalid_at"][:, 0].tolist() for each in columns] == [[-1], [-1, 2, -1], [2, 0], [-1]]
    assert [each["token_count"][:, 0].tolist() for each in columns] == [[6], [4, 3, 6], [3, 3], [7]]
    for each, columns_sent in zip(columns, requests, strict=True):
        assert each["echo"].tolist() == columns_sent["TEXT"].tolist()


def test_a_text_of_too_many_bytes_is_refused_alone(triton: LoadingTriton, reading_graph: ModelProto) -> None:
    most = DEFAULT_TEXT_BYTES
    model = triton.load(reading_graph, gathering(3))
    bad, fits = texts((b"a", b" " * (most + 1))), texts((b"a", b" " * most))
    first, second, third = model.together(texts((b"a", b"b")), bad, fits)
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    message = f"input 'TEXT_PAIR' has a text of {most + 1} bytes: give at most {most}"
    assert_refused(second, f"{message} (max_text_bytes of config.pbtxt)")


def test_texts_of_a_request_have_a_limit_together(triton: LoadingTriton, reading_graph: ModelProto) -> None:
    """Of one input, or of both."""
    model = triton.load(reading_graph, with_parameter("max_request_bytes", "10"))
    assert model.ask(texts((b"12345", b"12345")))["token_count"].item() == 5
    for rows in ([(b"12345", b"12345"), (b"1", b"")], [(b"123456", b""), (b"12345", b"")]):
        (answer,) = model.together(texts(*rows))
        assert_refused(answer, "the texts of the request have 11 bytes: give at most 10 at once, others in")
    most = DEFAULT_REQUEST_BYTES
    (answer,) = triton.load(reading_graph).together(texts(*[(b" " * (most // 4), b"")] * 5))
    assert_refused(
        answer, f"the texts of the request have {most // 4 * 5} bytes: give at most {most} at once"
    )


def test_tasks_that_are_no_json_are_refused_at_load(triton: LoadingTriton, reading_graph: ModelProto) -> None:
    with pytest.raises(InferenceServerException, match="the parameter tasks is no JSON: at byte 1"):
        triton.load(reading_graph, with_parameter("tasks", "{sst2"))


def test_a_model_that_is_loaded_again_goes_on_counting(
    triton: LoadingTriton, reading_graph: ModelProto
) -> None:
    model = triton.load(reading_graph)

    rows = [(b"a", b"b"), (b"\xff", b""), (b"a b", b"")]
    model.ask(texts(*rows))
    model.together(texts(*[(b"a", b" " * (DEFAULT_TEXT_BYTES + 1))] * 2))
    first = triton.counted(model)
    config = triton.repository / model.name / CONFIG_NAME
    config.write_text(config.read_text() + "\n# another\n")
    triton.client.load_model(model.name)
    model.ask(texts(*rows))
    again = {name: value for name, value in triton.counted(model).items() if "seconds" not in name}
    assert sum(value for name, value in again.items() if "texts_total" in name) == 4
    assert sum(value for name, value in again.items() if "not_utf8" in name) == 2
    # A request that cannot be read counts as one text.
    assert sum(value for name, value in again.items() if "too_large" in name) == 1
    assert again.keys() == first.keys() - {name for name in first if "seconds" in name}


def test_texts_are_counted_by_task(triton: LoadingTriton, reading_graph: ModelProto) -> None:
    graph = ModelProto()
    graph.CopyFrom(reading_graph)
    graph.graph.input.append(helper.make_tensor_value_info("TASK", TensorProto.STRING, ["batch", 1]))
    graph.graph.node.append(helper.make_node("Identity", ["TASK"], ["asked"]))
    graph.graph.output.append(helper.make_tensor_value_info("asked", TensorProto.STRING, ["batch", 1]))
    model = triton.load(graph, with_parameter("tasks", '{"first": 0, "second": 1}'))
    asked = [b"second", b"first", b"second", b"third", b"", b"first"]
    rows = [(b"a", b"b"), (b"a", b""), (b"b", b""), (b"a", b""), (b"a", b""), (b"\xff", b"")]
    model.ask(texts(*rows) | {"TASK": np.array(asked, object)[:, None]})
    counts = {
        (label, value): number
        for name, number in triton.counted(model).items()
        for label, value in re.findall(r'(task|reason)="(\w*)"', name)
    }
    assert counts == {
        ("task", "first"): 1,
        ("task", "second"): 2,
        ("reason", "no_task"): 2,
        ("reason", "not_utf8"): 1,
    }


def test_a_request_that_fails_in_part_counts_each_text_once(
    triton: LoadingTriton, reading_graph: ModelProto
) -> None:
    graph = ModelProto()
    graph.CopyFrom(reading_graph)
    graph.graph.initializer.append(numpy_helper.from_array(np.arange(8), "less_than_8"))
    graph.graph.node.append(helper.make_node("Gather", ["less_than_8", "token_count"], ["looked_up"]))
    graph.graph.output.append(helper.make_tensor_value_info("looked_up", TensorProto.INT64, ["batch", 1]))
    model = triton.load(graph, with_parameter("max_length", "512"))
    rows = [(b"a" + b" " * 1000, b"")] * 60
    model.ask(texts(*rows))
    wait_for(lambda: sum(model.runs().values()) > 10)
    (answer,) = model.together(texts(*rows[:-1], (b"a b" * 300, b"")))
    assert isinstance(answer, InferenceServerException)
    assert answer.status() == "StatusCode.INTERNAL"  # a graph that reads any text is at fault itself
    assert "indices element out of data bounds" in str(answer)
    counted = triton.counted(model)
    answered = sum(value for name, value in counted.items() if "texts_total" in name)
    refused = sum(value for name, value in counted.items() if 'reason="fault"' in name)
    assert answered + refused == 2 * len(rows)
    assert 0 < refused < len(rows)


def laborious(loops: int) -> ModelProto:
    """A graph that takes its time: so many turns of a loop for each token, then the sum of a row's ids."""
    number, flag = TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["before", "turn"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", number, []),
            helper.make_tensor_value_info("go", flag, []),
            helper.make_tensor_value_info("before", number, []),
        ],
        [
            helper.make_tensor_value_info("go_on", flag, []),
            helper.make_tensor_value_info("after", number, []),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["attention_mask"], ["tokens"], keepdims=0),
            helper.make_node("Mul", ["tokens", "loops"], ["turns"]),
            helper.make_node("Loop", ["turns", "", "zero"], ["looped"], body=body),
            helper.make_node("Mul", ["looped", "zero"], ["nothing"]),
            helper.make_node("Gather", ["table", "input_ids"], ["values"]),
            helper.make_node("ReduceSum", ["values", "last"], ["sums"], keepdims=1),
            helper.make_node("Add", ["sums", "nothing"], ["logits"]),
        ],
        "laborious",
        [
            helper.make_tensor_value_info(name, number, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", number, ["batch", 1])],
        [
            numpy_helper.from_array(np.array(loops), "loops"),
            numpy_helper.from_array(np.array(0), "zero"),
            numpy_helper.from_array(np.array([1]), "last"),
            numpy_helper.from_array(np.arange(100), "table"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def labour(ids: Array) -> Columns:
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


SHORT = labour(np.array([[2, 5, 3]]))


def test_short_requests_do_not_wait_for_long_ones(triton: LoadingTriton) -> None:
    model = triton.load(laborious(500))
    short = [model.begin(SHORT) for _ in range(3)]  # so that others are expected
    long = model.begin(labour(np.full((10, 64), 5)))
    for each in short:
        each.result(timeout=60)
    for _ in range(5):
        assert model.ask(SHORT)["logits"].item() == 10
    assert not long.done()
    assert long.result(timeout=60)["logits"].tolist() == [[320]] * 10


def test_a_short_request_after_a_pause_waits_for_a_run_of_a_long_one_alone(triton: LoadingTriton) -> None:
    model = triton.load(laborious(200))
    long = model.begin(labour(np.full((64, 64), 5)))
    time.sleep(0.05)
    assert model.ask(SHORT)["logits"].item() == 10
    assert not long.done()
    assert long.result(timeout=60)["logits"].tolist() == [[320]] * 64


def test_a_short_request_after_a_pause_does_not_wait_for_all_that_waits(triton: LoadingTriton) -> None:
    """Though others came in the meantime that take long."""
    model = triton.load(laborious(50))
    ids = np.full((RUN_TOKENS // 64, 64), 5)
    model.ask(SHORT)
    begun = [model.begin(labour(ids)) for _ in range(30)]
    model.ask(SHORT)
    for _ in range(8):
        time.sleep(0.05)
        begun.append(model.begin(labour(ids)))
    assert model.ask(SHORT)["logits"].item() == 10
    assert sum(not each.done() for each in begun) > 10
    for each in begun:
        assert each.result(timeout=60)["logits"].tolist() == [[320]] * len(ids)


def beside_short_ones(model: Model, requests: Sequence[Columns]) -> list[Columns | InferenceServerException]:
    """What long requests are answered with while short ones are."""
    model.ask(SHORT)
    begun = [model.begin(columns) for columns in requests]
    while not all(each.done() for each in begun):
        assert model.ask(SHORT)["logits"].item() == 10
    return [each.exception() or each.result() for each in begun]


def test_many_long_requests_beside_short_ones_are_computed_in_parts(triton: LoadingTriton) -> None:
    """What is larger than a run gets one answer."""
    model = triton.load(laborious(4))
    rng = np.random.default_rng(1)
    ids = [rng.integers(5, 30, (rows, 64)) for rows in [40, 5, 16, 33] * 5]
    for each, answer in zip(ids, beside_short_ones(model, [labour(each) for each in ids]), strict=True):
        assert_same(answer, {"logits": each.sum(1, keepdims=True)})
    assert max(model.runs()) == RUN_TOKENS // 64


def test_a_part_that_fails_fails_its_request_alone(triton: LoadingTriton) -> None:
    model = triton.load(laborious(4))
    ids = np.full((40, 64), 5)
    bad = ids.copy()
    bad[35, 3] = 10_000
    first, *others = beside_short_ones(model, [labour(bad), *[labour(ids)] * 15])
    assert_refused(first, "10000")
    for each in others:
        assert_same(each, {"logits": np.full((40, 1), 320)})


def test_what_was_given_up_is_not_computed(triton: LoadingTriton) -> None:
    """Beside short requests, where long ones wait within the backend."""
    model = triton.load(laborious(100))
    model.ask(SHORT)
    ids = np.full((RUN_TOKENS // 64, 64), 5)
    begun = [model.begin(labour(ids)) for _ in range(6)]
    model.ask(SHORT)  # so that they have got there
    for each in begun[1:]:
        each.cancel_call()
    assert_same(begun[0].result(timeout=60), {"logits": np.full((len(ids), 1), 320)})
    for each in begun[1:]:
        error = each.exception(timeout=60)
        assert isinstance(error, InferenceServerException)
        assert error.status() == "StatusCode.CANCELLED"

    def ended() -> int:
        (statistics,) = triton.client.get_inference_statistics(model.name).model_stats
        return int(statistics.inference_stats.success.count + statistics.inference_stats.fail.count)

    wait_for(lambda: ended() == len(begun) + 2)
    assert model.runs()[len(ids)] < 3


def test_what_was_asked_is_answered_before_a_model_goes(triton: LoadingTriton) -> None:
    model = triton.load(laborious(50))
    model.ask(SHORT)
    begun = [model.begin(labour(np.full((20, 64), 5))) for _ in range(4)]
    wait_for(lambda: model.ask(SHORT))
    triton.client.unload_model(model.name)
    for each in begun:
        assert each.result(timeout=60)["logits"].tolist() == [[320]] * 20


def test_statistics_count_what_is_answered_later(triton: LoadingTriton) -> None:
    model = triton.load(laborious(4))
    model.ask(SHORT)
    model.ask(labour(np.full((40, 64), 5)))

    def counted() -> tuple[int, int]:
        (statistics,) = triton.client.get_inference_statistics(model.name).model_stats
        return statistics.inference_stats.success.count, statistics.inference_stats.compute_infer.count

    wait_for(lambda: counted() == (2, 2))
    wait_for(lambda: model.runs() == {1: 1, 16: 2, 8: 1})


def test_waiting_for_a_turn_counts_as_time_in_the_queue(triton: LoadingTriton) -> None:
    """By which an autoscaler sees that a server has too much to do."""
    model = triton.load(laborious(100))
    model.ask(SHORT)
    ids = np.full((RUN_TOKENS // 64, 64), 5)
    for each in [model.begin(labour(ids)) for _ in range(4)]:
        each.result(timeout=60)

    def statistics() -> InferStatistics:
        (statistics,) = triton.client.get_inference_statistics(model.name).model_stats
        return statistics.inference_stats

    wait_for(lambda: statistics().success.count == 5)
    parts = statistics()
    # Of four that two threads compute, two wait for as long as one is computed: half of it all, or more.
    assert parts.queue.ns > parts.compute_infer.ns / 4 > 2.5 * parts.compute_input.ns
    all_parts = (parts.queue, parts.compute_input, parts.compute_infer, parts.compute_output)
    assert sum(part.ns for part in all_parts) == pytest.approx(parts.success.ns, rel=0.01)
