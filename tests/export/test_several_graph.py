"""The graph of several tasks: each row is answered as torch answers it, whoever stands beside it."""

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, save_checkpoint
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.graph.export import GraphTarget
from sparse_export.tasks.asked import TaskOptions
from sparse_serve.errors import OptionError
from sparse_serve.repository.check import Level, check_entry
from tiny_models import LAMBD, LAYERS, ROW_OPS, TASKS, make_model, make_tokenizer, masks, token_ids

NAMES = tuple(TASKS)
ORDERS = {
    "mixed": [0, 1, 2, 2, 1, 0, 1],
    "one task": [2] * 7,
    "two tasks": [1, 0, 0, 1, 1, 0, 0],
    "numbers of none": [0, -1, 2, 3, 1, 2**40, 1],
}
Array = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def checkpoint(several_tasks: Path) -> Path:
    return several_tasks


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> PreTrainedModel:
    return load_checkpoint(checkpoint)


@pytest.fixture(scope="module")
def graph(model: PreTrainedModel, graphs: GraphTable) -> Path:
    return graphs.path(model, "packed", GraphTarget())


@pytest.fixture(scope="module", params=[True, False], ids=["library", "portable"])
def session(graph: Path, request: pytest.FixtureRequest) -> onnxruntime.InferenceSession:
    return open_graph(graph, op_library=request.param)


def inputs(mask: Tensor, tasks: list[int]) -> dict[str, npt.NDArray[np.int64]]:
    ids, segments = token_ids()
    return {
        "input_ids": ids.numpy(),
        "attention_mask": mask.numpy(),
        "token_type_ids": segments.numpy(),
        "task_ids": np.array(tasks, dtype=np.int64)[:, None],
    }


def test_signature(graph: Path) -> None:
    proto = onnx.load(graph)
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*proto.graph.input, *proto.graph.output)
    }
    assert shapes == {
        "input_ids": ["batch", "sequence"],
        "attention_mask": ["batch", "sequence"],
        "token_type_ids": ["batch", "sequence"],
        "task_ids": ["batch", 1],
        "logits": ["batch", 5],
        "rho": ["batch", LAYERS],
    }


def test_each_tasks_weights_work_once_a_layer_on_tokens_of_their_own(graph: Path) -> None:
    """Weights are never gathered: every one of an adapter's is used as it is, whichever rows are computed."""
    proto = onnx.load(graph)
    own = Counter(node.op_type for node in proto.graph.node if node.domain == "ai.sparse_serve")
    assert own == {
        **ROW_OPS,
        "SparsegenAttention": LAYERS - 1,
        "SparsegenCrossAttention": 1,
        "SoftmaxAttention": (LAYERS - 1) * len(TASKS),
        "SoftmaxCrossAttention": len(TASKS),
    }
    adapters = [tensor.name for tensor in proto.graph.initializer if "projected_attention" in tensor.name]
    used = {name: [node.op_type for node in proto.graph.node if name in node.input] for name in adapters}
    assert used
    assert {op for ops in used.values() for op in ops} <= {"Gemm", "MatMul", "Add", "Transpose"}


@torch.no_grad()
@pytest.mark.parametrize("order", ORDERS)
def test_every_row_is_torchs(
    session: onnxruntime.InferenceSession, model: PreTrainedModel, order: str
) -> None:
    tasks = ORDERS[order]
    for mask in masks().values():
        given = inputs(mask, tasks)
        logits, rho = session.run(["logits", "rho"], given)
        assert np.isfinite(rho).all()
        for row, number in enumerate(tasks):
            if not 0 <= number < len(NAMES):
                assert (logits[row] == -np.inf).all()
                continue
            name = NAMES[number]
            width = TASKS[name].width
            alone = {key: torch.from_numpy(each[row : row + 1]) for key, each in given.items()}
            expected = model(**alone).logits[0].numpy() if mask[row].any() else np.zeros(width)
            np.testing.assert_allclose(logits[row, :width], expected, rtol=0, atol=1e-4)
            assert (logits[row, width:] == -np.inf).all()


