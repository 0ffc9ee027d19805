"""Configurations that this package's onnxruntime backend reads as Triton's own does, or refuses."""

import os
import time
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from loading_triton import Edit, LoadingTriton, assert_same, tokens, with_parameter
from onnx import ModelProto, TensorProto, helper, numpy_helper
from serving import wait_for
from tritonclient.utils import InferenceServerException

from graph_session import open_graph
from sparse_serve.processor import usable_cores

ALLOWED = os.sched_getaffinity(0)


@pytest.fixture(scope="module")
def levelled() -> ModelProto:
    """A graph whose numbers differ by the level at which it is optimized."""
    rng = np.random.default_rng(0)
    width = 32

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    constants = [
        constant("kernel", width, width, 3, 3),
        *(constant(name, width) for name in ("scale", "shift", "mean")),
        numpy_helper.from_array(rng.uniform(0.1, 1, width).astype(np.float32), "variance"),
        constant("weight", 8, 64),
        constant("bias", 64),
        *(
            numpy_helper.from_array(np.array(value, np.float32), name)
            for name, value in [("root", np.sqrt(2)), ("one", 1), ("half", 0.5)]
        ),
        numpy_helper.from_array(np.array([-1, width, 8, 8]), "image"),
        numpy_helper.from_array(np.array([0, width * 8 * 64]), "flat"),
    ]
    steps: list[tuple[str, list[str], dict[str, Any]]] = [
        ("Cast", ["numbers"], {"to": TensorProto.FLOAT}),
        ("Reshape", ["0", "image"], {}),
        ("Conv", ["1", "kernel"], {"pads": [1, 1, 1, 1]}),
        ("BatchNormalization", ["2", "scale", "shift", "mean", "variance"], {}),
        ("Relu", ["3"], {}),
        ("Conv", ["4", "kernel"], {"pads": [1, 1, 1, 1]}),
        ("MatMul", ["5", "weight"], {}),
        ("Add", ["6", "bias"], {}),
        ("Div", ["7", "root"], {}),
        ("Erf", ["8"], {}),
        ("Add", ["9", "one"], {}),
        ("Mul", ["7", "10"], {}),
        ("Mul", ["11", "half"], {}),
        ("Reshape", ["12", "flat"], {}),
    ]
    nodes = [
        helper.make_node(kind, inputs, [str(number) if number < len(steps) - 1 else "answer"], **attributes)
        for number, (kind, inputs, attributes) in enumerate(steps)
    ]
    graph = helper.make_graph(
        nodes,
        "levelled",
        [helper.make_tensor_value_info("numbers", TensorProto.INT64, ["batch", width * 64])],
        [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["batch", width * 8 * 64])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


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
    triton: LoadingTriton, levelled: ModelProto, level: int, expected: str
) -> None:
    def edit(config: Any) -> None:
        config.optimization.graph.level = level

    columns = {"numbers": np.arange(32 * 64)[None] % 7 - 3}
    answer = triton.load(levelled, edit).ask(columns)["answer"]
    for name in LEVELS:
        own = getattr(onnxruntime.GraphOptimizationLevel, name)
        session = open_graph(levelled, graph_optimization_level=own)
        is_same = np.array_equal(session.run(None, columns)[0], answer)
        assert is_same == (name == expected), name


def settled_threads(triton: LoadingTriton) -> int:
    """How many threads the server has, once those have gone that load and unload."""
    counts = [0]

    def is_settled() -> bool:
        counts.append(triton.process.num_threads())
        time.sleep(0.05)
        return len(set(counts[-5:])) == 1

    wait_for(is_settled)
    return counts[-1]


