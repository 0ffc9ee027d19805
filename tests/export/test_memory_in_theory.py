"""What theory expects an exported model's requests to take, against what ONNX Runtime takes for one."""

import json
import os
import subprocess
import sys

import pytest

from sparse_export.entry import Exported
from sparse_serve.op_library import library_path
from sparse_serve.profiling.subjects import MALLOC_MMAP_THRESHOLD, graph_shape
from sparse_serve.profiling.theory import live_bytes
from sparse_serve.report.measured import Variant
from sparse_serve.repository.entries import read_entry
from tiny_models import POSITIONS

ROWS = 6
# Linux adds up the pages of a process by the batch, 32 of each kind; idle and peak are each off by up to one.
SLACK = 2 * 32 * os.sysconf("SC_PAGE_SIZE")

# A process that gives back what is freed, as servers do that memory is measured of.
TAKEN = """
import json
import os
import sys
from statistics import median
import numpy as np
import onnxruntime
from sparse_serve.profiling.memory import peak_bytes, reset_peaks, resident_bytes

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # each processor has a batch of its own
library, rows, length, *graphs = sys.argv[1:]
ids = np.full((int(rows), int(length)), 5, np.int64)
options = onnxruntime.SessionOptions()
options.enable_cpu_mem_arena, options.intra_op_num_threads = False, 1
options.register_custom_ops_library(library)
for graph in graphs:
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    feed = {each.name: ids if each.name == "input_ids" else ids // 5 for each in session.get_inputs()}
    session.run(None, feed)
    taken = []
    for _ in range(5):
        idle = resident_bytes([os.getpid()])
        reset_peaks([os.getpid()])
        session.run(None, feed)
        taken.append(peak_bytes([os.getpid()]) - idle)
    print(json.dumps(median(taken)))
"""


@pytest.fixture(scope="module")
def taken(exported: Exported) -> dict[str, int]:
    """Bytes that a request of `ROWS` texts of all positions takes, by variant."""
    folder = exported.path / "baselines"
    graphs = {kind: folder / f"tiny_{kind}" for kind in ("packed_dense", "padded_fused", "padded_eager")}
    graphs["model"] = exported.path.parent / "tiny_model"
    paths = [str(path / "1" / "model.onnx") for path in graphs.values()]
    ended = subprocess.run(
        [sys.executable, "-c", TAKEN, str(library_path()), str(ROWS), str(POSITIONS), *paths],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(MALLOC_MMAP_THRESHOLD)},
    )
    return dict(zip(graphs, map(json.loads, ended.stdout.split()), strict=True))


@pytest.mark.parametrize(
    ("variant", "least"),
    [("padded_eager", 0.9), ("padded_fused", 0.9), ("packed_dense", 0.75), ("model", 0.75)],
)
def test_onnx_runtime_takes_what_theory_expects(
    exported: Exported, taken: dict[str, int], variant: Variant, least: float
) -> None:
    """Packed graphs of two layers take less: of their last, which computes one row, there is but one more."""
    live = live_bytes(variant, graph_shape(read_entry(exported.path)), [[POSITIONS] * ROWS])
    assert live is not None
    assert least * sum(live) - SLACK < taken[variant] < 1.1 * sum(live) + SLACK
