"""`AxisAttention` beside ONNX Runtime's fused dense attention, in one process.

    python benchmarks/ops/axis_attention.py [--threads 1] [--checkpoint FOLDER --texts FILE]

12 heads of 64, one sequence, float32. "aaa" is what trained models of its paper have on: 1 % of the rows and
2 % of the columns, at least one of each, and a local pattern of size 2; its time is the median of nine draws.
"everything" has every row and column on, which is the worst there is. With a checkpoint the rows and columns
are those that it turns on in each layer for its texts, joined until they fill the length.

As in `attention.py` short problems are computed several times in a run, and a run that counts follows one
that does not. Both take turns and the best time of each counts; `fused_over_this` is the time of ONNX
Runtime's `com.microsoft.MultiHeadAttention` over ours, in the turns that both ran. `peak_bytes` is what a run
adds at most to the memory of a process that holds the inputs and outputs, and `of_eager_scores` its share of
H·L² scores of float32.
"""

import gc
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from attention import Variant, environment_of, fused_softmax, nodes_of_run, run_of_nodes
from onnx import TensorProto, helper

from sparse_export.attention.patterns import LayerPattern, Pattern
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.patterned import recorded
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_serve.data import read_data
from sparse_serve.op_library import DOMAIN

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from lines import write_lines
from turns import Run, best_ratio, time_in_turns

from cases import AttentionCase

LENGTHS = (128, 512, 2048, 4096)
DRAWS = 9
HEADS, HEAD_SIZE = 12, 64
LOCAL2 = Pattern.parse("local2").layer(0)
# Blocks as small as these go back to the system when they are freed, so that a peak is one.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

Indicators = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """One sequence with the rows and columns that are on beside a fixed pattern."""

    name: str
    length: int
    rows: Indicators
    columns: Indicators
    pattern: LayerPattern = LOCAL2
    draw: int = 0

    @property
    def attention(self) -> AttentionCase:
        return AttentionCase(self.name, (self.length,), HEADS, HEAD_SIZE, scores="trained", seed=self.draw)

    @property
    def rho(self) -> float:
        on = (torch.from_numpy(each) for each in (self.rows, self.columns))
        return 1 - self.pattern.size(self.length, *on) / self.length**2


def main(
    threads: Annotated[int, typer.Option(min=1, help="Threads of both.")] = 1,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint that learned its rows.")] = None,
    texts: Annotated[Path | None, typer.Option(help="Rows for the checkpoint to read.")] = None,
    output: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path(__file__).parent
    / "results"
    / "axis_attention.csv",
) -> None:
    """Time both on every problem and write one CSV line for each kind and length."""
    torch.set_num_threads(threads)
    os.environ |= MALLOC  # for the processes that measure memory
    environment = environment_of(threads)
    lines: list[dict[str, Any]] = []
    for kind in kinds(checkpoint, texts):
        line = measure(kind, threads) | environment
        lines.append(line)
        print(
            f"{line['case']:24} {line['length']:5} tokens, rho {line['rho']:.3f} {line['best_ms']:9.3f} ms "
            f"{line['fused_over_this']:7.2f}x fused {100 * line['of_eager_scores']:6.2f} % of eager's scores",
            flush=True,
        )
    write_lines(output, lines)


def kinds(checkpoint: Path | None, texts: Path | None) -> Iterator[list[Problem]]:
    """Problems that differ in nothing but the draw."""
    for length in LENGTHS:
        yield [drawn(length, draw) for draw in range(DRAWS)]
    if checkpoint is not None and texts is not None:
        yield from learned(checkpoint, texts)
    for length in LENGTHS[:3]:
        for name in ("local2+global2", "local1+global1+random2"):
            pattern = Pattern.parse(name).layer(0)
            first = np.arange(length) < pattern.global_size
            yield [Problem(name, length, first, first, pattern)]
        every = np.ones(length, np.bool_)
        yield [Problem("everything", length, every, every)]