def threads_for(triton: LoadingTriton, graph_of_ids: ModelProto, **parameters: str) -> int:
    """How many threads more a model has than one that computes on one."""

    def edit(config: Any) -> None:
        for key, value in parameters.items():
            config.parameters[key].string_value = value

    def threads_of(edit_one: Edit) -> int:
        model = triton.load(graph_of_ids, edit_one)
        threads = settled_threads(triton)
        assert all(os.sched_getaffinity(thread.id) == ALLOWED for thread in triton.process.threads())
        triton.client.unload_model(model.name)
        return threads - settled_threads(triton)

    return threads_of(edit) - threads_of(with_parameter("intra_op_thread_count", "1"))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"intra_op_thread_count": "3"}, 2),
        ({}, usable_cores() - 1),
        ({"intra_op_thread_count": "0"}, usable_cores() - 1),
        ({"intra_op_thread_count": "-1"}, usable_cores() - 1),
        ({"intra_op_thread_count": "1", "inter_op_thread_count": "3"}, 0),
        ({"intra_op_thread_count": "1", "inter_op_thread_count": "3", "execution_mode": "1"}, 2),
    ],
)
def test_threads_are_as_many_as_asked_for_and_run_wherever_the_process_may(
    triton: LoadingTriton, graph_of_ids: ModelProto, parameters: dict[str, str], expected: int
) -> None:
    """Left to choose, ONNX Runtime binds each to a core, allowed or not."""
    assert threads_for(triton, graph_of_ids, **parameters) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enable_mem_arena", "0"),
        ("enable_mem_arena", "True"),
        ("enable_mem_pattern", "off"),
        ("memory.enable_memory_arena_shrinkage", "cpu:0"),
        ("session.use_device_allocator_for_initializers", "1"),
    ],
)
def test_parameters_of_the_session_are_accepted(
    triton: LoadingTriton, graph_of_ids: ModelProto, key: str, value: str
) -> None:
    model = triton.load(graph_of_ids, with_parameter(key, value))
    (logits,) = open_graph(graph_of_ids).run(["logits"], tokens([[2, 5, 3]]))
    assert_same(model.ask(tokens([[2, 5, 3]]), "logits"), {"logits": logits})


def test_another_file_name_is_served(triton: LoadingTriton, graph_of_ids: ModelProto) -> None:
    def edit(config: Any) -> None:
        config.default_model_filename = "other.onnx"

    assert len(triton.load(graph_of_ids, edit, file="other.onnx").ask(tokens([[2, 3]]))["logits"]) == 1


def set_field(field: str, kind: str, value: object) -> Edit:
    def edit(config: Any) -> None:
        setattr(getattr(config, kind)[0], field, value)

    return edit


def with_dims(config: Any) -> None:
    config.output[0].dims[0] = 5


def with_ragged_input(config: Any) -> None:
    config.input[0].allow_ragged_batch = True


def with_reshape(config: Any) -> None:
    config.output[0].reshape.shape[:] = [1, 2]


def with_accelerator(config: Any) -> None:
    config.optimization.execution_accelerators.cpu_execution_accelerator.add(name="openvino")


def without_an_input(config: Any) -> None:
    del config.input[2]


def with_foreign_library(config: Any) -> None:
    config.model_operations.op_library_filename.append("libnowhere.so")


def with_another_file(config: Any) -> None:
    config.default_model_filename = "absent.onnx"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (with_parameter("execution_mode", "2"), "Expected values for execution_mode are 0 or 1 but got 2"),
        (with_parameter("intra_op_thread_count", "two"), "failed to convert intra_op_thread_count 'two'"),
        (with_parameter("enable_mem_arena", "maybe"), "failed to convert enable_mem_arena 'maybe'"),
        (with_parameter("max_text_bytes", "0"), "max_text_bytes is '0': give a number of bytes from 1 to"),
        (with_parameter("max_length", "0"), "max_length is '0': give a number of tokens"),
        (
            set_field("data_type", "input", 11),
            "configuration expects datatype TYPE_FP32 for input 'input_ids', model provides tensor(int64)",
        ),
        (
            set_field("name", "output", "pooled"),
            "unexpected inference output 'pooled', allowed outputs are: logits, rho",
        ),
        (
            with_dims,
            "'logits': the model expects shape [-1, 2] but the configuration specifies [-1, 5]",
        ),
        (without_an_input, "configuration expects 2 inputs, model provides 3"),
        (
            with_ragged_input,
            "asks for allow_ragged_batch, which this package's onnxruntime backend does not",
        ),
        (with_reshape, "asks for reshape"),
        (with_accelerator, "asks for execution_accelerators"),
        (with_foreign_library, "libnowhere.so"),
        (with_another_file, "absent.onnx"),
    ],
)
def test_what_cannot_be_served_is_refused_at_load(
    triton: LoadingTriton, graph_of_ids: ModelProto, edit: Edit, message: str
) -> None:
    with pytest.raises(InferenceServerException) as raised:
        triton.load(graph_of_ids, edit)
    assert message in raised.value.message()
    assert triton.process.is_running()
