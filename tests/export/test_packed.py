"""The packed forward pass equals Transformers' own on every mask."""

import copy
from contextlib import AbstractContextManager, nullcontext
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from cases import ATTENTION_CASES, AttentionCase
from sparse_export.attention.implementations import sparsegen_attention
from sparse_export.attention.masks import LayerMask
from sparse_export.attention.measures import zero_share
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.families import input_names
from sparse_export.encoders.packing import PaddedPacking
from sparse_export.encoders.patterned import recorded
from sparse_export.encoders.spec import ModelSpec
from sparse_export.graph.nodes import HeadSettings
from sparse_export.graph.packed import PaddedTokensModel
from sparse_export.graph.packed_attention import packed_attention
from sparse_export.tasks import model_head
from tiny_models import FAMILIES, LAMBD, LAYERS, make_model, masks, token_ids

Pair = tuple[PreTrainedModel, PaddedTokensModel]

KINDS = {
    "sparsegen": AttentionSpec(LAMBD),
    "softmax": AttentionSpec(),
    "axis": AttentionSpec.parse("axis", None),
    "axis_sparsegen": AttentionSpec.parse("axis+local1+global1+random1", LAMBD, seed=3),
}


def make_pair(attention: AttentionSpec, family: str) -> Pair:
    """A padded model and the packed one on the same weights, both in float64."""
    model = make_model(attention, family).eval().double()
    model.set_attn_implementation("eager" if attention.is_dense else attention.implementation)
    return model, PaddedTokensModel(copy.deepcopy(model), model_head(model)).eval()


@pytest.fixture(scope="module", params=product(FAMILIES, KINDS), ids=lambda param: f"{param[0]}-{param[1]}")
def pair(request: pytest.FixtureRequest) -> Pair:
    family, kind = request.param
    return make_pair(KINDS[kind], family)


def inputs_of(model: PreTrainedModel, ids: Tensor, mask: Tensor, segments: Tensor) -> dict[str, Tensor]:
    tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: tensors[name] for name in input_names(model.config)}


@torch.no_grad()
def assert_equal(pair: Pair, inputs: dict[str, Tensor]) -> None:
    model, packed = pair
    mask = inputs["attention_mask"]
    has_token = mask.any(1)
    logits, rho, *shares_on = packed(**inputs)
    with masks_of(model) as layers:
        expected = model(**inputs, output_attentions=True)
    torch.testing.assert_close(logits[has_token], expected.logits[has_token].float(), rtol=0, atol=1e-6)
    assert not logits[~has_token].any()
    assert not rho[~has_token].any()
    *before_last, last = expected.attentions
    shares = [zero_share(weights, mask) for weights in before_last]
    shares.append(torch.stack([share_of_first(each, own) for each, own in zip(last, mask, strict=True)]))
    torch.testing.assert_close(rho[has_token], torch.stack(shares, 1)[has_token], rtol=0, atol=1e-6)
    assert len(shares_on) == (2 if layers else 0)
    for share, axis in zip(shares_on, ("rows", "columns"), strict=False):
        expected_share = torch.stack([share_on(layer, getattr(layer, axis), mask) for layer in layers], 1)
        torch.testing.assert_close(share, expected_share)


def share_of_first(weights: Tensor, mask: Tensor) -> Tensor:
    """Of one row's weights `(H, L, L)`, the share of its tokens that column 0 gives 0, masked or not."""
    return (weights[:, 0, mask != 0] == 0).float().mean()


def masks_of(model: PreTrainedModel) -> AbstractContextManager[list[LayerMask]]:
    """The masks of the layers of the passes that are run meanwhile; none where there is no pattern."""
    has_pattern = ModelSpec.of(model.config).attention.pattern is not None
    return recorded(model) if has_pattern else nullcontext([])


def share_on(layer: LayerMask, learned: Tensor | None, mask: Tensor) -> Tensor:
    """Of each row's tokens, the share that is learned to be on or is among the first, counted one by one."""
    shares = []
    for row in range(len(mask)):
        tokens = mask[row].nonzero().flatten().tolist()
        on = [
            rank < layer.pattern.global_size or (learned is not None and bool(learned[row, token]))
            for rank, token in enumerate(tokens)
        ]
        shares.append(sum(on) / max(len(on), 1))
    return torch.tensor(shares)


