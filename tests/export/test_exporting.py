"""Export end to end: what an entry holds, and that nothing is written where the gate or an option says no."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import sparse_export.entry as module
import sparse_export.entry_graphs as graphs_module
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, load_config, save_checkpoint
from sparse_export.encoders.stored_files import stored_record
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.entry_graphs import DENSE_TWINS, SPARSE_TWIN
from sparse_export.export_options import ExportOptions
from sparse_serve.digests import file_digest
from sparse_serve.errors import (
    CheckpointError,
    DataError,
    GateError,
    OptionError,
    RepositoryError,
    SparseServeError,
)
from sparse_serve.op_library import library_path
from sparse_serve.repository.entries import read_entry
from sparse_serve.tasks import Embedding, Task
from tiny_models import CLASSES, LABELS, LAMBD, LAYERS, POSITIONS


@pytest.fixture
def options(checkpoint: Path, tmp_path: Path) -> ExportOptions:
    return ExportOptions(
        checkpoint=str(checkpoint), repository=tmp_path / "repository", name="tiny", tokenizer="server"
    )


def is_unwritten(options: ExportOptions) -> bool:
    return not options.repository.exists() or not list(options.repository.iterdir())


def test_manifest_says_what_the_entry_is(exported: Exported) -> None:
    manifest = read_entry(exported.path).manifest
    assert (manifest.attention.normalizer, manifest.attention.lambd) == ("sparsegen", LAMBD)
    assert (manifest.opset, manifest.ir_version, manifest.triton_release) == (20, 9, "26.07")
    assert manifest.task == CLASSES
    assert (manifest.layers, manifest.max_length) == (LAYERS, POSITIONS)
    assert manifest.op_library is not None
    assert manifest.op_library.sha256 == file_digest(library_path())
    assert manifest.baselines == {kind: f"tiny_{kind}" for kind in (*DENSE_TWINS, SPARSE_TWIN)}
    assert {"tiny/config.pbtxt", "tiny_model/1/model.onnx", "tiny/tokenizer.json"} <= set(manifest.files)
    assert manifest.versions.torch == torch.__version__


def test_gate_compared_three_executions(exported: Exported) -> None:
    parity = exported.parity
    assert parity.longest == POSITIONS
    for side in (parity.library, parity.portable):
        assert side.max_abs_diff <= 1e-4
        assert side.label_agreement == 1
    assert parity.rho == pytest.approx(parity.rho_torch, abs=1e-6)
    assert all(0 < rho < 1 for rho in parity.rho)
    assert set(exported.baselines) == {*DENSE_TWINS, SPARSE_TWIN}


def test_tokenizer_is_the_checkpoints(exported: Exported) -> None:
    tokenizer = Tokenizer.from_file(str(exported.path / "tokenizer.json"))
    assert tokenizer.encode("ab c").tokens == ["[CLS]", "a", "##b", "c", "[SEP]"]


def test_quality_is_compared_on_every_side(options: ExportOptions, tmp_path: Path) -> None:
    file = tmp_path / "eval.tsv"
    file.write_text("text_a\tlabel\n" + "".join(f"text {n}\t{LABELS[n % 3]}\n" for n in range(30)))
    quality = export_checkpoint(replace(options, eval_file=file)).quality
    assert quality is not None
    assert quality.torch_metrics is not None
    assert set(quality.torch_metrics) == {"accuracy", "f1", "matthews"}
    assert quality.torch_metrics == quality.library.metrics == quality.portable.metrics
    assert quality.rows == 30


def test_quality_is_judged_on_pairs_where_there_are_pairs(options: ExportOptions, tmp_path: Path) -> None:
    file = tmp_path / "eval.tsv"
    file.write_text("text_a\tother\tlabel\na b\tc d e\tneutral\n")
    columns = {"text_pair": "other"}
    quality = export_checkpoint(replace(options, eval_file=file, columns=columns)).quality
    assert quality is not None
    assert quality.longest == 8  # [CLS] a b [SEP] c d e [SEP]


def test_a_plain_checkpoint_can_be_exported_as_ssaf(
    options: ExportOptions, checkpoint: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    save_checkpoint(load_checkpoint(checkpoint, AttentionSpec()), load_tokenizer(checkpoint), plain)
    options = replace(options, checkpoint=str(plain), attention=AttentionSpec(LAMBD))
    exported = export_checkpoint(replace(options, max_length=40, model_version=3))
    manifest = read_entry(exported.path).manifest
    assert (manifest.attention.lambd, manifest.max_length, manifest.version) == (LAMBD, 40, 3)


def test_gate_stops_a_graph_that_differs(options: ExportOptions) -> None:
    with pytest.raises(GateError, match="parity not met: ONNX Runtime with the op library"):
        export_checkpoint(replace(options, atol=1e-12))
    assert is_unwritten(options)


def test_gate_stops_a_graph_of_another_sparsity(exported: Exported) -> None:
    """By any of the executions."""
    exported.parity.require()
    for name, side in exported.parity.executions.items():
        for changed, words in (
            (replace(side, rho_diff=0.01), "zero attention weights"),
            (replace(side, axes_diff=0.01), "rows or columns"),
        ):
            other = {**exported.parity.executions, name: changed}
            with pytest.raises(GateError, match=f"a layer's share of {words}.* differs by 0.0100"):
                replace(exported.parity, executions=other).require()


def test_large_numbers_are_held_to_a_share_of_them(
    options: ExportOptions, checkpoint: Path, tmp_path: Path
) -> None:
    """As those of a regression of thousands, of which float32 has no tenth of a thousandth."""
    great = shutil.copytree(checkpoint, tmp_path / "great")
    weights = load_file(great / "model.safetensors")
    weights["classifier.weight"] *= 1e5
    save_file(weights, great / "model.safetensors", {"format": "pt"})
    large = replace(options, checkpoint=str(great), with_baselines=True)
    parity = export_checkpoint(large).parity
    assert parity.largest > 1000
    assert parity.atol < parity.library.max_abs_diff <= parity.accepted
    assert parity.accepted == pytest.approx(parity.atol * parity.largest / 10)
    with pytest.raises(GateError, match="parity not met: ONNX Runtime with the op library"):
        replace(parity, atol=parity.atol / 1e4).require()


def test_gate_stops_a_twin_that_differs(options: ExportOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "twin_difference", lambda *_: 0.5)
    with pytest.raises(GateError, match="packed_dense twin differs"):
        export_checkpoint(replace(options, with_baselines=True))
    assert is_unwritten(options)


def with_weight(checkpoint: Path, folder: Path, name: str, value: float) -> str:
    """A copy of a checkpoint with one of its tensors full of a value."""
    weights = load_file(shutil.copytree(checkpoint, folder) / "model.safetensors")
    weights[name] = torch.full_like(weights[name], value)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def test_weights_that_are_not_finite_are_refused(
    options: ExportOptions, checkpoint: Path, tmp_path: Path
) -> None:
    broken = with_weight(checkpoint, tmp_path / "broken", "classifier.bias", torch.inf)
    with pytest.raises(CheckpointError, match=r"classifier\.bias"):
        export_checkpoint(replace(options, checkpoint=broken))
    assert is_unwritten(options)


def test_gate_stops_logits_that_are_not_finite(
    options: ExportOptions, checkpoint: Path, tmp_path: Path
) -> None:
    """Of weights that are, whose products overflow."""
    great = with_weight(checkpoint, tmp_path / "great", "classifier.weight", 3e38)
    with pytest.raises(GateError, match=r"parity not met: the logits of torch .* are not finite"):
        export_checkpoint(replace(options, checkpoint=great))
    assert is_unwritten(options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"opset": 17}, "opset 17 is out of range: Triton 26.07"),
        ({"opset": 99}, "opset 99 is out of range"),
        ({"triton": "25.02", "opset": 22}, "Triton 25.02 runs ONNX Runtime 1.20.1, which takes 18 to 21"),
        ({"triton": "19.01"}, "19.01"),
        ({"max_length": 3}, "--max-length 3 is out of range: a pair has 3 special tokens"),
        ({"max_length": POSITIONS + 1}, f"4 to {POSITIONS} tokens"),
        (
            {"columns": {"text_pair": "b"}},
            "--text-pair-column names a column of --eval or --calibration, which",
        ),
    ],
)
def test_options_out_of_range(options: ExportOptions, changes: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        export_checkpoint(replace(options, **changes))  # type: ignore[arg-type]
    assert is_unwritten(options)


def test_a_full_scratch_disk_is_one_line(options: ExportOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("onnx.save", full)
    with pytest.raises(SparseServeError, match=r"No space left on device; make room there, .* by TMPDIR"):
        export_checkpoint(options)
    assert is_unwritten(options)


def test_bad_labels_are_refused_before_the_graph_is_traced(options: ExportOptions, tmp_path: Path) -> None:
    file = tmp_path / "eval.tsv"
    file.write_text("text_a\tlabel\nfine\tpositive\nodd\tpurple\n")
    done: list[str] = []
    with pytest.raises(DataError, match="line 3"):
        export_checkpoint(replace(options, eval_file=file), done.append)
    assert done == ["loading the checkpoint"]


def test_existing_version_is_refused_before_the_work(exported: Exported, options: ExportOptions) -> None:
    taken = replace(options, repository=exported.path.parent)
    with pytest.raises(RepositoryError, match="has version 1 already"):
        export_checkpoint(taken, pytest.fail)


def test_interrupted_export_leaves_no_entry(options: ExportOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(graphs_module, "check_parity", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_checkpoint(options)
    assert is_unwritten(options)


def trained_at(checkpoint: Path, folder: Path, max_length: object) -> Path:
    """A checkpoint of a pattern with a record of training."""
    model = load_checkpoint(checkpoint, AttentionSpec.parse("local1+global1", None))
    save_checkpoint(model, load_tokenizer(checkpoint), folder)
    (folder / "finetune.json").write_text(json.dumps({"max_length": max_length, "rho": 0.75}))
    return folder


def test_texts_are_cut_where_a_pattern_was_trained(
    options: ExportOptions, checkpoint: Path, tmp_path: Path
) -> None:
    options = replace(options, checkpoint=str(trained_at(checkpoint, tmp_path / "pattern", 40)))
    warnings: list[str] = []
    exported = export_checkpoint(options, warn=warnings.append)
    assert (read_entry(exported.path).manifest.max_length, exported.parity.longest) == (40, 40)
    shorter = export_checkpoint(replace(options, max_length=30, force=True), warn=warnings.append)
    assert read_entry(shorter.path).manifest.max_length == 30
    assert warnings == []
    longer = export_checkpoint(replace(options, max_length=41, force=True), warn=warnings.append)
    assert read_entry(longer.path).manifest.max_length == 41
    (warning,) = warnings
    assert warning.startswith(
        "--max-length 41 is more than the 40 tokens at which the pattern local1+global1"
    )


@pytest.mark.parametrize(
    ("pattern", "max_length", "rho"), [("local1+global1", 40, 0.75), ("local2+global1", POSITIONS, None)]
)
def test_what_was_trained_is_of_the_pattern_whatever_the_normalizer(
    options: ExportOptions, checkpoint: Path, tmp_path: Path, pattern: str, max_length: int, rho: float | None
) -> None:
    """Another pattern is cut at the positions."""
    folder = trained_at(checkpoint, tmp_path / "pattern", 40)
    attention = AttentionSpec.parse(pattern, -4.0)
    exported = export_checkpoint(replace(options, checkpoint=str(folder), attention=attention))
    manifest = read_entry(exported.path).manifest
    assert (manifest.max_length, manifest.attention.rho) == (max_length, rho)


def test_the_trained_pattern_by_its_name_is_the_trained_one(
    options: ExportOptions, checkpoint: Path, tmp_path: Path
) -> None:
    folder = trained_at(checkpoint, tmp_path / "pattern", 40)
    same = AttentionSpec.parse("local1+global1", None)
    options = replace(options, checkpoint=str(folder), attention=same)
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    record = module._of_pattern(stored_record(folder), same, options)
    assert module._max_length(options, config, tokenizer, record, pytest.fail) == 40
    assert module._attention(load_checkpoint(folder), record).rho == 0.75


@pytest.mark.parametrize("recorded", [True, "40", None, 0, 10**9])
def test_a_record_that_says_nothing_usable(
    options: ExportOptions, checkpoint: Path, tmp_path: Path, recorded: object
) -> None:
    folder = trained_at(checkpoint, tmp_path / "pattern", recorded)
    options = replace(options, checkpoint=str(folder))
    record, tokenizer = stored_record(folder), load_tokenizer(checkpoint)
    assert record is not None
    assert module._max_length(options, load_config(folder), tokenizer, record, pytest.fail) == POSITIONS


@pytest.mark.parametrize(
    ("dtype", "most", "advice"),
    [
        ("fp32", 2.5, "give --dtype fp16"),
        ("int8", 2.5, "give --dtype fp16"),
        ("fp16", 1.5, "export a smaller model"),
    ],
)
def test_a_model_too_large_for_a_graph_is_not_traced(
    options: ExportOptions,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    most: float,
    advice: str,
) -> None:
    """Where a weight may have so many bytes."""
    count = sum(weight.numel() for weight in load_checkpoint(checkpoint).parameters())
    monkeypatch.setattr("sparse_export.graph.precision.MOST_BYTES", int(most * count))
    traced_in = "fp16" if dtype == "fp16" else "fp32"
    with pytest.raises(CheckpointError, match=rf"bytes in {traced_in}, .* takes at most [\d,]+: {advice}"):
        export_checkpoint(replace(options, dtype=dtype), progress=_refuse_to_trace)
    assert is_unwritten(options)


def _refuse_to_trace(done: str) -> None:
    assert "tracing" not in done


EMBEDDING = Embedding(size=64)


@pytest.mark.parametrize(
    ("task", "max_length", "stored", "warns"),
    [
        (EMBEDDING, None, {"max_seq_length": 40}, True),
        (EMBEDDING, POSITIONS, {"max_seq_length": 40}, False),
        (EMBEDDING, None, {"max_seq_length": POSITIONS}, False),
        (EMBEDDING, None, {"max_seq_length": None}, False),
        (EMBEDDING, None, [], False),
        (CLASSES, None, {"max_seq_length": 40}, False),
    ],
)
def test_a_longer_cut_than_sentence_transformers_own_warns(
    options: ExportOptions, tmp_path: Path, task: Task, max_length: int | None, stored: object, warns: bool
) -> None:
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(stored), encoding="utf-8")
    options = replace(options, checkpoint=str(tmp_path), max_length=max_length)
    told: list[str] = []
    module._warn_of_longer_texts(options, task, POSITIONS, told.append)
    assert [warning.rpartition(": ")[2] for warning in told] == (
        [f"say --max-length 40 to have it do so too, or --max-length {POSITIONS}"] if warns else []
    )
