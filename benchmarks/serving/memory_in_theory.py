"""The peak memory of each variant at 512, 1,024 and 2,048 tokens, beside what theory expects of it.

    python benchmarks/serving/memory_in_theory.py checkpoints/reviews

Makes a model as CHECKPOINT, a classifier of single texts, but with 2,048 positions and random weights, on
which memory does not depend; exports it with its dense twins, and measures it with `profile`, one text a
request and four of mixed lengths. Writes `memory_in_theory.csv`, a line for each batch, length and variant
with the environment, and ends with 1 where eager attention is not within 15 % of theory. Latency is measured
only as much as `profile` cannot do without. About ten minutes, and five for the export.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from sparse_serve.report.document import Report, read_report

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm, run
from entries import export_random
from environment import environment
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results

NAME = "long_reviews"
POSITIONS = 2048
LENGTHS = "512,1024,2048"
BATCHES = (1, 4)
VARIANTS = "model,packed_dense,padded_fused,padded_eager"
WITHIN = 0.15


def benchmark(
    checkpoint: Checkpoint,
    *,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    rounds: Annotated[int, typer.Option(min=1, help="Fresh servers of each variant and length.")] = 2,
) -> None:
    exit_on_sigterm()
    export_random(checkpoint, repository, NAME, {"max_position_embeddings": POSITIONS}, "--with-baselines")
    lines: list[Line] = []
    for batch in BATCHES:
        with tempfile.TemporaryDirectory() as folder:
            command = ["profile", NAME, f"--model-repository={repository}", f"--batch-size={batch}"]
            command += [f"--output-dir={folder}", f"--lengths={LENGTHS}", f"--variants={VARIANTS}"]
            command += [f"--rounds={rounds}", "--measurement-interval=1", "--max-trials=3"]
            run(*command)
            report = read_report(Path(folder, "report.json"))
        lines += [environment(report.environment.triton) | line for line in beside_theory(report)]
        write_lines(results / "memory_in_theory.csv", lines)
    for line in lines:
        typer.echo("{batch:>2} x {length:>4} {variant:13} {measured_mib:>7} MiB, {ratio}".format_map(line))
    eager = [float(line["ratio"]) for line in lines if line["variant"] == "padded_eager"]
    if max(abs(ratio - 1) for ratio in eager) > WITHIN:
        raise SystemExit(1)


def beside_theory(report: Report) -> Iterator[Line]:
    """Yield what each variant's requests took at each length, and what theory expects, in MiB."""
    for theory in report.expected:
        measured = report.at(theory.model, theory.variant, theory.length, report.lightest)
        if measured is not None and measured.memory_bytes is not None:
            peak = measured.memory_bytes.above_idle.value
            yield {
                "batch": str(theory.batch),
                "length": str(theory.length),
                "variant": theory.variant,
                "measured_mib": f"{peak / 2**20:.1f}",
                "activations_mib": f"{theory.activations / 2**20:.1f}",
                "scores_mib": f"{theory.scores / 2**20:.1f}",
                "ratio": f"{peak / (theory.activations + theory.scores):.3f}",
            }


if __name__ == "__main__":
    typer.run(benchmark)
