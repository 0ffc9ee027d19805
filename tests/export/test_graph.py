"""The exported graph: its nodes, its signature, and its answers with and without the op library."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.measures import zero_shares
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.graph.export import GraphKind, GraphTarget
from sparse_export.graph.functions import GRAPH_DOMAIN
from sparse_serve.op_library import DOMAIN
from tiny_models import LAMBD, LAYERS, ROW_OPS, make_model, masks, token_ids

Feed = dict[str, npt.NDArray[np.int64]]


@pytest.fixture(scope="module")
def graph(model: PreTrainedModel, graphs: GraphTable) -> Path:
    return graphs.path(model, "packed", GraphTarget())


def feed(mask_name: str) -> Feed:
    ids, segments = token_ids()
    tensors = {"input_ids": ids, "attention_mask": masks()[mask_name], "token_type_ids": segments}
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def logits_of(model: PreTrainedModel, batch: Feed) -> npt.NDArray[np.float32]:
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(
            **{k: torch.from_numpy(v) for k, v in batch.items()}
        ).logits.numpy()
    return logits


def rho_of(model: PreTrainedModel, batch: Feed) -> npt.NDArray[np.float32]:
    tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
    with torch.no_grad():
        maps = model(**tensors, output_attentions=True).attentions
    rho: npt.NDArray[np.float32] = zero_shares(maps, tensors["attention_mask"], last_of_first=True).numpy()
    return rho


def test_has_one_attention_node_per_layer(graph: Path) -> None:
    model = onnx.load(graph)
    onnx.checker.check_model(model, full_check=True)
    counts = Counter((node.domain, node.op_type) for node in model.graph.node)
    assert counts[DOMAIN, "SparsegenAttention"] == LAYERS - 1
    assert counts[GRAPH_DOMAIN, "SparsegenHiddenFirst"] == LAYERS - 1
    assert counts[DOMAIN, "SparsegenCrossAttention"] == 1
    assert not counts["", "Softmax"]
    assert {function.name for function in model.functions} == {
        "SparsegenAttention",
        "SparsegenCrossAttention",
        "SparsegenLin",
        "SparsegenHiddenFirst",
        "SkipLayerNormalization",
        "BiasGelu",
        "Gelu",
    }
    assert {name: counts[DOMAIN, name] for name in ROW_OPS} == ROW_OPS
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type not in ROW_OPS:
            attributes = {
                attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
            }
            assert attributes == {"num_heads": 4, "scale": 0.25, "lambd": LAMBD}


def test_signature_and_versions(graph: Path) -> None:
    model = onnx.load(graph)
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    ids = ["batch", "sequence"]
    assert shapes == {
        "input_ids": ids,
        "attention_mask": ids,
        "token_type_ids": ids,
        "logits": ["batch", 3],
        "rho": ["batch", LAYERS],
    }
    assert model.ir_version == 9
    assert {entry.domain: entry.version for entry in model.opset_import} == {
        "": 20,
        DOMAIN: 1,
        GRAPH_DOMAIN: 1,
    }


def test_tells_nothing_of_the_machine_that_exported_it(graph: Path) -> None:
    assert str(Path(onnx.__file__).parents[2]).encode() not in graph.read_bytes()
    assert b".py" not in graph.read_bytes()


@pytest.mark.parametrize("mask_name", masks())
@pytest.mark.parametrize("op_library", [True, False], ids=["op_library", "portable"])
def test_answers_as_torch_does(model: PreTrainedModel, graph: Path, mask_name: str, op_library: bool) -> None:
    batch = feed(mask_name)
    logits, rho = open_graph(graph, op_library=op_library).run(["logits", "rho"], batch)
    has_token = batch["attention_mask"].any(1)
    np.testing.assert_allclose(logits[has_token], logits_of(model, batch)[has_token], rtol=0, atol=1e-4)
    assert not logits[~has_token].any()
    np.testing.assert_allclose(rho[has_token], rho_of(model, batch)[has_token], rtol=0, atol=1e-6)
    assert rho.max() > 0.5


@pytest.mark.parametrize("op_library", [True, False], ids=["op_library", "portable"])
def test_no_row_depends_on_its_companions(graph: Path, op_library: bool) -> None:
    running = open_graph(graph, op_library=op_library)
    batch = feed("left_padded_and_empty")
    together, rho = running.run(None, batch)
    for row in reversed(range(len(together))):
        alone, rho_alone = running.run(None, {name: values[row : row + 1] for name, values in batch.items()})
        np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(rho_alone[0], rho[row])


@pytest.mark.parametrize("shape", [(1, 1), (1, 160), (64, 3)])
def test_takes_any_batch_and_length(model: PreTrainedModel, graph: Path, shape: tuple[int, int]) -> None:
    ids = np.random.default_rng(0).integers(5, 80, shape)
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    logits = open_graph(graph, op_library=True).run(["logits"], batch)[0]
    np.testing.assert_allclose(logits, logits_of(model, batch), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["input_ids", "token_type_ids"])
def test_refuses_negative_ids_but_not_under_the_mask(model: PreTrainedModel, graph: Path, name: str) -> None:
    running = open_graph(graph, op_library=True)
    batch = feed("right_padded")
    expected = logits_of(model, batch)
    hidden = {key: values.copy() for key, values in batch.items()}
    hidden[name][batch["attention_mask"] == 0] = -100
    np.testing.assert_allclose(running.run(["logits"], hidden)[0], expected, rtol=0, atol=1e-4)
    hidden[name][0, 0] = -1
    with pytest.raises(Exception, match="out of data bounds"):
        running.run(["logits"], hidden)


def test_runs_our_kernels_and_no_inlined_body(graph: Path, tmp_path: Path) -> None:
    running = open_graph(
        graph, op_library=True, enable_profiling=True, profile_file_prefix=str(tmp_path / "profile")
    )
    running.run(None, feed("right_padded"))
    events = json.loads(Path(running.end_profiling()).read_text())
    executed = Counter(
        event["args"]["op_name"] for event in events if event.get("cat") == "Node" and "args" in event
    )
    assert executed["SparsegenAttention"] >= LAYERS - 1
    assert executed["SparsegenCrossAttention"] >= 1
    assert not {"Loop", "TopK", "SparsegenLin"} & set(executed)
    portable = open_graph(
        graph, op_library=False, enable_profiling=True, profile_file_prefix=str(tmp_path / "portable")
    )
    portable.run(None, feed("right_padded"))
    events = json.loads(Path(portable.end_profiling()).read_text())
    assert "TopK" in {event["args"]["op_name"] for event in events if "op_name" in event.get("args", {})}


@pytest.mark.parametrize(
    ("kind", "node", "domain"),
    [
        ("packed_dense", "Attention", DOMAIN),
        ("padded_fused", "MultiHeadAttention", "com.microsoft"),
        ("padded_eager", "Softmax", ""),
        ("padded_sparse", "SparsegenLin", DOMAIN),
    ],
)
def test_twins_share_the_weights(
    model: PreTrainedModel, checkpoint: Path, graphs: GraphTable, kind: GraphKind, node: str, domain: str
) -> None:
    twin = model if kind == "padded_sparse" else load_checkpoint(checkpoint, AttentionSpec())
    path = graphs.path(twin, kind, GraphTarget())
    nodes = [n.op_type for n in onnx.load(path).graph.node if n.domain == domain]
    assert sum(each.endswith(node) for each in nodes) == LAYERS
    batch = feed("right_padded")
    logits = open_graph(path, op_library=True).run(["logits"], batch)[0]
    np.testing.assert_allclose(logits, logits_of(twin, batch), rtol=0, atol=1e-4)


def test_opset_decides_the_file_format(model: PreTrainedModel, graphs: GraphTable) -> None:
    assert [GraphTarget(opset).ir_version for opset in (18, 20, 21, 23)] == [9, 9, 10, 11]
    path = graphs.path(model, "packed", GraphTarget(18))
    proto = onnx.load(path)
    assert proto.ir_version == 9
    assert proto.opset_import[0].version == 18
    batch = feed("holes")
    for op_library in (True, False):
        logits = open_graph(path, op_library=op_library).run(["logits"], batch)[0]
        np.testing.assert_allclose(logits, logits_of(model, batch), rtol=0, atol=1e-4)


@torch.no_grad()
def test_padded_twin_of_a_family_without_segments(graphs: GraphTable) -> None:
    model = make_model(AttentionSpec(), "roberta").eval()
    path = graphs.path(model, "padded_fused", GraphTarget())
    batch = feed("left_padded")
    del batch["token_type_ids"]
    running = open_graph(path, op_library=False)
    assert {tensor.name for tensor in running.get_inputs()} == set(batch)
    np.testing.assert_allclose(running.run(["logits"], batch)[0], logits_of(model, batch), rtol=0, atol=1e-4)
