"""Every kind of task, exported and behind a real Triton, answers as the torch model does."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, new_model, save_checkpoint
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_serve.client import Client
from sparse_serve.data import Columns, read_data
from sparse_serve.errors import DataError
from sparse_serve.profiling.evaluation import measure_quality, read_evaluation
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.replies import Prediction
from sparse_serve.repository.entries import read_entry
from sparse_serve.tasks import Classification, MultiLabel, Regression, Task
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from tiny_models import LAMBD, POSITIONS

pytestmark = pytest.mark.slow

Array = npt.NDArray[np.float32]

# As wide as another, so that they share a graph: what is answered by its numbers is told apart here.
TASKS: dict[str, Task] = {
    "classes": Classification(("1", "2", "3", "4", "5")),
    "topics": MultiLabel(('say "hi"', "čaj, 茶", "[c]", "d", "f")),
    "topic": MultiLabel(("spam",)),
    "value": Regression(("score",)),
    "values": Regression(("x", "y", "z", "u", "v")),
}

_WORDS = ["the", "film", "is", "as", "good", "as", "a", "long", "walk", "by", "the", "sea,", "isn't", "it?"]
# All different: rounding may rank equal rows either way.
PAIRS = [
    *(
        (" ".join(_WORDS[start : start + first]), " ".join(_WORDS[start + 3 : start + 3 + second]))
        for start in range(3)
        for first, second in ((1, 1), (5, 2), (2, 9), (12, 12), (0, 3), (3, 0))
    ),
    ("", ""),
    ("very " * 80, "long " * 60),
    ("short", "and endless " * 90),
]
TEXTS = [f"{text} {pair}" for text, pair in PAIRS]


LABELS: dict[str, list[Any]] = {
    "classes": ["3", 1, "5"],
    "topics": [["d", "[c]"], [], ["čaj, 茶"]],
    "topic": [["spam"], [], []],
    "value": [0.5, "4.25", -1],
}
NAMES = {"text": "premise", "text_pair": "hypothesis", "label": "gold"}
COLUMNS = Columns(**NAMES)


def write_rows(path: Path, labels: list[Any], *, has_pairs: bool = True) -> Path:
    """A labelled file of `PAIRS` or `TEXTS`, the labels over and over; what is said to be a pair is one."""
    with path.open("w") as stream:
        for (text, pair), label in zip(PAIRS, cycle(labels), strict=False):
            row = (
                {"premise": text, "hypothesis": pair or "none"}
                if has_pairs
                else {"premise": f"{text} {pair}"}
            )
            stream.write(json.dumps(row | {"gold": label}) + "\n")
    return path


@pytest.fixture(scope="module")
def checkpoints(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an untrained checkpoint for each task; that of `value` does not name its type.

    That one is as versions before wrote it.
    """
    folder = tmp_path_factory.mktemp("tasks")
    tokenizer = load_tokenizer(checkpoint)
    for name, task in TASKS.items():
        model = new_model(checkpoint, AttentionSpec(LAMBD), task, seed=3)
        # Logits on both sides of 0, as a trained head has them.
        torch.nn.init.normal_(model.classifier.bias, std=2.0)
        if name == "value":
            del model.config.sparse_serve
            model.config.sparse_attention = {"kind": "sparsegen", "lambd": LAMBD}
            model.config.problem_type = None
        save_checkpoint(model, tokenizer, folder / name)
    return folder


