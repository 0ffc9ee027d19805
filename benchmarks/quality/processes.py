"""One process against two at the same global batch: the difference, beside that between seeds.

    python benchmarks/quality/processes.py ENCODER --train FILE --dev FILE

Fine-tunes with the same settings and seeds in one process and in two (`torchrun`, on a CPU), and writes
`processes.csv`: with equal seeds both see the same batches in the same order, and differ in dropout alone.
Settings are the demo's, by which its model learns.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import COMMAND, ending, exit_on_sigterm
from lines import write_lines

SEEDS = (0, 1, 2)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node")


def main(
    encoder: Annotated[str, typer.Argument(help="Folder of a pretrained encoder, or a hub id.")],
    *,
    train: Annotated[Path, typer.Option(help="Training rows.")],
    dev: Annotated[Path, typer.Option(help="Rows that are evaluated.")],
    results: Annotated[Path, typer.Option(help="Folder for the CSV file.")] = Path(__file__).parent
    / "results",
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 5,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 5e-5,
) -> None:
    """Train every pair of seed and number of processes, and write what came out."""
    exit_on_sigterm()
    lines = []
    for seed in SEEDS:
        for processes in (1, 2):
            options = [f"--train={train}", f"--eval={dev}", f"--seed={seed}"]
            options += [f"--epochs={epochs}", f"--learning-rate={learning_rate}"]
            record = finetune([encoder, *options], processes)
            last = record["epochs"][-1]
            lines.append(
                {
                    "seed": seed,
                    "processes": record["processes"],
                    "train_loss": last["train_loss"],
                    "eval_loss": last["eval_loss"],
                    **last["metrics"],
                    "epochs": epochs,
                    "batch_size": record["options"]["batch_size"],
                    "learning_rate": record["options"]["learning_rate"],
                    "rows": record["train"]["rows"],
                    "dev_rows": record["evaluation"]["rows"],
                    "device": record["device"],
                    **record["versions"],
                }
            )
    write_lines(results / "processes.csv", lines)
    for processes in (1, 2):
        losses = [line["eval_loss"] for line in lines if line["processes"] == processes]
        print(f"{processes}: {statistics.mean(losses):.4f}, between seeds {statistics.stdev(losses):.4f}")


def finetune(arguments: list[str], processes: int) -> dict[str, Any]:
    command = [str(COMMAND), "finetune", *arguments, "--json"]
    if processes > 1:
        command = [*TORCHRUN, str(processes), *command]
    with tempfile.TemporaryDirectory() as scratch:
        started = subprocess.Popen(
            [*command, "--output", f"{scratch}/checkpoint"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        with ending(started) as process:
            told, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    record: dict[str, Any] = json.loads(told)
    return record


if __name__ == "__main__":
    typer.run(main)
