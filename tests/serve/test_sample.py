"""The entry in git is what `export` writes today, and Triton serves it with the op library."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from make_sample import write_checkpoint
from onnx import numpy_helper
from tiny_entry import SAMPLE

from command_line import exit_status
from graph_session import open_graph
from sparse_export.cli import app
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


@pytest.mark.slow
def test_the_graph_is_what_export_writes(tmp_path: Path) -> None:
    """If not: run tests/serve/make_sample.py."""
    write_checkpoint(tmp_path / "checkpoint")
    place = ("--model-repository", tmp_path / "models", "--name", "sample")
    assert exit_status(app, "export", tmp_path / "checkpoint", *place) == 0
    ours, theirs = (
        onnx.load(entry / "1" / "model.onnx") for entry in (SAMPLE, tmp_path / "models" / "sample")
    )
    numbers, expected = (
        {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        for model in (ours, theirs)
    )
    assert numbers.keys() == expected.keys()
    for name, array in numbers.items():
        assert (name, array.dtype) == (name, expected[name].dtype)
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, expected[name], rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(array, expected[name], err_msg=name)
    for model in (ours, theirs):
        del model.graph.initializer[:]
    assert str(ours) == str(theirs)


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
