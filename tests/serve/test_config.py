from dataclasses import replace
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from sparse_serve.errors import OptionError, RepositoryError
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.config import (
    graph_config,
    parameters,
    public_config,
    read_config,
    task_names,
    to_text,
)
from sparse_serve.repository.signature import Signature, Tensor, graph_signature, load_graph
from sparse_serve.tasks import (
    TASK_IDS,
    Classification,
    Embedding,
    QuestionAnswering,
    Regression,
    Several,
    Task,
    TokenClassification,
)

TASKS = {"default": Classification(("a", "b"))}
GOLDEN = Path(__file__).parent / "golden"

SIGNATURE = Signature(
    inputs=(
        Tensor("input_ids", DataType.TYPE_INT64, (-1,)),
        Tensor("attention_mask", DataType.TYPE_INT64, (-1,)),
    ),
    outputs=(Tensor("logits", DataType.TYPE_FP32, (2,)), Tensor("rho", DataType.TYPE_FP32, (6,))),
)


SEVERAL = {"sentiment": Classification(("bad", "so-so", "good")), "sts": Regression()}
IDS = Tensor(TASK_IDS, DataType.TYPE_INT64, (1,))
SEVERAL_SIGNATURE = Signature(
    inputs=(*SIGNATURE.inputs, IDS),
    outputs=(Tensor("logits", DataType.TYPE_FP32, (3,)), SIGNATURE.outputs[1]),
)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("graph.pbtxt", graph_config("reviews_model", SIGNATURE)),
        (
            "graph_on_cores.pbtxt",
            graph_config("reviews_model", SIGNATURE, computing=Computing.on(9, 4, queue_delay_us=500)),
        ),
        (
            "graph_on_gpu.pbtxt",
            graph_config(
                "reviews_model",
                SIGNATURE,
                max_length=512,
                computing=Computing.on(None, 2, device="cuda", gpu_mem_limit=8 << 30),
            ),
        ),
        (
            "public.pbtxt",
            public_config(
                "reviews",
                SIGNATURE,
                tasks={"default": Classification(("negative", "positive"))},
                max_length=512,
            ),
        ),
        (
            "regression.pbtxt",
            public_config(
                "value",
                SIGNATURE,
                tasks={"default": Regression(("value",))},
                max_length=8,
                max_batch_size=4,
            ),
        ),
        (
            "question_answering.pbtxt",
            public_config(
                "reader", SIGNATURE, tasks={"default": QuestionAnswering(no_answer=True)}, max_length=384
            ),
        ),
        (
            "token_classification.pbtxt",
            public_config(
                "tagger", SIGNATURE, tasks={"default": TokenClassification(("O", "B-PER"))}, max_length=128
            ),
        ),
        (
            "embedding.pbtxt",
            public_config("vectors", SIGNATURE, tasks={"default": Embedding(size=384)}, max_length=128),
        ),
        ("several_tasks.pbtxt", public_config("pal", SEVERAL_SIGNATURE, tasks=SEVERAL, max_length=128)),
        ("several_tasks_graph.pbtxt", graph_config("pal_model", SEVERAL_SIGNATURE)),
    ],
)
def test_configurations_are_the_golden_ones(name: str, config: ModelConfig) -> None:
    assert to_text(config) == (GOLDEN / name).read_text()


@pytest.mark.parametrize(
    ("cores", "instances", "queue_delay_us"), [(1, 2, 0), (None, 2, 0), (4, 0, 0), (4, 1, -1)]
)
def test_what_cannot_be_computed_with(cores: int | None, instances: int, queue_delay_us: int) -> None:
    with pytest.raises(OptionError, match=r"instances? "):
        Computing.on(cores, instances, queue_delay_us)


AXES_SIGNATURE = Signature(
    inputs=SIGNATURE.inputs,
    outputs=(
        *SIGNATURE.outputs,
        *(Tensor(name, DataType.TYPE_FP32, (6,)) for name in ("rows_on", "columns_on")),
    ),
)


def test_rows_and_columns_are_outputs_of_the_graph_alone() -> None:
    graph, plain = (graph_config("reviews_model", each) for each in (AXES_SIGNATURE, SIGNATURE))
    assert [(tensor.name, list(tensor.dims)) for tensor in graph.output[1:]] == [
        ("rho", [6]),
        ("rows_on", [6]),
        ("columns_on", [6]),
    ]
    assert graph.output[:2] == plain.output[:]
    public, without = (
        public_config("reviews", each, tasks={"default": Classification(("a", "b"))}, max_length=8)
        for each in (AXES_SIGNATURE, SIGNATURE)
    )
    assert public == without


@pytest.mark.parametrize(
    ("signature", "measures"), [(SIGNATURE, "rho"), (AXES_SIGNATURE, "rho,rows_on,columns_on")]
)
def test_metrics_are_every_measure_of_the_graph(signature: Signature, measures: str) -> None:
    config = public_config("reviews", signature, tasks=TASKS, max_length=8, metrics=True)
    assert parameters(config)["metrics"] == measures


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"logits": (2,)}, "no output 'rho', only logits"),
        ({"rho": (6,), "rows_on": (6,)}, "no output 'columns_on', only rho, rows_on"),
        ({"rho": (6,), "rows_on": (6,), "columns_on": (5,)}, r"'columns_on' is FP32 \[-1, 5\]"),
        ({"rho": (6, 2)}, r"'rho' is FP32 \[-1, 6, 2\]: FP32 \[-1, layers\] is needed"),
        ({"rho": ()}, r"'rho' is FP32 \[-1\]"),
    ],
)
def test_measures_of_another_shape_are_refused(outputs: dict[str, tuple[int, ...]], message: str) -> None:
    tensors = tuple(Tensor(name, DataType.TYPE_FP32, dims) for name, dims in outputs.items())
    with pytest.raises(RepositoryError, match=message):
        _ = Signature(SIGNATURE.inputs, tensors).measures


