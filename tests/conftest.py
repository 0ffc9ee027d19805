"""What holds for every test."""

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from onnxruntime import InferenceSession, SessionOptions

# A shell that starts a run in the background has it ignore SIGINT, and what the tests start would inherit
# it; those that send the signal need it to arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported, and for what the tests start too: tiny models are slower in several threads, and
# several workers share the processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")


EVERYTHING = "EVERYTHING"
"""The variable with which a run of the whole suite leaves nothing out."""

# Importing and collecting makes little but objects that stay: the collector would look through them again and
# again.
gc.disable()


def pytest_collection_finish() -> None:
    """Have the collector pass over what there is now, and begin."""
    gc.freeze()
    gc.enable()


# Files that wait for servers and other processes more than they compute, the longest first. Where several of
# them run at a time, processors are idle.
WAITING = (
    *("readme", "profile", "launcher", "distributed", "scoring", "container", "cli_finetune", "faults"),
    *("cli", "client", "docker"),
)
# Files that compute for 10 seconds and more, the longest first.
COMPUTING = (
    *("cuda_library", "before", "heads", "axis_graph", "half", "served_heads", "served_data"),
    "served_families",
    *(
        "gpu_benchmarks",
        "gpu_models",
        "cuda_export",
        "cli_export",
        "tokenizer",
        "served_tasks",
        "embeddings",
        "axis_attention",
        "element_types",
    ),
    *("pretraining", "served_corpora", "tokenizer_derivation", "served_several", "resume", "finetune_tasks"),
    *("finetune", "served_axis", "sanitizers", "packed", "served_text", "training_options"),
)


def _long_files() -> Iterator[str]:
    """Give one that waits and two that compute, over and over."""
    waiting = iter(WAITING)
    for number, name in enumerate(COMPUTING):
        if number % 2 == 0:
            yield from islice(waiting, 1)
        yield name
    yield from waiting


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what has the slow tests run too."""
    parser.addoption("--slow", action="store_true", help=f"run slow tests too, as {EVERYTHING}=1 does")


def pytest_configure(config: pytest.Config) -> None:
    """Leave slow tests to CI in a run of the whole suite; who names a file means all of it."""
    if EVERYTHING in os.environ or config.args_source is pytest.Config.ArgsSource.ARGS:
        config.option.slow = True  # which the workers are told


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long files and leave the short ones to the end, so that the workers end together."""
    if not config.option.slow:
        left = pytest.mark.skip(reason=f"slow: {EVERYTHING}=1 make test runs it, and CI")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(left)
    places = {name: place for place, name in enumerate(_long_files())}
    items.sort(key=lambda item: places.get(item.path.stem.removeprefix("test_"), len(places)))


@pytest.fixture(scope="module", autouse=True)
def _spared_garbage_collector() -> None:
    """Have the collector pass over what is imported: it takes half the time of a tiny training otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _threads_that_do_not_spin() -> Iterator[None]:
    """Have threads of ONNX Runtime sleep where there is nothing to do: other workers need the processor."""
    open_session = InferenceSession.__init__

    def opened(
        self: InferenceSession,
        model: Any,
        sess_options: SessionOptions | None = None,
        *more: Any,
        **named: Any,
    ) -> None:
        options = sess_options or SessionOptions()
        try:
            options.get_session_config_entry("session.intra_op.allow_spinning")
        except RuntimeError:  # it is not set
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        open_session(self, model, options, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InferenceSession, "__init__", opened)
        yield


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where a worker's servers put what they must not leave, apart from those of the worker beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        patch.setattr(tempfile, "tempdir", None)  # what was told of it so far
        yield
