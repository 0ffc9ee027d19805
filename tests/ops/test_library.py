"""The library itself: what it exports, how it registers, and what it tells ONNX Runtime of shapes."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
from one_op import (
    attention_attributes,
    attention_inputs,
    axis_attributes,
    axis_inputs,
    cross_inputs,
    library_under_test,
    op_model,
    open_session,
    session_options,
)

from axis_cases import AxisCase
from cases import AttentionCase
from cross_cases import asked_queries
from sparse_serve.op_library import CUDA_LIBRARY_NAME, OPSET_VERSION

CASE = AttentionCase("library", (40, 30), 2, 16)


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm, of binutils, is not installed")
def test_exports_what_is_documented_only() -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library_under_test())], check=True, capture_output=True, text=True
    ).stdout
    exported = {line.split()[-1] for line in listing.splitlines()}
    wanted = {"RegisterCustomOps", "SparseOpsVersion", "SparseOpsInstructionSet"}
    if library_under_test().name == CUDA_LIBRARY_NAME:
        wanted |= {"SparseOpsCudaVersion", "SparseOpsTakeScratchPeak"}
    assert exported == wanted


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm, of binutils, is not installed")
def test_asks_nothing_new_of_glibc() -> None:
    """A library that is built where glibc is 2.32 or newer loads where it is older, too."""
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library_under_test())],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "__libc_single_threaded" not in listing


def test_version() -> None:
    assert ctypes.CDLL(str(library_under_test())).SparseOpsVersion() == OPSET_VERSION


@pytest.mark.parametrize("wanted", ["sse9", "AVX2"])
def test_an_unknown_instruction_set_is_refused(wanted: str) -> None:
    script = (
        "import sys, onnxruntime\nonnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, str(library_under_test())],
        env=os.environ | {"SPARSE_OPS_INSTRUCTION_SET": wanted},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert f'SPARSE_OPS_INSTRUCTION_SET is "{wanted}"; this processor runs: ' in answer.stderr


def test_an_old_runtime_gets_a_status() -> None:
    """GetApi(17) answers NULL on ONNX Runtime before 1.17: registration must fail, never silently succeed."""
    create_status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)

    class ApiBase(ctypes.Structure):
        _fields_ = (("get_api", get_api), ("get_version", get_version))

    messages: list[bytes] = []

    def status(_code: int, message: bytes) -> int:
        messages.append(message)
        return 0xBAD

    version_string = ctypes.create_string_buffer(b"1.16.3")
    table = (create_status * 1)(create_status(status))
    base = ApiBase(
        get_api(lambda version: ctypes.addressof(table) if version == 1 else None),
        get_version(lambda: ctypes.addressof(version_string)),
    )
    register = ctypes.CDLL(str(library_under_test())).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, ctypes.byref(base)) == 0xBAD
    assert messages == [b"libsparse_ops.so needs ONNX Runtime 1.17 or newer; this is ONNX Runtime 1.16.3"]


def test_a_runtime_without_any_api_table_stops_the_process() -> None:
    script = (
        "import ctypes, sys\n"
        "get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda version: None)\n"
        "version = ctypes.create_string_buffer(b'2.0.0')\n"
        "get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(version))\n"
        "functions = [ctypes.cast(f, ctypes.c_void_p).value for f in (get_api, get_version)]\n"
        "ctypes.CDLL(sys.argv[1]).RegisterCustomOps(None, (ctypes.c_void_p * 2)(*functions))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, str(library_under_test())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == -signal.SIGABRT
    assert answer.stderr == "libsparse_ops.so needs ONNX Runtime 1.17 or newer; this is ONNX Runtime 2.0.0\n"


def test_registers_on_many_sessions_from_many_threads() -> None:
    inputs = attention_inputs(CASE)
    op = "SparsegenAttention"
    model = op_model(op, inputs, **attention_attributes(op, CASE))
    expected, _ = open_session(model, library_under_test()).run(None, inputs)

    def answer(_: int) -> bool:
        output, _support = open_session(model, library_under_test(), threads=2).run(None, inputs)
        return np.array_equal(output, expected)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(answer, range(32)))


def test_one_session_serves_concurrent_runs() -> None:
    cases = [AttentionCase("run", (5 * i + 1, 33), 2, 16, seed=i) for i in range(12)]
    op = "SparsegenAttention"
    session = open_session(
        op_model(op, attention_inputs(CASE), **attention_attributes(op, CASE)), library_under_test(), 2
    )
    expected = [session.run(None, attention_inputs(case))[0] for case in cases]

    def same(i: int) -> bool:
        output, _support = session.run(None, attention_inputs(cases[i % 12]))
        return np.array_equal(output, expected[i % 12])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(same, range(200)))


@pytest.mark.parametrize("tokens", [70, "tokens"])
def test_attention_shapes_are_inferred(tokens: int | str) -> None:
    inputs = attention_inputs(CASE)
    shapes = {name: [tokens, 32] for name in ("query", "key", "value")} | {"cu_seqlens": ["borders"]}
    for op, expected in (
        ("SparsegenAttention", [[tokens, 32], [tokens, 2]]),
        ("SoftmaxAttention", [[tokens, 32]]),
    ):
        model = op_model(op, inputs, shapes, **attention_attributes(op, CASE))
        results = open_session(model, library_under_test()).get_outputs()
        assert [result.shape for result in results] == expected


@pytest.mark.parametrize("tokens", [70, "tokens"])
def test_axis_shapes_are_inferred(tokens: int | str) -> None:
    case = AxisCase(CASE, 0.1, 0.1)
    inputs = axis_inputs(case)
    shapes = {name: [tokens, 32] for name in ("query", "key", "value")}
    shapes |= {"rows": [tokens], "columns": [tokens], "cu_seqlens": ["borders"]}
    for outputs in (["output", "support"], ["output"]):  # what is not there everywhere has no shape anywhere
        model = op_model("AxisAttention", inputs, shapes, outputs=outputs, **axis_attributes(case))
        results = open_session(model, library_under_test()).get_outputs()
        assert (results[0].name, results[0].shape) == ("output", [tokens, 32])

    hidden = {"hidden": inputs["query"], "weight": np.zeros((2, 32), np.float32)}
    model = op_model(
        "AxisMask",
        hidden | {"bias": np.zeros(2, np.float32)},
        {"hidden": [tokens, 32], "weight": [2, 32], "bias": [2]},
    )
    results = open_session(model, library_under_test()).get_outputs()
    assert [(result.shape, result.type) for result in results] == [([tokens], "tensor(bool)")] * 2


@pytest.mark.parametrize("queries", [2, "queries"])
def test_cross_attention_shapes_are_inferred(queries: int | str) -> None:
    """As many rows as there are queries."""
    axis = AxisCase(CASE, 0.1, 0.1)
    shapes = {"query": [queries, 32], "key": ["tokens", 32], "value": ["tokens", 32]}
    borders = {"cu_seqlens_q": ["borders"], "cu_seqlens_k": ["borders"]}
    of_tokens = {"query_tokens": [queries], "rows": ["tokens"], "columns": ["tokens"]}
    asked = asked_queries("first", CASE.cu_seqlens)
    for op, support in (("Sparsegen", [[queries, 2]]), ("Softmax", []), ("Axis", [[]])):
        is_axis = op == "Axis"
        inputs = cross_inputs(axis_inputs(axis) if is_axis else attention_inputs(CASE), asked)
        attributes = axis_attributes(axis) if is_axis else attention_attributes(f"{op}Attention", CASE)
        own = shapes | (of_tokens if is_axis else {}) | borders
        model = op_model(f"{op}CrossAttention", inputs, own, **attributes)
        results = open_session(model, library_under_test()).get_outputs()
        assert [result.shape for result in results] == [[queries, 32], *support]


@pytest.mark.parametrize("shape", [[2, 3], ["rows", 3], ["rows", "columns", 5]])
def test_sparsegen_lin_keeps_the_shape(shape: list[int | str]) -> None:
    scores = np.zeros([2] * len(shape), np.float32)
    model = op_model("SparsegenLin", {"scores": scores}, {"scores": shape}, lambd=0.0)
    (result,) = open_session(model, library_under_test()).get_outputs()
    assert result.shape == shape


@pytest.mark.parametrize("shape", [[2, 3], ["rows", 3], ["rows", "columns", 5]])
def test_rows_keep_their_shape_and_have_a_scale_each(shape: list[int | str]) -> None:
    values = np.ones([2] * len(shape), np.float32)
    model = op_model("QuantizeRows", {"values": values}, {"values": shape})
    found = [(each.shape, each.type) for each in open_session(model, library_under_test()).get_outputs()]
    assert found == [(shape, "tensor(uint8)"), ([*shape[:-1], 1], "tensor(float)")]


@pytest.mark.parametrize("op", ["BiasGelu", "SkipLayerNormalization"])
@pytest.mark.parametrize("shape", [[3], [2, 3], ["rows", 3], [1, "rows", 3], ["rows", "columns"]])
def test_fused_rows_keep_their_shape(op: str, shape: list[int | str]) -> None:
    names = {"BiasGelu": ("input",), "SkipLayerNormalization": ("input", "skip")}[op]
    values = {name: np.ones([2] * len(shape), np.float32) for name in names}
    vectors = {"BiasGelu": ("bias",), "SkipLayerNormalization": ("gamma", "beta", "bias")}[op]
    shapes = dict.fromkeys(values, shape) | dict.fromkeys(vectors, shape[-1:])
    attributes: dict[str, Any] = {} if op == "BiasGelu" else {"epsilon": 1e-5}
    inputs = values | {name: np.ones(2, np.float32) for name in vectors}
    (output,) = open_session(op_model(op, inputs, shapes, **attributes), library_under_test()).get_outputs()
    assert (output.shape, output.type) == (shape, "tensor(float)")


@pytest.mark.parametrize("shape", [None, [None, 32], [None, None]])
def test_unknown_shapes_run_without_a_warning(
    shape: list[int | None] | None, capfd: pytest.CaptureFixture[str]
) -> None:
    inputs = attention_inputs(CASE)
    shapes = dict.fromkeys(inputs, shape) | {"cu_seqlens": None}
    op = "SparsegenAttention"
    options = session_options(library_under_test())
    options.log_severity_level = 2
    session = onnxruntime.InferenceSession(
        op_model(op, inputs, shapes, **attention_attributes(op, CASE)),
        options,
        providers=["CPUExecutionProvider"],
    )
    output, support = session.run(None, inputs)
    assert output.shape == (70, 32)
    assert support.shape == (70, 2)
    assert not capfd.readouterr().err


def test_the_same_options_serve_two_sessions() -> None:
    options = session_options(library_under_test())
    scores = {"scores": np.ones((1, 4), np.float32)}
    for _ in range(2):
        session = onnxruntime.InferenceSession(
            op_model("SparsegenLin", scores, lambd=0.0), options, providers=["CPUExecutionProvider"]
        )
        np.testing.assert_allclose(session.run(None, scores)[0], 0.25)
