"""A classifier of every family, exported and behind a real Triton, answers as Transformers' own does."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from graph_session import open_graph
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import save_checkpoint
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_serve.client import Client
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.workload import Tokens, make_workload
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from stock_client import MODULES, infer, url_of
from tiny_models import (
    CLASSES,
    FAMILIES,
    LABELS,
    LAMBD,
    POSITIONS,
    make_model,
    make_tokenizer,
    masks,
    token_ids,
)

pytestmark = pytest.mark.slow

Feed = dict[str, npt.NDArray[np.int64]]

_WORDS = ["a", "film", "of", "great", "charm,", "and", "it's", "not", "1", "minute", "too", "long!"]
TEXTS = [
    *(" ".join(_WORDS[start : start + count]) for start in range(2) for count in (1, 12, 3, 5, 8)),
    "",
    " \t\n",
    "雪 🍿",
    "[PAD] <pad> </s> [SEP]",
    "too long " * 40,
]
HAS_SEGMENTS = {"bert", "electra", "mobilebert"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PreTrainedModel]:
    """Per family the checkpoint as Transformers itself loads it, `name_or_path` its folder."""
    loaded = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        save_checkpoint(make_model(AttentionSpec(LAMBD), family), make_tokenizer(folder, family), folder)
        loaded[family] = AutoModelForSequenceClassification.from_pretrained(
            folder, attn_implementation="sparsegen"
        ).eval()
    return loaded


@pytest.fixture(scope="module")
def entries(
    models: dict[str, PreTrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Exported]:
    """The checkpoints in one repository, each under the name of its family."""
    repository = tmp_path_factory.mktemp("repository")
    return {
        family: export_checkpoint(
            ExportOptions(
                checkpoint=model.name_or_path, repository=repository, name=family, tokenizer="server"
            )
        )
        for family, model in models.items()
    }


@pytest.fixture(scope="module")
def server(entries: dict[str, Exported]) -> Iterator[TritonServer]:
    repository = entries["bert"].path.parent
    with TritonServer(ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


def batches(family: str, model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Token ids under masks of every kind, with other ids where a mask hides them, then with padding ids.

    In those last ones padding ids stand in one unmasked column too.
    """
    pad_id = model.config.pad_token_id
    ids, segments = token_ids()
    for mask in masks().values():
        padded = torch.where(mask == 0, pad_id, ids)
        padded[:, 6] = pad_id
        for input_ids in (ids, padded):
            batch = {"input_ids": input_ids, "attention_mask": mask}
            yield batch | ({"token_type_ids": segments} if family in HAS_SEGMENTS else {})


def to_numpy(batch: dict[str, Tensor]) -> Feed:
    return {name: tensor.numpy() for name, tensor in batch.items()}


@torch.no_grad()
def torch_logits(model: PreTrainedModel, texts: list[str], pairs: list[str] | None) -> Tensor:
    """Transformers' answers, by the model and the tokenizer as it loads them."""
    tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
    batch = tokenizer(texts, pairs, padding=True, truncation=True, max_length=POSITIONS, return_tensors="pt")
    logits: Tensor = model(**batch).logits
    return logits


@torch.no_grad()
def assert_torchs(logits: npt.NDArray[np.float32], model: PreTrainedModel, batch: dict[str, Tensor]) -> None:
    has_token = batch["attention_mask"].any(1)
    expected = model(**batch).logits[has_token]
    np.testing.assert_allclose(logits[has_token], expected, rtol=0, atol=1e-4)
    assert not logits[~has_token].any()


