"""The exported graph of attention by a pattern: its nodes, its outputs, and its answers on every mask."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.measures import zero_share
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.families import input_names
from sparse_export.encoders.patterned import layer_patterns, recorded
from sparse_export.encoders.spec import ModelSpec
from sparse_export.graph.export import GraphTarget, export_graph
from sparse_export.graph.functions import GRAPH_DOMAIN
from sparse_export.graph.precision import FP16
from sparse_export.parity.executions import run_graph, run_torch
from sparse_serve.op_library import DOMAIN, library_path
from tiny_models import LAMBD, LAYERS, ROW_OPS, make_model, masks, token_ids

Array = npt.NDArray[Any]
Feed = dict[str, npt.NDArray[np.int64]]

MODELS = {
    "aaa": ("bert", AttentionSpec.parse("axis", None)),
    "mobilebert_aaa_ssaf": ("mobilebert", AttentionSpec.parse("axis+global1+random1", LAMBD, seed=3)),
    "diagonals": ("distilbert", AttentionSpec.parse("layer-diagonal+global2+random1", None, seed=4)),
}
MEASURES = ("rho", "rows_on", "columns_on")


@dataclass(frozen=True)
class Exported:
    model: PreTrainedModel
    graph: Path

    def feed(self, mask_name: str) -> Feed:
        ids, segments = token_ids()
        tensors = {"input_ids": ids, "attention_mask": masks()[mask_name], "token_type_ids": segments}
        return {name: tensors[name].numpy() for name in input_names(self.model.config)}

    def session(self, *, op_library: bool, **settings: Any) -> onnxruntime.InferenceSession:
        return open_graph(self.graph, op_library=op_library, **settings)


def tiny(name: str) -> PreTrainedModel:
    family, attention = MODELS[name]
    model = make_model(attention, family).eval()
    model.set_attn_implementation(attention.implementation)
    return model


@pytest.fixture(scope="module", params=MODELS)
def exported(request: pytest.FixtureRequest, graphs: GraphTable) -> Exported:
    model = tiny(request.param)
    return Exported(model, graphs.path(model, "packed", GraphTarget()))


@torch.no_grad()
def torch_answers(model: PreTrainedModel, batch: Feed) -> tuple[Array, dict[str, Array]]:
    """Transformers' logits, and what its weights and masks show, for rows that have a token."""
    mask = torch.from_numpy(batch["attention_mask"])
    with recorded(model) as layers:
        outputs = model(
            **{name: torch.from_numpy(values) for name, values in batch.items()}, output_attentions=True
        )
    ranks, tokens = mask.cumsum(1) - 1, mask.bool()

    def share(learned: torch.Tensor | None, first: int) -> torch.Tensor:
        on = (ranks < first) if learned is None else (ranks < first) | learned
        return (on & tokens).sum(1) / tokens.sum(1)

    measures = {
        "rho": [
            *(zero_share(weights, mask) for weights in outputs.attentions[:-1]),
            zero_share(outputs.attentions[-1], mask, of_first=True),
        ],
        "rows_on": [share(layer.rows, layer.pattern.global_size) for layer in layers],
        "columns_on": [share(layer.columns, layer.pattern.global_size) for layer in layers],
    }
    return outputs.logits.numpy(), {name: torch.stack(each, 1).numpy() for name, each in measures.items()}


def test_has_one_node_of_each_kind_per_layer(exported: Exported) -> None:
    proto = onnx.load(exported.graph)
    onnx.checker.check_model(proto, full_check=True)
    spec = ModelSpec.of(exported.model.config).attention
    assert spec.pattern is not None
    # MobileBERT has other norms, and no GELU.
    row_ops = {} if exported.model.config.model_type == "mobilebert" else ROW_OPS
    counts = Counter((node.domain, node.op_type) for node in proto.graph.node if node.domain)
    assert counts == Counter(
        {
            (DOMAIN, "AxisAttention"): LAYERS - 1,
            (GRAPH_DOMAIN, "AxisHiddenFirst"): LAYERS - 1,
            (DOMAIN, "AxisCrossAttention"): 1,
            **{(DOMAIN, name): count for name, count in row_ops.items()},
            **({(DOMAIN, "AxisMask"): LAYERS} if spec.pattern.axis else {}),
        }
    )
    nodes = [node for node in proto.graph.node if node.op_type in ("AxisAttention", "AxisCrossAttention")]
    for node, pattern in zip(nodes, layer_patterns(exported.model), strict=True):
        found = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        assert found.pop("scale") > 0
        assert found.pop("normalizer") == (b"softmax" if spec.lambd is None else b"sparsegen")
        assert found == {
            "num_heads": 4,
            **({} if spec.lambd is None else {"lambd": spec.lambd}),
            **({"diagonals": list(pattern.diagonals)} if pattern.diagonals else {}),
            **({"random_keys": 2, "seed": pattern.seed} if pattern.random_keys else {}),
        }


