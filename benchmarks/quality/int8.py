"""What int8 costs in quality: models trained with softmax, SSAF and AAA, before and after.

    python benchmarks/quality/int8.py ENCODER --data FOLDER --name sst2 --rows 3000 [--calibrated]

FOLDER holds `train.tsv` and `dev.tsv`: UTF-8, tab-separated, unquoted, with the header `text_a`, `text_b`,
`label`. Every attention is fine-tuned alike from the same encoder, rows and seeds. The graph of each model is
then asked the dev rows in int8, with weights of 8 and of 7 bits, rounded to the nearest or also by what
layers read on training rows (`export --calibration`), beside torch in float32.

Writes `NAME_int8_runs.csv` (a line per model, number of bits and rounding, with the environment; what is
there already is not measured again) and `NAME_int8_summary.csv`: means over seeds with 95 % intervals.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import numpy.typing as npt
import onnx
import torch
import typer
from runs import Run, head, inputs, interval, provenance, refuse_other_settings, train_each
from transformers.utils import logging as transformers_logging

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.graph.export import GraphTarget, export_graph
from sparse_export.graph.int8 import quantized_graph
from sparse_export.parity.examples import batches, calibration_examples, labelled_examples
from sparse_export.parity.moments import input_moments
from sparse_export.parity.quality import QualityReport, check_quality
from sparse_export.tasks import model_head
from sparse_export.training import FinetuneOptions
from sparse_serve.data import read_data
from sparse_serve.op_library import library_path
from sparse_serve.repository.manifest import TargetCpu

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from lines import read_lines, write_lines

ATTENTIONS = {
    "softmax": AttentionSpec(),
    "ssaf": AttentionSpec(-4.0),
    "aaa": AttentionSpec.parse("axis", None),
}
MAX_LENGTH = 128


def main(  # noqa: PLR0913  one parameter per option
    encoder: Annotated[Path, typer.Argument(help="Folder of a pretrained encoder.")],
    *,
    data: Annotated[Path, typer.Option(help="Folder with train.tsv and dev.tsv.")],
    name: Annotated[str, typer.Option(help="Name of what is measured, for the files.")],
    results: Annotated[Path, typer.Option(help="Folder for the files.")] = Path(__file__).parent / "results",
    task: Annotated[str, typer.Option(help="As `FinetuneOptions` takes it.")] = "single_label_classification",
    attentions: Annotated[str, typer.Option(help="Attentions, separated by commas.")] = ",".join(ATTENTIONS),
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    rows: Annotated[int | None, typer.Option(help="Training rows.", show_default="all")] = None,
    dev_rows: Annotated[int | None, typer.Option(help="Dev rows, from the top.", show_default="all")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 2,
    calibrated: Annotated[bool, typer.Option("--calibrated", help="Round by training rows too.")] = False,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
) -> None:
    """Train a model of every attention and seed, and ask it in int8."""
    torch.set_num_threads(threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    results.mkdir(parents=True, exist_ok=True)
    runs_file = results / f"{name}_int8_runs.csv"
    runs = read_lines(runs_file)
    setting = FinetuneOptions(
        task=task, epochs=epochs, learning_rate=8e-5, batch_size=32, max_train_rows=rows
    )
    wanted_rounding = "calibrated" if calibrated else "nearest"
    done = {(run["attention"], run["seed"]) for run in runs if run["rounding"] == wanted_rounding}
    with tempfile.TemporaryDirectory() as scratch:
        train, dev = data / "train.tsv", head(data / "dev.tsv", dev_rows, Path(scratch))
        refuse_other_settings(runs_file, runs, setting, **inputs(setting, encoder, train, dev))
        checkpoint = Path(scratch) / "checkpoint"
        wanted = {
            (shown, seed): replace(setting, attention=ATTENTIONS[shown], seed=int(seed))
            for seed in seeds.split(",")
            for shown in attentions.split(",")
        }
        for shown, record in train_each(wanted, done, encoder, train, dev, checkpoint):
            again = shown, str(record.options.seed)
            runs = [run for run in runs if (run["attention"], run["seed"]) != again]
            runs += [
                {
                    "attention": shown,
                    "target_cpu": target_cpu,
                    "rounding": rounding,
                    "seed": str(record.options.seed),
                    **figures(report),
                    **provenance(record, encoder),
                }
                for target_cpu, rounding, report in reports_of(
                    checkpoint, train if calibrated else None, dev, Path(scratch)
                )
            ]
            write_lines(runs_file, runs)
    write_lines(results / f"{name}_int8_summary.csv", list(summary(runs)))


def reports_of(
    checkpoint: Path, train: Path | None, dev: Path, folder: Path
) -> Iterator[tuple[TargetCpu, str, QualityReport]]:
    """Ask a checkpoint's graph in int8, for each kind of processor and way to round."""
    model = load_checkpoint(checkpoint)
    task = model_head(model).task
    tokenizer = load_tokenizer(str(checkpoint)).backend_tokenizer
    rows = read_data(dev, task.rows.named(), task=task.type)
    examples = labelled_examples(task, tokenizer, MAX_LENGTH, "right", rows)
    traced, graph = folder / "traced.onnx", folder / "model.onnx"
    onnx.save(export_graph(model, "tokens", GraphTarget()), traced)
    moments: dict[str, dict[str, npt.NDArray[Any]] | None] = {"nearest": None}
    if train is not None:
        rows = read_data(train, task.rows.named(), task=task.type, labelled=False)
        run = batches(calibration_examples(task, tokenizer, MAX_LENGTH, "right", rows).rows, model.config)
        moments["calibrated"] = input_moments(traced, library_path(), list(run))
    for target_cpu, (rounding, of_inputs) in product(get_args(TargetCpu), moments.items()):
        onnx.save(quantized_graph(onnx.load(traced), target_cpu, of_inputs), graph)
        yield target_cpu, rounding, check_quality(model, graph, library_path(), examples)


def figures(report: QualityReport) -> dict[str, str]:
    """Return the metric in float32 and in int8, what is lost, and the answers that stay."""
    fidelity = report.executions["library"]
    agreement = fidelity.label_agreement
    return {
        "metric": report.metric or "",
        "fp32": f"{report.wanted:.4f}",
        "int8": f"{report.kept(fidelity):.4f}",
        "loss": f"{report.wanted - report.kept(fidelity):.4f}",
        "same_answers": "" if agreement is None else f"{agreement:.4f}",
        "explained": f"{fidelity.explained:.4f}",
        "largest_difference": f"{fidelity.max_abs_diff:.4f}",
    }


def summary(runs: Sequence[Run]) -> Iterator[dict[str, str]]:
    """Yield for each attention, kind of processor and way to round the means over seeds."""

    def kind(run: Run) -> tuple[str, str, str]:
        return run["attention"], run["target_cpu"], run["rounding"]

    for attention, target_cpu, rounding in dict.fromkeys(map(kind, runs)):
        chosen = [run for run in runs if kind(run) == (attention, target_cpu, rounding)]
        columns = {name: np.array([float(run[name]) for run in chosen]) for name in ("fp32", "int8", "loss")}
        yield {
            "attention": attention,
            "target_cpu": target_cpu,
            "rounding": rounding,
            "metric": chosen[0]["metric"],
            "seeds": str(len(chosen)),
            **{
                column: figure
                for name, each in columns.items()
                for column, figure in interval(name, each).items()
            },
            "largest_loss": f"{columns['loss'].max():.4f}",
        }


if __name__ == "__main__":
    typer.run(main)
