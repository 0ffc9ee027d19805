"""Which weights train: of every family, all but those that were to stay."""

import re
from pathlib import Path

import pytest
import torch

import tiny_models
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import new_model, save_checkpoint
from sparse_export.training.freezing import freeze
from sparse_serve.errors import OptionError
from sparse_serve.tasks import Classification

TASK = Classification(("bad", "good"))
LOWEST = re.compile(r"\w+\.(embeddings(_project)?\.|(encoder|transformer)\.layer\.0\.)")
EMBEDDINGS = re.compile(r"\w+\.embeddings(_project)?\.")


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize(("layers", "frozen"), [(None, None), (0, EMBEDDINGS), (1, LOWEST)])
def test_all_other_weights_get_a_gradient(
    tmp_path: Path, family: str, layers: int | None, frozen: re.Pattern[str] | None
) -> None:
    """None of them stays without one, which is why DDP need not search for such."""
    attention = AttentionSpec(-4.0)
    tokenizer = tiny_models.make_tokenizer(tmp_path, family)
    save_checkpoint(tiny_models.make_model(attention, family), tokenizer, tmp_path)
    model = new_model(tmp_path, attention, TASK)
    if layers is not None:
        freeze(model, layers)
    inputs = tokenizer(["a short text", "another one"], padding=True, return_tensors="pt")
    model(**inputs, labels=torch.tensor([0, 1])).loss.backward()
    for name, weight in model.named_parameters():
        stays = frozen is not None and frozen.match(name) is not None
        assert (weight.grad is None) == stays, name


def test_more_layers_than_there_are_is_refused() -> None:
    model = tiny_models.make_model(AttentionSpec())
    with pytest.raises(OptionError, match="--freeze-layers is 3; the encoder has 2 layers"):
        freeze(model, 3)
