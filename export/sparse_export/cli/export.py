"""`sparse-serve export`: a checkpoint in, an entry of a model repository out."""

import json
import shlex
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sparse_export.cli.options import Json, ending_cleanly, load_model_side
from sparse_serve.cli.options import DEFAULT_REPOSITORY, ModelRepository, Verbose, read_size
from sparse_serve.data import TEXT_PAIR
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.manifest import MAX_VERSION
from sparse_serve.repository.releases import DEFAULT_RELEASE

if TYPE_CHECKING:
    from sparse_export.attention.spec import AttentionSpec
    from sparse_export.entry import Exported
    from sparse_export.parity.gate import MaskFlips, ParityReport
    from sparse_export.parity.quality import QualityReport


class TokenizerOption(StrEnum):
    """Where texts become tokens."""

    graph = "graph"
    server = "server"


class TargetCpuOption(StrEnum):
    """What the processors have that serve an int8 graph."""

    vnni = "vnni"
    any = "any"


class DeviceOption(StrEnum):
    """What computes."""

    cpu = "cpu"
    cuda = "cuda"


class TruncationOption(StrEnum):
    """What becomes of texts that are too long."""

    right = "right"
    left = "left"
    error = "error"


def export_command(  # noqa: PLR0913, PLR0917  one parameter per option
    checkpoint: Annotated[
        str, typer.Argument(help="Trained model: a folder, or a hub id.", show_default=False)
    ],
    model_repository: ModelRepository = DEFAULT_REPOSITORY,
    name: Annotated[
        str | None, typer.Option(help="Name of the model.", show_default="the checkpoint's folder name")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help="Attend with this instead: softmax, sparsegen, or a pattern such as local2+global1 (terms "
            "localN, globalN, randomN). What is learned (axis, diagonal, layer-diagonal) needs a checkpoint "
            "that was trained with it.",
            show_default="as the checkpoint was trained",
        ),
    ] = None,
    lambd: Annotated[
        float | None,
        typer.Option(
            "--lambda",
            envvar="SPARSE_SERVE_LAMBDA",
            help="Sparsegen's λ, below 1: with --attention sparsegen, or with a pattern, to take sparsegen "
            "over its keys instead of softmax.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Answer this instead: embedding makes a vector of an encoder's hidden states and needs no "
            "training; classification, multi-label and regression read one and the same head.",
            show_default="as the checkpoint was trained",
        ),
    ] = None,
    single_task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of a model of several tasks export this one, with nothing of the others in it.",
            show_default="all of them, in one graph",
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Question answering: tokens by which the windows of a long context overlap.",
            show_default="128",
        ),
    ] = None,
    max_answer_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Question answering: tokens of the longest answer.", show_default="30"),
    ] = None,
    no_answer: Annotated[
        bool | None,
        typer.Option(
            "--no-answer/--answers-only",
            help="Question answering: a question may have no answer in its context (SQuAD 2.0).",
            show_default="as the checkpoint was trained",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Embedding: whose hidden states: last, second-to-last, sum-last-four, concat-last-four or "
            "weighted-all, the mean of all layers.",
            show_default="last",
        ),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="Embedding: what makes the vector: the first token, or the mean of all tokens.",
            show_default="what a sentence-transformers folder says, else mean",
        ),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Embedding: give vectors the length 1.",
            show_default="what a sentence-transformers folder says, else not",
        ),
    ] = None,
    paired: Annotated[
        bool | None,
        typer.Option(
            "--text-pair/--single-text",
            envvar="SPARSE_SERVE_TEXT_PAIR",
            help="What a tokenizer in the graph reads: pairs of texts, TEXT and TEXT_PAIR, or TEXT alone.",
            show_default="what the checkpoint was trained on, else single texts",
        ),
    ] = None,
    tokenizer: Annotated[
        TokenizerOption | None,
        typer.Option(
            help="Where texts become tokens: in the graph, one file from text to label, or in the server, in "
            "front of NAME_model.",
            show_default="the graph, where it can be",
        ),
    ] = None,
    token_model: Annotated[
        bool,
        typer.Option(
            "--token-model",
            help="Write NAME_model, the graph of token ids that runs on a stock ONNX Runtime, beside a graph "
            "that takes text.",
        ),
    ] = False,
    triton: Annotated[str, typer.Option(help="Triton release that is to serve it.")] = DEFAULT_RELEASE,
    opset: Annotated[int, typer.Option(help="Version of the ONNX operators.")] = 20,
    dtype: Annotated[
        str,
        typer.Option(
            help="Weights and activations: fp32, fp16, bf16 (cuda alone) or int8 (cpu alone). int8 is two to "
            "three times as fast on a CPU, in a quarter of the file; every token has a scale of its own, so "
            "that a text is answered the same in any company. fp16 halves the file and is meant for GPUs: on "
            "a CPU, ONNX Runtime turns the weights back into fp32 as it loads them."
        ),
    ] = "fp32",
    device: Annotated[
        DeviceOption,
        typer.Option(
            help="What computes the model where it is served: cpu, or cuda for an NVIDIA GPU (A100 or "
            "newer), where the gate runs too; without a GPU it runs on the CPU, which it says."
        ),
    ] = DeviceOption.cpu,
    gpu_mem_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="cuda: most memory that each instance takes for what it computes; m or g behind a number.",
            show_default="all of the GPU's",
        ),
    ] = None,
    target_cpu: Annotated[
        TargetCpuOption | None,
        typer.Option(
            help="int8: what serves it. vnni: x86 with AVX-512 VNNI, AVX-VNNI or AMX, and Arm; any: older "
            "ones too, for which weights have 7 bits.",
            show_default="vnni, on a processor without it any",
        ),
    ] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(
            help="int8: how much of the task's metric on --eval may be lost; without --eval, of the answers "
            "to the gate's texts.",
            show_default="0.005, without --eval 0.1",
        ),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(
            help="Accepted difference of a logit, or of a number of an embedding, from torch's in fp32.",
            show_default="0.0001, in fp16 0.01; of int8 before it is quantized",
        ),
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            "--eval",
            envvar="SPARSE_SERVE_EVAL",
            help="Labelled rows: compare the task metrics on each side as well.",
            show_default=False,
        ),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(help="Column of the text in --eval.", show_default="text_a, of questions question"),
    ] = None,
    text_pair_column: Annotated[
        str | None,
        typer.Option(
            help="Column of the second text in --eval.",
            show_default=f"{TEXT_PAIR}, where there is one, of questions context",
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(help="Column of the label in --eval.", show_default="label, or the task's own"),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Texts for the parity gate, one a line.", show_default="built-in texts of many lengths"
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens at which texts are cut, or the windows of a long context.",
            show_default="what a pattern was trained at, else the encoder's positions",
        ),
    ] = None,
    truncation: Annotated[
        TruncationOption | None,
        typer.Option(
            help="What becomes of a text of more tokens: it loses those on its right or on its left, or is "
            "refused. Of questions only those are cut that leave a window to no context.",
            show_default="right",
        ),
    ] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Most rows of one request.")] = 64,
    cores: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cores that the model will have, where those are fewer than the server sees: in a container "
            "with a limit, or beside other models.",
            show_default="all that the server sees",
        ),
    ] = None,
    instances: Annotated[
        int,
        typer.Option(min=1, help="Copies of the model that divide --cores among them; cuda: on each GPU."),
    ] = 1,
    queue_delay: Annotated[
        int, typer.Option(min=0, help="Microseconds that a request may wait for others to share its run.")
    ] = 0,
    model_version: Annotated[
        int, typer.Option(min=1, max=MAX_VERSION, help="Version number in the repository.")
    ] = 1,
    with_baselines: Annotated[
        bool, typer.Option("--with-baselines", help="Write the dense twins that `profile` compares with.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the version if it exists.")] = False,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="Publish on Triton's metrics port what the graph measures of its attention by layer: ρ and, "
            "with a pattern, the rows and columns that are on.",
        ),
    ] = False,
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
        target_cpu=None if target_cpu is None else target_cpu.value,
        max_loss=max_loss,
        max_length=max_length,
        truncation=None if truncation is None else truncation.value,
        max_batch_size=max_batch_size,
        computing=Computing.on(
            cores,
            instances,
            queue_delay,
            device=device.value,
            gpu_mem_limit=None if gpu_mem_limit is None else read_size("gpu-mem-limit", gpu_mem_limit),
        ),
        atol=atol,
        eval_file=evaluation,
        columns={name: column for name, column in columns.items() if column is not None},
        texts_file=texts,
        tokenizer=None if tokenizer is None else tokenizer.value,
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
        f"{parity.portable.max_abs_diff:.1e} without; accepted {parity.atol:g}"
    ]
    if parity.library.flips is not None and parity.portable.flips is not None:
        lines.append(_flips_line(parity.library.flips, parity.portable.flips))
    if exported.texts is not None:
        lines.append(
            f"tokenizer in the graph: {exported.texts.tokenized} texts and random strings read as by the "
            f"checkpoint's own, {exported.texts.answered} answered"
        )
    elif exported.server_side != ASKED_FOR:
        lines.append(f"tokenizer in the server: {exported.server_side}")
    if exported.quality is not None:
        lines += _metric_lines(exported.quality)
    if exported.quantized is not None:
        lines += ["in int8, all of the above was before it:", *_metric_lines(exported.quantized)]
        lines.append(_quantized_line(exported.quantized))
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