def drawn(length: int, draw: int) -> Problem:
    """Rows and columns at the density of trained models."""
    rng = np.random.default_rng(draw)
    rows, columns = np.zeros((2, length), np.bool_)
    for on, share in ((rows, 0.01), (columns, 0.02)):
        on[rng.choice(length, max(1, round(share * length)), replace=False)] = True
    return Problem("aaa", length, rows, columns, draw=draw)


def learned(checkpoint: Path, texts: Path) -> Iterator[list[Problem]]:
    """What each layer of a checkpoint turns on in its texts, at each length that it has positions for."""
    model, tokenizer = load_checkpoint(checkpoint), load_tokenizer(checkpoint)
    corpus = " ".join(row.text for row in read_data(texts).rows)
    for length in (each for each in LENGTHS if each <= model.config.max_position_embeddings):
        inputs = tokenizer(corpus, truncation=True, max_length=length, return_tensors="pt")
        with torch.no_grad(), recorded(model) as masks:
            model(**inputs)
        for layer, mask in enumerate(masks, start=1):
            assert mask.rows is not None
            assert mask.columns is not None
            rows, columns = mask.rows[0].numpy(), mask.columns[0].numpy()
            yield [Problem(f"{checkpoint.name} layer {layer}", length, rows, columns, mask.pattern)]


def measure(problems: list[Problem], threads: int) -> dict[str, Any]:
    """The medians over the draws of one problem."""
    seconds, ratios = [], []
    first = problems[0]
    nodes = nodes_of_run(first.attention)
    for problem in problems:
        variants: dict[Variant, Run] = {
            ("axis", "float32"): axis_attention(problem, threads, nodes),
            ("fused", "float32"): fused_softmax(problem.attention, threads, nodes),
        }
        times = time_in_turns(variants, warm=True)
        seconds.append(min(times["axis", "float32"]) / nodes)
        ratios.append(best_ratio(times["fused", "float32"], times["axis", "float32"]))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        peak = fresh.submit(peak_bytes, first, threads).result()
    return {
        "case": first.name,
        "length": first.length,
        "num_heads": HEADS,
        "head_size": HEAD_SIZE,
        "draws": len(problems),
        "nodes": nodes,
        "rows_on": round(float(np.mean([problem.rows.mean() for problem in problems])), 4),
        "columns_on": round(float(np.mean([problem.columns.mean() for problem in problems])), 4),
        "rho": round(float(np.mean([problem.rho for problem in problems])), 4),
        "best_ms": round(median(seconds) * 1e3, 4),
        "fused_over_this": round(median(ratios), 3),
        "lowest_ratio": round(min(ratios), 3),
        "peak_bytes": peak,
        "of_eager_scores": round(peak / (4 * HEADS * first.length**2), 5),
    }


def axis_attention(problem: Problem, threads: int, nodes: int = 1, *, arena: bool = True) -> Run:
    """Run the kernel."""
    names = ["query", "key", "value", "rows", "columns", "cu_seqlens"]
    case, pattern = problem.attention, problem.pattern
    inputs = dict(zip(names, (*case.inputs(), problem.rows, problem.columns, case.cu_seqlens), strict=True))
    node = helper.make_node(
        "AxisAttention",
        names,
        ["output"],
        domain=DOMAIN,
        num_heads=case.num_heads,
        diagonals=pattern.diagonals,
        random_keys=pattern.random_keys,
        seed=pattern.seed,
    )
    outputs = {"output": TensorProto.FLOAT}
    return run_of_nodes(node, inputs, outputs, nodes, threads, with_library=True, arena=arena)


def peak_bytes(problem: Problem, threads: int) -> int:
    """What one run adds to the memory of a process that holds its tensors, at most."""
    axis_attention(drawn(64, 0), threads)()  # what a process loads once
    run = axis_attention(problem, threads, arena=False)
    gc.collect()
    status = Path("/proc/self/status")

    def kibibytes(field: str) -> int:
        found = re.search(field + r":\s+(\d+)", status.read_text(encoding="utf-8"))
        assert found is not None
        return int(found[1])

    before = kibibytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    run()
    return max(0, (kibibytes("VmHWM") - before) * 1024)


if __name__ == "__main__":
    typer.run(main)
