"""`export --dtype int8`: a quarter of the weights, each text answered the same to the bit in any company."""

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.families import input_names
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.int8 import quantized_columns, quantized_graph
from sparse_export.parity import quality
from sparse_export.parity.examples import (
    batches,
    builtin_examples,
    calibration_examples,
    text_examples,
)
from sparse_export.parity.moments import input_moments
from sparse_export.parity.quality import check_quality
from sparse_export.tasks import model_head
from sparse_serve.classifier import Classifier
from sparse_serve.data import read_data
from sparse_serve.errors import DataError, GateError, OptionError
from sparse_serve.op_library import library_path
from sparse_serve.processor import has_vnni
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.manifest import TargetCpu
from sparse_serve.repository.signature import nested
from sparse_serve.tasks import TASK_IDS, Classification, Embedding, Task
from sparse_serve.triton.preflight import processor_warnings
from tiny_models import ADAPTERS, LAMBD, TASKS, make_model, make_tokenizer, masks, token_ids

Array = npt.NDArray[Any]
HERE: TargetCpu = "vnni" if has_vnni() else "any"
# Of random weights, as a share of what varies: 7 bits lose twice as much.
ERROR = 0.15 if HERE == "vnni" else 0.3
WORDS = ["a", "film", "of", "great", "charm", "not", "1", "minute", "too", "long", "!", "ünïcödé"]


@pytest.fixture(scope="module")
def int8(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The checkpoint as an int8 entry `tiny`, its tokenizer in the graph."""
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=tmp_path_factory.mktemp("int8"),
        name="tiny",
        dtype="int8",
        token_model=True,
        max_loss=1.0,  # random weights decide nothing
    )
    return export_checkpoint(options)


def weights_of(graph: onnx.GraphProto, data_type: int) -> dict[str, int]:
    """Return the bytes of the graph's constants of one type, by name."""
    found = [each for each in graph.initializer if each.data_type == data_type]
    return {each.name: numpy_helper.to_array(each).nbytes for each in found}


def test_linear_layers_and_embeddings_are_integers(int8: Exported, text_entry: Exported) -> None:
    graph, full = (onnx.load(each.path / "1" / "model.onnx").graph for each in (int8, text_entry))
    before = {
        name: size
        for name, size in weights_of(full, TensorProto.FLOAT).items()
        if len(next(each for each in full.initializer if each.name == name).dims) == 2 and size > 64 * 16 * 4
    }
    integers = weights_of(graph, TensorProto.INT8)
    assert sum(integers.values()) * 4 == sum(before.values())
    scales = sum(
        size for name, size in weights_of(graph, TensorProto.FLOAT).items() if name.endswith(".scale")
    )
    assert scales > 0
    assert sum(integers.values()) + scales <= 0.27 * sum(before.values())
    assert not before.keys() & weights_of(graph, TensorProto.FLOAT).keys()
    ops = [node.op_type for node in nested(graph.node)]
    # Of each layer: queries, keys and values of one input, what attention gives, both of feed-forward.
    # The last layer's queries are of first tokens alone.
    assert ops.count("MatMulInteger") == 2 * 6 + 1
    assert ops.count("QuantizeRows") == 2 * 3 + 1 + 1
    assert ops.count("RequantizeGelu") == 2


def test_manifest_and_gate(int8: Exported) -> None:
    manifest = read_entry(int8.path).manifest
    assert (manifest.dtype, manifest.target_cpu) == ("int8", HERE)
    assert int8.parity.library.max_abs_diff <= 1e-4
    assert int8.quantized is not None
    assert manifest.quantized == json.loads(json.dumps(int8.quantized.to_json()))
    for each in int8.quantized.executions.values():
        assert each.max_abs_diff > 1e-3
        assert 1 - 4 * ERROR**2 < each.explained < 1
    assert {finding.level for finding in check_entry(int8.path)} == {Level.ok}


@pytest.fixture(scope="module")
def classifier(int8: Exported) -> Classifier:
    return Classifier(int8.path, threads=1)


@settings(deadline=None, max_examples=40)
@given(texts=st.lists(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join), min_size=1, max_size=12))
def test_a_text_is_answered_the_same_to_the_bit_in_any_company(
    classifier: Classifier, texts: list[str]
) -> None:
    together = [reply.logits for reply in classifier(texts)]
    assert [classifier([text])[0].logits for text in texts] == together
    assert [reply.logits for reply in classifier(texts[::-1])] == together[::-1]


MODELS: dict[str, tuple[str, AttentionSpec, Any]] = {
    "bert_ssaf": ("bert", AttentionSpec(LAMBD), None),
    "aaa": ("bert", AttentionSpec.parse("axis", None), None),
    "mobilebert_aaa_ssaf": ("mobilebert", AttentionSpec.parse("axis+global1+random1", LAMBD, seed=3), None),
    "diagonals": ("distilbert", AttentionSpec.parse("layer-diagonal+global2+random1", None, seed=4), None),
    "several_tasks": ("bert", AttentionSpec(LAMBD), TASKS),
}
Feed = dict[str, npt.NDArray[np.int64]]


