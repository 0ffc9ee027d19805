"""Sparse attention inside unchanged Transformers models."""

import pytest
import torch
from transformers import PreTrainedModel

from sparse_export.attention.implementations import sparsegen_attention
from sparse_export.attention.measures import zero_share
from sparse_export.attention.sparsegen import sparsegen_lin
from sparse_export.attention.spec import AttentionSpec
from tiny_models import HEADS, LAMBD, LAYERS, make_model


def test_attention_is_weights_times_value() -> None:
    query, key, value = torch.randn(
        3, 2, 4, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[0, ..., 6:] = False
    output, weights = sparsegen_attention(query, key, value, LAMBD, mask=mask)
    torch.testing.assert_close(weights, sparsegen_lin(query @ key.mT / 4, LAMBD, mask=mask))
    torch.testing.assert_close(output, weights @ value)
    scaled, _ = sparsegen_attention(query, key, value, LAMBD, scale=0.25, mask=mask)
    torch.testing.assert_close(scaled, output)


@torch.no_grad()
def test_model_attends_sparsely_and_only_to_tokens(model: PreTrainedModel) -> None:
    ids = torch.randint(5, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    attentions = model(ids, attention_mask=mask, output_attentions=True).attentions
    assert len(attentions) == LAYERS
    for weights in attentions:
        assert weights.shape == (2, HEADS, 12, 12)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 12))
        assert (weights[0] == 0).any()
        assert not weights[1, :, :, 7:].any()


@torch.no_grad()
def test_padding_does_not_change_an_answer(model: PreTrainedModel) -> None:
    ids = torch.randint(5, 40, (1, 9), generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(ids, (0, 20))
    mask = torch.nn.functional.pad(torch.ones_like(ids), (0, 20))
    expected = model(ids, attention_mask=torch.ones_like(ids)).logits
    torch.testing.assert_close(model(padded, attention_mask=mask).logits, expected, rtol=0, atol=1e-4)


def test_training_reaches_every_weight() -> None:
    model = make_model(AttentionSpec(LAMBD))
    model.set_attn_implementation("sparsegen")
    ids = torch.randint(5, 40, (4, 12), generator=torch.Generator().manual_seed(0))
    model(ids, attention_mask=torch.ones_like(ids), labels=torch.tensor([0, 1, 2, 0])).loss.backward()
    silent = [
        name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()
    ]
    # Adding one number to every score of a row changes nothing: the key bias has no gradient but rounding.
    assert [name for name in silent if not name.endswith("key.bias")] == []


def test_zero_share_counts_within_the_true_length() -> None:
    weights = torch.zeros(2, 1, 3, 3)
    weights[0, 0] = torch.eye(3)
    weights[1, 0, :2, 0] = 1.0
    weights[1, 0, 2] = 1.0  # a padding query, not counted
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    torch.testing.assert_close(zero_share(weights, mask), torch.tensor([1 - 3 / 9, 1 - 2 / 4]))


def test_zero_share_of_no_tokens_is_zero() -> None:
    assert zero_share(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, dtype=torch.int64)).item() == pytest.approx(
        0
    )
