"""A part of the case table, and Triton's backend, built with AddressSanitizer and UndefinedBehaviorSanitizer.

What a library would do unseen is an error there: reading or writing beyond a tensor or a piece of scratch
memory, and arithmetic without a meaning. `ops/README.md` says how all tests run on such a build.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from builds import build_folder, cxx, run_build, run_tests, run_tests_on

TESTS = Path(__file__).parent
PROJECT = TESTS.parents[1]
FILES = (
    "packed_attention",
    "axis_attention",
    "cross_attention",
    "axis_mask",
    "sparsegen_lin",
    "element_types",
    "quantization",
    "bias_gelu",
    "skip_layer_normalization",
    "tokenizer",
    "tokenizer_tables",
)
# Every op, every way through it and every instruction set, without what takes long. Attention's case table
# is cross-attention's, which holds kernel against kernel: functions and references have nothing to overrun.
CASES = (
    "(test_case_table and not test_packed_attention and not test_axis_attention and not long and not bert"
    " and not aaa_512 and not 4096 and not lambda and not many_rows)"
    " or (test_case_table and avx512 and (short_between_long or many_rows)) or companions or two_kinds"
    " or (is_float32_attention and float16 and head_size) or every_length or every_width or dequantized"
    " or requantized or (every_axis and 513) or empty or as_the_reference"
    " or invalid_utf8 or random_bytes or hostile or (left_is_cut and 8)"
)


@pytest.fixture(scope="module")
def runtimes() -> list[str]:
    """What a process that is not built with sanitizers loads first."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        asked = [cxx(), f"-print-file-name={name}"]
        path = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        if not Path(path).is_absolute():
            pytest.skip(f"{cxx()} has no {name}")
        found.append(path)
    return found


@pytest.fixture(scope="module")
def sanitized(runtimes: list[str]) -> Path:
    """A folder of its own, where what has not changed is not built again."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    folder = build_folder("sanitize")
    configured = ["cmake", "-S", str(PROJECT), "-B", str(folder), "-DSPARSE_OPS_SANITIZE=ON"]
    run_build(folder, [*configured, f"-DCMAKE_CXX_COMPILER={cxx()}"], ["cmake", "--build", str(folder)])
    return folder


def test_the_case_table_on_a_build_with_sanitizers(sanitized: Path, runtimes: list[str]) -> None:
    environment = {
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "LD_PRELOAD": " ".join(runtimes),
    }
    run_tests_on(sanitized / "ops" / "libsparse_ops.so", FILES, CASES, "-s", environment=environment)


def test_the_backend_of_triton_on_a_build_with_sanitizers(sanitized: Path, runtimes: list[str]) -> None:
    backend = sanitized / "serve" / "onnxruntime_backend" / "libtriton_onnxruntime.so"
    environment = {"SPARSE_SERVE_TEST_BACKEND": str(backend), "SPARSE_SERVE_TEST_PRELOAD": " ".join(runtimes)}
    paths = sorted((TESTS.parent / "serve").glob("test_onnxruntime_backend*.py"))
    run_tests(paths, "not threads", environment=environment)


def test_an_overrun_into_the_next_piece_of_scratch_memory_is_reported(
    runtimes: list[str], tmp_path: Path
) -> None:
    """By one float, and by as many as reach the next piece; none where there is no overrun."""
    program, source = tmp_path / "scratch_overrun", TESTS / "scratch_overrun.cc"
    flags = ("-std=gnu++17", "-fsanitize=address", "-DSPARSE_OPS_SANITIZE", "-DSPARSE_OPS_TARGET=generic")
    subprocess.run([cxx(), *flags, f"-I{PROJECT / 'ops'}", source, "-o", program], check=True)
    assert subprocess.run([program, "40"], check=False).returncode == 0
    for floats in ("41", "60"):
        overrun = subprocess.run([program, floats], check=False, capture_output=True, text=True)
        assert overrun.returncode != 0
        assert "AddressSanitizer: use-after-poison" in overrun.stderr