def answer(graph: Path | bytes, feed: Feed, *, op_library: bool = True) -> Array:
    session = open_graph(graph, op_library=op_library, log_severity_level=3, intra_op_num_threads=1)
    logits: Array = session.run(["logits"], feed)[0]
    return logits


def feed_of(model: PreTrainedModel, mask_name: str) -> Feed:
    ids, segments = token_ids()
    mask = masks()[mask_name]
    tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    feed = {name: tensors[name].numpy() for name in input_names(model.config)}
    if "projected_attention" in ModelSpec.of(model.config).extensions:
        feed[TASK_IDS] = (np.arange(len(ids)) % len(TASKS))[:, None]
    return feed


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mask_name", ["left_padded_and_empty", "some_rows_empty"])
def test_every_model_stays_close_to_itself(graphs: GraphTable, name: str, mask_name: str) -> None:
    """Kernel and function; as close as 8 bits are in few layers of random weights."""
    family, attention, tasks = MODELS[name]
    several: dict[str, Any] = {} if tasks is None else {"task": tasks, "extensions": ADAPTERS}
    model = make_model(attention, family, **several).eval()
    model.set_attn_implementation(attention.implementation)
    traced = graphs.path(model, "packed", GraphTarget())
    quantized = quantized_graph(onnx.load(traced), HERE).SerializeToString()
    feed = feed_of(model, mask_name)
    expected = answer(traced, feed)
    has_token = feed["attention_mask"].any(1)
    told = np.isfinite(expected) & has_token[:, None]
    spread = expected[told].std()
    for op_library in (True, False):
        logits = answer(quantized, feed, op_library=op_library)
        assert np.abs(logits - expected)[told].std() < ERROR * spread
        np.testing.assert_array_equal(logits[~told], expected[~told])
    if mask_name != "some_rows_empty":
        return  # tokens that are queries and no keys go by standard operators
    together = answer(quantized, feed)
    for row in np.flatnonzero(has_token):
        alone = answer(quantized, {key: values[row : row + 1] for key, values in feed.items()})
        np.testing.assert_array_equal(alone[0], together[row])


def test_a_gelu_of_several_nodes_stays_what_it_is(model: PreTrainedModel, graphs: GraphTable) -> None:
    """Before opset 20 there is no operator for it."""
    traced = graphs.path(model, "packed", GraphTarget(18))
    quantized = quantized_graph(onnx.load(traced), HERE)
    ops = [node.op_type for node in quantized.graph.node]
    assert ops.count("Erf") == 2
    assert "RequantizeGelu" not in ops
    feed = feed_of(model, "some_rows_empty")
    expected = answer(traced, feed)
    difference = answer(quantized.SerializeToString(), feed) - expected
    assert 0 < difference.std() < ERROR * expected.std()


def test_weights_of_seven_bits(model: PreTrainedModel, graphs: GraphTable) -> None:
    traced = graphs.path(model, "packed", GraphTarget())
    sizes = {}
    for target_cpu in get_args(TargetCpu):
        graph = quantized_graph(onnx.load(traced), target_cpu).graph
        read = {node.input[1] for node in graph.node if node.op_type == "MatMulInteger"}
        weights = [numpy_helper.to_array(each) for each in graph.initializer if each.name in read]
        sizes[target_cpu] = max(int(np.abs(weight.astype(int)).max()) for weight in weights)
    assert sizes == {"vnni": 127, "any": 63}


def test_weights_are_rounded_by_what_layers_read(
    model: PreTrainedModel, checkpoint: Path, graphs: GraphTable, tmp_path: Path
) -> None:
    """So that more of what varies is kept, on other texts too."""
    traced = graphs.path(model, "packed", GraphTarget())
    task, tokenizer = model_head(model).task, load_tokenizer(str(checkpoint)).backend_tokenizer
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 20))) for _ in range(400)]
    (tmp_path / "drawn.txt").write_text("\n".join(texts[:300]), encoding="utf-8")
    rows = read_data(tmp_path / "drawn.txt", task=task.type, labelled=False)
    calibration = calibration_examples(task, tokenizer, 64, "right", rows)
    moments = input_moments(traced, library_path(), list(batches(calibration.rows, model.config)))
    explained = []
    for each in (None, moments):
        onnx.save(quantized_graph(onnx.load(traced), "any", each), tmp_path / "model.onnx")
        examples = text_examples(task, tokenizer, 64, texts[300:])
        report = check_quality(model, tmp_path / "model.onnx", library_path(), examples)
        explained.append(report.executions["portable"].explained)
    assert 1 - explained[1] < 0.8 * (1 - explained[0])


