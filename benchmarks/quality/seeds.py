"""Run a quality benchmark with a process for every seed, side by side, and put their runs into one file.

    python benchmarks/quality/seeds.py benchmarks/quality/patterns.py ENCODER --data FOLDER --name sst2 …

Takes any benchmark here that writes `*_runs.csv` and has `--seeds` and `--results`; all other arguments are
the benchmark's. Each process writes to a folder of its own, `RESULTS/seed_SEED`, where it goes on from what
RESULTS has of its seed, and when it was interrupted. When all have ended well, the benchmark summarises their
runs in RESULTS, as if one process had measured them: seeds share nothing, so that only their times differ.
"""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import ending, exit_on_sigterm
from lines import Line, read_lines, write_lines


def main(
    context: typer.Context,
    benchmark: Annotated[Path, typer.Argument(help="Script to run.")],
    *,
    results: Annotated[Path, typer.Option(help="Folder for the files.")] = Path(__file__).parent / "results",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
) -> None:
    """Run a process for every seed, and summarise what they wrote."""
    parts = {seed: results / f"seed_{seed}" for seed in seeds.split(",")}
    for path in results.glob("*_runs.csv"):
        for seed, part in parts.items():
            if own := [line for line in read_lines(path) if line["seed"] == seed]:
                write_lines(part / path.name, joined(own, read_lines(part / path.name)))

    exit_on_sigterm()
    with ExitStack() as stack:

        def run(seeds: str, folder: Path) -> subprocess.Popen[bytes]:
            options = ["--seeds", seeds, "--results", str(folder)]
            command = [sys.executable, str(benchmark), *context.args, *options]
            return stack.enter_context(ending(subprocess.Popen(command)))

        processes = {seed: run(seed, part) for seed, part in parts.items()}
        if failed := [seed for seed, process in processes.items() if process.wait()]:
            raise SystemExit(f"{benchmark} failed with seed {', '.join(failed)}")
        for name in {path.name for part in parts.values() for path in part.glob("*_runs.csv")}:
            known = read_lines(results / name)
            lines = joined(known, [line for part in parts.values() for line in read_lines(part / name)])
            if len(lines) > len(known):  # of other benchmarks there is nothing new
                write_lines(results / name, lines)
        raise SystemExit(run(seeds, results).wait())


def joined(lines: Sequence[Line], more: Sequence[Line]) -> list[Line]:
    """Lines, and those of others that are not among them: a column that a file lacks is empty."""

    def told(line: Line) -> Line:
        return {column: value for column, value in line.items() if value}

    known = [told(line) for line in lines]
    return [*lines, *(line for line in more if told(line) not in known)]


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
