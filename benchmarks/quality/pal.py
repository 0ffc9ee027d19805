"""What projected attention layers, annealed sampling and SimCSE give, after Table 3 of the PAL paper.

    python benchmarks/quality/pal.py ENCODER --data FOLDER --name capped --share 0.12 --dev-rows 500

FOLDER holds `sst1`, `quora`, `sts_cs224n` and `cfimdb`, each with `train.tsv` and `dev.tsv`: sentiment in
five classes, paraphrases, similarity from 0 to 5, and film reviews, 0 and 1, as additional data for sentiment
(0 and 4). The results have digests. A share is of every set, so that sampling by size meets the sizes of the
sets. All variants go over as many rows in as many steps, to which additional data adds its own; round-robin
alone ends with the smallest set, and takes fewer. Figures are the last epoch's on dev, so no choice was made
on the rows that they are measured on.

Writes `NAME_tasks_runs.csv`, a line per variant and seed, with the environment; what is there already is not
measured again. `NAME_tasks_summary.csv` has means over seeds with 95 % intervals (Student's t).
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
import yaml
from apart import Apart, train_apart
from rich.console import Console
from runs import Run, file_lines, interval, provenance, refuse_other_settings, settings
from transformers.utils import logging as transformers_logging

from sparse_export.attention.spec import AttentionSpec
from sparse_export.multitask import MultitaskOptions, MultitaskRecord, finetune_tasks, read_task_file
from sparse_export.multitask.judging import headlines, overall_score
from sparse_export.multitask.options import SCORE
from sparse_serve.data import read_data
from sparse_serve.digests import file_digest

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from environment import columns
from lines import read_lines, write_lines

BASELINE = "apart"
# What each variant changes; the first two rows of the paper's table, then what it adds one by one.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "heads": {"adapters": False, "sampling": "sequential"},
    "pal": {"sampling": "sequential"},
    "pal+round-robin": {"sampling": "round-robin"},
    "pal+annealed": {},
    "pal+annealed+simcse": {"simcse": "infonce", "simcse_tasks": ("similarity",), "simcse_weight": 0.1},
    "pal+annealed+simcse+data": {
        "simcse": "infonce",
        "simcse_tasks": ("similarity",),
        "simcse_weight": 0.1,
        "additional": True,
    },
    "pal+annealed on ssaf": {"attention": AttentionSpec(-4.0)},
}
FIGURES = (SCORE, "sentiment.accuracy", "paraphrase.accuracy", "similarity.pearson")


def main(  # noqa: PLR0913  one parameter per option
    encoder: Annotated[Path, typer.Argument(help="Folder of a pretrained encoder.")],
    *,
    data: Annotated[Path, typer.Option(help="Folder of the data sets.")],
    name: Annotated[str, typer.Option(help="How the files begin.")],
    results: Annotated[Path, typer.Option(help="Folder for the files.")] = Path(__file__).parent / "results",
    share: Annotated[float, typer.Option(help="Of the training rows of each set.")] = 1.0,
    dev_rows: Annotated[
        int | None, typer.Option(help="A sample of each set's dev rows; all if not given.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of an epoch.", show_default="as over all rows")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs.")] = 3,
    max_length: Annotated[int, typer.Option(help="Tokens at which texts are cut.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Of the encoder.")] = 5e-5,
    variants: Annotated[str, typer.Option(help="Which, with commas between.")] = ",".join(
        (BASELINE, *VARIANTS)
    ),
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    bf16: Annotated[bool, typer.Option("--bf16", help="Compute in bfloat16 where autocast does.")] = False,
) -> None:
    """Train every variant with every seed, and write what came out."""
    torch.set_num_threads(threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    console = Console(stderr=True)
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{name}_tasks_runs.csv"
    runs: list[Run] = [*read_lines(path)]
    with tempfile.TemporaryDirectory() as scratch:
        files = {
            more: write_tasks(Path(scratch), data, share, dev_rows, additional=more) for more in (False, True)
        }
        setting = MultitaskOptions(
            tasks=read_task_file(files[False]),
            attention=AttentionSpec(),
            epochs=epochs,
            learning_rate=learning_rate,
            max_length=max_length,
            steps_per_epoch=steps,
            bf16=bf16,
        )
        common = {"share": str(share), "max_length": str(max_length), "bf16": str(bf16)}
        encoder_digest = file_digest(encoder / "model.safetensors")
        refuse_other_settings(path, runs, setting, **common, encoder_sha256=encoder_digest)
        for seed in map(int, seeds.split(",")):
            for variant in variants.split(","):
                if any((run["variant"], run["seed"]) == (variant, str(seed)) for run in runs):
                    continue
                console.print(f"{variant}, seed {seed}")
                options = replace(setting, seed=seed)
                if variant == BASELINE:
                    line = _baseline(encoder, options)
                else:
                    line = _line(_run(encoder, files, variant, options, Path(scratch), console), encoder)
                runs.append({"variant": variant, "seed": str(seed), **line, **common})
                write_lines(path, runs)
    write_lines(results / f"{name}_tasks_summary.csv", _summary(runs))


def write_tasks(folder: Path, data: Path, share: float, dev_rows: int | None, *, additional: bool) -> Path:
    """Write the task file of the paper's tasks, with its additional data or without."""
    sets = {"sentiment": "sst1", "paraphrase": "quora", "similarity": "sts_cs224n"}
    tasks: dict[str, dict[str, Any]] = {}

    def train(source: str) -> dict[str, Any]:
        path = data.resolve() / source / "train.tsv"
        return {
            "train": str(path),
            "max_train_rows": round(share * len(read_data(path, labelled=False).rows)),
        }

    for task, source in sets.items():
        dev = folder / f"{source}_dev.tsv"
        header, *lines = file_lines(data / source / "dev.tsv")
        # Not the first ones: SST's are ordered by label.
        chosen = np.random.default_rng(0).permutation(len(lines))[:dev_rows]
        dev.write_text(header + "".join(lines[row] for row in sorted(chosen)), encoding="utf-8")
        tasks[task] = {**train(source), "eval": str(dev)}
    tasks["similarity"]["task"] = "regression"
    if additional:
        tasks["sentiment"]["extra"] = [{**train("cfimdb"), "labels": {"0": "0", "1": "4"}}]
    path = folder / f"tasks_{additional}.yaml"
    path.write_text(yaml.safe_dump({"tasks": tasks}, sort_keys=False), encoding="utf-8")
    return path