@pytest.mark.parametrize(
    ("task", "content", "expected"),
    [
        (Embedding(size=64), "text_a\na film\n", [["a film"]]),
        (Embedding(size=64), "text_a\ttext_b\na film\tnot\n", [["a film"], ["not"]]),
        (Classification(("0", "1"), paired=True), "text_a\ttext_b\na film\tnot\n", [["a film", "not"]]),
        (
            Classification(("0", "1"), paired=True),
            "text_a\na film\n",
            "single texts, where the model reads pairs",
        ),
        (
            Classification(("0", "1")),
            "text_a\ttext_b\na\tb\n",
            "pairs of texts, where the model reads single",
        ),
    ],
)
def test_calibration_rows_are_read_as_the_model_is_asked(
    checkpoint: Path, tmp_path: Path, task: Task, content: str, expected: Any
) -> None:
    (tmp_path / "rows.tsv").write_text(content, encoding="utf-8")
    rows = read_data(tmp_path / "rows.tsv", task.rows.named(), task=task.type, labelled=False)
    tokenizer = load_tokenizer(str(checkpoint)).backend_tokenizer
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            calibration_examples(task, tokenizer, 64, "right", rows)
        return
    found = calibration_examples(task, tokenizer, 64, "right", rows)
    ids = [tokenizer.encode(*texts).ids for texts in expected]
    assert sorted(row["input_ids"] for row in found.rows) == sorted(ids)


def test_calibration_rows_are_cut_as_texts_are(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("a film of great charm not", encoding="utf-8")
    task = Classification(("0", "1"))
    rows = read_data(tmp_path / "rows.txt", task=task.type, labelled=False)
    tokenizer = load_tokenizer(str(checkpoint)).backend_tokenizer
    right, left = (calibration_examples(task, tokenizer, 4, side, rows).rows for side in ("right", "left"))
    assert [len(each[0]["input_ids"]) for each in (right, left)] == [4, 4]
    assert right != left


def test_rows_of_the_task_are_read_for_it(checkpoint: Path, int8: Exported, tmp_path: Path) -> None:
    """Without their labels, and drawn where they are many."""
    rows = tmp_path / "rows.tsv"
    rows.write_text("review\n" + "\n".join(WORDS * 50) + "\n", encoding="utf-8")
    said: list[str] = []
    made = export_checkpoint(
        options(
            checkpoint,
            tmp_path / "repository",
            dtype="int8",
            calibration_file=rows,
            columns={"text": "review"},
            max_loss=1.0,
        ),
        said.append,
    )
    assert "looking at what linear layers read of 512 texts" in said
    ours, nearest = (onnx.load(each.path / "1" / "model.onnx").graph for each in (made, int8))
    assert weights_of(ours, TensorProto.INT8) == weights_of(nearest, TensorProto.INT8)
    tensors = [{each.name: each.raw_data for each in graph.initializer} for graph in (ours, nearest)]
    changed = {name for name, data in tensors[0].items() if data != tensors[1].get(name)}
    assert changed
    assert all(name.endswith(".int8") and "embeddings" not in name for name in changed)


def test_columns_have_scales_of_their_own() -> None:
    weight = np.array([[1, 0, -1e-3], [-2, 0, 5e-4]], np.float32)
    integers, scale = quantized_columns(weight, 127)
    np.testing.assert_array_equal(integers, [[64, 0, -127], [-127, 0, 64]])
    np.testing.assert_allclose(scale, [2 / 127, 1, 1e-3 / 127], rtol=1e-6)


def options(checkpoint: Path, folder: Path, **changes: Any) -> ExportOptions:
    return ExportOptions(checkpoint=str(checkpoint), repository=folder, name="tiny", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_cpu": "any"}, "--target-cpu is for --dtype int8, this is fp32: leave it out"),
        ({"dtype": "fp16", "max_loss": 0.1}, "--max-loss is for --dtype int8, this is fp16: leave it out"),
        (
            {"calibration_file": Path("x.tsv")},
            "--calibration is for --dtype int8, this is fp32: leave it out",
        ),
        ({"dtype": "int8", "max_loss": 1.5}, "--max-loss 1.5 is out of range: a share from 0 to 1 is needed"),
    ],
)
def test_options_that_do_not_fit(
    checkpoint: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        export_checkpoint(options(checkpoint, tmp_path, **changes))


@pytest.mark.parametrize(("judged", "passes"), [(0.9, True), (0.8949, False)])
def test_a_metric_may_lose_as_much_as_is_accepted(judged: float, passes: bool) -> None:
    kept = quality.Fidelity(
        max_abs_diff=1.0, label_agreement=0.5, explained=0.5, metrics={"accuracy": judged}
    )
    report = quality.QualityReport(
        rows=10,
        output="logits",
        metric="accuracy",
        accepted_loss=0.005,
        torch_metrics={"accuracy": 0.9},
        executions={"library": kept, "portable": kept},
    )
    if passes:
        report.require()
        return
    with pytest.raises(GateError, match=r"has accuracy 0\.8949 over 10 texts, torch 0\.9000"):
        report.require()


def test_a_number_that_is_none_is_refused() -> None:
    kept = quality.Fidelity(max_abs_diff=float("nan"), label_agreement=1.0, explained=1.0, metrics=None)
    executions = {"library": kept, "portable": kept}
    report = quality.QualityReport(10, "logits", None, 0.1, None, executions)
    with pytest.raises(GateError, match="with the op library answers NaN or infinity where torch does not"):
        report.require()


def test_every_task_of_several_is_judged(graphs: GraphTable, tmp_path: Path) -> None:
    """Also one whose answer is a number, and one that the others outnumber."""
    family, attention, tasks = MODELS["several_tasks"]
    model = make_model(attention, family, task=tasks, extensions=ADAPTERS).eval()
    model.set_attn_implementation(attention.implementation)
    tokenizer = Tokenizer.from_str(make_tokenizer(tmp_path).backend_tokenizer.to_str())
    examples = builtin_examples(model_head(model).task, tokenizer, 64, ["a film of great charm", "no"])
    exact = graphs.path(model, "packed", GraphTarget())
    judged = check_quality(model, exact, library_path(), examples)
    judged.require()
    assert judged.executions["library"].tasks == pytest.approx(dict.fromkeys(TASKS, 1.0), abs=1e-4)

    proto = onnx.load(exact)
    (bias,) = (
        each for each in proto.graph.initializer if list(each.dims) == [1] and "similarity" in each.name
    )
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 5, bias.name))
    onnx.save(proto, tmp_path / "model.onnx")
    worse = check_quality(model, tmp_path / "model.onnx", library_path(), examples)
    assert worse.executions["library"].label_agreement == 1.0
    with pytest.raises(GateError, match=r"has what its worst task keeps, similarity, -\d"):
        worse.require()

    # A task whose answer is always the same, by torch and by a graph that does not read its texts.
    proto = onnx.load(exact)
    weight, bias = (
        next(each for each in proto.graph.initializer if f"sentiment.classifier.{part}" in each.name)
        for part in ("weight", "bias")
    )
    head = model.of("sentiment").classifier
    with torch.no_grad():
        head.bias[0] += 50
    weight.CopyFrom(numpy_helper.from_array(np.zeros(weight.dims, np.float32), weight.name))
    bias.CopyFrom(numpy_helper.from_array(head.bias.detach().numpy(), bias.name))
    onnx.save(proto, tmp_path / "model.onnx")
    unread = check_quality(model, tmp_path / "model.onnx", library_path(), examples)
    assert unread.executions["library"].label_agreement == 1.0
    with pytest.raises(GateError, match=r"has what its worst task keeps, sentiment, -\d"):
        unread.require()


