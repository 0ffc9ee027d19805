"""What a task of several attends to: the encoder's attention under it, and its own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from inspecting import make_checkpoint

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.inspection.inspecting import InspectOptions, Inspector
from sparse_export.tasks.several_model import SeveralTasksModel
from sparse_serve.errors import OptionError
from tiny_models import HEADS, LAYERS, TASKS

TEXT = "a film of 2 hours"


@pytest.fixture(scope="module")
def checkpoint(several_tasks: Path) -> Path:
    return several_tasks


def test_a_tasks_own_attention_stands_beside_the_encoders(checkpoint: Path) -> None:
    inspector = Inspector(InspectOptions(str(checkpoint), lambdas=(), task="paraphrase"))
    assert [variant.name for variant in inspector.variants] == ["SSAF, λ = −1", "paraphrase's own"]
    trunk, own = inspector.inspect(TEXT).maps
    assert trunk.weights.shape == own.weights.shape
    assert trunk.rho[0] > 0
    assert own.rho == (0.0,) * LAYERS
    np.testing.assert_allclose(own.weights.sum(-1), 1, atol=1e-5)
    assert trunk.prediction == own.prediction
    # Two heads of its own, each of which stands for two of the encoder's four.
    assert HEADS == 4
    np.testing.assert_array_equal(own.weights[:, 0], own.weights[:, 1])
    assert abs(own.weights[:, 0] - own.weights[:, 2]).max() > 1e-3


def test_its_weights_are_those_of_the_queries_and_keys(checkpoint: Path) -> None:
    """Worked out once more, of the first layer's adapter on the embeddings."""
    inspector = Inspector(InspectOptions(str(checkpoint), lambdas=(), task="sentiment"))
    own = inspector.inspect(TEXT).maps[1]
    model = load_checkpoint(checkpoint)
    assert isinstance(model, SeveralTasksModel)
    batch = load_tokenizer(checkpoint)(TEXT, return_tensors="pt")
    with torch.no_grad():
        hidden = model.of("sentiment")(**batch, output_hidden_states=True).hidden_states[0]
    place = "bert.encoder.layer.0.projected_attention."
    weights = {name: each for name, each in model.state_dict().items() if name.startswith(place)}
    narrow = hidden[0] @ weights[f"{place}projections.sentiment.expand.weight"].T
    query, key = (
        narrow @ weights[f"{place}attention.sentiment.{name}.weight"].T
        + weights[f"{place}attention.sentiment.{name}.bias"]
        for name in ("query", "key")
    )
    scores = query[:, :17] @ key[:, :17].T / 17**0.5
    np.testing.assert_allclose(own.weights[0, 0], scores.softmax(-1).numpy(), atol=1e-5)


def test_the_answer_is_that_of_the_task(checkpoint: Path) -> None:
    for name, task in TASKS.items():
        inspected = Inspector(InspectOptions(str(checkpoint), lambdas=(), task=name)).inspect(TEXT)
        assert tuple(inspected.maps[0].prediction.scores) == task.labels


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (None, "has several tasks: say with --task which one, sentiment, paraphrase, similarity"),
        ("mood", "--task 'mood' is no task of .*; there is sentiment, paraphrase, similarity"),
    ],
)
def test_a_task_must_be_one_of_them(checkpoint: Path, task: str | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Inspector(InspectOptions(str(checkpoint), task=task))


def test_a_checkpoint_of_several_tasks_stands_beside_one_of_one(checkpoint: Path, tmp_path: Path) -> None:
    """Whose task has no name."""
    plain = make_checkpoint(tmp_path / "plain", AttentionSpec())
    beside = InspectOptions(str(checkpoint), lambdas=(), beside=(plain,), task="paraphrase")
    names = [variant.name for variant in Inspector(beside).variants]
    assert len(names) == 3
    assert names[-1].endswith("paraphrase's own")
    alone = InspectOptions(plain, task="paraphrase")
    with pytest.raises(OptionError, match=r"'paraphrase' is no task of .*; there is one, which has no name"):
        Inspector(alone)
