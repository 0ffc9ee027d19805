"""The options of `export`, as its help has them together: task, attention, gate, what serves it."""

from pathlib import Path
from typing import Annotated

import typer

from sparse_serve import op_library
from sparse_serve.cli.texts import DEFAULT_LABEL_COLUMN, DEFAULT_TEXT_COLUMN, DEFAULT_TEXT_PAIR_COLUMN
from sparse_serve.repository import manifest
from sparse_serve.tasks import encoding

_TASK = "Task"
_ATTENTION = "Attention"
_TEXTS = "Tokenizer and length"
_COMPUTING = "Precision and device"
_GATE = "Gate"
_SERVING = "Serving"
_OUTPUT = "Output"


Name = Annotated[
    str | None, typer.Option(help="Name of the model.", show_default="the checkpoint's folder name")
]

Task = Annotated[
    str | None,
    typer.Option(
        envvar="SPARSE_SERVE_EXPORT_TASK",
        help="Answer this instead: embedding makes a vector of an encoder's hidden states and needs no "
        "training; classification, multi-label and regression read one and the same head.",
        show_default="as the checkpoint was trained",
        rich_help_panel=_TASK,
    ),
]
SingleTask = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of a model of several tasks export this one, with nothing of the others in it.",
        show_default="all of them, in one graph",
        rich_help_panel=_TASK,
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Question answering: tokens by which the windows of a long context overlap.",
        show_default="128",
        rich_help_panel=_TASK,
    ),
]
MaxAnswerTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Question answering: tokens of the longest answer.",
        show_default="30",
        rich_help_panel=_TASK,
    ),
]
NoAnswer = Annotated[
    bool | None,
    typer.Option(
        "--no-answer/--answers-only",
        help="Question answering: a question may have no answer in its context (SQuAD 2.0).",
        show_default="as finetune recorded; else answers only",
        rich_help_panel=_TASK,
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        help="Embedding: whose hidden states: last, second-to-last, sum-last-four, concat-last-four or "
        "weighted-all, the mean of all layers.",
        show_default="last",
        rich_help_panel=_TASK,
    ),
]
Pooling = Annotated[
    str | None,
    typer.Option(
        help="Embedding: what makes the vector: the first token, or the mean of all tokens.",
        show_default="what a sentence-transformers folder says, else mean",
        rich_help_panel=_TASK,
    ),
]
Normalize = Annotated[
    bool | None,
    typer.Option(
        "--normalize/--no-normalize",
        help="Embedding: give vectors the length 1.",
        show_default="what a sentence-transformers folder says, else not",
        rich_help_panel=_TASK,
    ),
]

Attention = Annotated[
    str | None,
    typer.Option(
        envvar="SPARSE_SERVE_EXPORT_ATTENTION",
        help="Attend with this instead: softmax, sparsegen, or a pattern such as local2+global1 (terms "
        "localN, globalN, randomN). What is learned (axis, diagonal, layer-diagonal) needs a checkpoint "
        "that was trained with it.",
        show_default="as the checkpoint was trained",
        rich_help_panel=_ATTENTION,
    ),
]
Lambd = Annotated[
    float | None,
    typer.Option(
        "--lambda",
        envvar="SPARSE_SERVE_EXPORT_LAMBDA",
        help="Sparsegen's λ, below 1: with --attention sparsegen, or with a pattern, to take sparsegen "
        "over its keys instead of softmax.",
        show_default=False,
        rich_help_panel=_ATTENTION,
    ),
]

Tokenizer = Annotated[
    manifest.TokenizerPlace | None,
    typer.Option(
        help="Where texts become tokens: in the graph, one file from text to label, or in the server, in "
        "front of NAME_model.",
        show_default="the graph, where it can be",
        rich_help_panel=_TEXTS,
    ),
]
Paired = Annotated[
    bool | None,
    typer.Option(
        "--text-pair/--single-text",
        envvar="SPARSE_SERVE_EXPORT_TEXT_PAIR",
        help="What a tokenizer in the graph reads: pairs of texts, TEXT and TEXT_PAIR, or TEXT alone.",
        show_default="what the checkpoint was trained on, else single texts",
        rich_help_panel=_TEXTS,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        help="Tokens at which texts are cut, or the windows of a long context.",
        show_default="what a pattern was trained at, else the encoder's positions",
        rich_help_panel=_TEXTS,
    ),
]
Truncation = Annotated[
    encoding.Truncation | None,
    typer.Option(
        help="What becomes of a text of more tokens: it loses those on its right or on its left, or is "
        "refused. Of questions only those are cut that leave a window to no context.",
        show_default="right",
        rich_help_panel=_TEXTS,
    ),
]

