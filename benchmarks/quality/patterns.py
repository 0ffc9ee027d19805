"""What patterns cost in accuracy at one sparsity: AAA against fixed ones, after Table 4 of its paper.

    python benchmarks/quality/patterns.py ENCODER --data FOLDER --name sst2

FOLDER holds `train.tsv` and `dev.tsv` as for `ssaf_lambdas.py`. Every attention is fine-tuned from the same
encoder, rows and seeds, for the same epochs; in the first of them all attend to everything, which is how a
pattern that is learned has to start. `axis` (adaptive axis attention) is trained to the ρ that the pattern
`--like` has on the dev rows, by the defaults of `sparse-serve finetune`: thresholds are set on training rows
that are set aside, and of the dev texts only the target and the lengths are taken. Metrics are the last
epoch's on dev, with the mask that is served, so no choice was made on the rows they are measured on; ρ, rows
and columns are the kept checkpoint's, over 512 dev rows at most.

Writes `NAME_patterns_runs.csv` (a line per run, with the environment; what is there already is not measured
again), `NAME_patterns_summary.csv` and `NAME_patterns.png`.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import numpy as np
import torch
import typer
from matplotlib import pyplot as plt
from runs import Run, head, inputs, interval, provenance, refuse_other_settings, train_each
from transformers.utils import logging as transformers_logging

from sparse_export.attention.patterns import Pattern
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.training import FinetuneOptions, FinetuneRecord, PatternOptions
from sparse_export.training.schedule import fixed_rho
from sparse_serve.data import read_data

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from lines import read_lines, write_lines

SYSTEMS = "softmax,local2,local2+global2,local3+global1,axis+local2"

# Columns of the files, and what a record of training calls them: shares, then tokens per text.
FIGURES = {
    "rho": "rho",
    "rho_without_band": "rho_without_band",
    "rows_on": "rows_on",
    "columns_on": "columns_on",
    "rows_per_text": "rows_on_count",
    "columns_per_text": "columns_on_count",
}


def main(  # noqa: PLR0913  one parameter per option
    encoder: Annotated[Path, typer.Argument(help="Folder of a pretrained encoder.")],
    *,
    data: Annotated[Path, typer.Option(help="Folder with train.tsv and dev.tsv.")],
    name: Annotated[str, typer.Option(help="Name of what is measured, for the files.")],
    results: Annotated[Path, typer.Option(help="Folder for the files.")] = Path(__file__).parent / "results",
    attentions: Annotated[str, typer.Option(help="Attentions, separated by commas.")] = SYSTEMS,
    like: Annotated[str, typer.Option(help="Fixed pattern whose ρ is the target.")] = "local2+global2",
    lambd: Annotated[
        float | None, typer.Option("--lambda", help="λ of the patterns' normaliser.", show_default="softmax")
    ] = None,
    metric: Annotated[str, typer.Option(help="Metric of the task.")] = "accuracy",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    rows: Annotated[int | None, typer.Option(help="Training rows.", show_default="all")] = None,
    dev_rows: Annotated[int | None, typer.Option(help="Dev rows, from the top.", show_default="all")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 4,
    dense_epochs: Annotated[int, typer.Option(help="First epochs that attend to everything.")] = 2,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 8e-5,
    batch_size: Annotated[int, typer.Option(help="Rows per step.")] = 16,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
) -> None:
    """Train every pair of attention and seed, and write what came out."""
    torch.set_num_threads(threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    setting = FinetuneOptions(
        attention=AttentionSpec(),
        metric=metric,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        max_train_rows=rows,
    )
    results.mkdir(parents=True, exist_ok=True)
    runs_file = results / f"{name}_patterns_runs.csv"
    runs = read_lines(runs_file)
    with tempfile.TemporaryDirectory() as scratch:
        train, dev = data / "train.tsv", head(data / "dev.tsv", dev_rows, Path(scratch))
        refuse_other_settings(runs_file, runs, setting, **inputs(setting, encoder, train, dev))
        target = round(rho_of(like, encoder, dev), 3)
        for run in runs:
            if (run["rho_target"] or f"{target:g}") != f"{target:g}":
                raise SystemExit(f"{runs_file} has runs to another ρ: choose another --name")
        done = {(run["attention"], run["seed"]) for run in runs}
        wanted = {
            (shown(attention), seed): options_for(attention, int(seed), setting, dense_epochs, target)
            for seed in seeds.split(",")
            for attention in (spec_of(text, lambd) for text in attentions.split(","))
        }
        checkpoint = Path(scratch) / "checkpoint"
        for _, record in train_each(wanted, done, encoder, train, dev, checkpoint):
            runs.append(line_of(record, encoder, target if record.options.learning else None))
            write_lines(runs_file, runs)
    lines = list(summary(runs, metric))
    write_lines(results / f"{name}_patterns_summary.csv", lines)
    draw(name, lines, metric, results / f"{name}_patterns.png")


def options_for(
    attention: AttentionSpec, seed: int, setting: FinetuneOptions, dense_epochs: int, target: float
) -> FinetuneOptions:
    """How an attention is trained: sparse after epochs that attend to everything, learned to a ρ."""
    sparse, learned = attention.pattern is not None, attention.pattern and attention.pattern.learns
    return replace(
        setting,
        attention=attention,
        seed=seed,
        dense_epochs=dense_epochs if sparse else None,
        learning=PatternOptions(rho_target=target) if learned else None,
    )


def rho_of(pattern: str, encoder: Path, dev: Path) -> float:
    """The ρ of a fixed pattern on the dev rows."""
    tokenizer = load_tokenizer(encoder)
    data = read_data(dev)
    pairs = [row.text_pair for row in data.rows] if data.has_pairs else None
    encoded = tokenizer([row.text for row in data.rows], pairs)
    return fixed_rho(Pattern.parse(pattern), [len(ids) for ids in encoded["input_ids"]], layers=1)


def spec_of(text: str, lambd: float | None) -> AttentionSpec:
    """An attention by its name; λ is for the patterns."""
    return AttentionSpec.parse(text, None if text == "softmax" else lambd)


def shown(attention: AttentionSpec) -> str:
    """The name of an attention, λ included."""
    return attention.name if attention.lambd is None else f"{attention.name}, lambda {attention.lambd:g}"


def line_of(record: FinetuneRecord, encoder: Path, target: float | None) -> dict[str, str]:
    """What a run gave, and how it was made."""
    masks = [layer.mask for layer in record.layers if layer.mask is not None]
    by_layer = {
        f"{column}_layer_{number}": f"{getattr(mask, figure):.4f}"
        for column, figure in FIGURES.items()
        for number, mask in enumerate(masks, start=1)
        if getattr(mask, figure) is not None
    }
    return {
        "attention": shown(record.options.attention),
        "seed": str(record.options.seed),
        **{metric: f"{value:.4f}" for metric, value in record.epochs[-1].metrics.items()},
        "rho_target": "" if target is None else f"{target:g}",
        **{
            column: f"{np.mean([getattr(mask, figure) for mask in masks]):.4f}"
            for column, figure in FIGURES.items()
            if masks and getattr(masks[0], figure) is not None
        },
        "dense_epochs": str(record.options.dense_epochs or 0),
        **by_layer,
        **provenance(record, encoder),
    }


def summary(runs: Sequence[Run], metric: str) -> Iterator[dict[str, str]]:
    """Per attention: means over the seeds with 95 % intervals; the difference is to softmax's same seed."""
    dense = {run["seed"]: float(run[metric]) for run in runs if run["attention"] == "softmax"}
    for attention in dict.fromkeys(run["attention"] for run in runs):
        chosen = [run for run in runs if run["attention"] == attention]
        values = np.array([float(run[metric]) for run in chosen])
        figures = {
            figure: f"{np.mean([float(run[figure]) for run in chosen]):.4f}"
            for figure in FIGURES
            if chosen[0].get(figure)
        }
        yield {
            "attention": attention,
            "seeds": str(len(chosen)),
            **interval(metric, values),
            **interval("difference", values - [dense[run["seed"]] for run in chosen]),
            **figures,
        }


def draw(name: str, lines: Sequence[Run], metric: str, path: Path) -> None:
    """The task's metric against ρ, each attention a point with its interval."""
    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for line in lines:
        mean = float(line[metric])
        margin = float(line[f"{metric}_high"]) - mean
        axes.errorbar(
            float(line.get("rho") or 0), mean, margin, marker="o", capsize=3, label=line["attention"]
        )
    axes.set(xlabel="ρ, share of pairs that is not allowed", ylabel=metric)
    axes.set_title(f"{name}: {metric} on dev, mean and 95 % interval")
    axes.legend()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    typer.run(main)
