"""The packed forward pass equals Transformers' own on every mask."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from cases import ATTENTION_CASES, AttentionCase
from sparse_export.attention import sparsegen_attention, zero_share
from sparse_export.checkpoint import AttentionSpec
from sparse_export.packed import PackedClassifier, Packing, packed_attention
from sparse_export.symbolic import HeadSettings
from tiny_bert import LAMBD, make_model, masks, token_ids


@pytest.fixture(scope="module", params=["sparsegen", "softmax"])
def pair(request: pytest.FixtureRequest) -> tuple[PreTrainedModel, PackedClassifier]:
    """A padded model and the packed one on the same weights."""
    spec = AttentionSpec("sparsegen", LAMBD) if request.param == "sparsegen" else AttentionSpec()
    model = make_model(spec).eval()
    model.set_attn_implementation("sparsegen" if request.param == "sparsegen" else "eager")
    return model, PackedClassifier(copy.deepcopy(model)).eval()


@torch.no_grad()
@pytest.mark.parametrize("name", masks())
def test_equals_transformers(pair: tuple[PreTrainedModel, PackedClassifier], name: str) -> None:
    model, packed = pair
    mask = masks()[name]
    ids, segments = token_ids()
    logits, rho = packed(ids, mask, segments)
    expected = model(ids, attention_mask=mask, token_type_ids=segments, output_attentions=True)
    has_token = mask.any(1)
    torch.testing.assert_close(logits[has_token], expected.logits[has_token], rtol=0, atol=1e-4)
    assert expected.logits.abs().max() > 1
    assert not logits[~has_token].any()
    assert not rho[~has_token].any()
    for layer, weights in enumerate(expected.attentions):
        torch.testing.assert_close(
            rho[has_token, layer], zero_share(weights, mask)[has_token], rtol=0, atol=1e-6
        )


@torch.no_grad()
def test_batch_without_any_token(pair: tuple[PreTrainedModel, PackedClassifier]) -> None:
    logits, rho = pair[1](*[torch.zeros(2, 5, dtype=torch.int64)] * 3)
    assert logits.shape == (2, 3)
    assert not logits.any()
    assert not rho.any()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5))
def test_packing_finds_every_token_once(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows, dtype=torch.int64)
    packing = Packing.of(mask)
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