Dtype = Annotated[
    str,
    typer.Option(
        help="Weights and activations: fp32, fp16, bf16 (cuda alone) or int8 (cpu alone). int8 is two to "
        "three times as fast on a CPU with VNNI, in a quarter of the file; every token has a scale of its "
        "own, so that a text is answered the same in any company. fp16 halves the file and is meant for "
        "GPUs: on a CPU, ONNX Runtime turns the weights back into fp32 as it loads them.",
        rich_help_panel=_COMPUTING,
    ),
]
TargetCpu = Annotated[
    manifest.TargetCpu | None,
    typer.Option(
        help="int8: what serves it. vnni: x86 with AVX-512 VNNI, AVX-VNNI or AMX, and Arm; any: older "
        "ones too, for which weights have 7 bits.",
        show_default="vnni, on a processor without it any",
        rich_help_panel=_COMPUTING,
    ),
]
Device = Annotated[
    op_library.Device,
    typer.Option(
        help="What computes the model where it is served: cpu, or cuda for an NVIDIA GPU (A100 or "
        "newer), where the gate runs too; without a GPU it runs on the CPU, which it says.",
        rich_help_panel=_COMPUTING,
    ),
]
GpuMemLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="cuda: most memory that each instance takes for what it computes; m or g behind a number.",
        show_default="all of the GPU's",
        rich_help_panel=_COMPUTING,
    ),
]

Texts = Annotated[
    Path | None,
    typer.Option(
        help="Texts for the parity gate, one a line.",
        show_default="built-in texts of many lengths",
        rich_help_panel=_GATE,
    ),
]
Evaluation = Annotated[
    Path | None,
    typer.Option(
        "--eval",
        envvar="SPARSE_SERVE_EVAL",
        help="Labelled rows: compare the task metrics on each side as well.",
        show_default=False,
        rich_help_panel=_GATE,
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the text in --eval and --calibration.",
        show_default=DEFAULT_TEXT_COLUMN,
        rich_help_panel=_GATE,
    ),
]
TextPairColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the second text in both.",
        show_default=DEFAULT_TEXT_PAIR_COLUMN,
        rich_help_panel=_GATE,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the label in --eval.", show_default=DEFAULT_LABEL_COLUMN, rich_help_panel=_GATE
    ),
]
Atol = Annotated[
    float | None,
    typer.Option(
        help="Accepted difference of a logit, or of a number of an embedding, from torch's in fp32; of "
        "numbers beyond 10 in proportion.",
        show_default="0.0001, in fp16 0.01; of int8 before it is quantized",
        rich_help_panel=_GATE,
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        help="int8: rows like those that it will be asked, as --eval has them, labelled or not: weights are "
        "rounded so that their errors cancel out on them, which matters most with --target-cpu any.",
        show_default="weights are rounded to the nearest",
        rich_help_panel=_COMPUTING,
    ),
]
MaxLoss = Annotated[
    float | None,
    typer.Option(
        help="int8: how much of the task's metric on --eval may be lost; without --eval, of the answers "
        "to the gate's texts.",
        show_default="0.005, without --eval 0.1",
        rich_help_panel=_GATE,
    ),
]

Triton = Annotated[str, typer.Option(help="Triton release that is to serve it.", rich_help_panel=_SERVING)]
Opset = Annotated[int, typer.Option(help="Version of the ONNX operators.", rich_help_panel=_SERVING)]
MaxBatchSize = Annotated[int, typer.Option(min=1, help="Most rows of one request.", rich_help_panel=_SERVING)]
Cores = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Cores that the model will have, where those are fewer than the server sees: in a container "
        "with a limit, or beside other models.",
        show_default="all that the server sees",
        rich_help_panel=_SERVING,
    ),
]
Instances = Annotated[
    int,
    typer.Option(
        min=1,
        help="Copies of the model that divide --cores among them; cuda: on each GPU.",
        rich_help_panel=_SERVING,
    ),
]
QueueDelay = Annotated[
    int,
    typer.Option(
        min=0,
        help="Microseconds that a request may wait for others to share its run.",
        rich_help_panel=_SERVING,
    ),
]
Metrics = Annotated[
    bool,
    typer.Option(
        "--metrics",
        help="Publish on Triton's metrics port what the graph measures of its attention by layer: ρ and, "
        "with a pattern, the rows and columns that are on. Implies --tokenizer server.",
        rich_help_panel=_SERVING,
    ),
]

ModelVersion = Annotated[
    int,
    typer.Option(
        min=1, max=manifest.MAX_VERSION, help="Version number in the repository.", rich_help_panel=_OUTPUT
    ),
]
TokenModel = Annotated[
    bool,
    typer.Option(
        "--token-model",
        help="Write NAME_model, the graph of token ids that runs on a stock ONNX Runtime, beside a graph "
        "that takes text.",
        rich_help_panel=_OUTPUT,
    ),
]
WithBaselines = Annotated[
    bool,
    typer.Option(
        "--with-baselines", help="Write the twins that `profile` compares with.", rich_help_panel=_OUTPUT
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the version if it exists.", rich_help_panel=_OUTPUT)
]
