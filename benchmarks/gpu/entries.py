"""Entries for a GPU, text in and answer out: what they answer beside the same weights on a processor.

    python benchmarks/gpu/entries.py --checkpoint FOLDER --rows FILE --output OUT/entries.csv --work WORK

A classifier of single texts is exported as `sparse-serve export --device cuda` does, in each precision, by
the gate on that GPU, and once in float32 for a processor. `Classifier` answers the rows with each.
`gate_apart` is how far the gate found the graph from torch, `logits_apart` how far the answers are from the
processor's, `other_labels` how many labels are others.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from sessions import environment, write_csv

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import save_checkpoint
from sparse_export.entry import export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_serve import Classifier
from sparse_serve.data import read_data
from sparse_serve.errors import SparseServeError
from sparse_serve.op_library import Device
from sparse_serve.replies import Prediction
from sparse_serve.repository.computing import Computing
from tiny_models import CLASSES, make_model, make_tokenizer

DTYPES = ("fp32", "fp16", "bf16")
TOY_TEXTS = ("a fine film", "a waste of time", "")
COLUMNS = (
    "computed_on",
    "dtype",
    "judged_on",
    "gate_apart",
    "texts",
    "logits_apart",
    "other_labels",
    "error",
)


def main(
    output: Annotated[Path, typer.Option(help="CSV file to write.")],
    work: Annotated[Path, typer.Option(help="Folder of the entries.")],
    checkpoint: Annotated[Path | None, typer.Option(help="A trained classifier of single texts.")] = None,
    rows: Annotated[Path | None, typer.Option(help="Texts for it, such as SST-2's dev set.")] = None,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try it.")] = "cuda",
    toy: Annotated[bool, typer.Option("--toy", help="A tiny model without training.")] = False,
) -> None:
    """Export, ask, and write a line for each precision."""
    own: Device = "cuda" if device == "cuda" else "cpu"
    here = environment(own)
    if toy:
        checkpoint, texts = tiny_checkpoint(work / "checkpoint"), list(TOY_TEXTS)
    elif checkpoint is None or rows is None:
        raise SystemExit("error: --checkpoint and --rows are needed, or --toy")
    else:
        texts = [row.text for row in read_data(rows).rows]
    found = write_csv(output, (line | here for line in lines(checkpoint, texts, work, own)))
    if failed := [f"{line['computed_on']} {line['dtype']}" for line in found if line["error"]]:
        raise SystemExit(f"these were not exported or did not answer: {', '.join(failed)}")


def tiny_checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(make_model(AttentionSpec(-4.0), "bert", CLASSES), make_tokenizer(folder), folder)
    return folder


def lines(checkpoint: Path, texts: list[str], work: Path, device: Device) -> Iterator[dict[str, Any]]:
    """Yield a line for the entry of a processor, and for that of each precision."""
    asked: list[tuple[Device, str]] = [("cpu", "fp32")]
    asked += [(device, dtype) for dtype in DTYPES if device == "cuda"]
    expected: list[Prediction] = []
    for own, dtype in asked:
        line = dict.fromkeys(COLUMNS, "") | {"computed_on": own, "dtype": dtype, "texts": len(texts)}
        try:
            classifier = exported(checkpoint, work, own, dtype)
            answers = classifier(texts)
        except SparseServeError as error:
            line["error"] = str(error)
        else:
            parity: dict[str, Any] = classifier.entry.manifest.parity or {}
            expected = expected or answers
            line |= {
                "judged_on": parity["provider"],
                "gate_apart": f"{parity['library']['max_abs_diff']:.1e}",
                "logits_apart": f"{np.abs(logits(answers) - logits(expected)).max():.1e}",
                "other_labels": sum(a.label != b.label for a, b in zip(answers, expected, strict=True)),
            }
        print(*list(line.values()), flush=True)
        yield line


def exported(checkpoint: Path, work: Path, device: Device, dtype: str) -> Classifier:
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=work / "repository",
        name=f"{device}_{dtype}",
        dtype=dtype,
        computing=Computing(device=device),
        force=True,
    )
    return Classifier(export_checkpoint(options, warn=print).path)


def logits(answers: list[Prediction]) -> npt.NDArray[np.float64]:
    return np.array([each.logits for each in answers], np.float64)


if __name__ == "__main__":
    typer.run(main)
