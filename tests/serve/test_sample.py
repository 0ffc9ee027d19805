"""The entry in git is what `export` writes today, and Triton serves it with the op library."""

import shutil
from pathlib import Path

import numpy as np
from tiny_entry import SAMPLE

from graph_session import open_graph
from sparse_serve.client import Client
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.config import CONFIG_NAME, text_graph_config, to_text
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.manifest import SCHEMA_VERSION
from sparse_serve.repository.signature import graph_signature, load_graph
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions


def test_the_sample_is_up_to_date() -> None:
    """If not: run tests/serve/make_sample.py."""
    # Another build of the op library than the sample's is to be expected.
    assert not [finding for finding in check_entry(SAMPLE) if finding.level is Level.error]
    manifest = read_entry(SAMPLE).manifest
    assert manifest.schema_version == SCHEMA_VERSION
    assert manifest.attention.normalizer == "sparsegen"
    config = text_graph_config(
        "sample",
        graph_signature(load_graph(SAMPLE / "1" / "model.onnx")),
        tasks=manifest.tasks,
        max_length=manifest.max_length,
    )
    assert (SAMPLE / CONFIG_NAME).read_text() == to_text(config)


def test_the_served_sample_answers_as_onnxruntime_with_the_library(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "sample")
    session = open_graph(SAMPLE / "1" / "model.onnx")
    with (
        TritonServer(ServerOptions(tmp_path, http_port=0, grpc_port=0, metrics_port=0)) as server,
        Client(server.grpc_url, "grpc") as client,
    ):
        (empty, text) = client.classify("sample", ["", "a fine film"])
    expected, counts = session.run(
        ["logits", "token_count"], {"TEXT": np.array([[""], ["a fine film"]], object)}
    )
    np.testing.assert_allclose([empty.logits, text.logits], expected, atol=1e-6)
    assert [empty.token_count, text.token_count] == counts[:, 0].tolist() == [2, 11]
