"""What holds for every test."""

import gc
import os
import signal
import tempfile
from collections.abc import Iterator

import pytest

# A shell that starts a run in the background has it ignore SIGINT, and what the tests start would inherit
# it; those that send the signal need it to arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported, and for what the tests start too: tiny models are slower in several threads, and
# several workers share the processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# Importing and collecting makes little but objects that stay: the collector would look through them again and
# again.
gc.disable()


def pytest_collection_finish() -> None:
    """Have the collector pass over what there is now, and begin."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest file and leave the short ones to the end, so that the workers end together."""
    items.sort(key=lambda item: (item.path.parent.name == "ops", item.path.name != "test_readme.py"))


@pytest.fixture(scope="module", autouse=True)
def _spared_garbage_collector() -> None:
    """Have the collector pass over what is imported: it takes half the time of a tiny training otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where a worker's servers put what they must not leave, apart from those of the worker beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        patch.setattr(tempfile, "tempdir", None)  # what was told of it so far
        yield
