"""The parity gate where rows and columns are learned: flips are counted, judged and taken out of the rest."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, save_checkpoint
from sparse_export.encoders.axis import AxisLayer
from sparse_export.encoders.patterned import pattern_modules, recorded
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.precision import FP32
from sparse_export.parity.examples import Examples, batches, text_examples
from sparse_export.parity.executions import run_torch
from sparse_export.parity.gate import MaskFlips, ParityReport, _farthest_flip, check_parity
from sparse_serve.errors import GateError
from sparse_serve.op_library import library_path
from tiny_models import CLASSES, LAYERS, make_model, make_tokenizer

TEXTS = ("a film of great charm", "", "and it's not 1 minute too long!", "no", "x" * 60)
ATOL = FP32.atol
BIAS = "layer.0.axis.bias"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An AAA checkpoint of which torch has, in its first layer, one row on by a logit of 2e-5."""
    folder = tmp_path_factory.mktemp("aaa")
    model = make_model(AttentionSpec.parse("axis", None))
    tokenizer = make_tokenizer(folder)
    (first, second) = (module for module in pattern_modules(model) if isinstance(module, AxisLayer))
    # Two biases of equal value would be one initialiser of the graph.
    with torch.no_grad():
        second.bias.sub_(0.25)
    save_checkpoint(model, tokenizer, folder)
    loaded = load_checkpoint(folder)
    (batch,) = batches(examples(folder).rows, loaded.config)
    rows = run_torch(loaded, batch).axis_logits[0][:, 0]
    # [CLS] begins every text with one logit; of the others the farthest from the rest.
    near = rows.unique()
    near = near[1:-1][(near[2:] - near[1:-1]).minimum(near[1:-1] - near[:-2]).argmax()]
    assert (rows == near).sum() == 1
    with torch.no_grad():
        first.bias[0] -= near - 2e-5
    save_checkpoint(model, tokenizer, folder)
    return folder


def examples(folder: Path) -> Examples:
    made = text_examples(CLASSES, Tokenizer.from_file(str(folder / "tokenizer.json")), 40, TEXTS)
    return replace(made, others=())


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> PreTrainedModel:
    return load_checkpoint(checkpoint)


@pytest.fixture(scope="module")
def graph(model: PreTrainedModel, graphs: GraphTable) -> Path:
    return graphs.path(model, "packed", GraphTarget())


def shifted(graph: Path, shift: float, folder: Path) -> Path:
    """The graph with other logits of the rows of its first layer."""
    proto = onnx.load(graph)
    (bias,) = (tensor for tensor in proto.graph.initializer if tensor.name.endswith(BIAS))
    values = numpy_helper.to_array(bias) + np.array([shift, 0], np.float32)
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def parity(model: PreTrainedModel, graph: Path, checkpoint: Path) -> ParityReport:
    return check_parity(model, graph, library_path(), examples(checkpoint))


def sides(report: ParityReport) -> tuple[MaskFlips, MaskFlips]:
    assert report.library.flips is not None
    assert report.portable.flips is not None
    return report.library.flips, report.portable.flips


def test_no_flips(model: PreTrainedModel, graph: Path, checkpoint: Path) -> None:
    report = parity(model, graph, checkpoint)
    report.require()
    tokens = sum(len(encoding["input_ids"]) for encoding in examples(checkpoint).rows)
    for flips in sides(report):
        assert (flips.count, flips.farthest) == (0, 0)
        assert flips.indicators == 2 * LAYERS * tokens
        assert flips.max_abs_diff <= ATOL
    assert report.axes == {name: pytest.approx(shares) for name, shares in report.axes_torch.items()}
    assert report.rho == pytest.approx(report.rho_torch)
    assert all(0 <= share < 1 for share in report.rho)
    assert report.rho[0] > 0