@pytest.mark.parametrize(
    ("task", "tensor", "message"),
    [
        (Classification(("a", "b")), ("logits", (2,)), None),
        (
            Classification(("a", "b")),
            ("logits", (3,)),
            r"logits FP32 \[-1, 3\] for single .* FP32 \[-1, 2\]",
        ),
        (QuestionAnswering(), ("logits", (-1, 2)), None),
        (
            QuestionAnswering(),
            ("logits", (2,)),
            r"\[-1, 2\] for question .*\[-1, -1, 2\] is needed",
        ),
        (TokenClassification(("O",)), ("logits", (-1, 1)), None),
        (Embedding(size=4), ("embedding", (4,)), None),
        (Embedding(size=4), ("logits", (4,)), "no output 'embedding', only logits"),
    ],
)
def test_what_a_task_is_answered_from(
    task: Task, tensor: tuple[str, tuple[int, ...]], message: str | None
) -> None:
    found = Tensor(tensor[0], DataType.TYPE_FP32, tensor[1])
    signature = Signature(SIGNATURE.inputs, (found,))
    if message is None:
        assert signature.answer(task) == found
        return
    with pytest.raises(RepositoryError, match=message):
        signature.answer(task)


@pytest.mark.parametrize("tasks", [None, "", "all", "3", '["a"]', "null"])
def test_an_input_called_task_may_be_of_a_foreign_model(tasks: str | None) -> None:
    config = ModelConfig(name="foreign", backend="python")
    config.input.add(name="TASK", data_type=DataType.TYPE_STRING, dims=[1])
    if tasks is not None:
        config.parameters["tasks"].string_value = tasks
    assert task_names(config) == []


@pytest.mark.parametrize(
    ("task", "task_ids", "width", "message"),
    [
        (Several(tasks=SEVERAL), IDS, 3, None),
        (Several(tasks=SEVERAL), IDS, 4, r"\[-1, 4\] for several tasks"),
        (Several(tasks=SEVERAL), None, 3, "no input task_ids, by which rows of the tasks sentiment, sts are"),
        (Several(tasks=SEVERAL), replace(IDS, dims=(-1,)), 3, r"is INT64 \[-1, -1\]: INT64"),
        (
            Several(tasks=SEVERAL),
            replace(IDS, data_type=DataType.TYPE_INT32),
            3,
            r"is INT32 \[-1, 1\]: INT64",
        ),
        (SEVERAL["sts"], IDS, 1, "the input task_ids, but one task"),
    ],
)
def test_several_tasks_are_told_apart_by_an_input(
    task: Task, task_ids: Tensor | None, width: int, message: str | None
) -> None:
    inputs = SIGNATURE.inputs if task_ids is None else (*SIGNATURE.inputs, task_ids)
    logits = Tensor("logits", DataType.TYPE_FP32, (width,))
    signature = Signature(inputs, (logits,))
    if message is None:
        assert signature.answer(task) == logits
        return
    with pytest.raises(RepositoryError, match=message):
        signature.answer(task)


def test_a_second_text_is_required_where_all_tasks_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_optional() -> bool:
        config = public_config("pal", SEVERAL_SIGNATURE, tasks=SEVERAL, max_length=128)
        (pair,) = (each for each in config.input if each.name == "TEXT_PAIR")
        return bool(pair.optional)

    assert is_optional()
    monkeypatch.setattr(Regression, "text_pair", "required")
    assert is_optional()
    monkeypatch.setattr(Classification, "text_pair", "required")
    assert not is_optional()


def test_measures_of_another_type_are_refused() -> None:
    with pytest.raises(RepositoryError, match=r"'rho' is FP16 \[-1, 6\]"):
        _ = Signature(SIGNATURE.inputs, (Tensor("rho", DataType.TYPE_FP16, (6,)),)).measures


def test_text_reads_back(tmp_path: Path) -> None:
    config = graph_config("reviews_model", SIGNATURE, op_library=False)
    (tmp_path / "config.pbtxt").write_text(to_text(config))
    assert read_config(tmp_path / "config.pbtxt") == config


def test_max_batch_size_zero_is_written() -> None:
    # An absent one is filled in by the server.
    assert "max_batch_size: 0" in to_text(ModelConfig(name="x"))


def test_signature_is_the_graphs(graph_with_domain_nodes: Path) -> None:
    signature = graph_signature(load_graph(graph_with_domain_nodes))
    assert [tensor.name for tensor in signature.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert signature.output("logits") == Tensor("logits", DataType.TYPE_FP32, (2,))
    with pytest.raises(RepositoryError, match="no output 'pooled', only logits, rho"):
        signature.output("pooled")


@pytest.mark.parametrize("content", ["max_batch_size: many", "nonsense { }", "\udcff"])
def test_malformed_configuration_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(RepositoryError, match=r"config\.pbtxt is malformed"):
        read_config(path)


def test_graph_that_is_no_onnx_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("not a graph")
    with pytest.raises(RepositoryError, match="is not an ONNX file"):
        load_graph(tmp_path / "model.onnx")
    with pytest.raises(RepositoryError, match="cannot be read"):
        load_graph(tmp_path / "absent.onnx")
