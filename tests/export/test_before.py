"""Checkpoints made before the model side was rebuilt answer as they did (see `before/make_before.py`)."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from seeded_weights import (
    described_nodes,
    logits_of,
    of_hex,
    seeded_weights,
    stock_model,
    write_weights,
)
from torch import Tensor
from transformers import PreTrainedModel

from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.families import input_names
from sparse_export.graph.export import GraphKind, GraphTarget
from tiny_models import FAMILIES, LAMBD, make_model

BEFORE = Path(__file__).parent / "before"
VARIANTS = sorted(path.stem for path in BEFORE.glob("*.json") if path.stem != "inputs")
# Where the processor rounds another way than the one that wrote the logits down, ours may be so many times as
# far from theirs as those of Transformers' own model are; and those only so far, further where no norm scales
# a layer's output.
TOLERANCE = 4
ROUNDING, ROUNDING_WITHOUT_NORM = 5e-5, 1e-3
ATTENTIONS = {"sparsegen": AttentionSpec(LAMBD), "axis": AttentionSpec.parse("axis", None)}
# Of the graphs written down, those that other tests trace as well.
GRAPHS = (
    *(
        pytest.param(
            f"{family}-sparsegen", "packed", marks=[] if family in ("bert", "roberta") else pytest.mark.slow
        )
        for family in FAMILIES
    ),
    *(("bert-sparsegen", kind) for kind in ("packed_dense", "padded_fused", "padded_eager", "padded_sparse")),
    ("bert-axis", "packed"),
    ("bert-axis", "packed_dense"),
)


def read(variant: str) -> dict[str, Any]:
    before: dict[str, Any] = json.loads((BEFORE / f"{variant}.json").read_text(encoding="utf-8"))
    return before


def write_checkpoint(before: dict[str, Any], folder: Path) -> Path:
    """The checkpoint as it was saved: the config word for word, and its weights."""
    (folder / "config.json").write_text(json.dumps(before["config"]), encoding="utf-8")
    write_weights(folder, seeded_weights(before["shapes"]))
    return folder


@pytest.fixture(scope="module")
def inputs() -> dict[str, Tensor]:
    return {name: torch.tensor(rows) for name, rows in read("inputs").items()}


def test_every_variant_is_there() -> None:
    assert {f"{family}-{kind}" for family in FAMILIES for kind in ("softmax", "sparsegen", "axis")} < set(
        VARIANTS
    )
    assert len(VARIANTS) == 34


def farthest(model: PreTrainedModel, batch: dict[str, Tensor], before: Any) -> float:
    """The largest difference of a model's logits to those that were written down."""
    return float((logits_of(model, batch).flatten() - of_hex(before)).abs().nan_to_num(torch.inf).max())


@pytest.mark.usefixtures("single_threaded")
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_the_same_as_far_as_the_processor_rounds_alike(
    variant: str, inputs: dict[str, Tensor], tmp_path: Path
) -> None:
    before = read(variant)
    folder = write_checkpoint(before, tmp_path)
    model, stock = load_checkpoint(folder), stock_model(folder)
    tokens = {name: inputs[name] for name in input_names(model.config) if name != "attention_mask"}
    batches = {mask: tokens | {"attention_mask": inputs[mask]} for mask in before["logits"]}
    rounding = {mask: farthest(stock, batch, before["stock"][mask]) for mask, batch in batches.items()}
    has_norm = before["config"].get("normalization_type") != "no_norm"
    assert max(rounding.values()) < (ROUNDING if has_norm else ROUNDING_WITHOUT_NORM)
    for mask, batch in batches.items():
        tolerance = TOLERANCE * max(rounding.values()) if rounding[mask] else 0
        assert farthest(model, batch, before["logits"][mask]) <= tolerance


@pytest.mark.parametrize(("variant", "kind"), GRAPHS)
def test_graphs_have_the_same_nodes_in_the_same_order(
    graphs: GraphTable, variant: str, kind: GraphKind
) -> None:
    """On other weights of the same shapes."""
    family, _, attention = variant.rpartition("-")
    is_twin = attention == "sparsegen" and kind not in ("packed", "padded_sparse")  # as an export makes it
    model = make_model(AttentionSpec() if is_twin else ATTENTIONS[attention], family).eval()
    found = onnx.load(graphs.path(model, kind, GraphTarget()))
    assert described_nodes(found) == read(variant)["nodes"][kind]
