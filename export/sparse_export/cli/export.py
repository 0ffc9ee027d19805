"""`sparse-serve export`: a checkpoint in, an entry of a model repository out."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sparse_export.cli.export_options import (
    Atol,
    Attention,
    Calibration,
    Cores,
    Device,
    Dtype,
    Evaluation,
    Force,
    GpuMemLimit,
    Instances,
    LabelColumn,
    Lambd,
    Layers,
    MaxAnswerTokens,
    MaxBatchSize,
    MaxLength,
    MaxLoss,
    Metrics,
    ModelVersion,
    Name,
    NoAnswer,
    Normalize,
    Opset,
    Paired,
    Pooling,
    QueueDelay,
    SingleTask,
    Stride,
    TargetCpu,
    Task,
    TextColumn,
    TextPairColumn,
    Texts,
    Tokenizer,
    TokenModel,
    Triton,
    Truncation,
    WithBaselines,
)
from sparse_export.cli.options import Json, ending_cleanly, load_model_side
from sparse_serve.cli.options import DEFAULT_REPOSITORY, ModelRepository, Verbose, read_size
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.releases import DEFAULT_RELEASE

if TYPE_CHECKING:
    from sparse_export.attention.spec import AttentionSpec
    from sparse_export.entry import Exported
    from sparse_export.parity.gate import MaskFlips, ParityReport
    from sparse_export.parity.quality import QualityReport


def export_command(  # noqa: PLR0913  one parameter per option
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="Trained model: a folder, or a hub id.", show_default=False
        ),
    ],
    *,
    model_repository: ModelRepository = DEFAULT_REPOSITORY,
    name: Name = None,
    task: Task = None,
    single_task: SingleTask = None,
    stride: Stride = None,
    max_answer_tokens: MaxAnswerTokens = None,
    no_answer: NoAnswer = None,
    layers: Layers = None,
    pooling: Pooling = None,
    normalize: Normalize = None,
    attention: Attention = None,
    lambd: Lambd = None,
    tokenizer: Tokenizer = None,
    paired: Paired = None,
    max_length: MaxLength = None,
    truncation: Truncation = None,
    dtype: Dtype = "fp32",
    target_cpu: TargetCpu = None,
    calibration: Calibration = None,
    device: Device = "cpu",
    gpu_mem_limit: GpuMemLimit = None,
    texts: Texts = None,
    evaluation: Evaluation = None,
    text_column: TextColumn = None,
    text_pair_column: TextPairColumn = None,
    label_column: LabelColumn = None,
    atol: Atol = None,
    max_loss: MaxLoss = None,
    triton: Triton = DEFAULT_RELEASE,
    opset: Opset = 20,
    max_batch_size: MaxBatchSize = 64,
    cores: Cores = None,
    instances: Instances = 1,
    queue_delay: QueueDelay = 0,
    metrics: Metrics = False,
    model_version: ModelVersion = 1,
    token_model: TokenModel = False,
    with_baselines: WithBaselines = False,
    force: Force = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Export a model for Triton, if ONNX Runtime answers as torch does.

    The entry is written only after torch, ONNX Runtime with the op library and stock ONNX Runtime agree on
    every text (exit status 3 otherwise), and appears whole or not at all.
    """
    load_model_side(verbose=verbose)
    from sparse_export.entry import export_checkpoint  # noqa: PLC0415
    from sparse_export.export_options import ExportOptions  # noqa: PLC0415
    from sparse_export.tasks.asked import TaskOptions  # noqa: PLC0415

    columns = {"text": text_column, "text_pair": text_pair_column, "label": label_column}
    options = ExportOptions(
        checkpoint=checkpoint,
        repository=model_repository,
        name=name or Path(checkpoint).resolve().name,
        attention=_asked(checkpoint, attention, lambd),
        task=TaskOptions(
            task=task,
            single_task=single_task,
            stride=stride,
            max_answer_tokens=max_answer_tokens,
            no_answer=no_answer,
            layers=layers,
            pooling=pooling,
            normalize=normalize,
            paired=paired,
        ),
        model_version=model_version,
        triton=triton,
        opset=opset,
        dtype=dtype,
        target_cpu=target_cpu,
        max_loss=max_loss,
        max_length=max_length,
        truncation=truncation,
        max_batch_size=max_batch_size,
        computing=Computing.on(
            cores,
            instances,
            queue_delay,
            device=device,
            gpu_mem_limit=None if gpu_mem_limit is None else read_size("gpu-mem-limit", gpu_mem_limit),
        ),
        atol=atol,
        eval_file=evaluation,
        calibration_file=calibration,
        columns={name: column for name, column in columns.items() if column is not None},
        texts_file=texts,
        tokenizer=tokenizer,
        token_model=token_model,
        with_baselines=with_baselines,
        metrics=metrics,
        force=force,
        command=shlex.join(["sparse-serve", *sys.argv[1:]]),
    )
    console = Console(stderr=True)
    with ending_cleanly(), console.status("starting") as status:
        exported = export_checkpoint(options, status.update, _warn)
    typer.echo(json.dumps(_figures(exported), indent=2) if as_json else _summary(exported))


