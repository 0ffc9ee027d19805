"""An exported checkpoint behind a real Triton answers as the torch model does, over both protocols."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.attention.measures import zero_shares
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import Exported
from sparse_serve.client import Client
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from stock_client import MODULES, infer, texts_of, url_of
from tiny_models import LABELS, LAYERS, POSITIONS, masks, token_ids

Array = npt.NDArray[Any]

WORDS = ["a", "film", "of", "great", "charm,", "and", "it's", "not", "1", "minute", "too", "long!"]
TEXTS = [" ".join(WORDS[start : start + count]) for start in range(4) for count in (1, 2, 3, 5, 8, 11, 0, 7)]
LONG = "x9 " * 35_000


@pytest.fixture(scope="module")
def server(exported: Exported) -> Iterator[TritonServer]:
    options = ServerOptions(exported.path.parent, http_port=0, grpc_port=0, metrics_port=0)
    with TritonServer(options) as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> PreTrainedTokenizerFast:
    return load_tokenizer(checkpoint)


@torch.no_grad()
def torch_answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: list[str]
) -> tuple[Array, Array]:
    """Logits `(N, C)` and ρ `(N, layers)` of the torch model."""
    batch = tokenizer(texts, padding=True, truncation=True, max_length=POSITIONS, return_tensors="pt")
    outputs = model(**batch, output_attentions=True)
    rho = zero_shares(outputs.attentions, batch["attention_mask"], last_of_first=True)
    return outputs.logits.numpy(), rho.numpy()


@pytest.mark.parametrize("protocol", MODULES)
def test_text_in_labels_out(
    server: TritonServer, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, protocol: str
) -> None:
    logits, rho = torch_answers(model, tokenizer, TEXTS)
    served = infer(
        server, protocol, "tiny", texts_of(*TEXTS), "logits", "label", "rho", "scores", "token_count"
    )
    np.testing.assert_allclose(served[0], logits, rtol=0, atol=1e-4)
    assert [label.decode() for label in served[1].ravel()] == [LABELS[index] for index in logits.argmax(1)]
    np.testing.assert_allclose(served[2], rho, rtol=0, atol=1e-6)
    assert served[2].shape == (len(TEXTS), LAYERS)
    assert rho.mean() > 0.1
    np.testing.assert_allclose(served[3], torch.from_numpy(logits).softmax(1).numpy(), rtol=0, atol=1e-5)
    assert served[4].ravel().tolist() == [len(ids) for ids in tokenizer(TEXTS)["input_ids"]]


@pytest.mark.parametrize("protocol", MODULES)
def test_classifier_gives_the_torch_models_labels(
    server: TritonServer, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, protocol: str
) -> None:
    logits, _ = torch_answers(model, tokenizer, TEXTS)
    with Client(url_of(server, protocol), protocol) as client:  # type: ignore[arg-type]
        predictions = client.classify("tiny", TEXTS, top_k=2)
    assert [prediction.label for prediction in predictions] == [LABELS[index] for index in logits.argmax(1)]


@pytest.mark.parametrize("protocol", MODULES)
def test_stock_client_gets_the_best_two(server: TritonServer, protocol: str) -> None:
    module = MODULES[protocol]
    text = module.InferInput("TEXT", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"a film"]], dtype=object))
    with module.InferenceServerClient(url_of(server, protocol)) as client:
        result = client.infer("tiny", [text], outputs=[module.InferRequestedOutput("scores", class_count=2)])
        best = [entry.decode().split(":") for entry in result.as_numpy("scores").ravel()]
    assert len(best) == 2
    assert float(best[0][0]) >= float(best[1][0])
    for _, index, label in best:
        assert LABELS[int(index)] == label


def test_a_batch_answers_as_single_requests_in_any_order(server: TritonServer) -> None:
    (together,) = infer(server, "grpc", "tiny", texts_of(*TEXTS), "logits")
    (backwards,) = infer(server, "grpc", "tiny", texts_of(*reversed(TEXTS)), "logits")
    np.testing.assert_allclose(backwards[::-1], together, rtol=0, atol=1e-5)
    for row, text in enumerate(TEXTS):
        (alone,) = infer(server, "grpc", "tiny", texts_of(text), "logits")
        np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=1e-5)


def test_empty_blank_and_endless_texts(
    server: TritonServer, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    texts = ["", " \t\n", LONG]
    assert len(LONG) > 100_000
    logits, counts, truncated = infer(
        server, "http", "tiny", texts_of(*texts), "logits", "token_count", "truncated"
    )
    np.testing.assert_allclose(logits, torch_answers(model, tokenizer, texts)[0], rtol=0, atol=1e-4)
    assert counts.ravel().tolist() == [2, 2, POSITIONS]
    assert truncated.ravel().tolist() == [False, False, True]


@torch.no_grad()
@pytest.mark.parametrize("mask_name", masks())
@pytest.mark.parametrize("protocol", MODULES)
def test_graph_alone_answers_token_ids(
    server: TritonServer, model: PreTrainedModel, protocol: str, mask_name: str
) -> None:
    ids, segments = token_ids()
    mask = masks()[mask_name]
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    (logits,) = infer(
        server, protocol, "tiny_model", {name: tensor.numpy() for name, tensor in inputs.items()}, "logits"
    )
    has_token = mask.any(1).numpy()
    expected = model(**inputs).logits.numpy()
    np.testing.assert_allclose(logits[has_token], expected[has_token], rtol=0, atol=1e-4)
    assert not logits[~has_token].any()
