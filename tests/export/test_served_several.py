"""Several tasks behind a real Triton: each text is answered as torch answers it, whoever stands beside it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tritonclient.utils import InferenceServerException

from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.tasks.several_model import SeveralTasksModel
from sparse_serve.client import Client
from sparse_serve.data import read_data
from sparse_serve.metrics import regression_metrics
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from stock_client import MODULES, column, infer, url_of
from tiny_models import TASKS

pytestmark = pytest.mark.slow

STS = Path(__file__).parents[3] / "shared" / "data" / "sts_cs224n" / "dev.tsv"
NAMES = tuple(TASKS)
TEXTS = ["", "a", "it isn't", "the film is 100 % good?", "very " * 40, "naïve café", "x1-y2", "b " * 9]
PAIRS = ["x", "b", "0", "no", "it is", "one!", "long " * 30, "a b"]
Array = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def checkpoint(several_tasks: Path) -> Path:
    return several_tasks


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("repository")
    export_checkpoint(
        ExportOptions(checkpoint=str(checkpoint), repository=repository, name="several", tokenizer="server")
    )
    with TritonServer(ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


def torchs(checkpoint: Path, texts: list[str], pairs: list[str], tasks: list[str]) -> list[Array]:
    """Logits of each row by the model of its task, alone."""
    model, tokenizer = load_checkpoint(checkpoint), load_tokenizer(checkpoint)
    assert isinstance(model, SeveralTasksModel)
    logits = []
    for text, pair, task in zip(texts, pairs, tasks, strict=True):
        batch = tokenizer(text, pair or None, truncation=True, max_length=160, return_tensors="pt")
        with torch.no_grad():
            logits.append(model.of(task)(**batch).logits[0].numpy())
    return logits


def ask(server: TritonServer, protocol: str, texts: list[str], tasks: list[str]) -> list[npt.NDArray[Any]]:
    inputs = {"TEXT": column(*texts), "TASK": column(*tasks)}
    return infer(server, protocol, "several", inputs, "logits", "scores", "label")


def expect(task: str, logits: Array, scores: Array, label: bytes, expected: Array) -> None:
    """A row as its task answers it, filled up to the widest."""
    width = TASKS[task].width
    np.testing.assert_allclose(logits[:width], expected, rtol=0, atol=1e-4)
    assert (logits[width:] == -np.inf).all()
    assert (scores[width:] == 0).all()
    if task == "similarity":
        assert scores[0] == logits[0]  # not squashed
        assert np.float32(label.decode()) == logits[0]
    else:
        np.testing.assert_allclose(scores[:width], np.exp(expected) / np.exp(expected).sum(), atol=1e-4)
        assert label.decode() == TASKS[task].labels[expected.argmax()]


@pytest.mark.parametrize("protocol", MODULES)
def test_a_request_of_each_task(server: TritonServer, checkpoint: Path, protocol: str) -> None:
    for task in NAMES:
        tasks = [task] * len(TEXTS)
        expected = torchs(checkpoint, TEXTS, [""] * len(TEXTS), tasks)
        for row in zip(*ask(server, protocol, TEXTS, tasks), expected, strict=True):
            logits, scores, label, wanted = row
            expect(task, logits, scores, label[0], wanted)


@pytest.mark.parametrize("protocol", MODULES)
def test_a_mixed_batch(server: TritonServer, checkpoint: Path, protocol: str) -> None:
    """32 texts of all tasks in one request, pairs among them, and each of them alone."""
    rng = np.random.default_rng(1)
    rows = [int(row) for row in rng.integers(len(TEXTS), size=32)]
    tasks = [NAMES[number] for number in rng.integers(len(NAMES), size=32)]
    texts, pairs = [TEXTS[row] for row in rows], [PAIRS[row] for row in rows]
    inputs = {"TEXT": column(*texts), "TEXT_PAIR": column(*pairs), "TASK": column(*tasks)}
    outputs = infer(server, protocol, "several", inputs, "logits", "scores", "label")
    model, tokenizer = load_checkpoint(checkpoint), load_tokenizer(checkpoint)
    assert isinstance(model, SeveralTasksModel)
    for row, (text, pair, task) in enumerate(zip(texts, pairs, tasks, strict=True)):
        batch = tokenizer(text, pair, truncation=True, max_length=160, return_tensors="pt")
        with torch.no_grad():
            expected = model.of(task)(**batch).logits[0].numpy()
        expect(task, outputs[0][row], outputs[1][row], outputs[2][row, 0], expected)
        one = {name: each[row : row + 1] for name, each in inputs.items()}
        (alone,) = infer(server, protocol, "several", one, "logits")
        finite = np.isfinite(alone[0])
        np.testing.assert_allclose(outputs[0][row, finite], alone[0, finite], rtol=0, atol=1e-5)


def test_requests_of_different_tasks_share_a_batch(server: TritonServer, checkpoint: Path) -> None:
    """Many at once: whoever a request is put together with, its answer is its own, and so is its error."""
    expected = {task: torchs(checkpoint, TEXTS, [""] * len(TEXTS), [task] * len(TEXTS)) for task in NAMES}

    def one(number: int) -> None:
        row, task = number % len(TEXTS), (*NAMES, "mood")[number % 4]
        if task == "mood":
            with pytest.raises(
                InferenceServerException, match=r"there is no task 'mood'; .* sentiment, para"
            ):
                ask(server, "http", [TEXTS[row]], [task])
            return
        logits, *_ = ask(server, "http", [TEXTS[row]], [task])
        np.testing.assert_allclose(logits[0, : TASKS[task].width], expected[task][row], rtol=0, atol=1e-4)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(96)))


@pytest.mark.skipif(not STS.exists(), reason="the data lies beside the project, in shared/data, alone")
def test_pearson_is_torchs(server: TritonServer, checkpoint: Path) -> None:
    """On 100 pairs of STS dev, of an untrained model: the answers are compared, not how good they are."""
    data = read_data(STS, task="regression", max_rows=100)
    texts, pairs = [row.text for row in data.rows], [row.text_pair for row in data.rows]
    wanted = np.array([row.label for row in data.rows], dtype=np.float64)
    with Client(url_of(server, "http")) as client:
        replies = client.classify("several", texts, pairs, task="similarity")
    served = np.array([[reply.scores[0]] for reply in replies])
    expected = np.stack(torchs(checkpoint, texts, pairs, ["similarity"] * len(texts)))[:, :1]
    pearsons = [regression_metrics(values, wanted)["pearson"] for values in (served, expected)]
    assert pearsons[0] == pytest.approx(pearsons[1], abs=1e-3)
    differences = np.abs(served - expected)
    # Weights this large make much of a rounding where the support changes, on one pair or two.
    assert np.quantile(differences, 0.99) < 1e-4
    assert differences.max() < 1e-3
