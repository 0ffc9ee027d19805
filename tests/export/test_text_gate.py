"""The gate of graphs that take text: what it lets pass of numbers that are none, and of values in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer

from sparse_export.attention.spec import AttentionSpec
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.text import TextReading
from sparse_export.parity import texts as module
from sparse_export.parity.examples import Batch
from sparse_export.parity.executions import Answer
from sparse_export.parity.texts import TextGate
from sparse_export.tasks import model_head
from sparse_serve.errors import GateError
from sparse_serve.repository.signature import TEXT_INPUT
from sparse_serve.tasks import Regression, Task
from sparse_serve.tasks.encoding import Truncation
from tiny_models import make_model, make_tokenizer

Columns = dict[str, npt.NDArray[Any]]
MAX_LENGTH = 40


@dataclass
class Graphs:
    """Two graphs of a regression that answer the same numbers, the one of tokens and the one of texts."""

    task: Task
    tokenizer: Tokenizer
    truncation: Truncation
    change: Callable[[Columns], None]
    has_nan: bool
    answered: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def of_tokens(self, _: Path, __: Path, run: Sequence[Batch], ___: str) -> list[Answer]:
        width = self.task.width
        for batch in run:
            sums = batch["input_ids"].sum(1, keepdims=True)
            self.answered.append(np.sin(sums + np.arange(width), dtype=np.float32) * 1e3)
        if self.has_nan:
            self.answered[0][3] = np.nan
        return [Answer(each.copy(), {}, []) for each in self.answered]

    def of_texts(self, _: object, columns: Mapping[str, Sequence[str]], __: Sequence[int]) -> Columns:
        texts = columns[TEXT_INPUT]
        encoded = self.task.encode(self.tokenizer, texts, [None] * len(texts), MAX_LENGTH, self.truncation)
        numbers = np.concatenate(self.answered)
        is_refused = np.array([self.truncation == "error" and text.truncated for text in encoded])
        words = [[f"{value:.8g}" for value in row.tolist()] for row in numbers]
        labels = [row[0] if len(row) == 1 else f"[{', '.join(row)}]" for row in words]
        numbers[is_refused] = np.nan
        said = {
            "scores": numbers,
            "label": np.where(is_refused, "", labels).astype(object)[:, None],
            "logits": numbers,
            "token_count": np.array([[text.token_count] for text in encoded]),
            "truncated": np.array([[text.truncated] for text in encoded]),
        }
        said["label"] = np.vectorize(str.encode, otypes=[object])(said["label"])
        self.change(said)
        return said


def nothing(_: Columns) -> None:
    """Leave what is said as it is."""


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Judge a graph of texts beside one of tokens, neither of which is computed."""
    tokenizer = Tokenizer.from_str(make_tokenizer(tmp_path).backend_tokenizer.to_str())

    def judge(
        task: Task, truncation: Truncation, change: Callable[[Columns], None], *, has_nan: bool = False
    ) -> None:
        model = make_model(AttentionSpec(), "bert", task)
        graphs = Graphs(model_head(model).task, tokenizer, truncation, change, has_nan)
        monkeypatch.setattr(module, "run_graph", graphs.of_tokens)
        monkeypatch.setattr(module, "_answers", graphs.of_texts)
        monkeypatch.setattr(module, "open_session", lambda *_: None)
        monkeypatch.setattr(module, "hostile_texts", lambda *_: [])
        monkeypatch.setattr(TextGate, "_require_same_tokens", lambda *_: None)
        reading = TextReading(cast(Any, None), MAX_LENGTH, 0, truncation)
        gate = TextGate(Path(), tokenizer, reading, GraphTarget(), ["a film", "of great charm " * 9])
        gate.check(model, Path(), Path(), 1e-4)

    return judge


@pytest.mark.parametrize("truncation", ["right", "error"])
@pytest.mark.parametrize("labels", [("score",), ("joy", "length")])
def test_equal_graphs_pass(
    judge: Callable[..., None], labels: tuple[str, ...], truncation: Truncation
) -> None:
    judge(Regression(labels), truncation, nothing)


@pytest.mark.parametrize("labels", [("score",), ("joy", "length")])
@pytest.mark.parametrize("label", [b"7", b"[7, 7]", b"seven", b"", b"[]", b'["a", 7]'])
def test_a_value_in_words_is_the_value(
    judge: Callable[..., None], labels: tuple[str, ...], label: bytes
) -> None:
    def change(said: Columns) -> None:
        said["label"][3, 0] = label

    with pytest.raises(GateError, match="says otherwise what its numbers say than the server would"):
        judge(Regression(labels), "right", change)


@pytest.mark.parametrize("truncation", ["right", "error"])
def test_a_number_that_is_none_is_forgiven_a_refused_text_alone(
    judge: Callable[..., None], truncation: Truncation
) -> None:
    """Though both graphs answer it."""
    with pytest.raises(GateError, match="parity not met: from text to answer the graph differs by up to nan"):
        judge(Regression(), truncation, nothing, has_nan=True)