@pytest.mark.parametrize("name", masks())
def test_equals_transformers(pair: Pair, name: str) -> None:
    ids, segments = token_ids()
    inputs = inputs_of(pair[0], ids, masks()[name], segments)
    assert_equal(pair, inputs)
    with torch.no_grad():
        assert pair[0](**inputs).logits.abs().max() > 1


@pytest.mark.parametrize("mask", ["left_padded_and_empty", "holes"])
@pytest.mark.parametrize("lambd", [None, LAMBD])
@pytest.mark.parametrize(
    "name",
    [
        "local0",
        "global2",
        "random2",
        "axis+global1",
        "local2+global1+random1",
        "diagonal",
        "layer-diagonal+global1",
    ],
)
def test_equals_transformers_with_any_pattern(name: str, lambd: float | None, mask: str) -> None:
    """A first token that the mask hides is no key of any pattern, and a query without a key gets zeros."""
    ids, segments = token_ids()
    pair = make_pair(AttentionSpec.parse(name, lambd, seed=5), "bert")
    assert_equal(pair, inputs_of(pair[0], ids, masks()[mask], segments))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 4), st.integers(1, 9), st.data())
def test_equals_transformers_on_any_ids_and_mask(
    pair: Pair, batch: int, length: int, data: st.DataObject
) -> None:
    """Padding ids stand anywhere, under the mask or not."""
    draw_row = st.lists(
        st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=length, max_size=length
    )
    rows = torch.tensor(data.draw(st.lists(draw_row, min_size=batch, max_size=batch)))
    assert_equal(pair, inputs_of(pair[0], *rows.unbind(-1)))


@torch.no_grad()
def test_batch_without_any_token(pair: Pair) -> None:
    zeros = torch.zeros(2, 5, dtype=torch.int64)
    logits, *measures = pair[1](**inputs_of(pair[0], zeros, zeros, zeros))
    assert logits.shape == (2, 3)
    assert not logits.any()
    assert all(not measure.any() and measure.shape == (2, LAYERS) for measure in measures)


@torch.no_grad()
def test_hidden_ids_need_not_exist(pair: Pair) -> None:
    ids, segments = token_ids()
    mask = masks()["right_padded"]
    padded = torch.where(mask == 0, pair[0].config.pad_token_id, ids)
    expected, *_ = pair[1](**inputs_of(pair[0], padded, mask, segments))
    for number in (-100, -1, 10**6):
        logits, *_ = pair[1](**inputs_of(pair[0], torch.where(mask == 0, number, ids), mask, segments))
        torch.testing.assert_close(logits, expected)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5))
def test_packing_finds_every_token_once(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows, dtype=torch.int64)
    packing = PaddedPacking.of(mask)
    lengths = mask.sum(1)
    real = packing.tokens[: int(lengths.sum())]
    assert real.tolist() == mask.reshape(-1).nonzero().squeeze(1).tolist()
    assert (packing.borders[1:] - packing.borders[:-1]).tolist() == lengths.tolist()
    assert packing.cu_seqlens.dtype == torch.int32
    assert int(packing.cu_seqlens[-1]) == len(packing.tokens) > 0
    for row, first in enumerate(packing.first.tolist()):
        if lengths[row]:
            assert int(packing.tokens[first]) == row * mask.shape[1]  # the head reads column 0, masked or not


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_packed_attention_is_attention_of_each_sequence(case: AttentionCase) -> None:
    query, key, value = (torch.from_numpy(x) for x in case.inputs())
    heads = HeadSettings(case.num_heads, case.scale or case.head_size**-0.5, case.lambd)
    output, support = packed_attention(query, key, value, torch.from_numpy(case.cu_seqlens), heads)
    start = 0
    for length in case.lengths:
        rows = slice(start, start + length)
        start += length
        split = (length, case.num_heads, case.head_size)
        q, k, v = (x[rows].view(split).transpose(0, 1) for x in (query, key, value))
        expected, weights = sparsegen_attention(q, k, v, case.lambd, heads.scale)
        torch.testing.assert_close(output[rows].view(split).transpose(0, 1), expected)
        assert support[rows].T.tolist() == (weights > 0).sum(-1).tolist()
