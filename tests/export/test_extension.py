"""What has weights of its own in an encoder is one file and one line in a table: a tiny one, end to end."""

from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, load_config, new_model, save_checkpoint
from sparse_export.encoders import extensions
from sparse_export.encoders.extension import (
    Extension,
    ExtensionModule,
    ResidualModule,
    add_residual,
    extension_modules,
    parameter_groups,
)
from sparse_export.encoders.families import layers_of
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.packed import PaddedTokensModel
from sparse_export.tasks import head_of
from sparse_export.training.freezing import freeze
from sparse_export.training.groups import group_of, set_apart
from sparse_serve.errors import CheckpointError, OptionError
from sparse_serve.tasks import Classification
from tiny_models import LABELS, LAMBD, make_model, make_tokenizer, masks, token_ids

WIDTH = 3


class Narrow(ResidualModule, ExtensionModule):
    """Hidden states through a narrow place and back."""

    parameter_group: ClassVar[str] = "narrow place"

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.down = nn.Linear(hidden_size, width)
        self.up = nn.Linear(width, hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.down.weight)
        nn.init.normal_(self.up.weight)

    def forward(self, hidden: Tensor, routing: object = None) -> Tensor:
        narrow: Tensor = self.up(self.down(hidden).tanh())
        return narrow


class NarrowExtension(Extension):
    """What a new extension is: this class, and its place in the table."""

    settings: ClassVar[str | None] = "narrow"

    def __init__(self, width: int) -> None:
        self.width = width

    @classmethod
    def of(cls, spec: ModelSpec) -> Self | None:
        settings = spec.extensions.get("narrow")
        return None if settings is None else cls(settings["width"])

    def attach(self, model: PreTrainedModel) -> None:
        for index in range(len(layers_of(model))):
            add_residual(model, index, "narrow", Narrow(model.config.hidden_size, self.width))


@pytest.fixture(autouse=True)
def _in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "EXTENSIONS", (*extensions.EXTENSIONS, NarrowExtension))


def make_encoder(folder: Path, family: str) -> Path:
    """A checkpoint whose spec asks for the extension, of whose weights it has none yet."""
    folder.mkdir()
    model = make_model(AttentionSpec(LAMBD), family)
    spec = ModelSpec.of(model.config)
    ModelSpec(spec.attention, spec.tasks, {"narrow": {"width": WIDTH}}).store(model.config)
    save_checkpoint(model, make_tokenizer(folder, family), folder)
    return folder


@pytest.fixture(params=["bert", "roberta", "distilbert", "electra"])
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_encoder(tmp_path / "encoder", request.param)


@pytest.fixture
def trained(encoder: Path, tmp_path: Path) -> Path:
    model = new_model(encoder, AttentionSpec.parse("axis", None), Classification(LABELS))
    save_checkpoint(model, load_tokenizer(encoder), tmp_path / "trained")
    return tmp_path / "trained"


@torch.no_grad()
def test_it_is_loaded_as_it_was_saved_and_takes_part(encoder: Path, trained: Path) -> None:
    model = load_checkpoint(trained)
    assert len(extension_modules(model)) == 2 * len(layers_of(model))  # beside the axis layers
    ids, _ = token_ids()
    answered = model(ids).logits
    torch.testing.assert_close(load_checkpoint(trained)(ids).logits, answered, rtol=0, atol=0)
    for layer in layers_of(model):
        layer.get_parameter("narrow.up.weight").zero_()
        layer.get_parameter("narrow.up.bias").zero_()
    assert (model(ids).logits - answered).abs().max() > 1e-3


@torch.no_grad()
def test_packed_it_is_the_same(trained: Path) -> None:
    model = load_checkpoint(trained)
    ids, segments = token_ids()
    mask = masks()["holes"]
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in model.forward.__code__.co_varnames and model.config.type_vocab_size > 1:
        inputs["token_type_ids"] = segments
    expected = model(**inputs).logits
    packed = PaddedTokensModel(load_checkpoint(trained), head_of(ModelSpec.of(model.config).task)).eval()
    torch.testing.assert_close(packed(**inputs)[0], expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("encoder", ["bert"], indirect=True)
def test_it_is_in_the_exported_graph(trained: Path, graphs: GraphTable) -> None:
    model = load_checkpoint(trained)
    ids, segments = token_ids()
    inputs = {"input_ids": ids, "attention_mask": masks()["right_padded"], "token_type_ids": segments}
    expected = model(**inputs).logits.numpy()
    session = onnxruntime.InferenceSession(graphs.path(model, "packed", GraphTarget()))
    logits, *_ = session.run(None, {name: each.numpy() for name, each in inputs.items()})
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_freezing_the_encoder_leaves_it_in_training(trained: Path) -> None:
    model = load_checkpoint(trained)
    freeze(model, len(layers_of(model)))
    added = {id(weight) for module in extension_modules(model) for weight in module.parameters()}
    for layer in layers_of(model):
        assert {id(weight) for weight in layer.get_submodule("narrow").parameters()} <= added
        for weight in layer.parameters():
            assert weight.requires_grad == (id(weight) in added)


def test_it_is_trained_in_a_group_of_its_own(trained: Path) -> None:
    model = load_checkpoint(trained)
    plain = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    set_apart(plain, parameter_groups(model), {})
    assert sum(len(group["params"]) for group in plain.param_groups) == len(list(model.parameters()))
    own = group_of(plain, "narrow place")
    assert {id(weight) for weight in own["params"]} == {
        id(weight) for layer in layers_of(model) for weight in layer.get_submodule("narrow").parameters()
    }
    assert (own["weight_decay"], own["lr"]) == (0, 1e-3)
    assert len(group_of(plain, "pattern")["params"]) == 2 * len(layers_of(model))


def test_a_checkpoint_that_lacks_its_weights_is_refused(trained: Path) -> None:
    weights = load_file(trained / "model.safetensors")
    kept = {name: each for name, each in weights.items() if ".0.narrow.up" not in name}
    assert len(kept) == len(weights) - 2
    save_file(kept, trained / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 2 of the weights of the learned narrow place"):
        load_checkpoint(trained)


@pytest.mark.parametrize("encoder", ["bert"], indirect=True)
def test_settings_that_nothing_reads_are_refused(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a later version's extension, of whose weights nothing would be loaded."""
    monkeypatch.setattr(extensions, "EXTENSIONS", extensions.EXTENSIONS[:-1])
    known = "projected_attention, relational"
    with pytest.raises(
        CheckpointError, match=f"extensions has unknown entries narrow; known are {known}: use the package"
    ):
        load_checkpoint(encoder)


def test_where_a_layer_has_no_place_for_it_the_family_is_named(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "mobilebert", "mobilebert")
    with pytest.raises((OptionError, CheckpointError), match="mobilebert model have no norm"):
        new_model(folder, ModelSpec.of(load_config(folder)).attention, Classification(LABELS))
