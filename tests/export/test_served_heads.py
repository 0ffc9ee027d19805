"""Questions, entities and embeddings by plain Transformers checkpoints: served, they are Transformers' own.

What is expected is computed here, window by window and word by word, by Transformers' models and tokenizers.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from plain_answers import Plain, ask, entities
from sparse_export.attention.spec import AttentionSpec
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.tasks.asked import TaskOptions
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.entries import read_entry
from sparse_serve.tasks import Embedding, QuestionAnswering, Task, TokenClassification
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from stock_client import MODULES, column, infer, texts_of
from tiny_models import LAMBD, POSITIONS, make_model, make_tokenizer

pytestmark = pytest.mark.slow

Array = npt.NDArray[Any]

STRIDE, LONGEST_ANSWER = 16, 12
TAGS = ("O", "B-place", "I-place", "B-film", "I-film")


@dataclass(frozen=True)
class Entry:
    """A plain checkpoint, and how it is exported."""

    family: str
    task: Task
    options: TaskOptions = field(default_factory=TaskOptions)
    lambd: float | None = None


ENTRIES = {
    "spans": Entry("bert", QuestionAnswering(), TaskOptions(stride=STRIDE, max_answer_tokens=LONGEST_ANSWER)),
    "sparse_spans": Entry(
        "distilbert", QuestionAnswering(), TaskOptions(stride=STRIDE, no_answer=True), lambd=LAMBD
    ),
    "tags": Entry("bert", TokenClassification(TAGS)),
    "sparse_tags": Entry("electra", TokenClassification(TAGS), lambd=LAMBD),
    "vectors": Entry("mobilebert", Embedding(size=64), TaskOptions(task="embedding", normalize=True)),
    "first_tokens": Entry(
        "roberta",
        Embedding(size=64),
        TaskOptions(task="embedding", pooling="first", layers="second-to-last"),
        lambd=LAMBD,
    ),
}
CLASSES = {
    QuestionAnswering: AutoModelForQuestionAnswering,
    TokenClassification: AutoModelForTokenClassification,
    Embedding: AutoModel,
}

_TEXT = "a film of great charm, set in 1 town by the sea: it's not 2 hours long! and n\u0303o more"
_WORDS = _TEXT.split()
# Ten windows and more, with marks that combine, emoji and Windows' line ends.
LONG = "\r\n".join(f"🎬 {' '.join(_WORDS[start:] + _WORDS[:start])}." for start in range(19))
QUESTIONS = [
    ("where is it set?", LONG),
    ("how long", "a film\r\n🍿 of 2 hours, né?"),
    ("", "x y z"),
    ("who?", ""),
    ("what is said of the film, and by whom, and when?", " ".join(_WORDS[:9])),
    ("why not", " \t\n"),
]
TEXTS = [
    " ".join(_WORDS),
    "",
    "🎬 n\u0303o more\r\nof it!",
    "a",
    " \t\n",
    "great charm, " * 30,
    *(" ".join(_WORDS[start:]) for start in range(1, 9)),
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders as Transformers itself writes them, without a word of ours in their configs."""
    path = tmp_path_factory.mktemp("plain")
    for name, entry in ENTRIES.items():
        folder = path / name
        folder.mkdir()
        model = make_model(AttentionSpec(), entry.family, entry.task)
        del model.config.sparse_serve
        model.save_pretrained(folder)
        make_tokenizer(folder, entry.family).save_pretrained(folder)
        assert "sparse" not in (folder / "config.json").read_text()
    return path