@pytest.mark.parametrize("has_pairs", [False, True])
@pytest.mark.parametrize("protocol", MODULES)
@pytest.mark.parametrize("family", FAMILIES)
def test_texts(
    server: TritonServer, models: dict[str, PreTrainedModel], family: str, protocol: Any, has_pairs: bool
) -> None:
    pairs = TEXTS[::-1] if has_pairs else None
    with Client(url_of(server, protocol), protocol) as client:
        predictions = client.classify(family, TEXTS, pairs)
    expected = torch_logits(models[family], TEXTS, pairs)
    np.testing.assert_allclose([p.logits for p in predictions], expected, rtol=0, atol=1e-4)
    assert [p.label for p in predictions] == [LABELS[index] for index in expected.argmax(1)]
    assert expected.std(0).min() > 0.1


@pytest.mark.parametrize("protocol", MODULES)
@pytest.mark.parametrize("family", FAMILIES)
def test_token_ids(
    server: TritonServer, models: dict[str, PreTrainedModel], family: str, protocol: str
) -> None:
    for batch in batches(family, models[family]):
        (logits,) = infer(server, protocol, f"{family}_model", to_numpy(batch), "logits")
        assert_torchs(logits, models[family], batch)


@pytest.fixture(params=[True, False], ids=["op_library", "portable"])
def op_library(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def session(entry: Exported, *, op_library: bool) -> onnxruntime.InferenceSession:
    path = entry.path.with_name(f"{entry.path.name}_model") / "1" / "model.onnx"
    return open_graph(path, op_library=op_library)


@pytest.mark.parametrize("family", FAMILIES)
def test_graph(
    entries: dict[str, Exported], models: dict[str, PreTrainedModel], family: str, op_library: bool
) -> None:
    running = session(entries[family], op_library=op_library)
    for batch in batches(family, models[family]):
        assert_torchs(running.run(["logits"], to_numpy(batch))[0], models[family], batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_row_depends_on_its_companions(
    entries: dict[str, Exported], models: dict[str, PreTrainedModel], family: str, op_library: bool
) -> None:
    running = session(entries[family], op_library=op_library)
    ids, segments = token_ids()
    mask = masks()["right_padded"]
    batch = {
        "input_ids": torch.where(mask == 0, models[family].config.pad_token_id, ids),
        "attention_mask": mask,
        **({"token_type_ids": segments} if family in HAS_SEGMENTS else {}),
    }
    together = running.run(["logits", "rho"], to_numpy(batch))
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = {name: tensor[row : row + 1, :length] for name, tensor in batch.items()}
        logits, rho = running.run(["logits", "rho"], to_numpy(alone))
        np.testing.assert_allclose(logits[0], together[0][row], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(rho[0], together[1][row])


@pytest.mark.parametrize("family", FAMILIES)
def test_entry(entries: dict[str, Exported], models: dict[str, PreTrainedModel], family: str) -> None:
    entry = entries[family]
    assert {finding.level for finding in check_entry(entry.path)} == {Level.ok}
    assert entry.parity.longest == POSITIONS
    assert all(0 < rho < 1 for rho in entry.parity.rho)
    config = (entry.path.with_name(f"{family}_model") / "config.pbtxt").read_text()
    assert ("token_type_ids" in config) == (family in HAS_SEGMENTS)
    padding = Tokenizer.from_file(str(entry.path / "tokenizer.json")).padding
    assert padding is not None
    assert padding["pad_id"] == models[family].config.pad_token_id


@pytest.mark.parametrize("family", FAMILIES)
def test_profile_sends_what_the_model_takes(
    server: TritonServer, entries: dict[str, Exported], family: str
) -> None:
    tokens = Tokens(entries[family].path / "tokenizer.json", CLASSES, POSITIONS)
    workload = make_workload(tokens, ["a film that is not long", "a great one"], length=20, batch_size=3)
    batch = workload.batches[0]
    assert batch.row_lengths == (20, 12, 4)
    answers = {}
    for name in (family, f"{family}_model"):
        with TritonLoad(server.grpc_url, name, "logits") as load:
            answers[name] = load.send(batch, ["logits"]).tensors["logits"]
    np.testing.assert_allclose(answers[family], answers[f"{family}_model"], rtol=0, atol=1e-5)
