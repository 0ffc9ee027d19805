"""Checkpoints remember their attention and are refused when they cannot be right."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, PreTrainedModel

from sparse_export.checkpoint import (
    AttentionSpec,
    load_classifier,
    load_tokenizer,
    new_classifier,
)
from sparse_serve.errors import CheckpointError, OptionError
from tiny_bert import LAMBD


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    weights = {name: tensor for name, tensor in (load_file(path) | changes).items() if tensor is not None}
    save_file(weights, path, {"format": "pt"})


def test_remembers_its_attention(model: PreTrainedModel, checkpoint: Path) -> None:
    stored = json.loads((checkpoint / "config.json").read_text())
    assert stored["sparse_attention"] == {"kind": "sparsegen", "lambd": LAMBD}
    assert AttentionSpec.from_config(model.config) == AttentionSpec("sparsegen", LAMBD)
    assert model.config._attn_implementation == "sparsegen"
    assert not model.training


@torch.no_grad()
def test_attention_can_be_swapped_on_the_same_weights(model: PreTrainedModel, checkpoint: Path) -> None:
    ids = torch.randint(5, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    dense = load_classifier(checkpoint, AttentionSpec())
    again = load_classifier(checkpoint, AttentionSpec("sparsegen", LAMBD))
    assert AttentionSpec.from_config(dense.config) == AttentionSpec()
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    assert (dense(ids).logits - model(ids).logits).abs().max() > 1e-3


def test_fresh_head_is_seeded_and_of_its_own_size(checkpoint: Path) -> None:
    spec = AttentionSpec("sparsegen", -4)
    first, same, other = (new_classifier(checkpoint, spec, ["a", "b"], seed=seed) for seed in (1, 1, 2))
    assert first.training
    assert first.config.id2label == {0: "a", 1: "b"}
    assert torch.equal(first.classifier.weight, same.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)


@pytest.mark.parametrize(
    ("kind", "lambd", "message"),
    [
        ("sparsegen", 1.0, "below 1, got 1.0"),
        ("sparsegen", float("nan"), "below 1, got nan"),
        ("sparsegen", 1 - 1e-9, "below 1, got 1.0"),  # 1 in the graph's float32
        ("sparsegen", -1e39, "below 1, got -inf"),
        ("sparsegen", None, "needs a lambda"),
        ("softmax", -4.0, "takes no lambda"),
        ("entmax", None, "must be softmax or sparsegen, got 'entmax'"),
        (None, -4.0, "needs --attention sparsegen"),
    ],
)
def test_attention_out_of_range(kind: str | None, lambd: float | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        AttentionSpec.override(kind, lambd)  # type: ignore[arg-type]


def test_no_override() -> None:
    assert AttentionSpec.override(None, None) is None
    assert AttentionSpec.override("sparsegen", -4.0) == AttentionSpec("sparsegen", -4.0)


def test_nan_weights(copy: Path) -> None:
    edit_weights(copy, **{"classifier.weight": torch.full((3, 64), torch.nan)})
    with pytest.raises(CheckpointError, match=r"classifier\.weight \(3, 64\) holds NaN"):
        load_classifier(copy)


def test_no_head(tmp_path: Path) -> None:
    BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(
        tmp_path
    )
    with pytest.raises(CheckpointError, match="no classification head"):
        load_classifier(tmp_path)


def test_missing_encoder_weight(copy: Path) -> None:
    edit_weights(copy, **{"bert.encoder.layer.0.attention.self.query.weight": None})
    with pytest.raises(CheckpointError, match="1 weights of the encoder are missing"):
        load_classifier(copy)


def test_encoder_that_is_not_what_its_config_says(copy: Path) -> None:
    edit_config(copy, intermediate_size=100)
    for load in (load_classifier, lambda path: new_classifier(path, AttentionSpec(), ["a", "b"])):
        with pytest.raises(CheckpointError):
            load(copy)


def test_damaged_weights(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="the weights cannot be loaded"):
        load_classifier(copy)


def test_pickled_weights_are_not_read(copy: Path) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="the weights cannot be loaded"):
        load_classifier(copy)


def test_other_family(copy: Path) -> None:
    edit_config(copy, model_type="deberta-v2")
    with pytest.raises(CheckpointError, match="deberta-v2 model; supported families: bert"):
        load_classifier(copy)


@pytest.mark.parametrize("stored", [{"kind": "sparsegen", "lambd": 2}, {"kind": "entmax"}, {"window": 3}, 7])
def test_malformed_attention(copy: Path, stored: object) -> None:
    edit_config(copy, sparse_attention=stored)
    with pytest.raises(CheckpointError, match="sparse_attention is"):
        load_classifier(copy)


def test_not_a_checkpoint(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match=r"has no config\.json"):
            load_classifier(path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_classifier(tmp_path)


def test_no_tokenizer(copy: Path) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        (copy / name).unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        load_tokenizer(copy)
