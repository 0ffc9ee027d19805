"""A tiny SSAF checkpoint and its export, made once a session, and an encoder for each file."""

import hashlib
import os
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from tokenizers import Tokenizer
from transformers import PreTrainedModel
from transformers import logging as transformers_logging

from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, save_checkpoint
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.graph.export import export_graph
from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_export.graph.tokenizer.tables import TokenizerTables
from tiny_models import ADAPTERS, LAMBD, TASKS, make_model, make_tokenizer
from tiny_training import make_encoder


@pytest.fixture(scope="session", autouse=True)
def _quiet_transformers() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> GraphTable:
    """Every graph of the session: see `GraphTable`."""
    return GraphTable(_shared(tmp_path_factory) / "graphs", export_graph)


def _shared(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all processes that run the session."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def _entries_of_traced_graphs(graphs: GraphTable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have entries made of the session's graphs, and of tables that a tokenizer was asked for once.

    All else of an export, the gate too, is done each time.
    """
    folder = _shared(tmp_path_factory) / "tables"
    folder.mkdir(exist_ok=True)
    tables = cache(lambda tokenizer: _tables(tokenizer, folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparse_export.entry_graphs.export_graph", graphs.trace)
        patch.setattr("sparse_export.entry.derive_tables", lambda tokenizer: tables(tokenizer.to_str()))
        yield


def _tables(tokenizer: str, folder: Path) -> TokenizerTables:
    """Ask a tokenizer for its tables, or read what it told another process."""
    path = folder / f"{hashlib.sha256(tokenizer.encode()).hexdigest()}.tables"
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            path.write_bytes(pickle.dumps(derive_tables(Tokenizer.from_str(tokenizer))))
    tables: TokenizerTables = pickle.loads(path.read_bytes())
    return tables


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint folder of an encoder that a training begins with."""
    return make_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SSAF checkpoint folder."""
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    folder.mkdir()
    save_checkpoint(make_model(AttentionSpec(LAMBD)), make_tokenizer(folder), folder)
    return folder


@pytest.fixture(scope="session")
def several_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SSAF checkpoint of several tasks, with adapters."""
    folder = tmp_path_factory.mktemp("several") / "checkpoint"
    folder.mkdir()
    save_checkpoint(make_model(AttentionSpec(LAMBD), "bert", TASKS, ADAPTERS), make_tokenizer(folder), folder)
    return folder


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> PreTrainedModel:
    return load_checkpoint(checkpoint)


@pytest.fixture(scope="session")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The checkpoint as a repository entry `tiny` with its dense twins, its tokenizer in the server."""
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=tmp_path_factory.mktemp("repository"),
        name="tiny",
        tokenizer="server",
        with_baselines=True,
    )
    return export_checkpoint(options)


@pytest.fixture(scope="session")
def text_entry(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The checkpoint as a repository entry `tiny`, its tokenizer in the graph."""
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=tmp_path_factory.mktemp("text_repository"),
        name="tiny",
        tokenizer="graph",
    )
    return export_checkpoint(options)


@pytest.fixture(scope="module")
def single_threaded() -> Iterator[None]:
    """One thread: tiny models are slower in several, and equal to the bit only in equally many."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
