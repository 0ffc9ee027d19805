"""What λ costs where every token is read: spans of SQuAD and entities of WNUT-17, SSAF beside softmax.

    python benchmarks/quality/heads.py ENCODER --squad FOLDER --wnut FOLDER

FOLDERs hold `train.json` and `dev.json`, SQuAD 1.1 (Rajpurkar et al. 2016), here the questions on one half
of an article and on the other, and `train.conll` and `dev.conll`, WNUT-17 (Derczynski et al. 2017), tweets in
two columns. The results have digests.

Both attentions are trained alike from the same encoder, rows and seed. Figures are the last epoch's on dev,
so no choice was made on the rows they are measured on: F1 and exact match as SQuAD's script counts them, F1
of whole entities, both of what is served.

Writes `heads.csv`, a line per run, with the environment; what is there already is not measured again.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from runs import inputs, provenance, refuse_other_settings, train_each
from transformers.utils import logging as transformers_logging

from sparse_export.attention.spec import AttentionSpec
from sparse_export.training import FinetuneOptions, FinetuneRecord

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from lines import read_lines, write_lines

SPANS = FinetuneOptions(task="question_answering", epochs=4, learning_rate=2e-4, batch_size=4)
TAGS = FinetuneOptions(task="token_classification", epochs=2, learning_rate=2e-4, batch_size=16)


def main(
    encoder: Annotated[Path, typer.Argument(help="Folder of a pretrained encoder.")],
    *,
    squad: Annotated[Path | None, typer.Option(help="Folder with train.json and dev.json.")] = None,
    wnut: Annotated[Path | None, typer.Option(help="Folder with train.conll and dev.conll.")] = None,
    results: Annotated[Path, typer.Option(help="Folder for the file.")] = Path(__file__).parent / "results",
    lambdas: Annotated[str, typer.Option(help="Values of λ, separated by commas.")] = "-4",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
) -> None:
    """Train every task with every attention and seed, and write what came out."""
    torch.set_num_threads(threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    path = results / "heads.csv"
    runs = read_lines(path)
    attentions = {
        "softmax": AttentionSpec(),
        **{each: AttentionSpec(float(each)) for each in lambdas.split(",")},
    }
    with tempfile.TemporaryDirectory() as scratch:
        for setting, train, dev in _sets(squad, wnut):
            own = [run for run in runs if run["task"] == setting.task]
            refuse_other_settings(path, own, setting, **inputs(setting, encoder, train, dev))
            done = {(run["attention"], run["seed"]) for run in own}
            wanted = {
                (name, seed): replace(setting, attention=attention, seed=int(seed))
                for seed in seeds.split(",")
                for name, attention in attentions.items()
            }
            for name, record in train_each(wanted, done, encoder, train, dev, Path(scratch) / "checkpoint"):
                runs.append(_line(record, name, encoder))
                write_lines(path, runs)


def _sets(squad: Path | None, wnut: Path | None) -> Iterator[tuple[FinetuneOptions, Path, Path]]:
    if squad is not None:
        yield SPANS, squad / "train.json", squad / "dev.json"
    if wnut is not None:
        yield TAGS, wnut / "train.conll", wnut / "dev.conll"


def _line(record: FinetuneRecord, name: str, encoder: Path) -> dict[str, str]:
    last = record.epochs[-1]
    rho = [layer.rho for layer in record.layers]
    return {
        "task": record.options.task,
        "attention": name,
        "seed": str(record.options.seed),
        **{figure: f"{value:.4f}" for figure, value in last.metrics.items()},
        "loss": f"{last.eval_loss:.4f}",
        # Of the best epoch's checkpoint.
        "rho": f"{sum(rho) / len(rho):.4f}" if rho else "0",
        "keys_per_query": f"{sum(each.support for each in record.layers) / len(rho):.1f}" if rho else "all",
        **provenance(record, encoder),
    }


if __name__ == "__main__":
    typer.run(main)
