"""The python-based onnxruntime backend: configuration as the C++ backend reads it, and fault isolation."""

import gc
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
import triton_stub as stub
from onnx import TensorProto, helper
from tokenizers import normalizers

from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_serve.op_library import library_path
from sparse_serve.repository.config import CONFIG_NAME, graph_config, read_config, to_text
from sparse_serve.repository.signature import graph_signature
from sparse_serve.repository.tunable import DEFAULT_TEXT_BYTES
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.stub import turns
from sparse_serve.stub.cores import physical_cores
from sparse_serve.stub.runs import RUN_TOKENS
from sparse_serve.stub.turns import CROWD
from tokenizing import shaped_model, word_piece

SOURCE = Path(str(files("sparse_serve") / "triton" / "onnxruntime_backend" / "model.py"))
MakeSpec = Callable[..., EntrySpec]
Edit = Callable[[Any], None]


@pytest.fixture
def load(tmp_path: Path, make_spec: MakeSpec) -> Callable[..., Any]:
    """Load the backend on the tiny graph, its configuration edited."""
    write_entry(tmp_path, make_spec())

    def load_edited(edit: Edit = lambda config: None, kind: str = "CPU") -> Any:
        folder = tmp_path / "tiny_model"
        config = read_config(folder / CONFIG_NAME)
        edit(config)
        (folder / CONFIG_NAME).write_text(to_text(config))
        return stub.load_model(SOURCE, folder, kind=kind)

    return load_edited


def with_parameter(key: str, value: str) -> Edit:
    def edit(config: Any) -> None:
        config.parameters[key].string_value = value

    return edit


def request(ids: Any, mask: Any = None, names: tuple[str, ...] = ("logits", "rho")) -> stub.Request:
    ids = np.array(ids, np.int64)
    mask = np.ones_like(ids) if mask is None else np.array(mask, np.int64)
    segments = np.zeros_like(ids)
    return stub.Request(
        [
            stub.Tensor("input_ids", ids),
            stub.Tensor("attention_mask", mask),
            stub.Tensor("token_type_ids", segments),
        ],
        names,
    )


def test_requests_are_concatenated_and_split_again(load: Callable[..., Any]) -> None:
    backend = load()
    requests = [request([[2, 5, 3]]), request([[2, 6, 3], [2, 7, 3]]), request([[2, 8, 3]])]
    together = [response.arrays() for response in backend.execute(requests)]
    alone = [backend.execute([each])[0].arrays() for each in requests]
    assert [len(arrays["logits"]) for arrays in together] == [1, 2, 1]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one["logits"], other["logits"])
        np.testing.assert_array_equal(one["rho"], other["rho"])


def test_only_the_guilty_request_fails(load: Callable[..., Any]) -> None:
    good, out_of_vocabulary = request([[2, 5, 3]]), request([[2, 10_000, 3]])
    backend = load()
    responses = backend.execute([good, out_of_vocabulary, good])
    assert [response.has_error() for response in responses] == [False, True, False]
    error = responses[1].error()
    assert error.code() == stub.Error.INVALID_ARG
    assert "10000" in error.message()
    assert "\n" not in error.message()


def test_a_request_without_rows_is_refused_alone(load: Callable[..., Any]) -> None:
    good, bad = request([[2, 5, 3]]), request([[2, 5, 3]])
    # What Triton makes of [0, 3] that comes with the bytes of a row.
    bad.inputs[0] = stub.Tensor("input_ids", np.array([2, 5, 3]))
    none = stub.Request([stub.Tensor(each.name(), each.as_numpy()[:0]) for each in good.inputs], good.names)
    first, second, third, fourth = load().execute([good, bad, none, good])
    assert [first.has_error(), fourth.has_error()] == [False, False]
    for response in (second, third):
        error = response.error()
        assert error.code() == stub.Error.INVALID_ARG
        assert error.message() == "input 'input_ids' has no rows: give at least one"