def test_signature(exported: Exported) -> None:
    outputs = onnx.load(exported.graph).graph.output
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in outputs
    }
    assert shapes == {"logits": ["batch", 3], **{name: ["batch", LAYERS] for name in MEASURES}}
    assert list(shapes) == ["logits", *MEASURES]


@pytest.mark.parametrize("mask_name", masks())
@pytest.mark.parametrize("op_library", [True, False], ids=["op_library", "portable"])
def test_answers_as_torch_does(exported: Exported, mask_name: str, op_library: bool) -> None:
    batch = exported.feed(mask_name)
    logits, *measured = exported.session(op_library=op_library).run(["logits", *MEASURES], batch)
    expected, measures = torch_answers(exported.model, batch)
    has_token = batch["attention_mask"].any(1)
    np.testing.assert_allclose(logits[has_token], expected[has_token], rtol=0, atol=1e-4)
    assert np.abs(expected).max() > 0.5
    for name, values in zip(MEASURES, measured, strict=True):
        np.testing.assert_allclose(values[has_token], measures[name][has_token], rtol=0, atol=1e-6)
    for values in (logits, *measured):
        assert not values[~has_token].any()


@pytest.mark.parametrize("op_library", [True, False], ids=["op_library", "portable"])
def test_no_row_depends_on_its_companions(exported: Exported, op_library: bool) -> None:
    running = exported.session(op_library=op_library)
    batch = exported.feed("left_padded_and_empty")
    together, *measures = running.run(None, batch)
    for row in reversed(range(len(together))):
        alone, *measures_alone = running.run(
            None, {name: values[row : row + 1] for name, values in batch.items()}
        )
        np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=1e-5)
        for ours, theirs in zip(measures_alone, measures, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[row])


def test_runs_our_kernels_and_no_inlined_body(exported: Exported, tmp_path: Path) -> None:
    executed = {}
    for op_library in (True, False):
        running = exported.session(
            op_library=op_library, enable_profiling=True, profile_file_prefix=str(tmp_path / str(op_library))
        )
        running.run(None, exported.feed("right_padded"))
        events = json.loads(Path(running.end_profiling()).read_text())
        executed[op_library] = {event["args"]["op_name"] for event in events if "op_name" in event["args"]}
    assert {"AxisAttention", "AxisCrossAttention"} <= executed[True]
    assert not {"Loop", "TopK"} & executed[True]
    assert "Loop" in executed[False]
    assert "AxisAttention" not in executed[False]


def test_dense_twin_attends_to_everything(graphs: GraphTable) -> None:
    """It is traced from a copy, which leaves the model as it was."""
    model = tiny("aaa")
    twin = Exported(model, graphs.path(model, "packed_dense", GraphTarget()))
    batch = twin.feed("right_padded")
    sparse, _ = torch_answers(tiny("aaa"), batch)
    proto = onnx.load(twin.graph)
    assert not any(node.op_type.startswith("Axis") for node in proto.graph.node)
    assert not any("axis" in tensor.name for tensor in proto.graph.initializer)
    logits = twin.session(op_library=True).run(["logits"], batch)[0]
    np.testing.assert_array_equal(torch_answers(model, batch)[0], sparse)
    assert np.abs(logits - sparse).max() > 0.01
    model.set_attn_implementation("eager")
    with torch.no_grad():
        dense = model(**{name: torch.from_numpy(values) for name, values in batch.items()}).logits
    np.testing.assert_allclose(logits, dense, rtol=0, atol=1e-4)


def test_padded_sparse_graph_of_a_pattern_is_refused() -> None:
    with pytest.raises(Exception, match=r"padded sparse graph shows sparsegen-lin .* axis\+global1"):
        export_graph(tiny("mobilebert_aaa_ssaf"), "padded_sparse", GraphTarget())


def largest_difference(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    return float(max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)))


@pytest.mark.slow
def test_float16_at_equal_masks(graphs: GraphTable) -> None:
    """Masks may flip in float16; at the graph's own the answers are as close as float16 is."""
    model = tiny("mobilebert_aaa_ssaf")
    path = graphs.path(model, "packed", GraphTarget(precision=FP16))
    batches = [Exported(model, path).feed(mask) for mask in ("right_padded", "left_padded", "holes")]
    for library in (library_path(), None):
        served = run_graph(path, library, batches)
        expected = [
            run_torch(model, batch, answer.indicators) for batch, answer in zip(batches, served, strict=True)
        ]
        difference = largest_difference([a.output for a in served], [e.output for e in expected])
        assert 1e-5 < difference <= 0.05
        for measure in MEASURES:
            ours, theirs = ([a.measures[measure] for a in each] for each in (served, expected))
            assert all(values.dtype == np.float32 for values in ours)
            # Rounding may move single keys across sparsegen's threshold.
            assert largest_difference(ours, theirs) <= (0.02 if measure == "rho" else 1e-6)
