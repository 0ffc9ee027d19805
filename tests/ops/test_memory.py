"""Memory of an attention op at length 2048, 12 heads: never near an L×L matrix, and given back."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from one_op import library_under_test

from cases import Element

LENGTH = 2048
# Fixed thresholds: glibc raises them when large blocks are freed, and then keeps what a process gave back.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
SCRIPT = """
import gc, re, sys
from pathlib import Path

import numpy as np
from axis_cases import LOCAL2, AxisCase
from cases import AttentionCase
from one_op import (
    attention_attributes, attention_inputs, axis_attributes, axis_inputs, op_model, session_options
)
import onnxruntime

library, op, length, element = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
status = Path("/proc/self/status")

def kibibytes(field):
    return int(re.search(field + r":\\s+(\\d+)", status.read_text())[1])

def problem(length):
    case = AttentionCase("memory", (length,), 12, 64, scores="trained")
    if op == "AxisAttention":
        axis = AxisCase(case, 0.01, 0.02, LOCAL2, at_least_one=True)
        inputs, attributes = axis_inputs(axis), axis_attributes(axis)
    else:
        inputs, attributes = attention_inputs(case), attention_attributes(op, case)
    floats = {name: inputs[name].astype(element) for name in ("query", "key", "value")}
    return {name: floats.get(name, inputs[name]) for name in inputs}, attributes

small, attributes = problem(3)
options = session_options(library, threads=2)
options.enable_cpu_mem_arena = False
options.enable_mem_pattern = False
session = onnxruntime.InferenceSession(
    op_model(op, small, **attributes), options, providers=["CPUExecutionProvider"]
)
session.run(None, small)
inputs, _ = problem(length)
gc.collect()
before = kibibytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
outputs = session.run(None, inputs)
peak = kibibytes("VmHWM") - before
del outputs
gc.collect()
for _ in range(5):
    session.run(None, inputs)
print(peak, kibibytes("VmRSS") - before)
"""


@pytest.mark.parametrize("element", ["float32", "float16"])
@pytest.mark.parametrize(
    ("op", "matrices"),
    # Axis attention, at the density of the paper, needs under 2 % of all heads' scores.
    [("SparsegenAttention", 1 / 4), ("SoftmaxAttention", 1 / 4), ("AxisAttention", 0.02 * 12)],
)
def test_peak_stays_far_under_one_score_matrix(op: str, matrices: float, element: Element) -> None:
    """Nor near a float32 copy of the float16 inputs."""
    tests = Path(__file__).resolve().parent
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(library_under_test()), op, str(LENGTH), element],
        env={"PYTHONPATH": f"{tests}:{tests.parent}"} | MALLOC,
        check=True,
        capture_output=True,
        text=True,
    )
    peak, kept = (int(number) * 1024 for number in answer.stdout.split())
    output = LENGTH * 12 * 64 * np.dtype(element).itemsize
    one_matrix = LENGTH * LENGTH * 4
    assert output <= peak < output + matrices * one_matrix
    assert kept < one_matrix / 16