def test_a_request_that_cannot_be_read_fails_alone(load: Callable[..., Any]) -> None:
    class Broken(stub.Tensor):
        def as_numpy(self) -> Any:
            raise MemoryError("cannot\nallocate")

    good, bad = request([[2, 5, 3]]), request([[2, 5, 3]])
    bad.inputs[0] = Broken("input_ids", np.array([]))
    responses = load().execute([good, bad])
    assert [response.has_error() for response in responses] == [False, True]
    assert responses[1].error().code() == stub.Error.INTERNAL
    assert responses[1].error().message() == "cannot allocate"


def test_axes_that_differ_are_refused_even_where_they_would_broadcast(load: Callable[..., Any]) -> None:
    good, bad = request([[2, 5, 3]]), request([[2, 5, 3]], mask=[[1]])
    responses = load().execute([good, bad])
    assert [response.has_error() for response in responses] == [False, True]
    assert responses[1].error().code() == stub.Error.INVALID_ARG
    assert "input 'attention_mask' has sequence 1, input 'input_ids' has 3" in responses[1].error().message()


def test_only_requested_outputs_are_fetched(load: Callable[..., Any]) -> None:
    backend = load()
    run, fetched = backend.session.run, []

    class Session:
        def run(self, names: list[str], feed: Any, options: onnxruntime.RunOptions) -> Any:
            fetched.append(names)
            return run(names, feed, options)

    backend.session = Session()
    logits_only, both = request([[2, 3]], names=("logits",)), request([[2, 3]])
    assert list(backend.execute([logits_only])[0].arrays()) == ["logits"]
    backend.execute([logits_only, both])
    assert fetched == [["logits"], ["logits", "rho"]]


