"""Attention by a pattern, exported and behind a real Triton, with the op library and without."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, save_checkpoint
from sparse_export.encoders.families import input_names
from sparse_export.encoders.stored_files import RECORD_NAME
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.parity.executions import run_torch
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.config import METRICS_PARAMETER, parameters, read_config
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.manifest import Attention
from sparse_serve.repository.measures import AXES
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from stock_client import MODULES, infer, texts_of
from tiny_models import LABELS, LAMBD, LAYERS, POSITIONS, make_model, make_tokenizer, masks, token_ids

pytestmark = pytest.mark.slow

Array = npt.NDArray[Any]

MEASURES = ("rho", *AXES)
TEXTS = ["a film of great charm", "", "and it's not 1 minute too long!", "no", "x y z " * 60]
# Records of training, as far as export reads them; those that it cannot read say nothing.
RECORD = json.dumps({"rho_target": 0.7, "rho": 0.75})
RECORDS = {"mobilebert_aaa": json.dumps({"rho_target": 7, "rho": "much"})}
FIXED = AttentionSpec.parse("local2+global1+random1", LAMBD, seed=7)


@dataclass(frozen=True)
class Model:
    """A family's checkpoint with an attention, and the one it is exported with where that is another."""

    family: str
    attention: AttentionSpec
    instead: AttentionSpec | None = None


MODELS = {
    "aaa": Model("bert", AttentionSpec.parse("axis", None)),
    # As `test_axis_graph` has it: the graph is the same.
    "mobilebert_aaa": Model("mobilebert", AttentionSpec.parse("axis+global1+random1", LAMBD, seed=3)),
    "plain": Model("distilbert", AttentionSpec(), instead=FIXED),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, each in MODELS.items():
        folders[name] = folder = tmp_path_factory.mktemp(name)
        save_checkpoint(make_model(each.attention, each.family), make_tokenizer(folder, each.family), folder)
        (folder / RECORD_NAME).write_text(RECORDS.get(name, RECORD))
    return folders


@pytest.fixture(scope="module")
def entries(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    repository = tmp_path_factory.mktemp("repository")
    return {
        name: export_checkpoint(
            ExportOptions(
                checkpoint=str(checkpoints[name]),
                repository=repository,
                name=name,
                attention=each.instead,
                tokenizer="server",
                metrics=name == "aaa",
            )
        )
        for name, each in MODELS.items()
    }


@pytest.fixture(scope="module")
def models(checkpoints: dict[str, Path]) -> dict[str, PreTrainedModel]:
    return {name: load_checkpoint(checkpoints[name], each.instead) for name, each in MODELS.items()}


@pytest.fixture(scope="module", params=[False, True], ids=["op_library", "portable"])
def server(request: pytest.FixtureRequest, entries: dict[str, Exported]) -> Iterator[TritonServer]:
    options = ServerOptions(
        entries["aaa"].path.parent, http_port=0, grpc_port=0, metrics_port=0, portable=request.param
    )
    with TritonServer(options) as running:
        yield running


@pytest.mark.parametrize("name", MODELS)
def test_entry(entries: dict[str, Exported], name: str) -> None:
    entry = entries[name]
    assert {finding.level for finding in check_entry(entry.path)} == {Level.ok}
    parity = entry.parity
    assert (parity.library.flips is None) == (name == "plain")
    assert all(0 < rho < 1 for rho in parity.rho)
    for shares in (parity.axes["rows_on"], parity.axes["columns_on"]):
        assert len(shares) == LAYERS
        assert all(0 < share < 1 for share in shares)


def test_manifest_has_the_numbers_of_the_pattern(entries: dict[str, Exported]) -> None:
    attention = {name: read_entry(entry.path).manifest.attention for name, entry in entries.items()}
    diagonals = ((0, 1, 2),)
    assert attention["aaa"] == Attention(
        normalizer="softmax", pattern="axis+local2", local=2, diagonals=diagonals, rho_target=0.7, rho=0.75
    )
    assert attention["mobilebert_aaa"] == Attention(
        normalizer="sparsegen",
        lambd=LAMBD,
        pattern="axis+global1+random1",
        global_size=1,
        random=1,
        seed=3,
        diagonals=((),),
    )
    # What was trained is not what is exported.
    assert attention["plain"] == Attention(
        normalizer="sparsegen",
        lambd=LAMBD,
        pattern="local2+global1+random1",
        local=2,
        global_size=1,
        random=1,
        seed=7,
        diagonals=diagonals,
    )


def test_metrics_are_switched_on_at_export(entries: dict[str, Exported]) -> None:
    found = {name: parameters(read_config(entry.path / "config.pbtxt")) for name, entry in entries.items()}
    assert found["aaa"][METRICS_PARAMETER] == "rho,rows_on,columns_on"
    assert METRICS_PARAMETER not in found["mobilebert_aaa"]


@pytest.mark.parametrize("name", MODELS)
def test_texts(
    server: TritonServer, models: dict[str, PreTrainedModel], checkpoints: dict[str, Path], name: str
) -> None:
    tokenizer = load_tokenizer(checkpoints[name])
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=POSITIONS, return_tensors="np")
    expected = run_torch(models[name], {key: batch[key] for key in input_names(models[name].config)})
    for protocol in MODULES:
        logits, label, rho = infer(server, protocol, name, texts_of(*TEXTS), "logits", "label", "rho")
        np.testing.assert_allclose(logits, expected.output, rtol=0, atol=1e-4)
        assert [each.decode() for each in label.ravel()] == [
            LABELS[index] for index in expected.output.argmax(1)
        ]
        np.testing.assert_allclose(rho, expected.measures["rho"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_token_ids(server: TritonServer, models: dict[str, PreTrainedModel], name: str) -> None:
    ids, segments = token_ids()
    for mask in masks().values():
        tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        batch = {key: tensors[key].numpy() for key in input_names(models[name].config)}
        logits, *measured = infer(server, "grpc", f"{name}_model", batch, "logits", *MEASURES)
        expected = run_torch(models[name], batch)
        has_token = mask.any(1).numpy()
        np.testing.assert_allclose(logits[has_token], expected.output[has_token], rtol=0, atol=1e-4)
        for measure, values in zip(MEASURES, measured, strict=True):
            np.testing.assert_allclose(values, expected.measures[measure], rtol=0, atol=1e-6)
        assert not logits[~has_token].any()


def test_no_answer_depends_on_the_rest_of_the_batch(server: TritonServer) -> None:
    for name in MODELS:
        together, rho = infer(server, "http", name, texts_of(*TEXTS), "logits", "rho")
        for row, text in enumerate(TEXTS):
            alone, rho_alone = infer(server, "http", name, texts_of(text), "logits", "rho")
            np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=1e-5)
            np.testing.assert_array_equal(rho_alone[0], rho[row])


def test_torch_is_unlike_the_dense_model(
    models: dict[str, PreTrainedModel], checkpoints: dict[str, Path]
) -> None:
    """So that a server of dense attention would be found out."""
    for name, model in models.items():
        dense = load_checkpoint(checkpoints[name], AttentionSpec())
        ids, segments = token_ids()
        tensors = {"input_ids": ids, "attention_mask": masks()["full"], "token_type_ids": segments}
        batch = {key: tensors[key] for key in input_names(model.config)}
        with torch.no_grad():
            assert (model(**batch).logits - dense(**batch).logits).abs().max() > 0.01