@pytest.fixture(scope="module")
def exported(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    repository = tmp_path_factory.mktemp("repository")
    return {
        name: export_checkpoint(
            ExportOptions(
                checkpoint=str(checkpoints / name),
                repository=repository,
                name=name,
                attention=None if entry.lambd is None else AttentionSpec(entry.lambd),
                task=entry.options,
                tokenizer="server",
            )
        )
        for name, entry in ENTRIES.items()
    }


@pytest.fixture(scope="module")
def server(exported: dict[str, Exported]) -> Iterator[TritonServer]:
    repository = exported["spans"].path.parent
    with TritonServer(ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def plain(checkpoints: Path) -> dict[str, Plain]:
    loaded = {}
    for name, entry in ENTRIES.items():
        folder = checkpoints / name
        attention = "eager" if entry.lambd is None else "sparsegen"
        model = CLASSES[type(entry.task)].from_pretrained(folder, attn_implementation=attention).eval()
        if entry.lambd is not None:
            model.config.sparse_attention = {"kind": "sparsegen", "lambd": entry.lambd}
        loaded[name] = Plain(model, AutoTokenizer.from_pretrained(folder))
    return loaded


def test_the_entries_say_what_they_answer(exported: dict[str, Exported]) -> None:
    tasks = {name: read_entry(each.path).manifest.task for name, each in exported.items()}
    assert tasks == {
        "spans": QuestionAnswering(stride=STRIDE, max_answer_tokens=LONGEST_ANSWER),
        "sparse_spans": QuestionAnswering(stride=STRIDE, no_answer=True),
        "tags": TokenClassification(TAGS),
        "sparse_tags": TokenClassification(TAGS),
        "vectors": Embedding(size=64, normalize=True),
        "first_tokens": Embedding(size=64, layers="second-to-last", pooling="first"),
    }
    for name, each in exported.items():
        assert {finding.level for finding in check_entry(each.path)} == {Level.ok}
        agreement = None if isinstance(tasks[name], Embedding) else 1.0
        assert each.parity.library.label_agreement == each.parity.portable.label_agreement == agreement


@pytest.mark.parametrize("protocol", MODULES)
@pytest.mark.parametrize("name", ["spans", "sparse_spans"])
def test_spans(
    server: TritonServer, exported: dict[str, Exported], plain: dict[str, Plain], name: str, protocol: str
) -> None:
    task = exported[name].tasks["default"]
    assert isinstance(task, QuestionAnswering)
    questions, contexts = zip(*QUESTIONS, strict=True)
    inputs = {"TEXT": column(*questions), "TEXT_PAIR": column(*contexts)}
    answers, starts, ends, scores, truncated = infer(
        server, protocol, name, inputs, "answer", "start", "end", "score", "truncated"
    )
    most_windows = 0
    for row, (question, context) in enumerate(QUESTIONS):
        expected, windows = ask(plain[name], question, context, task, POSITIONS)
        most_windows = max(most_windows, windows)
        assert expected.margin > 1e-4  # else rounding may choose
        found = (answers[row, 0].decode(), int(starts[row, 0]), int(ends[row, 0]))
        assert found == (expected.text, expected.start, expected.end)
        assert scores[row, 0] == pytest.approx(expected.score, abs=1e-5)
        assert not truncated[row, 0]
    assert most_windows >= 10
    assert {answer.decode() for answer in answers[:, 0]} != {""}


@pytest.mark.parametrize("protocol", MODULES)
@pytest.mark.parametrize("name", ["tags", "sparse_tags"])
def test_entities(server: TritonServer, plain: dict[str, Plain], name: str, protocol: str) -> None:
    (rows,) = infer(server, protocol, name, texts_of(*TEXTS), "entities")
    labels = set()
    for text, row in zip(TEXTS, rows[:, 0], strict=True):
        served: list[Mapping[str, Any]] = json.loads(row)
        expected = entities(plain[name], text, POSITIONS)
        assert [(each["label"], each["start"], each["end"]) for each in served] == [
            each[:3] for each in expected
        ]
        np.testing.assert_allclose(
            [each["score"] for each in served], [each[3] for each in expected], rtol=0, atol=1e-5
        )
        assert all(each["text"] == text[each["start"] : each["end"]] for each in served)
        labels |= {each["label"] for each in served}
    assert labels


@torch.no_grad()
def vectors(plain: Plain, name: str) -> Array:
    """Embed each text by itself."""
    rows = []
    for text in TEXTS:
        encoded = plain.tokenizer(text, truncation=True, max_length=POSITIONS, return_tensors="pt")
        encoded = {key: encoded[key] for key in plain.tokenizer.model_input_names}
        states = plain.model(**encoded, output_hidden_states=True).hidden_states
        if name == "vectors":
            mean = states[-1][0].mean(0)
            rows.append(mean / mean.norm())
        else:
            rows.append(states[-2][0, 0])
    values: Array = torch.stack(rows).numpy()
    return values


@pytest.mark.parametrize("protocol", MODULES)
@pytest.mark.parametrize("name", ["vectors", "first_tokens"])
def test_embeddings(server: TritonServer, plain: dict[str, Plain], name: str, protocol: str) -> None:
    expected = vectors(plain[name], name)
    assert np.abs(expected - expected[0]).max() > 0.1
    (together,) = infer(server, protocol, name, texts_of(*TEXTS), "embedding")
    np.testing.assert_allclose(together, expected, rtol=0, atol=2e-5)
    for row in (0, 1, 5):
        (alone,) = infer(server, protocol, name, texts_of(TEXTS[row]), "embedding")
        np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=1e-5)