@pytest.fixture(scope="module")
def reading_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is a tokenizer in the graph: what it says of each text."""
    folder = tmp_path_factory.mktemp("models") / "reading"
    (folder / "1").mkdir(parents=True)
    tokenizer = word_piece("[UNK] [CLS] [SEP] [MASK] a b é", normalizers.BertNormalizer(lowercase=False))
    graph = shaped_model(derive_tables(tokenizer), 8, pairs=True)
    graph.graph.node.append(helper.make_node("Identity", ["TEXT"], ["echo"]))
    graph.graph.output.append(helper.make_tensor_value_info("echo", TensorProto.STRING, ["batch", 1]))
    onnx.save(graph, folder / "1" / "model.onnx")
    signature = graph_signature(graph)
    rows = [tensor for tensor in signature.outputs if tensor.dims == (1,)]
    config = graph_config("reading", replace(signature, outputs=tuple(rows)))
    config.model_operations.op_library_filename[:] = [str(library_path())]
    (folder / CONFIG_NAME).write_text(to_text(config))
    return folder


@pytest.fixture
def reading(reading_folder: Path) -> Any:
    """The backend on it."""
    return stub.load_model(SOURCE, reading_folder)


def asking(
    *rows: tuple[bytes, bytes], names: tuple[str, ...] = ("token_count", "invalid_at")
) -> stub.Request:
    columns = (np.array(column, object)[:, None] for column in zip(*rows, strict=True))
    pairs = zip(("TEXT", "TEXT_PAIR"), columns, strict=True)
    return stub.Request([stub.Tensor(name, column) for name, column in pairs], names)


def test_bytes_that_are_no_text_reach_the_graph_as_they_are(reading: Any) -> None:
    """Up to the first that is none, where a NUL before it ends nothing; in requests among others."""
    requests = [
        asking((b"a b", b"a")),
        asking((b"a", b""), (b"a\x00\xff b", b"b"), ("é".encode(), b"a b")),
        asking((b"", b"b\x00\xe4\xb8"), (b"\xed\xa0\x80", b"\xff")),
    ]
    answers = [response.arrays() for response in reading.execute(requests)]
    assert [each["invalid_at"][:, 0].tolist() for each in answers] == [[-1], [-1, 2, -1], [2, 0]]
    assert [each["token_count"][:, 0].tolist() for each in answers] == [[6], [4, 3, 6], [3, 3]]


def test_what_is_no_text_shares_the_run_of_what_is(reading: Any) -> None:
    sizes = run_sizes(
        reading, lambda: reading.execute([asking((b"a", b"\xff")), asking((b"b", b"a"), (b"\xe4", b""))])
    )
    assert sizes == [3]


def test_what_one_array_cannot_hold_has_a_run_of_its_own(reading: Any) -> None:
    """A NUL ends a text in it, and it is as wide as the longest for all."""
    long = b"a " * 20_000
    rows = [(b"a\x00b", b""), (b"\xff", b""), (b"a", b"b"), (long, b"a"), (long + b"\xff", b"b")]
    found: list[stub.Response] = []
    sizes = run_sizes(reading, lambda: found.extend(stub.answers_of(reading, asking(*rows))))
    assert sizes == [2, 2, 1]
    arrays = found[0].arrays()
    assert arrays["invalid_at"][:, 0].tolist() == [-1, 0, -1, -1, len(long)]
    assert arrays["token_count"][:, 0].tolist() == [4, 3, 5, 8, 3]


def test_a_text_of_too_many_bytes_is_refused_alone(reading: Any) -> None:
    most = DEFAULT_TEXT_BYTES
    good, bad, fits = asking((b"a", b"b")), asking((b"a", b" " * (most + 1))), asking((b"a", b" " * most))
    first, second, third = stub.answers_of(reading, good, bad, fits)
    assert [first.has_error(), third.has_error()] == [False, False]
    error = second.error()
    assert error is not None
    assert error.code() == stub.Error.INVALID_ARG
    message = f"input 'TEXT_PAIR' has a text of {most + 1} bytes: give at most {most}"
    assert error.message() == f"{message} (max_text_bytes of config.pbtxt)"


@pytest.mark.parametrize("beside", [0, 1, CROWD])
@pytest.mark.parametrize("kind", ["too large", "without rows", "of unequal axes", "with a bad id", "long"])
def test_a_refused_request_is_let_go_at_once(
    load: Callable[..., Any], reading: Any, kind: str, beside: int
) -> None:
    """It holds the client's tensors in memory that it shares with Triton, until nobody holds it."""
    ids, bad_ids = np.full((40, 64), 5), np.full((40, 64), 10_000)
    make: Callable[[], stub.Request] = {
        "too large": lambda: asking((b"a", b" " * (DEFAULT_TEXT_BYTES + 1))),
        "without rows": lambda: request(ids[:0]),
        "of unequal axes": lambda: request(ids, mask=np.ones((40, 63))),
        "with a bad id": lambda: request(bad_ids[:1, :8]),
        "long": lambda: request(bad_ids),
    }[kind]
    backend, good = (reading, asking((b"a", b"b"))) if kind == "too large" else (load(), request(ids[:1, :8]))
    gc.disable()
    try:
        refused = [make() for _ in range(max(beside, 1))]
        held = [weakref.ref(each) for each in refused]
        answers = stub.answers_of(backend, *refused, *[good] * (beside > 0))
        assert [answer.has_error() for answer in answers] == [True] * len(refused) + [False] * (beside > 0)
        backend.finalize()  # the thread holds what it answered last
        del refused, answers
        assert not any(each() for each in held)
    finally:
        gc.enable()


def run_sizes(backend: Any, call: Callable[[], object]) -> list[int]:
    """How many rows each run has that a call makes."""
    session, sizes = backend.session, []

    class Session:
        def run(self, names: list[str], feed: Any, options: onnxruntime.RunOptions) -> Any:
            sizes.append(len(next(iter(feed.values()))))
            return session.run(names, feed, options)

    backend.session = Session()
    try:
        call()
    finally:
        backend.session = session
    return sizes


