"""Attention by patterns in unchanged Transformers models: which pairs, which weights, and their learning."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import entmax
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sparse_export.attention.implementations import axis_attention
from sparse_export.attention.masks import LayerMask, Sampling
from sparse_export.attention.patterns import LayerPattern, random_keys
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, new_model, save_checkpoint
from sparse_export.encoders.axis import AxisLayer
from sparse_export.encoders.families import layers_of
from sparse_export.encoders.patterned import forced, layer_patterns, pattern_modules, recorded, set_sampling
from sparse_export.encoders.spec import ModelSpec
from sparse_serve.errors import CheckpointError
from sparse_serve.tasks import Classification
from tiny_models import (
    FAMILIES,
    HEADS,
    LABELS,
    LAYERS,
    POSITIONS,
    ROWS,
    make_model,
    make_tokenizer,
    masks,
    token_ids,
)

pytestmark = pytest.mark.usefixtures("single_threaded")

TASK = Classification(LABELS)
AXIS = AttentionSpec.parse("axis", None)
DENSE = AttentionSpec()


def with_attention(spec: AttentionSpec, family: str = "bert") -> PreTrainedModel:
    model = make_model(spec, family).eval()
    model.set_attn_implementation("eager" if spec.is_dense else spec.implementation)
    return model


def some_pairs(*shape: int) -> Tensor:
    """Random pairs; the second query of every matrix has no key, the third has one."""
    pairs = torch.rand(*shape, generator=torch.Generator().manual_seed(1)) < 0.3
    pairs[..., 1:3, :] = False
    pairs[..., 2, 4] = True
    return pairs


def test_what_is_on_is_decided_in_float32_whatever_else_is_computed_in() -> None:
    torch.manual_seed(0)
    layer, hidden = AxisLayer(64), torch.randn(2, 5, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits = layer(hidden)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, layer(hidden))


@pytest.mark.parametrize("lambd", [None, -4.0, 0.0])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_it_is_dense_attention_with_the_other_pairs_masked(lambd: float | None, scale: float | None) -> None:
    query, key, value = torch.randn(
        3, 2, HEADS, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    pairs = some_pairs(2, 1, 9, 9)
    output, weights = axis_attention(query, key, value, pairs, lambd, scale)
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * (0.25 if scale is None else scale)
    expected = torch.zeros_like(scores)
    for batch, head, i in torch.cartesian_prod(torch.arange(2), torch.arange(HEADS), torch.arange(9)):
        keys = pairs[batch, 0, i].nonzero().flatten()
        row = scores[batch, head, i, keys]
        if len(keys):
            over = row.softmax(0) if lambd is None else entmax.sparsemax(row / (1 - lambd), dim=0)
            expected[batch, head, i, keys] = over
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, expected @ value)
    assert not weights[:, :, 1].any()
    assert not output[:, :, 1].any()
    assert (weights == 0)[~pairs.expand_as(weights)].all()


def expected_pairs(
    pattern: LayerPattern, mask: Tensor, rows: Tensor, columns: Tensor, diagonals: Sequence[int] = ()
) -> Tensor:
    """The pairs of one row of a batch, `(L, L)`, asked one by one of its mask, `(L,)`, and indicators."""
    places = mask.nonzero().flatten().tolist()
    pairs = torch.zeros(len(mask), len(mask), dtype=torch.bool)
    for query in range(len(mask)):
        i = int(mask[: query + 1].sum()) - 1
        drawn = random_keys(
            pattern.seed, torch.tensor(i), pattern.random_keys, torch.tensor(len(places))
        ).tolist()
        for j, key in enumerate(places):
            axes = rows[query] or columns[key] or max(i, 0) < pattern.global_size or j < pattern.global_size
            near = abs(i - j) in {*pattern.diagonals, *diagonals}
            pairs[query, key] = bool(axes) or near or j in drawn
    return pairs


@torch.no_grad()
@pytest.mark.parametrize("mask", masks().values(), ids=masks())
@pytest.mark.parametrize("name", ["axis", "local1+global2+random1"])
def test_patterns_count_the_tokens_that_are_there(name: str, mask: Tensor) -> None:
    """Padding on either side and holes are no tokens: neighbours are those with nothing real in between."""
    model = with_attention(AttentionSpec.parse(name, None))
    for weight_name, weight in model.named_parameters():
        if ".query." in weight_name:
            weight.mul_(0.1)  # so that no weight underflows
    ids, _ = token_ids()
    with recorded(model) as layers:
        attentions = model(ids, attention_mask=mask, output_attentions=True).attentions
    nothing = torch.zeros_like(mask, dtype=torch.bool)
    for layer, attention, pattern in zip(layers, attentions, layer_patterns(model), strict=True):
        rows = nothing if layer.rows is None else layer.rows
        columns = nothing if layer.columns is None else layer.columns
        for row in range(ROWS):
            expected = expected_pairs(pattern, mask[row], rows[row], columns[row])
            # What padding reads is nobody's business, but a hidden first token is read by the head.
            read = mask[row].bool()
            read[0] = True
            assert torch.equal((attention[row] != 0).any(0)[read], expected[read])
            sums = attention[row].sum(-1)[:, read]
            torch.testing.assert_close(sums, expected[read].any(-1).float().expand_as(sums))


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_softmax_over_the_allowed_keys(family: str) -> None:
    """All see the same scores in the first layer: softmax's weights, shared out among fewer keys."""
    model, dense = with_attention(AXIS, family), with_attention(DENSE, family)
    ids, _ = token_ids()
    mask = masks()["right_padded"]
    with recorded(model) as layers:
        weights = model(ids, attention_mask=mask, output_attentions=True).attentions[0]
    assert len(layers) == LAYERS
    for layer in layers:
        for indicators in (layer.rows, layer.columns):
            assert indicators is not None
            assert 0 < indicators.sum() < indicators.numel()
    everything = dense(ids, attention_mask=mask, output_attentions=True).attentions[0]
    allowed = layers[0].pairs(mask.cumsum(1) - 1, mask.sum(1))[:, None] & (mask != 0)[:, None, None]
    shared = everything * allowed
    expected = shared / shared.sum(-1, keepdim=True).clamp_min(1e-30)
    read = mask.bool()[:, None, :, None].expand_as(weights)
    torch.testing.assert_close(weights[read], expected[read], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_indicators_are_the_layers_own(model_with_axis: PreTrainedModel) -> None:
    """Each layer's rows and columns are a linear layer of its input, cut at 0."""
    ids, _ = token_ids()
    with recorded(model_with_axis) as layers:
        hidden = model_with_axis(ids, output_hidden_states=True).hidden_states
    for layer, mask, states in zip(layers_of(model_with_axis), layers, hidden, strict=False):
        weight, bias = (layer.get_parameter(f"axis.{name}") for name in ("weight", "bias"))
        logits = states @ weight.T + bias
        assert mask.rows is not None
        assert mask.columns is not None
        assert torch.equal(mask.rows, logits[..., 0] > 0)
        assert torch.equal(mask.columns, logits[..., 1] > 0)
        assert mask.rho is None


@pytest.fixture
def model_with_axis() -> PreTrainedModel:
    return with_attention(AXIS)


@torch.no_grad()
def test_padding_does_not_change_an_answer(model_with_axis: PreTrainedModel) -> None:
    ids, mask = token_ids()[0], masks()["right_padded"]
    together = model_with_axis(ids, attention_mask=mask).logits
    for row in range(ROWS):
        alone = model_with_axis(ids[row : row + 1, : mask[row].sum()]).logits[0]
        torch.testing.assert_close(together[row], alone, rtol=0, atol=1e-4)


@torch.no_grad()
def test_forced_rows_and_columns_replace_the_learned_ones(model_with_axis: PreTrainedModel) -> None:
    ids, _ = token_ids()
    on, off = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    dense = with_attention(DENSE)(ids).logits
    for indicators in ((on, off), (off, on)):
        with forced(model_with_axis, [indicators] * LAYERS):
            everything = model_with_axis(ids).logits
        torch.testing.assert_close(everything, dense, rtol=0, atol=1e-4)
    with forced(model_with_axis, [(off, off)] * LAYERS):
        band = model_with_axis(ids, output_attentions=True).attentions
    assert all((weights != 0).sum() == ROWS * HEADS * (14 + 2 * 13 + 2 * 12) for weights in band)
    assert (model_with_axis(ids).logits - dense).abs().max() > 1e-3


def test_the_dense_stage_is_full_attention() -> None:
    ids, mask = token_ids()[0], masks()["right_padded"]
    dense = with_attention(DENSE)(ids, attention_mask=mask).logits
    for lambd in (None, -1.0):
        model = with_attention(AttentionSpec.parse("axis", lambd))
        if lambd is not None:
            sparsegen = with_attention(AttentionSpec(lambd))
            dense = sparsegen(ids, attention_mask=mask).logits
        set_sampling(model, Sampling(dense=True))
        for training in (True, False):
            model.train(training)
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            torch.testing.assert_close(model(ids, attention_mask=mask).logits, dense, rtol=0, atol=1e-5)


def test_indicators_are_on_as_often_as_their_logit_says() -> None:
    logits = torch.tensor([-4.0, -1.0, 0.0, 0.5, 3.0])
    torch.manual_seed(0)
    draws = 20_000
    for noise in (1.0, 0.5):
        ones = Sampling(noise=noise).draw(logits.expand(draws, -1))
        assert ((ones - ones.round()).abs() < 1e-6).all()
        chance = torch.sigmoid(logits / noise)
        error = (chance * (1 - chance) / draws).sqrt()
        assert ((ones.mean(0) - chance).abs() < 5 * error).all()


def test_without_noise_training_sees_what_is_served() -> None:
    logits = torch.tensor([-2.0, -1e-3, 0.0, 1e-3, 2.0])
    indicators = Sampling(noise=0.0).draw(logits)
    assert torch.equal(indicators.round(), (logits > 0).float())


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_backwards_an_indicator_is_a_sigmoid(temperature: float) -> None:
    logits = torch.tensor([-2.0, -0.1, 0.0, 0.1, 2.0], requires_grad=True)
    Sampling(temperature, noise=0.0).draw(logits).sum().backward()
    relaxed = logits.detach().clone().requires_grad_()
    torch.sigmoid(relaxed / temperature).sum().backward()
    torch.testing.assert_close(logits.grad, relaxed.grad)


def attend(scores: Tensor, mask: LayerMask, lambd: float | None = None) -> Tensor:
    """The registered attention in training, on given scores `(N, N)`; its weights `(N, N)`."""
    size = len(scores)
    module = SimpleNamespace(training=True, config=SimpleNamespace(sparse_attention={"lambd": lambd}))
    query, key = scores[None, None], torch.eye(size)[None, None]
    attention: Callable[..., tuple[Tensor, Tensor]] = ALL_ATTENTION_FUNCTIONS["axis"]
    _, weights = attention(module, query, key, key, None, scaling=1.0, axis=mask)
    return weights[0, 0]


def axis_gradients(scores: Tensor, pattern: LayerPattern, lambd: float | None = None) -> tuple[Tensor, ...]:
    """Weights, and the gradients of rows and columns that are off of a sum of them with random factors."""
    size = len(scores)
    rows, columns = (torch.zeros(1, size, requires_grad=True) for _ in range(2))
    weights = attend(scores, LayerMask(pattern, rows, columns), lambd)
    (weights * torch.randn(size, size, generator=torch.Generator().manual_seed(3))).sum().backward()
    assert rows.grad is not None
    assert columns.grad is not None
    return weights.detach(), rows.grad[0], columns.grad[0]


def test_pairs_that_are_not_allowed_count_backwards_as_they_would_forwards() -> None:
    """As if an indicator were any number: weight ∝ exp(score) · (1 − (1 − row) · (1 − column))."""
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
    weights, of_rows, of_columns = axis_gradients(scores, LayerPattern(diagonals=(0,)))
    assert torch.equal(weights, torch.eye(6))
    factors = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
    # Scores are kept from growing beyond e² times the largest allowed one's: theirs, the diagonal's.
    above = (scores - scores.diagonal()[:, None]).clamp_max(2).exp()
    for which, gradient in enumerate((of_rows, of_columns)):
        on = torch.zeros(2, 6, requires_grad=True)
        pairs = 1 - (1 - torch.eye(6)) * (1 - on[0])[:, None] * (1 - on[1])[None]
        (above * pairs / (above * pairs).sum(1, keepdim=True) * factors).sum().backward()
        assert on.grad is not None
        torch.testing.assert_close(gradient, on.grad[which])
        assert gradient.all()


@pytest.mark.parametrize("lambd", [None, -4.0])
@pytest.mark.parametrize("spread", [1.0, 100.0, 1e4])
def test_gradients_do_not_explode(lambd: float | None, spread: float) -> None:
    """However far the scores of what is not allowed are above the others, and without any allowed key."""
    scores = spread * torch.randn(32, 32, generator=torch.Generator().manual_seed(4))
    for pattern in (LayerPattern(diagonals=(0, 1)), LayerPattern(global_size=1), LayerPattern()):
        weights, *gradients = axis_gradients(scores, pattern, lambd)
        assert torch.isfinite(weights).all()
        for gradient in gradients:
            assert torch.isfinite(gradient).all()
            assert gradient.abs().max() < 1e4


@pytest.mark.parametrize("name", ["axis", "axis+random1", "diagonal+global1", "layer-diagonal", "local0"])
@pytest.mark.parametrize("lambd", [None, -1.0])
@pytest.mark.parametrize("mask", ["right_padded", "left_padded_and_empty"])
def test_training_reaches_every_weight(name: str, lambd: float | None, mask: str) -> None:
    model = make_model(AttentionSpec.parse(name, lambd)).train()
    model.set_attn_implementation("axis")
    ids, _ = token_ids()
    torch.manual_seed(0)
    with recorded(model) as layers:
        loss = model(ids, attention_mask=masks()[mask], labels=torch.arange(ROWS) % 3).loss
    learns = bool(pattern_modules(model))
    shares = [layer.rho for layer in layers if layer.rho is not None]
    assert len(shares) == (LAYERS if learns else 0)
    assert all(((rho >= 0) & (rho <= 1)).all() for rho in shares)
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert all(grad is not None and torch.isfinite(grad).all() for grad in gradients.values())
    for module in pattern_modules(model):
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in module.parameters())


