"""What a second thread gives the attention kernels, in one process.

    python benchmarks/ops/threads.py [--threads 2] [--output threads.csv]

The problems of `attention.py` and `axis_attention.py` of 512 tokens and more, computed by one thread and by
several. Both take turns, and beside them ONNX Runtime's fused softmax attention: how much of its second core
a virtual machine has changes from minute to minute, so that figures of two runs of a script say little.
Of each the best time counts, of several draws the median. `speedup` is the time of one thread over that of
several; `fused_speedup` is what ONNX Runtime's own attention gets of the same cores in the same turns.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from attention import environment_of, fused_softmax, nodes_of_run, op_session
from axis_attention import DRAWS, LENGTHS, axis_attention, drawn

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from lines import write_lines
from turns import Run, best_ratio, time_in_turns

from cases import BENCHMARK_CASES, AttentionCase

LEAST_LENGTH = 512
SECONDS = 8.0  # of each variant of a problem, over its draws

Problem = tuple[AttentionCase, Callable[[int, int], Run]]
"""What is computed, and what makes a run of it from the number of threads and of nodes."""


def main(
    threads: Annotated[int, typer.Option(min=2, help="Threads beside one.")] = 2,
    output: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path(__file__).parent
    / "results"
    / "threads.csv",
) -> None:
    """Time every kernel on every problem and write one CSV line for each."""
    environment = environment_of(threads)
    lines: list[dict[str, Any]] = []
    for kernel, draws in problems():
        line = {"kernel": kernel} | measure(draws, threads) | environment
        lines.append(line)
        print(
            f"{kernel:20} {line['length']:5} tokens {line['one_thread_ms']:9.3f} ms "
            f"{line['speedup']:5.2f}x with {threads} threads, {line['fused_speedup']:5.2f}x of fused softmax",
            flush=True,
        )
    write_lines(output, lines)


def problems() -> Iterator[tuple[str, list[Problem]]]:
    """Yield each kernel with the draws of a problem."""
    for case in BENCHMARK_CASES:
        if case.lengths[0] >= LEAST_LENGTH:
            yield f"ssaf {case.name}", [(case, ssaf(case))]
    for length in LENGTHS:
        if length >= LEAST_LENGTH:
            yield f"aaa 1x{length}", [aaa(length, draw) for draw in range(DRAWS)]


def ssaf(case: AttentionCase) -> Callable[[int, int], Run]:
    return lambda threads, nodes: op_session(case, "SparsegenAttention", threads, nodes)


def aaa(length: int, draw: int) -> Problem:
    problem = drawn(length, draw)
    return problem.attention, lambda threads, nodes: axis_attention(problem, threads, nodes)


def measure(draws: list[Problem], threads: int) -> dict[str, Any]:
    """Return the medians over the draws of a problem."""
    one, speedups, fused = [], [], []
    for case, run in draws:
        nodes = nodes_of_run(case)
        variants = {("ours", each): run(each, nodes) for each in (1, threads)}
        variants |= {("fused", each): fused_softmax(case, each, nodes) for each in (1, threads)}
        times = time_in_turns(variants, SECONDS / len(draws), warm=True)
        one.append(min(times["ours", 1]) / nodes)
        speedups.append(best_ratio(times["ours", 1], times["ours", threads]))
        fused.append(best_ratio(times["fused", 1], times["fused", threads]))
    return {
        "length": draws[0][0].lengths[0],
        "draws": len(draws),
        "one_thread_ms": round(median(one) * 1e3, 4),
        "speedup": round(median(speedups), 3),
        "lowest_speedup": round(min(speedups), 3),
        "fused_speedup": round(median(fused), 3),
    }


if __name__ == "__main__":
    typer.run(main)
