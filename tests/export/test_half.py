"""`export --dtype fp16`: half the file, float32 outside, torch's answers within float16's rounding."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from onnx import numpy_helper
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, save_checkpoint
from sparse_export.encoders.families import input_names
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.entry_graphs import DENSE_TWINS, SPARSE_TWIN
from sparse_export.export_options import ExportOptions
from sparse_export.graph.export import GraphKind, GraphTarget
from sparse_export.graph.precision import FP16, PRECISIONS
from sparse_serve.client import Client
from sparse_serve.errors import GateError, OptionError
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.entries import read_entry
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from stock_client import MODULES, infer, texts_of, url_of
from tiny_models import LABELS, POSITIONS, masks, token_ids

Array = npt.NDArray[Any]

# The tiny models' random weights are far larger than trained ones, which stay well below the default.
ATOL = 0.05
HALF = GraphTarget(precision=FP16)
TWINS = (*DENSE_TWINS, SPARSE_TWIN)
TEXTS = ["a film of great charm", "", "and it's not 1 minute too long!", "x" * 300]


@pytest.fixture(scope="module")
def half(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The checkpoint as a float16 entry `half`."""
    return export_checkpoint(options_of(checkpoint, tmp_path_factory.mktemp("half"), atol=ATOL))


@pytest.fixture(scope="module")
def half_twins(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The same with its dense twins."""
    repository = tmp_path_factory.mktemp("half_twins")
    return export_checkpoint(options_of(checkpoint, repository, atol=ATOL, with_baselines=True))


def options_of(checkpoint: Path, repository: Path, **given: Any) -> ExportOptions:
    return ExportOptions(
        checkpoint=str(checkpoint),
        repository=repository,
        name="half",
        dtype="fp16",
        tokenizer="server",
        **given,
    )


def feed(model: PreTrainedModel, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    ids, segments = token_ids()
    tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: tensors[name] for name in input_names(model.config)}


def answers(graph: Path | bytes, batch: dict[str, torch.Tensor], *, op_library: bool) -> list[Array]:
    session = open_graph(graph, op_library=op_library, log_severity_level=3)
    outputs: list[Array] = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
    return outputs


def expected(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> Array:
    with torch.no_grad():
        logits: Array = model(**batch).logits.numpy()
    return logits


def kinds(values: Iterable[onnx.ValueInfoProto]) -> dict[str, int]:
    return {value.name: value.type.tensor_type.elem_type for value in values}


def graph_of(exported: Exported, name: str) -> Path:
    folder = exported.path.parent if name.endswith("_model") else exported.path / "baselines"
    return folder / name / "1" / "model.onnx"


def test_weights_are_float16_and_the_signature_is_not(
    half: Exported, model: PreTrainedModel, graphs: GraphTable
) -> None:
    expect_half(graph_of(half, "half_model"), graphs.path(model, "packed", GraphTarget()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TWINS)
def test_weights_of_twins_are_float16_too(half_twins: Exported, exported: Exported, kind: GraphKind) -> None:
    expect_half(graph_of(half_twins, f"half_{kind}"), graph_of(exported, f"tiny_{kind}"))
    assert half_twins.baselines.keys() == set(TWINS)
    assert half_twins.baselines[kind] <= ATOL


def expect_half(half: Path, full: Path) -> None:
    """Every weight of one graph has half of the bytes that it has in the other."""
    graph = onnx.load(half).graph
    assert weights_of(onnx.load(full).graph, onnx.TensorProto.FLOAT) == {
        name: 2 * size for name, size in weights_of(graph, onnx.TensorProto.FLOAT16).items()
    }
    assert not weights_of(graph, onnx.TensorProto.FLOAT)
    assert set(kinds(graph.input).values()) == {onnx.TensorProto.INT64}
    assert set(kinds(graph.output).values()) == {onnx.TensorProto.FLOAT}


def weights_of(graph: onnx.GraphProto, data_type: int) -> dict[str, int]:
    """The bytes of the graph's weights of one type by name; numbers alone are no weights, nor is no bias."""
    found = [each for each in graph.initializer if each.data_type == data_type and np.prod(each.dims) > 1]
    weights = [each for each in found if not each.name.startswith("no_bias_")]
    return {each.name: numpy_helper.to_array(each).nbytes for each in weights}


def test_manifest_and_gate(half: Exported) -> None:
    manifest = read_entry(half.path).manifest
    assert manifest.dtype == "fp16"
    assert (manifest.opset, manifest.ir_version) == (20, 9)
    assert half.parity.atol == ATOL
    for side in (half.parity.library, half.parity.portable):
        assert 1e-4 < side.max_abs_diff <= ATOL
        assert side.label_agreement == 1


def test_check_holds_the_graph_against_the_manifest(half: Exported, tmp_path: Path) -> None:
    assert {finding.level for finding in check_entry(half.path)} == {Level.ok}
    copy = tmp_path / "repository"
    shutil.copytree(half.path.parent, copy, symlinks=True)
    for manifest in (copy / "half").rglob("manifest.json"):
        manifest.write_text(manifest.read_text().replace('"dtype": "fp16"', '"dtype": "fp32"'))
    errors = [finding.message for finding in check_entry(copy / "half") if finding.level == Level.error]
    assert errors == ["the graph's weights are fp16, the manifest says fp32"]


@pytest.mark.parametrize("op_library", [True, False], ids=["op_library", "portable"])
@pytest.mark.parametrize("mask_name", masks())
def test_answers_as_torch_in_float32(
    model: PreTrainedModel, half: Exported, mask_name: str, op_library: bool
) -> None:
    batch = feed(model, masks()[mask_name])
    logits, rho = answers(graph_of(half, "half_model"), batch, op_library=op_library)
    has_token = batch["attention_mask"].any(1).numpy()
    np.testing.assert_allclose(logits[has_token], expected(model, batch)[has_token], rtol=0, atol=ATOL)
    assert not logits[~has_token].any()
    assert logits.dtype == rho.dtype == np.float32


def test_no_row_depends_on_its_companions(model: PreTrainedModel, half: Exported) -> None:
    batch = feed(model, masks()["left_padded_and_empty"])
    graph = graph_of(half, "half_model")
    together, _ = answers(graph, batch, op_library=True)
    for row in range(len(together)):
        alone, _ = answers(graph, {name: ids[row : row + 1] for name, ids in batch.items()}, op_library=True)
        # One float16 rounding may fall to the other side where a matrix product adds in another order.
        np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TWINS)