@torch.no_grad()
def test_training_without_noise_attends_as_evaluation_does(model_with_axis: PreTrainedModel) -> None:
    ids, mask = token_ids()[0], masks()["right_padded"]
    expected = model_with_axis(ids, attention_mask=mask, output_attentions=True).attentions
    model_with_axis.train()
    set_sampling(model_with_axis, Sampling(noise=0.0))
    for module in model_with_axis.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    with recorded(model_with_axis) as layers:
        attentions = model_with_axis(ids, attention_mask=mask, output_attentions=True).attentions
    for weights, others, layer in zip(attentions, expected, layers, strict=True):
        assert torch.equal(weights != 0, others != 0)
        torch.testing.assert_close(weights, others, rtol=1e-4, atol=1e-6)
        inside = (mask[:, :, None] & mask[:, None, :]).bool()
        kept = ((weights != 0).all(1) & inside).sum((1, 2))
        torch.testing.assert_close(layer.rho, 1 - kept / mask.sum(1) ** 2)


@torch.no_grad()
@pytest.mark.parametrize("name", ["diagonal+global1", "layer-diagonal"])
def test_learned_diagonals_are_those_above_zero(name: str) -> None:
    model = with_attention(AttentionSpec.parse(name, None))
    modules = pattern_modules(model)
    assert len(modules) == (1 if name == "diagonal+global1" else LAYERS)
    for index, module in enumerate(modules):
        logits = module.get_parameter("logits")
        logits.fill_(-1)
        logits[[3, 5 + index, POSITIONS - 1]] = torch.tensor([1e-6, 2.0, 1.0])
        logits[7] = 0
    learned = [(3, 5, POSITIONS - 1), (3, 6, POSITIONS - 1)]
    ids, _ = token_ids()
    mask = masks()["right_padded"]
    attentions = model(ids, attention_mask=mask, output_attentions=True).attentions
    off = torch.zeros(ids.shape[1], dtype=torch.bool)
    for index, (weights, pattern) in enumerate(zip(attentions, layer_patterns(model), strict=True)):
        own = learned[index if len(modules) > 1 else 0]
        assert pattern.diagonals == (0, *own)
        for row in range(ROWS):
            read = mask[row].bool()
            expected = expected_pairs(pattern, mask[row], off, off)
            assert torch.equal((weights[row] != 0).any(0)[read], expected[read])


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["axis+random1", "layer-diagonal+global1"])
def test_every_family_saves_copies_and_loads(family: str, name: str, tmp_path: Path) -> None:
    spec = AttentionSpec.parse(name, -1.0, seed=3)
    model = with_attention(spec, family)
    ids, _ = token_ids()
    expected = model(ids).logits
    save_checkpoint(model, make_tokenizer(tmp_path, family), tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert ModelSpec.of(loaded.config).attention == spec
    assert type(loaded).__name__ == type(model).__name__
    assert layer_patterns(loaded) == layer_patterns(model)
    again = copy.deepcopy(loaded)
    for each in (loaded, again):
        torch.testing.assert_close(each(ids).logits, expected, rtol=0, atol=1e-5)
    # A copy is one of its own.
    for module in pattern_modules(again):
        for parameter in module.parameters():
            parameter.fill_(1.0)
    with recorded(again) as layers:
        torch.testing.assert_close(loaded(ids).logits, expected, rtol=0, atol=1e-5)
        assert not layers
        assert (again(ids).logits - expected).abs().max() > 1e-4
    assert len(layers) == LAYERS
    set_sampling(again, Sampling(dense=True))
    torch.testing.assert_close(loaded(ids).logits, expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("family", ["bert", "mobilebert"])
def test_what_was_learned_is_left_out_of_full_attention(family: str, tmp_path: Path) -> None:
    save_checkpoint(with_attention(AXIS, family), make_tokenizer(tmp_path, family), tmp_path)
    ids, _ = token_ids()
    dense = load_checkpoint(tmp_path, DENSE)
    torch.testing.assert_close(
        dense(ids).logits, with_attention(DENSE, family)(ids).logits, rtol=0, atol=1e-4
    )
    fixed = load_checkpoint(tmp_path, AttentionSpec.parse("local1", None))
    assert (fixed(ids).logits - dense(ids).logits).abs().max() > 1e-3


@pytest.fixture
def folder(tmp_path: Path, model_with_axis: PreTrainedModel) -> Path:
    save_checkpoint(model_with_axis, make_tokenizer(tmp_path), tmp_path)
    return tmp_path


def test_a_fresh_pattern_begins_near_the_middle(folder: Path) -> None:
    """Training adds what the encoder lacks, seeded; what a checkpoint has already is trained further."""
    dense = folder / "dense"
    dense.mkdir()
    save_checkpoint(with_attention(DENSE), make_tokenizer(dense), dense)
    first, same, other = (new_model(dense, AXIS, TASK, seed=seed) for seed in (1, 1, 2))
    for one, two, three in zip(*(pattern_modules(each) for each in (first, same, other)), strict=True):
        assert torch.equal(one.weight, two.weight)
        assert not torch.equal(one.weight, three.weight)
        assert 0.01 < one.weight.std() < 0.03
        assert not one.bias.any()
    further = new_model(folder, AXIS, TASK)
    for name, weight in load_file(folder / "model.safetensors").items():
        if ".axis." in name:
            assert torch.equal(further.get_parameter(name), weight)
    diagonal = new_model(dense, AttentionSpec.parse("diagonal", None), TASK)
    assert not pattern_modules(diagonal)[0].get_parameter("logits").any()


FIRST = "bert.encoder.layer.0.axis"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{FIRST}.weight": None}, rf"lacks 1 of the weights of the learned pattern.*{FIRST}\.weight"),
        (
            {f"{FIRST}.weight": None, f"{FIRST}.bias": None},
            rf"lacks 2 of the weights of the learned pattern.*{FIRST}\.bias.*sparse-serve finetune",
        ),
        (
            {f"{FIRST}.weight": torch.zeros(2, 32)},
            rf"{FIRST}\.weight of the learned pattern has shape \(2, 32\), the encoder needs \(2, 64\)",
        ),
        (
            {f"{FIRST}.weight": torch.zeros(3, 64), f"{FIRST}.bias": torch.zeros(3)},
            r"of the learned pattern has shape \(3.*\), the encoder needs \(2",
        ),
        ({f"{FIRST}.bias": torch.tensor([0.0, torch.nan])}, rf"{FIRST}\.bias \(2,\) holds NaN"),
    ],
    ids=["half missing", "missing", "another width", "three indicators", "NaN"],
)
def test_axis_layers_that_cannot_be_right(
    folder: Path, changes: dict[str, Tensor | None], message: str
) -> None:
    path = folder / "model.safetensors"
    weights = {name: tensor for name, tensor in (load_file(path) | changes).items() if tensor is not None}
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=message) as raised:
        load_checkpoint(folder)
    assert str(raised.value).startswith(str(folder))
    assert "\n" not in str(raised.value)


def test_a_pattern_that_the_checkpoint_never_learned(folder: Path) -> None:
    dense = folder / "dense"
    dense.mkdir()
    save_checkpoint(with_attention(DENSE), make_tokenizer(dense), dense)
    for name, first in (("axis", f"{FIRST}.bias"), ("diagonal", r"bert\.diagonals\.logits")):
        with pytest.raises(CheckpointError, match=f"learned pattern, first {first}"):
            load_checkpoint(dense, AttentionSpec.parse(name, None))
