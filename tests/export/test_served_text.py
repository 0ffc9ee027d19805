"""Entries whose graph takes text behind a real Triton: torch's answers, and no harm from what is no text."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel
from tritonclient.utils import InferenceServerException

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, save_checkpoint
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.tasks.several_model import SeveralTasksModel
from sparse_serve.client import Client
from sparse_serve.errors import RequestError
from sparse_serve.tasks.encoding import Truncation, encode_cut
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from stock_client import MODULES, column, infer, texts_of, url_of
from tiny_models import ADAPTERS, LABELS, LAMBD, LAYERS, PAIRED_TASKS, POSITIONS, make_model, make_tokenizer

TEXTS = ["", "a", "it isn't", "the film is 100 % good?", "very " * 90, "naïve café\x00 after", "[SEP] x1-y2"]
BROKEN = [b"\xff", b"good \xe4\xb8", b"a\x00\xf0\x9f"]
Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of four tasks, two of which read pairs."""
    folder = tmp_path_factory.mktemp("paired") / "checkpoint"
    folder.mkdir()
    model = make_model(AttentionSpec(LAMBD), "bert", PAIRED_TASKS, ADAPTERS)
    save_checkpoint(model, make_tokenizer(folder), folder)
    return folder


@pytest.fixture(scope="module")
def server(text_entry: Exported, several: Path, checkpoint: Path) -> Iterator[TritonServer]:
    repository = several.parent / "repository"
    shutil.copytree(text_entry.path, repository / "tiny")
    entries: tuple[tuple[str, Path, Truncation], ...] = (
        ("several", several, "right"),
        ("strict", several, "error"),
        ("left", checkpoint, "left"),
        ("error", checkpoint, "error"),
    )
    for name, source, truncation in entries:
        export_checkpoint(
            ExportOptions(checkpoint=str(source), repository=repository, name=name, truncation=truncation)
        )
    with TritonServer(ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(server: TritonServer, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(url_of(server, request.param), request.param) as made:
        yield made


@pytest.mark.parametrize("protocol", MODULES)
def test_text_in_answers_out(
    server: TritonServer, model: PreTrainedModel, checkpoint: Path, protocol: str
) -> None:
    tokenizer = load_tokenizer(checkpoint)
    names = ("logits", "scores", "label", "token_count", "truncated", "invalid_at", "rho")
    answer = dict(zip(names, infer(server, protocol, "tiny", texts_of(*TEXTS), *names), strict=True))
    for row, text in enumerate(TEXTS):
        batch = tokenizer(text, truncation=True, max_length=POSITIONS, return_tensors="pt")
        with torch.no_grad():
            expected = model(**batch).logits[0]
        np.testing.assert_allclose(answer["logits"][row], expected.numpy(), rtol=0, atol=1e-4)
        np.testing.assert_allclose(answer["scores"][row], expected.softmax(0).numpy(), rtol=0, atol=1e-4)
        assert answer["label"][row, 0].decode() == LABELS[int(expected.argmax())]
        assert answer["token_count"][row, 0] == batch["input_ids"].shape[1]
        assert answer["truncated"][row, 0] == (len(text) > 300)
    assert (answer["invalid_at"] == -1).all()
    assert answer["rho"].shape == (len(TEXTS), LAYERS)


@pytest.mark.parametrize("protocol", MODULES)
def test_what_is_no_text_is_marked_and_harms_nobody(server: TritonServer, protocol: str) -> None:
    """In one request, and in requests that share a batch."""
    names = ("logits", "label", "invalid_at")
    good = dict(zip(names, infer(server, protocol, "tiny", texts_of(*TEXTS), *names), strict=True))
    mixed = [each for pair in zip(TEXTS, BROKEN * 3, strict=False) for each in pair]
    found = dict(zip(names, infer(server, protocol, "tiny", texts_of(*mixed), *names), strict=True))
    np.testing.assert_allclose(found["logits"][::2], good["logits"], rtol=0, atol=1e-5)
    assert (found["label"][::2] == good["label"]).all()
    assert np.isnan(found["logits"][1::2]).all()
    assert (found["label"][1::2] == b"").all()
    assert found["invalid_at"][1::2, 0].tolist() == [0, 5, 2, 0, 5, 2, 0]

    def ask(number: int) -> Array:
        rows = BROKEN[number % 3 :][:1] if number % 2 else [TEXTS[number // 2 % len(TEXTS)]]
        (logits,) = infer(server, protocol, "tiny", texts_of(*rows), "logits")
        return logits

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(56)))
    for number, logits in enumerate(together):
        if number % 2:
            assert np.isnan(logits).all()
        else:
            np.testing.assert_allclose(logits[0], good["logits"][number // 2 % len(TEXTS)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("protocol", MODULES)
def test_the_last_tokens_are_read_where_the_left_is_cut(
    server: TritonServer, model: PreTrainedModel, checkpoint: Path, protocol: str
) -> None:
    long = "bad film " * 80 + "good x1 y2"
    (encoded,) = encode_cut(load_tokenizer(checkpoint).backend_tokenizer, [long], None, POSITIONS, "left")
    (window,) = encoded.windows
    with torch.no_grad():
        expected = model(torch.tensor([window.ids])).logits[0].numpy()
    names = ("logits", "token_count", "truncated")
    logits, count, truncated = infer(server, protocol, "left", texts_of(long), *names)
    np.testing.assert_allclose(logits[0], expected, rtol=0, atol=1e-4)
    assert (count.item(), truncated.item()) == (POSITIONS, True)
    (cut_right,) = infer(server, protocol, "tiny", texts_of(long), "logits")
    assert np.abs(cut_right - logits).max() > 1e-3


@pytest.mark.parametrize("protocol", MODULES)
def test_a_text_that_is_too_long_is_marked_and_harms_nobody(server: TritonServer, protocol: str) -> None:
    texts = ["a", "very " * 300, "naïve café"]
    names = ("logits", "scores", "label", "truncated", "invalid_at")
    logits, scores, label, truncated, invalid = infer(server, protocol, "error", texts_of(*texts), *names)
    (cut,) = infer(server, protocol, "tiny", texts_of(*texts), "logits")
    np.testing.assert_allclose(logits[[0, 2]], cut[[0, 2]], rtol=0, atol=1e-5)
    assert np.isnan(logits[1]).all()
    assert np.isnan(scores[1]).all()
    assert [each == b"" for each in label[:, 0]] == truncated[:, 0].tolist() == [False, True, False]
    assert (invalid == -1).all()


def test_the_client_names_the_text_that_is_too_long(client: Client) -> None:
    with pytest.raises(RequestError, match=rf"more than {POSITIONS} tokens, which is as .*; it is text 2"):
        client.classify("error", ["a", "very " * 300, "naïve café"])


@pytest.mark.parametrize("protocol", MODULES)
def test_a_text_of_too_many_bytes_is_refused(server: TritonServer, protocol: str) -> None:
    message = r"input 'TEXT' has a text of 1200000 bytes: give at most 1048576 \(max_text_bytes of config"
    with pytest.raises(InferenceServerException, match=message) as raised:
        infer(server, protocol, "tiny", texts_of("a", "good " * 240_000), "label")
    assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_what_becomes_of_texts_is_counted(server: TritonServer) -> None:
    """By the backend of the bundled Triton, before it answers."""
    before = counters(server)
    infer(server, "grpc", "error", texts_of("a", "very " * 300, b"\xff", "naïve café"), "label")
    grown = {key: value - before[key] for key, value in counters(server).items()}
    wanted = {"texts_total": 2, "truncated_total": 0, "not_utf8": 1, "too_long": 1}
    assert {name: sum(n for key, n in grown.items() if name in key) for name in wanted} == wanted
    tokens = {name: sum(n for key, n in grown.items() if name in key) for name in ("tokens", "padding")}
    assert tokens["tokens"] > 2
    assert tokens["padding"] > 2 * POSITIONS


def counters(server: TritonServer) -> dict[str, float]:
    """The package's own of the entry `error`."""
    with urlopen(server.metrics_url, timeout=30) as port:
        lines = port.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("sparse_serve_"))
    return {name: float(value) for name, value in values.items() if 'model="error"' in name}


def test_client_and_classification_extension(client: Client) -> None:
    predictions = client.classify("tiny", TEXTS, top_k=2)
    assert [each.top[0].label for each in predictions] == [each.label for each in predictions]
    assert client.labels("tiny") == list(LABELS)
    with pytest.raises(RequestError, match="takes no second text: leave out --text-pair"):
        client.classify("tiny", ["a"], ["b"])


def test_each_text_of_several_tasks_is_read_as_its_task_does(client: Client, several: Path) -> None:
    model, tokenizer = load_checkpoint(several), load_tokenizer(several)
    assert isinstance(model, SeveralTasksModel)
    tasks = ["sentiment", "similarity", "paraphrase", "similarity", "sentiment"]
    pairs = ["", "x y", "long " * 60, "", ""]
    replies = client.classify("several", TEXTS[:5], pairs, task=tasks)
    for text, pair, task, reply in zip(TEXTS, pairs, tasks, replies, strict=False):
        second = pair if PAIRED_TASKS[task].reads_pairs else None
        (encoded,) = encode_cut(tokenizer.backend_tokenizer, [text], [second], POSITIONS)
        (window,) = encoded.windows
        ids, types = torch.tensor([window.ids]), torch.tensor([window.type_ids])
        with torch.no_grad():
            expected = model.of(task)(ids, token_type_ids=types).logits[0].numpy()
        np.testing.assert_allclose(reply.logits, expected, rtol=0, atol=1e-4)
        assert reply.token_count == len(window)
    alone = client.classify("several", TEXTS[:1], task="sentiment")
    np.testing.assert_allclose(alone[0].logits, replies[0].logits, rtol=0, atol=1e-5)


@pytest.fixture
def closed(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a server that keeps its configurations to itself, as the container's does."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise InferenceServerException("This protocol is restricted, expecting header 'x'")

    with Client(client.url, client.protocol) as made:
        monkeypatch.setattr(made._connection._client, "get_model_config", refuse)
        yield made


def test_tasks_of_a_server_that_keeps_its_configurations_to_itself(client: Client, closed: Client) -> None:
    tasks, pairs = ["sentiment", "paraphrase", "similarity", "topics"], ["", "x y", "", ""]
    for one, other in zip(
        closed.classify("several", TEXTS[:4], pairs, task=tasks),
        client.classify("several", TEXTS[:4], pairs, task=tasks),
        strict=True,
    ):
        assert one == other
    (alone,) = closed.classify("several", ["a"], task="sentiment")
    assert [alone] == client.classify("several", ["a"], task="sentiment")


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    ("pairs", "task", "message"),
    [
        (None, "mood", "there is no task 'mood'; this model's are (sentiment, par|known to its server)"),
        (["b"], "mood", "there is no task 'mood'; this model's are (sentiment, par|known to its server)"),
        (
            None,
            "paraphrase",
            "task 'paraphrase' of model 'several' reads pairs: give each text its second one",
        ),
        (["b"], "sentiment", "task 'sentiment' of model 'several' reads one text: leave out its second one"),
        (None, None, "model 'several' has more than one task"),
    ],
)
def test_what_several_tasks_are_not_asked(
    client: Client, closed: Client, pairs: list[str] | None, task: str | None, message: str, is_closed: bool
) -> None:
    with pytest.raises(RequestError, match=message):
        (closed if is_closed else client).classify("several", ["a"], pairs, task=task)


def test_a_text_that_is_too_long_is_no_unknown_task(closed: Client) -> None:
    with pytest.raises(RequestError, match=f"more than {POSITIONS} tokens, which is as many as .* text 2"):
        closed.classify("strict", ["a", "very " * 300], ["b", "c"], task="paraphrase")


def test_inputs_that_a_graph_does_not_have_are_the_clients_mistake(server: TritonServer) -> None:
    for inputs in ({"TEXT": column("a"), "TEXT_PAIR": column("b")}, {"TEXT_PAIR": column("b")}):
        with pytest.raises(
            InferenceServerException, match=r"unexpected inference input|expected 1 inputs|missing"
        ):
            infer(server, "http", "tiny", inputs, "label")
