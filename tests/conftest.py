"""What holds for every test."""

import gc
import os
import signal

import pytest

# A shell that starts a run in the background has it ignore SIGINT, and what the tests start would inherit
# it; those that send the signal need it to arrive.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported, and for what the tests start too: tiny models are slower in several threads, and
# two workers share the processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have a file's tests run in one worker, for its fixtures' sake, and the short files last."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: item.path.parent.name == "ops")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what is imported by now: a trace of a graph is a fifth faster."""
    gc.freeze()