def test_twins_answer_as_torch_with_their_attention(
    checkpoint: Path, half_twins: Exported, kind: GraphKind
) -> None:
    twin = load_checkpoint(checkpoint, None if kind == SPARSE_TWIN else AttentionSpec())
    batch = feed(twin, masks()["right_padded"])
    logits = answers(graph_of(half_twins, f"half_{kind}"), batch, op_library=True)[0]
    np.testing.assert_allclose(logits, expected(twin, batch), rtol=0, atol=ATOL)


def test_a_copy_is_rounded_and_the_model_is_not(model: PreTrainedModel) -> None:
    for each, dtype in ((FP16.copy_of(model), torch.float16), (model, torch.float32)):
        assert {parameter.dtype for parameter in each.parameters()} == {dtype}


@pytest.mark.slow
def test_padded_sparse_graph(model: PreTrainedModel, graphs: GraphTable) -> None:
    proto = graphs.trace(model, "padded_sparse", HALF)
    batch = feed(model, masks()["right_padded"])
    for op_library in (True, False):
        (logits,) = answers(proto.SerializeToString(), batch, op_library=op_library)
        np.testing.assert_allclose(logits, expected(model, batch), rtol=0, atol=ATOL)


def test_the_accepted_difference_follows_the_dtype(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(GateError, match=r"accepted is 0\.01 \(--atol\)"):
        export_checkpoint(options_of(checkpoint, tmp_path))
    assert {name: each.atol for name, each in PRECISIONS.items()} == {
        "fp32": 1e-4,
        "fp16": 1e-2,
        "bf16": 8e-2,
        "int8": 1e-4,
    }


@pytest.mark.slow
def test_overflow_is_told_as_such(checkpoint: Path, tmp_path: Path) -> None:
    model = load_checkpoint(checkpoint)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.bias[0] = 70_000
    overflowing = tmp_path / "checkpoint"
    overflowing.mkdir()
    save_checkpoint(model, load_tokenizer(checkpoint), overflowing)
    assert np.isfinite(expected(model, feed(model, masks()["full"]))).all()
    options = ExportOptions(
        checkpoint=str(overflowing), repository=tmp_path / "repository", name="half", dtype="fp16"
    )
    with pytest.raises(GateError, match=r"not finite .* --dtype fp32"):
        export_checkpoint(options)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("bf16", "--dtype bf16 is not supported: .*bf16 models need a GPU .*; choose one of fp32, fp16"),
        ("int4", "--dtype int4 is not supported: choose one of fp32, fp16, int8"),
    ],
)
def test_other_types_are_refused(checkpoint: Path, tmp_path: Path, dtype: str, message: str) -> None:
    options = ExportOptions(checkpoint=str(checkpoint), repository=tmp_path, name="x", dtype=dtype)
    with pytest.raises(OptionError, match=message):
        export_checkpoint(options)


@pytest.fixture(scope="module")
def server(half: Exported) -> Iterator[TritonServer]:
    options = ServerOptions(half.path.parent, http_port=0, grpc_port=0, metrics_port=0)
    with TritonServer(options) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("protocol", MODULES)
def test_served(
    server: TritonServer, model: PreTrainedModel, checkpoint: Path, half: Exported, protocol: str
) -> None:
    """Triton answers what ONNX Runtime does on the same file, and torch's labels."""
    tokenizer = load_tokenizer(checkpoint)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=POSITIONS, return_tensors="pt")
    wanted, rho = answers(graph_of(half, "half_model"), dict(batch), op_library=True)
    logits, served_rho = infer(server, protocol, "half", texts_of(*TEXTS), "logits", "rho")
    assert logits.dtype == served_rho.dtype == np.float32
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(served_rho, rho, rtol=0, atol=1e-6)
    torch_logits = expected(model, dict(batch))
    np.testing.assert_allclose(logits, torch_logits, rtol=0, atol=ATOL)
    with Client(url_of(server, protocol), protocol) as client:  # type: ignore[arg-type]
        predictions = client.classify("half", TEXTS)
    assert [prediction.label for prediction in predictions] == [LABELS[i] for i in torch_logits.argmax(1)]
    names = ("input_ids", "attention_mask", "token_type_ids")
    (direct,) = infer(server, protocol, "half_model", {name: batch[name].numpy() for name in names}, "logits")
    np.testing.assert_allclose(direct, wanted, rtol=0, atol=1e-5)
