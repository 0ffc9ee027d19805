"""What λ costs in accuracy and gives in sparsity: SSAF over λ against softmax, after Fig. 2 of its paper.

    python benchmarks/quality/ssaf_lambdas.py ENCODER --data FOLDER --name sst2

FOLDER holds `train.tsv` and `dev.tsv`: UTF-8, tab-separated, unquoted, with the header `text_a`, `text_b`,
`label`. SST-2 is the Stanford Sentiment Treebank (Socher et al. 2013) as in GLUE, 67,349 and 872 rows, 0 for
negative and 1 for positive; Quora's question pairs are 1 where they are duplicates. The results have digests.

Every attention is fine-tuned alike from the same encoder, rows and seeds. Accuracy is the last epoch's on
dev, so no choice was made on the rows it is measured on. Each softmax checkpoint is then evaluated once more
with every λ in softmax's place and no further training: the swap. Layer figures are means over dev rows: ρ
(AAA, Eq. 9), and the keys of its row to which a query gives a weight.

Writes `NAME_lambdas_runs.csv` (a line per run and swap, with the environment; what is there already is not
measured again), `NAME_lambdas_summary.csv` and `NAME_lambdas.png`.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import numpy as np
import torch
import typer
from matplotlib import pyplot as plt
from runs import Run, head, inputs, interval, provenance, refuse_other_settings, train_each
from transformers.utils import logging as transformers_logging

from sparse_export.attention.measures import zero_shares
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import cut_length, load_tokenizer
from sparse_export.inspection.maps import select_attention
from sparse_export.training import FinetuneOptions, FinetuneRecord
from sparse_serve.data import TextData, read_data

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from lines import read_lines, write_lines

SOFTMAX = AttentionSpec()


def main(  # noqa: PLR0913  one parameter per option
    encoder: Annotated[Path, typer.Argument(help="Folder of a pretrained encoder.")],
    *,
    data: Annotated[Path, typer.Option(help="Folder with train.tsv and dev.tsv.")],
    name: Annotated[str, typer.Option(help="Name of what is measured, for the files.")],
    results: Annotated[Path, typer.Option(help="Folder for the files.")] = Path(__file__).parent / "results",
    lambdas: Annotated[str, typer.Option(help="Values of λ, separated by commas.")] = "-7,-4,-2,-1,0",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    rows: Annotated[int | None, typer.Option(help="Training rows.", show_default="all")] = None,
    dev_rows: Annotated[int | None, typer.Option(help="Dev rows, from the top.", show_default="all")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 2,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 8e-5,
    batch_size: Annotated[int, typer.Option(help="Rows per step.")] = 32,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Random weights.")] = False,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
) -> None:
    """Train every pair of attention and seed, swap λ into the softmax models, and write what came out."""
    torch.set_num_threads(threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    sparse = [AttentionSpec(float(lambd)) for lambd in lambdas.split(",")]
    setting = FinetuneOptions(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        max_train_rows=rows,
        from_scratch=from_scratch,
    )
    results.mkdir(parents=True, exist_ok=True)
    runs_file = results / f"{name}_lambdas_runs.csv"
    runs = read_lines(runs_file)
    done = {(run["trained"], run["seed"]) for run in runs}
    with tempfile.TemporaryDirectory() as scratch:
        train, dev = data / "train.tsv", head(data / "dev.tsv", dev_rows, Path(scratch))
        refuse_other_settings(runs_file, runs, setting, **inputs(setting, encoder, train, dev))
        checkpoint = Path(scratch) / "checkpoint"
        wanted = {
            (shown(attention), seed): replace(setting, attention=attention, seed=int(seed))
            for seed in seeds.split(",")
            for attention in (SOFTMAX, *sparse)
        }
        for _, record in train_each(wanted, done, encoder, train, dev, checkpoint):
            attention = record.options.attention
            swapped = sparse if attention == SOFTMAX else []
            runs += lines_of(record, checkpoint, [attention, *swapped], read_data(dev), encoder)
            write_lines(runs_file, runs)
    lines = list(summary(runs))
    write_lines(results / f"{name}_lambdas_summary.csv", lines)
    draw(name, lines, results / f"{name}_lambdas.png")


def lines_of(
    record: FinetuneRecord,
    checkpoint: Path,
    attentions: Sequence[AttentionSpec],
    dev: TextData,
    encoder: Path,
) -> Iterator[dict[str, str]]:
    """One line for each attention that the trained checkpoint is evaluated with."""
    trained = record.options.attention
    for attention in attentions:
        seen = evaluate(checkpoint, attention, dev)
        layers = {
            f"{figure}_layer_{layer}": f"{value:.4f}"
            for figure, values in (("rho", seen.rho), ("keys", seen.keys))
            for layer, value in enumerate(values, start=1)
        }
        line = {
            "trained": shown(trained),
            "evaluated": shown(attention),
            "seed": record.options.seed,
            "accuracy": f"{record.epochs[-1].metrics['accuracy']:.4f}" if attention == trained else "",
            "accuracy_of_checkpoint": f"{seen.accuracy:.4f}",
            **layers,
            **provenance(record, encoder),
        }
        yield {column: str(value) for column, value in line.items()}


@dataclass(frozen=True)
class Seen:
    """A checkpoint on dev rows: accuracy, and per layer the means of ρ and of the keys a query keeps."""

    accuracy: float
    rho: list[float]
    keys: list[float]


@torch.inference_mode()
def evaluate(checkpoint: Path, attention: AttentionSpec, data: TextData, batch_size: int = 32) -> Seen:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_checkpoint(checkpoint, attention).to(device), load_tokenizer(checkpoint)
    select_attention(model, attention)
    targets = ModelSpec.of(model.config).task.targets(data)
    longest = cut_length(model.config, tokenizer, None)
    order = sorted(range(len(data.rows)), key=lambda row: len(data.rows[row].text))
    predicted = np.empty(len(order), np.int64)
    rho, keys = [], []
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        texts = [data.rows[row].text for row in batch]
        pairs = [data.rows[row].text_pair for row in batch] if data.has_pairs else None
        inputs = tokenizer(
            texts, pairs, padding=True, truncation=True, max_length=longest, return_tensors="pt"
        ).to(device)
        answer = model(**inputs, output_attentions=True)
        predicted[batch] = answer.logits.argmax(1).cpu().numpy()
        mask = inputs["attention_mask"]
        shares = zero_shares(answer.attentions, mask)
        rho.append(shares)
        keys.append((1 - shares) * mask.sum(1, keepdim=True))
    accuracy = float((predicted == targets).mean())
    return Seen(accuracy, torch.cat(rho).mean(0).tolist(), torch.cat(keys).mean(0).tolist())


def shown(attention: AttentionSpec) -> str:
    return "softmax" if attention.lambd is None else f"{attention.lambd:g}"


def summary(runs: Sequence[Run]) -> Iterator[dict[str, str]]:
    """Per trained and evaluated attention: means over the seeds with 95 % intervals (Student's t).

    The difference is to the softmax model of the same seed: of last epochs where both were trained, of the
    very checkpoint that λ was put into where it was swapped.
    """
    dense = {run["seed"]: run for run in runs if run["trained"] == run["evaluated"] == "softmax"}
    for trained, evaluated in dict.fromkeys((run["trained"], run["evaluated"]) for run in runs):
        chosen = [run for run in runs if (run["trained"], run["evaluated"]) == (trained, evaluated)]
        column = "accuracy" if trained == evaluated else "accuracy_of_checkpoint"
        values = np.array([float(run[column]) for run in chosen])
        differences = values - [float(dense[run["seed"]][column]) for run in chosen]
        layers = [name for name in chosen[0] if "_layer_" in name]
        yield {
            "trained": trained,
            "evaluated": evaluated,
            "seeds": str(len(chosen)),
            **interval("accuracy", values),
            **interval("difference", differences),
            **{name: f"{np.mean([float(run[name]) for run in chosen]):.4f}" for name in layers},
        }


def draw(name: str, lines: Sequence[Run], path: Path) -> None:
    """Accuracy against λ, trained and swapped, and the keys that a query keeps in each layer."""
    mpl.use("Agg")
    dense, *others = lines
    trained = [line for line in others if line["trained"] == line["evaluated"]]
    swapped = [line for line in others if line["trained"] == "softmax"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.axhline(float(dense["accuracy"]), color="0.4", label="softmax")
    left.axhspan(float(dense["accuracy_low"]), float(dense["accuracy_high"]), color="0.4", alpha=0.12, lw=0)
    for label, chosen, shift in (("SSAF", trained, 0.06), ("swapped into softmax", swapped, -0.06)):
        means = np.array([float(line["accuracy"]) for line in chosen])
        margins = [float(line["accuracy_high"]) for line in chosen] - means
        lambdas = [float(line["evaluated"]) + shift for line in chosen]
        left.errorbar(lambdas, means, margins, marker="o", capsize=3, label=label)
    left.set(xlabel="λ", ylabel="accuracy", title=f"{name}: accuracy on dev, mean and 95 % interval")
    left.legend()
    layers = [column for column in dense if column.startswith("keys_layer_")]
    for column, color in zip(layers, plt.get_cmap("viridis")(np.linspace(0, 0.9, len(layers))), strict=True):
        keys = [float(line[column]) for line in trained]
        label = column.removeprefix("keys_").replace("_", " ")
        right.plot([float(line["evaluated"]) for line in trained], keys, marker="o", label=label, color=color)
    tokens = float(dense[layers[0]])
    right.set(
        xlabel="λ", ylabel="keys", ylim=(0, None), title=f"keys a query keeps, of {tokens:.0f} on average"
    )
    right.legend()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    typer.run(main)
