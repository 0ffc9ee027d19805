"""What sparse attention costs in accuracy: SSAF against its softmax twin on SST-2, and how sparse it gets.

    python benchmarks/quality/ssaf_sst2.py ENCODER --data FOLDER

FOLDER holds `train.tsv` (67,349 rows) and `dev.tsv` (872) of SST-2, the Stanford Sentiment Treebank
(Socher et al. 2013) as in GLUE (https://gluebenchmark.com/tasks): UTF-8, tab-separated, unquoted, with the
header `text_a`, `label` in place of GLUE's `sentence`, `label`; 0 is negative, 1 positive.

Both are fine-tuned alike from the same encoder, rows and seeds. Accuracy is the last epoch's on dev, so no
choice was made on the rows it is measured on; the best epoch's, which `finetune` keeps, stands beside it.
Writes `ssaf_sst2_runs.csv` (one line per run, with the environment) and `ssaf_sst2_summary.csv`.
"""

import csv
import platform
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy.stats  # type: ignore[import-untyped]
import torch
import typer
from rich.console import Console
from transformers.utils import logging as transformers_logging

from sparse_export.attention import zero_share
from sparse_export.checkpoint import AttentionSpec, load_classifier, load_tokenizer
from sparse_export.finetune import FinetuneOptions, FinetuneRecord, finetune
from sparse_export.metrics import HEADLINE
from sparse_serve.data import TextData, read_data
from sparse_serve.digests import file_digest
from sparse_serve.environment import read_cpu

SSAF = AttentionSpec("sparsegen", -4.0)
SEEDS = (0, 1, 2)


def main(
    encoder: Annotated[Path, typer.Argument(help="Folder of a pretrained BERT encoder.")],
    *,
    data: Annotated[Path, typer.Option(help="Folder with SST-2's train.tsv and dev.tsv.")],
    results: Annotated[Path, typer.Option(help="Folder for the CSV files.")] = Path(__file__).parent
    / "results",
    rows: Annotated[int, typer.Option(help="Training rows.")] = 4000,
    epochs: Annotated[int, typer.Option(help="Passes over them.")] = 2,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 8e-5,
    batch_size: Annotated[int, typer.Option(help="Rows per step.")] = 32,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
) -> None:
    """Train every pair of attention and seed, and write what came out."""
    torch.set_num_threads(threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    console = Console(stderr=True)
    train, dev = data / "train.tsv", data / "dev.tsv"
    setting = FinetuneOptions(
        epochs=epochs, learning_rate=learning_rate, batch_size=batch_size, max_train_rows=rows
    )
    runs: list[dict[str, Any]] = []
    for seed in SEEDS:
        for attention in (AttentionSpec("softmax"), SSAF):
            console.print(f"{attention.kind}, seed {seed}")
            options = replace(setting, attention=attention, seed=seed)
            with tempfile.TemporaryDirectory() as scratch:
                checkpoint = Path(scratch) / "checkpoint"
                record = finetune(encoder, train, checkpoint, options, evaluation=dev, console=console)
                sparsity = layer_sparsity(checkpoint, read_data(dev)) if attention == SSAF else None
            runs.append(run_line(record, sparsity) | environment(encoder, record))
            write_csv(results / "ssaf_sst2_runs.csv", runs)
    lines = list(summary(runs))
    write_csv(results / "ssaf_sst2_summary.csv", lines)
    for line in lines:
        console.print("{quantity}: {mean} ({low} to {high})".format(**line))


def layer_sparsity(checkpoint: Path, data: TextData, batch_size: int = 32) -> list[float]:
    """Each layer's share of attention weights that are exactly zero, mean over the rows (AAA, Eq. 9)."""
    model, tokenizer = load_classifier(checkpoint), load_tokenizer(checkpoint)
    texts = [row.text for row in data.rows]
    shares = []
    with torch.inference_mode():
        for start in range(0, len(texts), batch_size):
            inputs = tokenizer(texts[start : start + batch_size], padding=True, return_tensors="pt")
            attentions = model(**inputs, output_attentions=True).attentions
            shares.append(
                torch.stack([zero_share(layer, inputs["attention_mask"]) for layer in attentions], 1)
            )
    return [float(share) for share in torch.cat(shares).mean(0)]


def run_line(record: FinetuneRecord, sparsity: Sequence[float] | None) -> dict[str, Any]:
    attention = record.options.attention
    layers = {f"rho_layer_{layer}": f"{share:.4f}" for layer, share in enumerate(sparsity or (), start=1)}
    return {
        "attention": attention.kind,
        "lambd": "" if attention.lambd is None else attention.lambd,
        "seed": record.options.seed,
        "accuracy": f"{record.epochs[-1].metrics[HEADLINE]:.4f}",
        "accuracy_best_epoch": f"{record.metrics[HEADLINE]:.4f}",
        "best_epoch": record.best_epoch,
        "seconds": record.seconds,
        "rows": record.train.rows,
        "epochs": record.options.epochs,
        "learning_rate": record.options.learning_rate,
        "batch_size": record.options.batch_size,
        **layers,
    }


def environment(encoder: Path, record: FinetuneRecord) -> dict[str, Any]:
    return {
        "cpu": read_cpu().model,
        "threads": record.threads,
        "system": f"{platform.system()} {platform.machine()}",
        **record.versions,
        "encoder_sha256": file_digest(encoder / "model.safetensors"),
        "train_sha256": record.train.sha256,
        "dev_sha256": record.evaluation.sha256,
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """Means over the seeds with 95 % intervals (Student's t); the difference is paired by seed."""
    softmax, ssaf = ([run for run in runs if run["attention"] == kind] for kind in ("softmax", "sparsegen"))
    for column in ("accuracy", "accuracy_best_epoch"):
        values = [np.array([float(run[column]) for run in kind]) for kind in (softmax, ssaf)]
        yield interval(f"{column} softmax", values[0])
        yield interval(f"{column} SSAF", values[1])
        yield interval(f"{column} SSAF - softmax", values[1] - values[0])
    for column in ssaf[0]:
        if column.startswith("rho_"):
            yield interval(f"{column} SSAF", np.array([float(run[column]) for run in ssaf]))


def interval(quantity: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, str]:
    margin = scipy.stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    mean = values.mean()
    figures = {"mean": mean, "low": mean - margin, "high": mean + margin}
    return {"quantity": quantity, **{name: f"{value:.4f}" for name, value in figures.items()}}


def write_csv(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for line in lines for name in line))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    typer.run(main)