@pytest.mark.parametrize("mask", ["full", "left_padded", "some_rows_empty"])
def test_a_stranger_of_another_task_changes_nothing(session: onnxruntime.InferenceSession, mask: str) -> None:
    tasks = ORDERS["mixed"]
    given = inputs(masks()[mask], tasks)
    together = session.run(["logits"], given)[0]
    for row in range(len(tasks)):
        alone = session.run(["logits"], {key: each[row : row + 1] for key, each in given.items()})[0]
        finite = np.isfinite(alone[0])
        np.testing.assert_allclose(together[row, finite], alone[0, finite], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def exported(checkpoint: Path, repository: Path) -> Exported:
    return export_checkpoint(
        ExportOptions(checkpoint=str(checkpoint), repository=repository, name="several", tokenizer="server")
    )


def test_the_gate_sees_every_text_as_every_task(exported: Exported) -> None:
    parity = exported.parity
    assert dict(exported.tasks) == TASKS
    assert parity.rows % len(TASKS) == 0
    assert parity.rows > 60
    assert max(each.max_abs_diff for each in parity.executions.values()) < 1e-4
    assert parity.library.label_agreement == parity.portable.label_agreement == 1.0


def test_the_entry_is_in_order(exported: Exported, repository: Path) -> None:
    assert not [each for each in check_entry(exported.path) if each.level is Level.error]
    config = (exported.path / "config.pbtxt").read_text()
    assert 'name: "TASK"' in config
    assert "label_filename" not in config
    assert not (exported.path / "labels.txt").exists()


@pytest.mark.slow
def test_one_task_alone_has_nothing_of_the_others(checkpoint: Path, repository: Path) -> None:
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=repository,
        name="alone",
        task=TaskOptions(single_task="paraphrase"),
        tokenizer="server",
    )
    exported = export_checkpoint(options)
    assert dict(exported.tasks) == {"paraphrase": TASKS["paraphrase"]}
    proto = onnx.load(repository / "alone_model" / "1" / "model.onnx")
    assert "task_ids" not in [value.name for value in proto.graph.input]
    names = " ".join(tensor.name for tensor in proto.graph.initializer)
    assert "paraphrase" in names
    assert "sentiment" not in names
    assert "similarity" not in names
    assert (exported.path / "labels.txt").read_text().split() == list(TASKS["paraphrase"].labels)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"task": TaskOptions(single_task="mood")},
            "--single-task 'mood' is no task of .*: choose one of sen",
        ),
        (
            {"task": TaskOptions(task="regression")},
            "--task regression is for a model of one task, and .* names",
        ),
        ({"task": TaskOptions(stride=3)}, "--stride is for one task, and .* choose one with --single-task"),
        (
            {"with_baselines": True},
            "--with-baselines is for one task, and .* has sentiment, paraphrase, simil",
        ),
        ({"eval_file": Path("x.tsv")}, "--eval is for one task"),
    ],
)
def test_what_is_of_one_task_alone(
    checkpoint: Path, repository: Path, given: dict[str, object], message: str
) -> None:
    options = ExportOptions(checkpoint=str(checkpoint), repository=repository, name="refused", **given)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=message):
        export_checkpoint(options)
    assert not (repository / "refused").exists()


def test_a_model_of_one_task_has_no_single_task(checkpoint: Path, repository: Path, tmp_path: Path) -> None:
    save_checkpoint(make_model(AttentionSpec(LAMBD)), make_tokenizer(tmp_path), tmp_path)
    options = ExportOptions(
        checkpoint=str(tmp_path), repository=repository, name="refused", task=TaskOptions(single_task="a")
    )
    with pytest.raises(OptionError, match=r"--single-task a is for a model of several tasks, and .* has one"):
        export_checkpoint(options)