def _asked(checkpoint: str, attention: str | None, lambd: float | None) -> "AttentionSpec | None":
    """Return the attention that takes the place of the checkpoint's own; None where none was asked for."""
    from sparse_export.attention.resolve import resolve_attention  # noqa: PLC0415
    from sparse_export.checkpoint import load_config  # noqa: PLC0415
    from sparse_export.encoders.spec import ModelSpec  # noqa: PLC0415

    if attention is None and lambd is None:
        return None
    return resolve_attention(ModelSpec.of(load_config(checkpoint)).attention, attention, lambd)


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)


def _figures(exported: "Exported") -> dict[str, object]:
    quality = exported.quality
    return {
        "path": str(exported.path),
        "attention": exported.attention.to_json(),
        "tasks": {name: task.to_json() for name, task in exported.tasks.items()},
        "parity": exported.parity.to_json(),
        "tokenizer": "graph" if exported.server_side is None else "server",
        "texts": None if exported.texts is None else exported.texts.to_json(),
        "quality": None if quality is None else quality.to_json(),
        "quantized": None if exported.quantized is None else exported.quantized.to_json(),
        "baselines": exported.baselines,
    }


def _summary(exported: "Exported") -> str:
    from sparse_export.entry import ASKED_FOR  # noqa: PLC0415

    parity = exported.parity
    lines = [
        f"{exported.path}: largest difference from torch's {parity.output} over {parity.rows} texts of up to "
        f"{parity.longest} tokens: {parity.library.max_abs_diff:.1e} with the op library, "
        f"{parity.portable.max_abs_diff:.1e} without; accepted {parity.accepted:g}"
    ]
    if parity.library.flips is not None and parity.portable.flips is not None:
        lines.append(_flips_line(parity.library.flips, parity.portable.flips))
    if exported.quality is not None:
        lines += _metric_lines(exported.quality)
    if exported.quantized is not None:
        lines += ["in int8, all of the above was before it:", *_metric_lines(exported.quantized)]
        lines.append(_quantized_line(exported.quantized))
    if exported.texts is not None:
        lines.append(
            f"tokenizer in the graph: {exported.texts.tokenized} texts and random strings read as by the "
            f"checkpoint's own, {exported.texts.answered} answered"
        )
    elif exported.server_side != ASKED_FOR:
        lines.append(f"tokenizer in the server: {exported.server_side}")
    return "\n".join(lines)


def _flips_line(library: "MaskFlips", portable: "MaskFlips") -> str:
    line = (
        f"mask flips, rows and columns on in ONNX Runtime and off in torch or the other way round: "
        f"{library.count} of {library.indicators} with the op library, {portable.count} without"
    )
    farthest = max(library.farthest, portable.farthest)
    if not farthest:
        return line
    apart = max(library.max_abs_diff, portable.max_abs_diff)
    return (
        f"{line}, their logits within {farthest:.1e}; the difference above is at equal masks, without that "
        f"it is {apart:.1e}"
    )


def _quantized_line(quality: "QualityReport") -> str:
    sides = {"torch": quality.wanted} | {
        name: quality.kept(each) for name, each in quality.executions.items()
    }
    values = ", ".join(f"{side} {kept:.4f}" for side, kept in sides.items())
    return (
        f"judged by {quality.judged} on {quality.rows} texts: {values}; accepted is a loss of "
        f"{quality.accepted_loss:g}"
    )


def _metric_lines(quality: "ParityReport | QualityReport") -> Iterator[str]:
    sides = {"torch": quality.torch_metrics}
    sides |= {name: each.metrics for name, each in quality.executions.items()}
    for name in quality.torch_metrics or ():
        values = ", ".join(f"{side} {metrics[name]:.4f}" for side, metrics in sides.items() if metrics)
        yield f"{name} on {quality.rows} rows: {values}"