def test_a_flip_at_the_threshold_is_counted_and_passes(
    model: PreTrainedModel, graph: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """One row of the first layer is off in the graph; what follows from it in the second is no flip."""
    report = parity(model, shifted(graph, -4e-5, tmp_path), checkpoint)
    report.require()
    for flips, side in zip(sides(report), (report.library, report.portable), strict=True):
        assert flips.count == 1
        assert 1e-6 < flips.farthest < 3e-5
        assert flips.max_abs_diff > 1e-3
        assert side.max_abs_diff <= ATOL
    assert report.axes == {name: pytest.approx(shares) for name, shares in report.axes_torch.items()}
    own = parity(model, graph, checkpoint)
    assert report.axes["rows_on"][0] < own.axes["rows_on"][0]
    assert report.rho[0] > own.rho[0]


def test_a_flip_far_from_the_threshold_does_not_pass(
    model: PreTrainedModel, graph: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """Although the logits are torch's at equal masks."""
    report = parity(model, shifted(graph, -1.0, tmp_path), checkpoint)
    assert report.library.max_abs_diff <= ATOL
    with pytest.raises(
        GateError, match=r"rows and columns are on in ONNX Runtime with the op library and off"
    ):
        report.require()
    looser = replace(report, atol=2.0)
    looser.require()


def test_shares_that_are_on_must_be_torchs(model: PreTrainedModel, graph: Path, checkpoint: Path) -> None:
    report = parity(model, graph, checkpoint)
    assert {side.axes_diff for side in report.executions.values()} == {0}
    other = {**report.executions, "portable": replace(report.portable, axes_diff=1e-4)}
    with pytest.raises(GateError, match=r"a layer's share of rows or columns that are on by ONNX Runtime"):
        replace(report, executions=other).require()


def test_torch_attends_by_given_masks_and_has_its_own_logits(
    model: PreTrainedModel, checkpoint: Path
) -> None:
    (batch,) = batches(examples(checkpoint).rows, model.config)
    own = run_torch(model, batch)
    flipped = [~layer for layer in own.indicators]
    imposed = run_torch(model, batch, flipped)
    torch.testing.assert_close(imposed.axis_logits[0], own.axis_logits[0])
    assert not torch.allclose(imposed.axis_logits[1], own.axis_logits[1])
    assert np.abs(imposed.output - own.output).max() > 1e-3
    with torch.no_grad(), recorded(model) as masks:
        again = model(**{name: torch.from_numpy(values) for name, values in batch.items()})
    np.testing.assert_array_equal(again.logits, own.output)  # nothing is left behind
    keep = torch.from_numpy(batch["attention_mask"] != 0)
    for layer, indicators in zip(masks, own.indicators, strict=True):
        assert layer.rows is not None
        assert layer.columns is not None
        torch.testing.assert_close(torch.stack([layer.rows[keep], layer.columns[keep]], 1), indicators)


def test_fixed_patterns_have_no_flips(graphs: GraphTable, tmp_path: Path) -> None:
    pattern = AttentionSpec.parse("local1+global1", None)
    tokenizer = make_tokenizer(tmp_path)
    save_checkpoint(make_model(AttentionSpec()), tokenizer, tmp_path)
    model = load_checkpoint(tmp_path, pattern)
    report = parity(model, graphs.path(model, "packed", GraphTarget()), tmp_path)
    report.require()
    assert (report.library.flips, report.portable.flips) == (None, None)
    lengths = [len(encoding["input_ids"]) for encoding in examples(tmp_path).rows]
    # |B| of local 1 and global 1: three diagonals, the first row and the first column.
    shares = [1 - (3 * n - 2 + 2 * max(n - 2, 0)) / n**2 for n in lengths]
    # In the last layer the first token attends alone, which global 1 has attend to all.
    assert report.rho == pytest.approx([*[np.mean(shares)] * (LAYERS - 1), 0])
    assert report.axes["rows_on"] == pytest.approx([np.mean([1 / n for n in lengths])] * LAYERS)


def test_weights_that_lie_beside_the_graph_are_found(
    model: PreTrainedModel, graph: Path, checkpoint: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "model.onnx"
    onnx.save(onnx.load(graph), outside, save_as_external_data=True, location="model.onnx.data")
    assert (tmp_path / "model.onnx.data").stat().st_size > outside.stat().st_size
    parity(model, outside, checkpoint).require()


def test_a_flip_among_logits_of_which_none_is_finite_is_no_crash() -> None:
    """What is not finite is told of by the gate, behind this."""
    on, off, logits = (torch.tensor([each]) for each in (True, False, torch.nan))
    answer: Any = SimpleNamespace(indicators=[on])
    expected: Any = SimpleNamespace(indicators=[off], axis_logits=[logits])
    assert np.isnan(_farthest_flip(answer, expected))