def _run(
    encoder: Path,
    files: Mapping[bool, Path],
    variant: str,
    options: MultitaskOptions,
    scratch: Path,
    console: Console,
) -> MultitaskRecord:
    changes = dict(VARIANTS[variant])
    file = files[bool(changes.pop("additional", False))]
    if changes.get("sampling", "annealed") != "annealed":
        changes["steps_per_epoch"] = None
    options = replace(options, tasks=read_task_file(file), **changes)
    return finetune_tasks(encoder, file, scratch / "checkpoint", options, force=True, console=console)


def _baseline(encoder: Path, options: MultitaskOptions) -> dict[str, str]:
    entries = options.tasks.tasks
    train = {
        name: read_data(
            Path(entry.train), task=entry.kind.type, max_rows=entry.max_train_rows, seed=options.seed
        )
        for name, entry in entries.items()
    }
    dev = {name: read_data(Path(entry.eval or ""), task=entry.kind.type) for name, entry in entries.items()}
    tasks = {name: entry.kind.of(train[name]) for name, entry in entries.items()}
    apart = Apart(
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        head_learning_rate=options.adapter_learning_rate,
        max_length=options.max_length or 512,
        seed=options.seed,
        bf16=options.bf16,
    )
    figures = train_apart(encoder, tasks, train, dev, apart)
    figures[SCORE] = overall_score({name: figures[name] for name in headlines(entries)})
    rows = sum(len(each.rows) for each in train.values())
    return {**_figures(figures), "rows": str(rows), **columns("cpu"), **settings(options)}


def _line(record: MultitaskRecord, encoder: Path) -> dict[str, str]:
    rho = [layer.rho for layer in record.layers]
    return {
        **_figures(record.epochs[-1].metrics),
        "rho": f"{sum(rho) / len(rho):.4f}" if rho else "0",
        "steps": str(record.epochs[-1].step),
        **provenance(record, encoder),
    }


def _figures(figures: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{figures[name]:.4f}" for name in FIGURES}


def _summary(runs: Sequence[Run]) -> list[dict[str, str]]:
    lines = []
    for variant in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == variant]
        figures: dict[str, str] = {}
        for name in FIGURES:
            figures |= interval(name, np.array([float(run[name]) for run in own]))
        lines.append({"variant": variant, "seeds": str(len(own)), **figures})
    return lines


if __name__ == "__main__":
    typer.run(main)