def test_the_graph_of_token_ids_is_judged_too(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one of texts, which is quantized by itself."""

    def other_answers(
        traced: onnx.ModelProto, target_cpu: TargetCpu, moments: dict[str, Array] | None
    ) -> onnx.ModelProto:
        proto = quantized_graph(traced, target_cpu, moments)
        if "attention_mask" in {each.name for each in proto.graph.input}:
            for each in proto.graph.initializer:
                if "classifier" in each.name and "bias" not in each.name:
                    each.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(each), each.name))
        return proto

    monkeypatch.setattr("sparse_export.entry_graphs.quantized_graph", other_answers)
    with pytest.raises(
        GateError, match="quality not met: in int8 ONNX Runtime with the op library has agree"
    ):
        export_checkpoint(options(checkpoint, tmp_path, dtype="int8", token_model=True, max_loss=0.5))


@pytest.mark.parametrize("has_vnni", [True, False])
def test_a_processor_without_vnni_is_told(
    int8: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_vnni: bool
) -> None:
    monkeypatch.setattr("sparse_serve.processor.has_vnni", lambda: has_vnni)
    entry = shutil.copytree(int8.path.parent, tmp_path / "repository") / "tiny"
    for manifest in entry.parent.rglob("manifest.json"):
        told = manifest.read_text(encoding="utf-8")
        manifest.write_text(told.replace('"target_cpu": "any"', '"target_cpu": "vnni"'), encoding="utf-8")
    found = [each.message for each in check_entry(entry) if each.level is Level.warning]
    assert found == processor_warnings(entry.parent, ["tiny"])
    assert [message[:52] for message in found] == (
        [] if has_vnni else ["the int8 weights of 'tiny' are for processors with V"]
    )
