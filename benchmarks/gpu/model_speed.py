"""Whole models on a GPU beside their dense twins, in ONNX Runtime: length, batch, and mixed lengths.

    python benchmarks/gpu/model_speed.py --output OUT/model_speed.csv --work OUT/models

BERT-base's architecture with random weights, as speed does not hang on them but for supports: SSAF at λ =
-4, AAA with learned rows and columns, PAL with adapters for three tasks. Each is exported as
`sparse-serve export --device cuda --dtype fp16` does, with the dense twins of SSAF and AAA; PAL is beside
SSAF's. Rows are full but for "mixed", whose lengths are drawn evenly from 1 to the length: there the
twins that are padded compute on padding.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from sessions import (
    SECONDS,
    Session,
    environment,
    extra_memory,
    free_memory,
    loaded,
    own_ops,
    time_runs,
    write_csv,
)
from torch import Tensor

from sparse_export.attention.patterns import Pattern
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import save_checkpoint
from sparse_export.entry import export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_serve.op_library import Device
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.entries import read_entry
from tiny_models import ADAPTERS, CLASSES, TASKS, make_model, make_tokenizer

BERT_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
}
LENGTHS, BATCHES = (32, 128, 256, 512), (1, 8, 32)
# Random weights are no trained ones: what counts here is speed, and that nothing overflows.
ATOL = 1.0
PAL = {"projected_attention": {"size": 204, "heads": 12, "share_projections": True}}


@dataclass(frozen=True)
class Kind:
    """A model: its attention, what it answers, and whether dense twins are exported with it."""

    name: str
    attention: AttentionSpec
    has_twins: bool = True
    is_several: bool = False


KINDS = (
    Kind("ssaf", AttentionSpec(-4.0)),
    Kind("aaa", AttentionSpec(pattern=Pattern.parse("axis+local2"))),
    Kind("pal", AttentionSpec(), has_twins=False, is_several=True),
)


def main(
    output: Annotated[Path, typer.Option(help="CSV file to write.")],
    work: Annotated[Path, typer.Option(help="Folder of checkpoints and entries.")],
    device: Annotated[str, typer.Option(help="cuda, or cpu to try it.")] = "cuda",
    kind: Annotated[list[str] | None, typer.Option(help="Models: ssaf, aaa, pal.")] = None,
    seconds: Annotated[float, typer.Option(help="Time of each batch.")] = SECONDS,
    toy: Annotated[bool, typer.Option("--toy", help="Two layers, one short length, no twins.")] = False,
) -> None:
    """Export each model, measure it and its twins, and write a line for each."""
    own: Device = "cuda" if device == "cuda" else "cpu"
    here = environment(own)
    kinds = [each for each in KINDS if not kind or each.name in kind]
    timed = 0.01 if toy else seconds
    found = (line for each in kinds for line in model_lines(each, work, own, timed, toy=toy))
    write_csv(output, (line | here for line in found))


def model_lines(
    kind: Kind, work: Path, device: Device, seconds: float, *, toy: bool
) -> Iterator[dict[str, Any]]:
    for variant, graph in graphs(exported(kind, work, device, toy=toy)).items():
        for figures_of in lines(graph, device, seconds, toy=toy):
            line = {"model": kind.name, "variant": variant} | figures_of
            print(*list(line.values())[:9], flush=True)
            yield line


def exported(kind: Kind, work: Path, device: Device, *, toy: bool) -> Path:
    """Return the public folder of an entry, made unless it is there."""
    repository = work / "repository"
    if (repository / kind.name / "manifest.json").exists():
        return repository / kind.name
    checkpoint = work / "checkpoints" / kind.name
    checkpoint.mkdir(parents=True, exist_ok=True)
    task = TASKS if kind.is_several else CLASSES
    adapters = (ADAPTERS if toy else PAL) if kind.is_several else None
    sizes: dict[str, Any] = {} if toy else BERT_BASE
    model = make_model(kind.attention, "bert", task, adapters, **sizes)
    save_checkpoint(model, make_tokenizer(checkpoint), checkpoint)
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=repository,
        name=kind.name,
        dtype="fp16" if device == "cuda" else "fp32",
        atol=ATOL,
        tokenizer="server",
        with_baselines=kind.has_twins and not toy,
        computing=Computing(device=device),
    )
    return export_checkpoint(options, warn=print).path


def graphs(entry: Path) -> dict[str, Path]:
    """Return the graphs of token ids of an entry, its own and its twins'."""
    found = read_entry(entry)
    folders = {"own": found.graph_path} | {
        variant: entry / "baselines" / name for variant, name in found.manifest.baselines.items()
    }
    return {variant: folder / "1" / "model.onnx" for variant, folder in folders.items()}


def lines(graph: Path, device: Device, seconds: float, *, toy: bool) -> Iterator[dict[str, Any]]:
    model = loaded(graph).graph
    names = [each.name for each in model.input]
    outputs = {each.name: each.type.tensor_type.shape.dim for each in model.output}
    session = Session(str(graph), device, ours=own_ops(model))
    for length in (16,) if toy else LENGTHS:
        for batch in (2,) if toy else BATCHES:
            for lengths in ("full", "mixed") if batch > 1 else ("full",):
                feeds = rows(batch, length, lengths, device, names)
                room = {
                    name: torch.empty((batch, *(dim.dim_value for dim in dims[1:])), device=device)
                    for name, dims in outputs.items()
                }
                yield {"length": length, "batch": batch, "lengths": lengths} | figures(
                    session, feeds, room, device, seconds
                )


def figures(
    session: Session,
    feeds: Mapping[str, Tensor],
    room: Mapping[str, Tensor],
    device: Device,
    seconds: float,
) -> dict[str, Any]:
    """Return times, texts a second, and the memory that the GPU had less of since the batch before.

    Of the first batch that is also what is loaded once.
    """
    run = session.bound(feeds, room)
    memory = extra_memory(run, device)
    found = time_runs(run, device, seconds)
    free_memory(device)
    first = next(iter(feeds.values()))
    return {
        "tokens": int(feeds["attention_mask"].sum()),
        **found.columns(),
        "texts_per_second": round(len(first) / found.median, 1),
        "extra_bytes": "" if memory is None else memory.taken,
    }


def rows(batch: int, length: int, lengths: str, device: Device, names: list[str]) -> dict[str, Tensor]:
    """Return a batch of token ids, padded on the right."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(5, 80, (batch, length), generator=generator)
    each = torch.randint(1, length + 1, (batch, 1), generator=generator)
    each[0] = length
    if lengths == "full":
        each[:] = length
    mask = (torch.arange(length)[None] < each).long()
    known = {
        "input_ids": ids * mask,
        "attention_mask": mask,
        "token_type_ids": torch.zeros_like(ids),
        "task_ids": torch.zeros((batch, 1), dtype=torch.int64),
    }
    return {name: known[name].to(device) for name in names}


if __name__ == "__main__":
    typer.run(main)
