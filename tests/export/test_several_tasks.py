"""Several tasks on one encoder, in torch: each is answered as by a model that has nothing of the others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, new_model, save_checkpoint
from sparse_export.encoders.extension import extension_modules
from sparse_export.encoders.families import attention_norm, input_names, layers_of
from sparse_export.encoders.projected_attention import ProjectedAttentionSettings
from sparse_export.encoders.spec import ModelSpec
from sparse_export.graph.packed import PaddedTokensModel
from sparse_export.multitask.freezing import freeze_all_but, freeze_encoder
from sparse_export.tasks import model_head
from sparse_export.tasks.several_model import SeveralTasksModel
from sparse_serve.errors import CheckpointError, OptionError
from sparse_serve.tasks import Classification, Regression
from tiny_models import (
    ADAPTERS,
    FAMILIES,
    LAMBD,
    ROWS,
    TASKS,
    make_model,
    make_tokenizer,
    masks,
    token_ids,
)

NAMES = tuple(TASKS)
OF_ROWS = torch.tensor([0, 1, 2, 2, 1, 0, 1])
SHARED = {"projected_attention": {**ADAPTERS["projected_attention"], "share_projections": True}}
TRUNKS = {
    "softmax": AttentionSpec(),
    "ssaf": AttentionSpec(LAMBD),
    "aaa": AttentionSpec.parse("axis", None),
    "aaa_ssaf": AttentionSpec.parse("axis", LAMBD),
    "diagonals": AttentionSpec.parse("layer-diagonal", None),
    "pattern": AttentionSpec.parse("local2+global1", None),
}
# Every trunk with one family, and every family with one trunk.
MODELS = [
    *(("bert", trunk, ADAPTERS) for trunk in TRUNKS),
    *((family, "ssaf", ADAPTERS) for family in FAMILIES if family not in ("bert", "mobilebert")),
    *((family, "ssaf", SHARED) for family in ("bert", "distilbert")),
]


def make_several(
    family: str = "bert", trunk: str = "ssaf", extensions: Mapping[str, Any] = ADAPTERS
) -> SeveralTasksModel:
    model = make_model(TRUNKS[trunk], family, TASKS, extensions).eval()
    model.set_attn_implementation(TRUNKS[trunk].implementation)
    assert isinstance(model, SeveralTasksModel)
    return model


def single(model: SeveralTasksModel, task: str, family: str, trunk: str) -> PreTrainedModel:
    """A model of one task from the same weights, whose adapters are written down here once more."""
    alone = make_model(TRUNKS[trunk], family, TASKS[task]).eval()
    alone.set_attn_implementation(TRUNKS[trunk].implementation)
    weights = model.state_dict()
    head = {name.removeprefix(f"tasks.{task}."): each for name, each in weights.items()}
    alone.load_state_dict({name: head[name] for name in alone.state_dict()})
    alone.double()
    for index, layer in enumerate(layers_of(alone)):
        place = f"projected_attention.attention.{task}."
        own = {
            name.rpartition(place)[2]: each
            for name, each in weights.items()
            if place in name and f"layer.{index}." in name
        }
        projections = {
            name.rpartition(".")[0].rpartition(".")[2]: each
            for name, each in weights.items()
            if f"projections.{task}." in name and (f"layer.{index}." in name or "shared_" in name)
        }
        _add_by_hand(alone, index, layer, own, projections)
    return alone


def _add_by_hand(
    model: PreTrainedModel,
    index: int,
    layer: nn.Module,
    own: dict[str, Tensor],
    projections: dict[str, Tensor],
) -> None:
    seen: list[Tensor] = []
    heads = ADAPTERS["projected_attention"]["heads"]

    def add(norm: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = seen.pop()
        narrow = hidden @ projections["expand"].T
        query, key, value = (
            (narrow @ own[f"{name}.weight"].T + own[f"{name}.bias"]).unflatten(2, (heads, -1))
            for name in ("query", "key", "value")
        )
        scores = torch.einsum("bihd,bjhd->bhij", query, key) / query.shape[-1] ** 0.5
        hides = (model.told_mask == 0)[:, None, None, :]
        weights = scores.masked_fill(hides, -torch.inf).softmax(-1).nan_to_num()
        attended = torch.einsum("bhij,bjhd->bihd", weights, value).flatten(2)
        return (args[0] + attended @ projections["contract"].T, *args[1:])

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    layer.register_forward_pre_hook(keep, with_kwargs=True)
    attention_norm(model, index).register_forward_pre_hook(add)


def inputs_of(model: PreTrainedModel, mask: Tensor) -> dict[str, Tensor]:
    ids, segments = token_ids()
    every = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: every[name] for name in input_names(model.config)}


@torch.no_grad()
@pytest.mark.parametrize(("family", "trunk", "extensions"), MODELS)
def test_equals_a_loop_of_single_models(family: str, trunk: str, extensions: Mapping[str, Any]) -> None:
    """Alone, mixed in any order, padded and packed, by masks of every kind; in float64."""
    model = make_several(family, trunk, extensions).double()
    packed = PaddedTokensModel(make_several(family, trunk, extensions).double(), model_head(model)).eval()
    alone = {name: single(model, name, family, trunk).double() for name in NAMES}
    kinds = masks()
    # Every kind of mask on one model; on the others those that hide first tokens, and rows.
    chosen = kinds if (family, trunk) == ("bert", "ssaf") else ("left_padded_and_empty", "holes")
    for mask in (kinds[kind] for kind in chosen):
        inputs = inputs_of(model, mask)
        has_tokens = (mask != 0).any(1)
        expected = {}
        for name, each in alone.items():
            each.told_mask = mask
            expected[name] = each(**inputs).logits.float()
        for number, name in enumerate(NAMES):
            width = TASKS[name].width
            same = torch.full((ROWS,), number)
            of_one = model(**inputs, task_ids=same).logits
            torch.testing.assert_close(
                of_one[has_tokens].float(), expected[name][has_tokens], rtol=0, atol=1e-5
            )
            of_packed = packed(**inputs, task_ids=same[:, None])[0][:, :width]
            torch.testing.assert_close(of_packed[has_tokens], expected[name][has_tokens], rtol=0, atol=1e-5)
        for order in (OF_ROWS, OF_ROWS.flip(0)):
            mixed = model(**inputs, task_ids=order[:, None]).logits
            answers = packed(**inputs, task_ids=order[:, None])[0]
            for row in has_tokens.nonzero().squeeze(1).tolist():
                name = NAMES[order[row]]
                width = TASKS[name].width
                for answer in (mixed[row].float(), answers[row]):
                    torch.testing.assert_close(answer[:width], expected[name][row], rtol=0, atol=1e-5)
                    assert (answer[width:] == -torch.inf).all()


@torch.no_grad()
def test_adapters_have_a_part_in_the_answer() -> None:
    model, inputs = make_several(), {}
    inputs = inputs_of(model, masks()["full"])
    with_them = model(**inputs, task_ids=OF_ROWS).logits
    for name, weight in model.named_parameters():
        if name.endswith("contract.weight"):
            weight.zero_()
    without = model(**inputs, task_ids=OF_ROWS).logits
    assert ((with_them - without).abs().nan_to_num().amax(1) > 1e-3).all()


@torch.no_grad()
def test_rows_of_no_task_are_answered_by_nothing_and_touch_no_other() -> None:
    model = make_several()
    packed = PaddedTokensModel(make_several(), model_head(model)).eval()
    inputs = inputs_of(model, masks()["right_padded"])
    good, *_ = packed(**inputs, task_ids=OF_ROWS[:, None])
    wrong = OF_ROWS.clone()
    wrong[1], wrong[4] = -1, 9
    answered, *_ = packed(**inputs, task_ids=wrong[:, None])
    assert (answered[[1, 4]] == -torch.inf).all()
    kept = [0, 2, 3, 5, 6]
    torch.testing.assert_close(answered[kept], good[kept], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"task_ids has \[-1, 9\], the model's 3 tasks go by 0 to 2"):
        model(**inputs, task_ids=wrong)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("size", "heads"), [(34, 2), (51, 3), (6, 6)])
def test_adapters_are_as_large_as_the_formula_says(size: int, heads: int, share: bool) -> None:
    """Two projections of M · d_s, and queries, keys and values of d_s² + d_s for each layer."""
    settings = {"size": size, "heads": heads, "share_projections": share}
    model = make_several(extensions={"projected_attention": settings})
    width, layers = model.config.hidden_size, model.config.num_hidden_layers
    added = {name: each.numel() for name, each in model.named_parameters() if "project" in name}
    for task in NAMES:
        count = sum(number for name, number in added.items() if f".{task}." in name)
        pairs = 1 if share else layers
        assert count == pairs * 2 * width * size + layers * 3 * (size**2 + size)


def test_default_sizes_are_the_papers_in_proportion() -> None:
    config = make_several().config
    sizes = {}
    for width in (768, 384, 256, 64, 1024):
        config.hidden_size = width
        settings = ProjectedAttentionSettings.scaled(config)
        sizes[width] = (settings.size, settings.heads)
    assert sizes == {768: (204, 12), 384: (102, 6), 256: (68, 4), 64: (17, 1), 1024: (272, 16)}
    with pytest.raises(OptionError, match="--adapter-size is 10 and --adapter-heads 4; the size"):
        ProjectedAttentionSettings.scaled(config, 10, 4)


def test_a_family_without_the_place_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="mobilebert model have no norm behind the attention"):
        make_model(AttentionSpec(), "mobilebert", TASKS, ADAPTERS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "checkpoint"
    folder.mkdir()
    save_checkpoint(make_several(), make_tokenizer(folder), folder)
    return folder


@torch.no_grad()
def test_is_loaded_as_it_was_saved(checkpoint: Path) -> None:
    model, loaded = make_several(), load_checkpoint(checkpoint)
    assert loaded.config.architectures == ["BertForSeveralTasks"]
    assert dict(ModelSpec.of(loaded.config).tasks) == TASKS
    inputs = inputs_of(model, masks()["full"])
    expected = model(**inputs, task_ids=OF_ROWS).logits
    torch.testing.assert_close(loaded(**inputs, task_ids=OF_ROWS).logits, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_one_of_its_tasks_alone_has_nothing_of_the_others(checkpoint: Path) -> None:
    whole = load_checkpoint(checkpoint)
    alone = load_checkpoint(checkpoint, task={"similarity": TASKS["similarity"]})
    others = [name for name in alone.state_dict() if "sentiment" in name or "paraphrase" in name]
    assert not others
    inputs = inputs_of(whole, masks()["holes"])
    expected = whole(**inputs, task_ids=torch.full((ROWS,), 2)).logits
    torch.testing.assert_close(alone(**inputs).logits, expected, rtol=0, atol=0)


@torch.no_grad()
def test_a_task_more_leaves_the_others_to_the_bit(checkpoint: Path) -> None:
    before = load_checkpoint(checkpoint)
    more = {**TASKS, "topic": Classification(("film", "sport", "news"))}
    model = new_model(checkpoint, TRUNKS["ssaf"], more).eval()
    inputs = inputs_of(before, masks()["right_padded"])
    expected = before(**inputs, task_ids=OF_ROWS).logits
    torch.testing.assert_close(model(**inputs, task_ids=OF_ROWS).logits, expected, rtol=0, atol=0)
    added = {name: each for name, each in model.named_parameters() if "topic" in name}
    assert all(each.eq(0).all() for name, each in added.items() if name.endswith("contract.weight"))


def test_a_single_task_goes_on_from_the_encoder_alone(checkpoint: Path) -> None:
    model = new_model(checkpoint, TRUNKS["softmax"], TASKS["paraphrase"])
    assert type(model).__name__ == "BertForSequenceClassification"
    assert not ModelSpec.of(model.config).extensions
    assert not extension_modules(model)
    assert model(**inputs_of(model, masks()["full"])).logits.shape == (ROWS, 2)


def test_what_is_frozen_and_what_is_not() -> None:
    model = make_several()
    freeze_all_but(model, ["similarity"])
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert trained
    assert all(".similarity." in name for name in trained)
    assert {name for name, _ in model.named_parameters() if ".similarity." in name} == trained
    model = make_several(trunk="aaa")
    freeze_encoder(model)
    frozen = {name for name, each in model.named_parameters() if not each.requires_grad}
    assert frozen
    assert all(name.startswith("bert.") for name in frozen)
    assert not any("projected_attention" in name or ".axis." in name for name in frozen)
    assert not any(".pooler." in name for name in frozen)  # it is a part of the heads, and may be a new one


def damaged(checkpoint: Path, folder: Path, **changes: Tensor | None) -> Path:
    """A copy of a checkpoint with some weights changed, or left out, by parts of their names."""
    folder.mkdir()
    for path in checkpoint.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    for part, value in changes.items():
        name = next(name for name in weights if part in name)
        del weights[name]
        if value is not None:
            weights[name] = value
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_checkpoint_that_lacks_an_adapter_or_a_head(checkpoint: Path, tmp_path: Path) -> None:
    name = "layer.1.projected_attention.attention.similarity.key.weight"
    with pytest.raises(CheckpointError, match="lacks 1 of the weights of the learned projected"):
        load_checkpoint(damaged(checkpoint, tmp_path / "lacking", **{name: None}))
    with pytest.raises(CheckpointError, match=f"{name} of the learned projected attention has shape"):
        load_checkpoint(damaged(checkpoint, tmp_path / "other", **{name: torch.zeros(17, 17)}))
    with pytest.raises(
        CheckpointError, match=r"has no head for .* \(tasks.similarity.classifier.weight missing"
    ):
        load_checkpoint(
            damaged(checkpoint, tmp_path / "headless", **{"tasks.similarity.classifier.weight": None})
        )


@torch.no_grad()
def test_the_relational_layer_stands_before_the_heads_of_its_tasks_alone() -> None:
    relational = {"relational": {"tasks": ["paraphrase", "similarity"]}}
    plain, model = make_several(extensions={}), make_several(extensions=relational)
    model.load_state_dict(plain.state_dict(), strict=False)
    inputs = inputs_of(model, masks()["full"])
    expected = plain(**inputs, task_ids=OF_ROWS).logits
    assert torch.equal(model.relational.weight, torch.eye(model.config.hidden_size))
    torch.testing.assert_close(model(**inputs, task_ids=OF_ROWS).logits, expected, rtol=0, atol=1e-6)
    model.relational.weight.mul_(0.5)
    changed = (model(**inputs, task_ids=OF_ROWS).logits - expected).nan_to_num().abs().amax(1) > 1e-4
    assert changed.tolist() == (OF_ROWS > 0).tolist()
    mixed = model(**inputs, task_ids=OF_ROWS).logits
    packed = PaddedTokensModel(model, model_head(model)).eval()
    answers, *_ = packed(**inputs, task_ids=OF_ROWS[:, None])
    finite = mixed.isfinite()
    torch.testing.assert_close(answers[finite], mixed[finite], rtol=0, atol=1e-5)


def test_names_that_no_task_can_have() -> None:
    with pytest.raises(OptionError, match="cannot be called 'items'"):
        make_model(AttentionSpec(), "bert", {"items": Regression(), "a": Regression()})