@pytest.fixture(scope="module")
def repository(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An entry for each checkpoint, its metrics on pairs recorded."""
    path = tmp_path_factory.mktemp("repository")
    for name in TASKS:
        options = ExportOptions(
            checkpoint=str(checkpoints / name),
            repository=path,
            name=name,
            tokenizer="server",
        )
        if name in LABELS:
            file = write_rows(path.parent / f"{name}.jsonl", LABELS[name])
            options = replace(options, eval_file=file, columns=NAMES)
        export_checkpoint(options)
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[TritonServer]:
    with TritonServer(ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


Ask = Callable[..., list[Prediction]]


@pytest.fixture(params=["http", "grpc"])
def ask(server: TritonServer, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """Classify with a client of each protocol."""
    url = server.grpc_url if request.param == "grpc" else server.http_url.removeprefix("http://")
    with Client(url, request.param) as client:
        yield client.classify


@torch.no_grad()
def torch_logits(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: list[str], pairs: list[str] | None
) -> torch.Tensor:
    batch = tokenizer(texts, pairs, padding=True, truncation=True, max_length=POSITIONS, return_tensors="pt")
    logits: torch.Tensor = model(**batch).logits
    return logits


def torch_scores(logits: torch.Tensor, task: Task) -> torch.Tensor:
    if isinstance(task, Classification):
        return logits.softmax(1)
    return logits.sigmoid() if isinstance(task, MultiLabel) else logits


def torch_answers(logits: torch.Tensor, model: PreTrainedModel) -> list[Any]:
    """The labels by Transformers' own config, the labels at 0.5 or more, or the values."""
    names = model.config.id2label
    if model.config.problem_type == Classification.type:
        return [names[index] for index in logits.argmax(1).tolist()]
    if model.config.problem_type == MultiLabel.type:
        return [[names[index] for index in row.nonzero()[:, 0].tolist()] for row in logits.sigmoid() >= 0.5]
    return logits.tolist()


@pytest.mark.parametrize("has_pairs", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_labels_and_scores_are_torchs(ask: Ask, checkpoints: Path, name: str, has_pairs: bool) -> None:
    task = TASKS[name]
    model, tokenizer = load_checkpoint(checkpoints / name), load_tokenizer(checkpoints / name)
    texts, pairs = ([*column] for column in zip(*PAIRS, strict=True)) if has_pairs else (TEXTS, None)
    logits = torch_logits(model, tokenizer, texts, pairs)
    predictions = ask(name, texts, pairs, top_k=len(task.labels))
    np.testing.assert_allclose([p.logits for p in predictions], logits, rtol=0, atol=1e-4)
    scores = torch_scores(logits, task)
    for prediction, expected in zip(predictions, scores.tolist(), strict=True):
        served = [best.score for best in sorted(prediction.top, key=lambda best: best.index)]
        np.testing.assert_allclose(served, expected, rtol=0, atol=1e-4)
        assert prediction.score == max(served)
    answers = [p.answer for p in predictions]
    if isinstance(task, Regression):
        values: list[Any] = [float(answer) if isinstance(answer, str) else answer for answer in answers]
        np.testing.assert_allclose(np.reshape(values, logits.shape), logits, rtol=0, atol=1e-4)
        assert all(best.label is None for p in predictions for best in p.top)
    else:
        assert answers == torch_answers(logits, model)
        assert {best.label for p in predictions for best in p.top} == set(task.labels)


def test_segments_of_a_pair_matter(checkpoints: Path) -> None:
    """Else the test above could not see a server that forgets them."""
    model, tokenizer = load_checkpoint(checkpoints / "classes"), load_tokenizer(checkpoints / "classes")
    batch = tokenizer("a good film", "a long walk", return_tensors="pt")
    with torch.no_grad():
        one_segment = model(**batch | {"token_type_ids": batch["token_type_ids"] * 0}).logits
        assert (model(**batch).logits - one_segment).abs().max() > 0.1


def test_both_answers_of_a_multi_label_model_occur(checkpoints: Path) -> None:
    model, tokenizer = load_checkpoint(checkpoints / "topics"), load_tokenizer(checkpoints / "topics")
    counts = [len(labels) for labels in torch_answers(torch_logits(model, tokenizer, TEXTS, None), model)]
    assert min(counts) < max(counts)


@pytest.mark.parametrize("name", TASKS)
def test_the_entry_says_what_it_answers(repository: Path, name: str) -> None:
    manifest = read_entry(repository / name).manifest
    assert manifest.task == replace(TASKS[name], paired=name in LABELS)  # whose labelled rows are pairs
    assert (repository / name / "labels.txt").read_text("utf-8").splitlines() == list(TASKS[name].labels)
    assert manifest.parity is not None
    agreement = manifest.parity["library"]["label_agreement"]  # type: ignore[index,call-overload]
    assert agreement == (None if isinstance(TASKS[name], Regression) else 1.0)


@pytest.mark.parametrize("name", LABELS)
def test_quality_is_one_in_torch_in_the_graph_and_as_served(
    repository: Path, server: TritonServer, name: str
) -> None:
    entry = read_entry(repository / name)
    assert entry.manifest.quality is not None
    quality: dict[str, Any] = entry.manifest.quality
    expected = quality["torch_metrics"]
    assert tuple(expected) == TASKS[name].metrics
    assert (quality["metric"], quality["rows"]) == (next(iter(expected)), len(PAIRS))
    assert quality["library"]["metrics"] == pytest.approx(expected, abs=1e-3)
    assert quality["portable"]["metrics"] == pytest.approx(expected, abs=1e-3)
    evaluation = read_evaluation(repository.parent / f"{name}.jsonl", entry, COLUMNS)
    for model in (name, f"{name}_model"):
        with TritonLoad(server.grpc_url, model, "logits") as load:
            assert measure_quality(load, evaluation) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", LABELS)
def test_served_quality_on_single_texts_is_torchs(
    checkpoints: Path, repository: Path, server: TritonServer, tmp_path: Path, name: str
) -> None:
    file = write_rows(tmp_path / "dev.jsonl", LABELS[name], has_pairs=False)
    task, columns = TASKS[name], replace(COLUMNS, text_pair=None)
    targets = task.targets(read_data(file, columns, task=task.type))
    model, tokenizer = load_checkpoint(checkpoints / name), load_tokenizer(checkpoints / name)
    logits = torch_logits(model, tokenizer, TEXTS, None)
    expected = task.evaluate(task.answer([], logits.numpy()), targets)
    evaluation = read_evaluation(file, read_entry(repository / name), columns)
    with TritonLoad(server.grpc_url, name, "logits") as load:
        assert measure_quality(load, evaluation) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("classes", [0.5], "other numbers are for --task regression"),
        ("classes", [["1"]], "arrays of labels are for --task multi-label"),
        ("classes", ["6"], "label '6' is not one of the model's 5 labels"),
        ("topics", ["d"], "a multi-label row has a JSON array of names"),
        ("topics", [["e"]], "label 'e' is not one of the model's 5 labels"),
        ("value", ["good"], "regression needs a finite number"),
        ("value", [float("nan")], "regression needs a finite number"),
        ("value", [float("inf")], "regression needs a finite number"),
        ("values", [1.0], "the model answers 5"),
    ],
)
def test_labels_of_another_task_are_refused(
    checkpoints: Path, repository: Path, tmp_path: Path, name: str, labels: list[Any], message: str
) -> None:
    file = write_rows(tmp_path / "dev.jsonl", labels)
    with pytest.raises(DataError, match=message):
        read_evaluation(file, read_entry(repository / name), COLUMNS)
    options = ExportOptions(
        checkpoint=str(checkpoints / name),
        repository=tmp_path / "r",
        name=name,
        eval_file=file,
        columns=NAMES,
    )
    with pytest.raises(DataError, match=message):
        export_checkpoint(options)
    assert not (tmp_path / "r").exists()
