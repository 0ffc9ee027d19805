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
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from sparse_export.attention.spec import AttentionSpec
from sparse_export.entry import Exported, ExportOptions, export_checkpoint
from sparse_export.tasks.asked import TaskOptions
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.entries import read_entry
from sparse_serve.tasks import Embedding, QuestionAnswering, Task, TokenClassification
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from stock_client import MODULES, infer
from tiny_models import LAMBD, POSITIONS, make_model, make_tokenizer

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
            )
        )
        for name, entry in ENTRIES.items()
    }


@pytest.fixture(scope="module")
def server(exported: dict[str, Exported]) -> Iterator[TritonServer]:
    repository = exported["spans"].path.parent
    with TritonServer(ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@dataclass(frozen=True)
class Plain:
    """A checkpoint as Transformers loads it, with SSAF's attention where it is exported with that."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


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


def column(values: list[str]) -> Array:
    return np.array([[value.encode()] for value in values], dtype=object)


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


@dataclass(frozen=True)
class Found:
    """An answer, and by how much it is better than the second best."""

    text: str
    start: int
    end: int
    score: float
    margin: float


@torch.no_grad()
def ask(plain: Plain, question: str, context: str, task: QuestionAnswering) -> tuple[Found, int]:
    """Read the windows of a context one by one, and all spans of each; the answer, and how many windows."""
    windows = plain.tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=POSITIONS,
        stride=task.stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    candidates: list[tuple[float, int, int, float]] = []
    nulls: list[tuple[float, float]] = []
    for number in range(len(windows["input_ids"])):
        names = set(plain.tokenizer.model_input_names) & set(windows)
        outputs = plain.model(**{name: torch.tensor([windows[name][number]]) for name in names})
        starts, ends = outputs.start_logits[0].double(), outputs.end_logits[0].double()
        sequences = windows.encodings[number].sequence_ids
        own = [token for token, sequence in enumerate(sequences) if sequence == 1]
        with_first = [0, *own]
        nulls.append(
            (
                float(starts[0] + ends[0]),
                float(starts[with_first].softmax(0)[0] * ends[with_first].softmax(0)[0]),
            )
        )
        offsets = windows["offset_mapping"][number]
        start_shares, end_shares = starts[own].softmax(0), ends[own].softmax(0)
        for first, token in enumerate(own):
            for last in range(first, min(first + task.max_answer_tokens, len(own))):
                score = float(start_shares[first] * end_shares[last])
                candidates.append(
                    (float(starts[token] + ends[own[last]]), offsets[token][0], offsets[own[last]][1], score)
                )
    if not candidates:
        return Found("", -1, -1, 0.0, np.inf), len(nulls)
    ranked = sorted(candidates, key=lambda each: -each[0])
    best = ranked[0]
    others = [total for total, start, end, _ in ranked if (start, end) != best[1:3]]
    margin = best[0] - others[0] if others else np.inf
    if task.no_answer:
        null = min(nulls)
        margin = min(margin, abs(null[0] - best[0]))
        if null[0] > best[0]:
            return Found("", -1, -1, null[1], margin), len(nulls)
    return Found(context[best[1] : best[2]], *best[1:], margin), len(nulls)


@pytest.mark.parametrize("protocol", MODULES)
@pytest.mark.parametrize("name", ["spans", "sparse_spans"])
def test_spans(
    server: TritonServer, exported: dict[str, Exported], plain: dict[str, Plain], name: str, protocol: str
) -> None:
    task = exported[name].task
    assert isinstance(task, QuestionAnswering)
    questions, contexts = zip(*QUESTIONS, strict=True)
    inputs = {"TEXT": column([*questions]), "TEXT_PAIR": column([*contexts])}
    answers, starts, ends, scores, truncated = infer(
        server, protocol, name, inputs, "answer", "start", "end", "score", "truncated"
    )
    most_windows = 0
    for row, (question, context) in enumerate(QUESTIONS):
        expected, windows = ask(plain[name], question, context, task)
        most_windows = max(most_windows, windows)
        assert expected.margin > 1e-4  # else rounding may choose
        found = (answers[row, 0].decode(), int(starts[row, 0]), int(ends[row, 0]))
        assert found == (expected.text, expected.start, expected.end)
        assert scores[row, 0] == pytest.approx(expected.score, abs=1e-5)
        assert not truncated[row, 0]
    assert most_windows >= 10
    assert {answer.decode() for answer in answers[:, 0]} != {""}


@torch.no_grad()
def entities(plain: Plain, text: str) -> list[tuple[str, int, int, float]]:
    """Tag each word by its first piece, and join what belongs together as conlleval does."""
    encoded = plain.tokenizer(
        text, truncation=True, max_length=POSITIONS, return_offsets_mapping=True, return_tensors="pt"
    )
    words = encoded.word_ids(0)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    shares = plain.model(**encoded).logits[0].double().softmax(-1)
    found: list[tuple[str, int, int, list[float]]] = []
    former = "O"
    for word in dict.fromkeys(each for each in words if each is not None):
        pieces = [token for token, each in enumerate(words) if each == word]
        best = int(shares[pieces[0]].argmax())
        tag, start, end = TAGS[best], offsets[pieces[0]][0], offsets[pieces[-1]][1]
        share = float(shares[pieces[0], best])
        if tag.startswith("I-") and former[1:] == tag[1:]:
            label, begin, _, own = found[-1]
            found[-1] = (label, begin, end, [*own, share])
        elif tag != "O":
            found.append((tag[2:], start, end, [share]))
        former = tag
    return [(label, start, end, sum(own) / len(own)) for label, start, end, own in found]


@pytest.mark.parametrize("protocol", MODULES)
@pytest.mark.parametrize("name", ["tags", "sparse_tags"])
def test_entities(server: TritonServer, plain: dict[str, Plain], name: str, protocol: str) -> None:
    (rows,) = infer(server, protocol, name, {"TEXT": column(TEXTS)}, "entities")
    labels = set()
    for text, row in zip(TEXTS, rows[:, 0], strict=True):
        served: list[Mapping[str, Any]] = json.loads(row)
        expected = entities(plain[name], text)
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
    (together,) = infer(server, protocol, name, {"TEXT": column(TEXTS)}, "embedding")
    np.testing.assert_allclose(together, expected, rtol=0, atol=2e-5)
    for row in (0, 1, 5):
        (alone,) = infer(server, protocol, name, {"TEXT": column([TEXTS[row]])}, "embedding")
        np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=1e-5)