def test_rows_are_run_so_many_tokens_at_a_time(load: Callable[..., Any]) -> None:
    backend = load()
    most = RUN_TOKENS
    rows = 40
    ids = np.full((rows, 64), 5)
    mask = np.ones_like(ids)
    mask[0, 1:] = 0
    found: list[stub.Response] = []
    sizes = run_sizes(backend, lambda: found.extend(stub.answers_of(backend, request(ids, mask))))
    assert sizes == [most // 64, most // 64, rows - 2 * (most // 64)]
    (alone,) = stub.answers_of(backend, request(ids[:1], mask[:1]))
    logits = found[0].arrays()["logits"]
    assert len(logits) == rows
    np.testing.assert_array_equal(logits[:1], alone.arrays()["logits"])


def test_short_requests_do_not_wait_for_long_ones(load: Callable[..., Any]) -> None:
    backend = load()
    session, let, answered = backend.session, Event(), []

    class Session:
        def run(self, names: list[str], feed: Any, options: onnxruntime.RunOptions) -> Any:
            if len(feed["input_ids"]) > 1:
                assert let.wait(30)
            return session.run(names, feed, options)

    backend.session = Session()
    long, short = request(np.full((10, 64), 5)), request([[2, 5, 3]])
    assert backend.execute([long, short]) is None
    answered.append(short.answers.get(timeout=30))
    answered += backend.execute([request([[2, 5, 3]])])
    assert long.answers.empty()
    let.set()
    answered.append(long.answers.get(timeout=30))
    assert not any(response.has_error() for response in answered)
    backend.execute([long, short])
    backend.finalize()
    assert not long.answers.empty()


@pytest.fixture
def leave_many(monkeypatch: pytest.MonkeyPatch) -> Callable[..., stub.Request]:
    """Ask for a short answer beside long ones, that all wait for their turns, not for the thread."""
    monkeypatch.setattr(turns, "AWAY_SECONDS", 1000.0)

    def leave(backend: Any, long: Sequence[stub.Request]) -> stub.Request:
        short = request([[2, 5, 3]])
        backend.long._hold()
        backend.long.turn = lambda seconds: ()
        assert backend.execute([*long, short]) is None
        del backend.long.turn
        return short

    return leave


def test_many_long_requests_take_turns_with_short_ones(
    load: Callable[..., Any], leave_many: Callable[..., stub.Request]
) -> None:
    """What is larger than a run is computed in parts, and each gets one answer: what it would get alone."""
    backend = load()
    rng = np.random.default_rng(1)
    long = [request(rng.integers(5, 30, (rows, 64)), names=("logits",)) for rows in [40, 5, 16, 33] * 3]
    alone = [backend.execute([each])[0].arrays() for each in long]
    answered, sizes = [leave_many(backend, long).answers.get(timeout=30)], list[int]()
    while backend.long.is_crowded:
        sizes += run_sizes(backend, lambda: answered.extend(stub.answers_of(backend, request([[2, 5, 3]]))))
    assert max(sizes) == RUN_TOKENS // 64
    assert not any(each.answers.empty() for each in long[: 1 - CROWD])
    assert not any(response.has_error() for response in answered)
    backend.finalize()
    for each, expected in zip(long, alone, strict=True):
        arrays = each.answers.get(timeout=30).arrays()
        assert list(arrays) == ["logits"]
        np.testing.assert_allclose(arrays["logits"], expected["logits"], atol=1e-5)
        assert each.answers.empty()


def test_a_part_that_fails_fails_its_request_alone(
    load: Callable[..., Any], leave_many: Callable[..., stub.Request]
) -> None:
    backend = load()
    ids = np.full((40, 64), 5)
    bad_ids = ids.copy()
    bad_ids[3] = 10_000
    bad, unequal = request(bad_ids), request(ids, mask=np.ones((40, 63)))
    good = [request(ids) for _ in range(CROWD)]
    leave_many(backend, [bad, unequal, *good])
    backend.finalize()
    for each in (bad, unequal):
        error = each.answers.get(timeout=30).error()
        assert error is not None
        assert error.code() == stub.Error.INVALID_ARG
        assert each.answers.empty()
    assert [len(each.answers.get(timeout=30).arrays()["logits"]) for each in good] == [40] * CROWD


def test_an_answer_that_cannot_be_sent_is_no_concern_of_the_others(
    load: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Long ones are answered by the thread, short ones together: of each the first meets full memory."""
    backend = load()
    long = [request(np.full((10, 64), 5)) for _ in range(3)]
    short = [request([[2, 5, 3]]) for _ in range(3)]
    long[0].send_failures = [MemoryError("no\nroom")]
    short[0].send_failures = [MemoryError("no\nroom")]
    short[1].send_failures = [MemoryError("no room"), MemoryError("no room")]
    assert backend.execute([*long, *short]) is None
    for each in (long[0], short[0]):
        error = each.answers.get(timeout=30).error()
        assert error is not None
        assert (error.code(), error.message()) == (stub.Error.INTERNAL, "no room")
    for each in (*long[1:], short[2]):
        assert not each.answers.get(timeout=30).has_error()
    backend.finalize()
    assert short[1].answers.empty()
    assert "an answer could not be sent (MemoryError: no room)" in caplog.messages
    assert "neither could its refusal: its client hears nothing (MemoryError: no room)" in caplog.messages


def test_a_part_that_cannot_be_joined_fails_its_request_alone(
    load: Callable[..., Any], leave_many: Callable[..., stub.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = load()
    long = [request(np.full((40, 64), 5)) for _ in range(CROWD)]
    leave_many(backend, long)
    join, failures = np.concatenate, [MemoryError("no room")]

    def concatenate(arrays: Sequence[Any]) -> Any:
        if failures and sum(map(len, arrays)) == 40:
            raise failures.pop()
        return join(arrays)

    monkeypatch.setattr(np, "concatenate", concatenate)
    backend.finalize()
    answers = [each.answers.get(timeout=30) for each in long]
    assert [each.has_error() for each in answers] == [True, *[False] * (CROWD - 1)]


def test_long_requests_among_themselves_are_answered_as_triton_counts_them(load: Callable[..., Any]) -> None:
    backend = load()
    long = request(np.full((10, 64), 5))
    assert len(backend.execute([long, long])) == 2
    backend.execute([request([[2, 5, 3]])])
    assert backend.execute([long]) is None
    assert not long.answers.get(timeout=30).has_error()
    backend.short_until = 0.0
    assert len(backend.execute([long])) == 1


def test_text_comes_back_as_bytes(reading: Any) -> None:
    rows = [("é 中 😀".encode(), b""), (b"a\x00b", b""), (b"", b"")]
    (response,) = reading.execute([asking(*rows, names=("echo",))])
    assert response.arrays()["echo"][:, 0].tolist() == [text for text, _ in rows]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (-1, "ORT_ENABLE_BASIC"),
        (0, "ORT_ENABLE_ALL"),
        (1, "ORT_ENABLE_EXTENDED"),
        (2, "ORT_DISABLE_ALL"),
        (7, "ORT_ENABLE_ALL"),
    ],
)
def test_graph_level_means_what_the_cpp_backend_means(
    load: Callable[..., Any], level: int, expected: str
) -> None:
    def edit(config: Any) -> None:
        config.optimization.graph.level = level

    options = load(edit).session.get_session_options()
    assert options.graph_optimization_level == getattr(onnxruntime.GraphOptimizationLevel, expected)


@pytest.mark.parametrize(
    ("key", "value", "attribute", "expected"),
    [
        ("intra_op_thread_count", "3", "intra_op_num_threads", 3),
        ("intra_op_thread_count", "0", "intra_op_num_threads", physical_cores()),
        ("intra_op_thread_count", "-1", "intra_op_num_threads", physical_cores()),
        ("inter_op_thread_count", "2", "inter_op_num_threads", 2),
        ("execution_mode", "1", "execution_mode", onnxruntime.ExecutionMode.ORT_PARALLEL),
        ("enable_mem_arena", "0", "enable_cpu_mem_arena", False),
        ("enable_mem_arena", "True", "enable_cpu_mem_arena", True),
        ("enable_mem_pattern", "off", "enable_mem_pattern", False),
    ],
)
def test_parameters_reach_the_session(
    load: Callable[..., Any], key: str, value: str, attribute: str, expected: object
) -> None:
    options = load(with_parameter(key, value)).session.get_session_options()
    assert getattr(options, attribute) == expected


def thread_ids() -> set[int]:
    return {thread.id for thread in psutil.Process().threads()}


def test_threads_compute_wherever_the_process_may(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left to choose, ONNX Runtime binds each to a core, allowed or not."""
    monkeypatch.setattr("sparse_serve.stub.cores.physical_cores", lambda: 3)
    allowed = os.sched_getaffinity(0)
    before = thread_ids()
    backend = load()
    assert backend.session.get_session_options().intra_op_num_threads == 3
    started = thread_ids() - before
    assert len(started) == 2  # beside the one that asks
    assert all(os.sched_getaffinity(thread) == allowed for thread in started)


def test_arena_shrinkage_reaches_the_run(load: Callable[..., Any]) -> None:
    backend = load(with_parameter("memory.enable_memory_arena_shrinkage", "cpu:0"))
    entry = backend.run_options.get_run_config_entry("memory.enable_memory_arena_shrinkage")
    assert entry == "cpu:0"
    assert not backend.execute([request([[2, 3]])])[0].has_error()


def test_another_file_name_is_served(load: Callable[..., Any], tmp_path: Path) -> None:
    version = tmp_path / "tiny_model" / "1"
    (version / "model.onnx").rename(version / "other.onnx")

    def edit(config: Any) -> None:
        config.default_model_filename = "other.onnx"

    assert not load(edit).execute([request([[2, 3]])])[0].has_error()


def set_field(field: str, index: int, value: object) -> Edit:
    def edit(config: Any) -> None:
        setattr(config.input[0] if field != "name" else config.output[index], field, value)

    return edit


def with_dims(config: Any) -> None:
    config.output[0].dims[0] = 5


def with_ragged_input(config: Any) -> None:
    config.input[0].allow_ragged_batch = True


def with_accelerator(config: Any) -> None:
    config.optimization.execution_accelerators.cpu_execution_accelerator.add(name="openvino")


def without_an_input(config: Any) -> None:
    del config.input[2]


def with_foreign_library(config: Any) -> None:
    config.model_operations.op_library_filename.append("libnowhere.so")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (with_parameter("execution_mode", "2"), "Expected values for execution_mode are 0 or 1 but got 2"),
        (with_parameter("intra_op_thread_count", "two"), "failed to convert intra_op_thread_count 'two'"),
        (with_parameter("enable_mem_arena", "maybe"), "failed to convert enable_mem_arena 'maybe'"),
        (set_field("data_type", 0, 11), "configuration expects datatype TYPE_FP32 for input 'input_ids'"),
        (
            set_field("name", 0, "pooled"),
            "unexpected inference output 'pooled', allowed outputs are: logits, rho",
        ),
        (with_dims, r"tensor 'logits': the model expects shape \[-1, 2\]"),
        (without_an_input, "configuration expects 2 inputs, model provides 3"),
        (with_ragged_input, "asks for allow_ragged_batch"),
        (with_accelerator, "asks for execution_accelerators"),
        (with_foreign_library, "libnowhere.so"),
    ],
)
def test_what_cannot_be_served_is_refused_at_load(load: Callable[..., Any], edit: Edit, message: str) -> None:
    with pytest.raises(Exception, match=message) as raised:
        load(edit)
    assert type(raised.value).__name__ == "TritonModelException"


def test_gpu_instances_are_refused(load: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="asks for KIND_GPU"):
        load(kind="GPU")


def test_a_missing_graph_is_named(load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "tiny_model" / "1" / "model.onnx").unlink()
    with pytest.raises(Exception, match=r"unable to find '.*model\.onnx' for model instance 'tiny_model'"):
        load()
