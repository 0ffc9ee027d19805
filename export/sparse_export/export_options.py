"""What is asked of an export: the options, and whether they go together, before anything is loaded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparse_export.attention.spec import AttentionSpec
from sparse_export.graph.export import DEFAULT_OPSET, MIN_OPSET, GraphTarget
from sparse_export.graph.precision import FP32, PRECISIONS, Precision, precision_of
from sparse_export.tasks.asked import TaskOptions
from sparse_serve.errors import OptionError
from sparse_serve.processor import has_vnni
from sparse_serve.repository.computing import ALL_CORES, Computing
from sparse_serve.repository.manifest import TargetCpu, TokenizerPlace
from sparse_serve.repository.releases import DEFAULT_RELEASE, release
from sparse_serve.tasks import Task
from sparse_serve.tasks.encoding import Truncation


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to export, where to, and how it is judged.

    Attributes:
        checkpoint: a Transformers folder, or the id of a model on the hub.
        repository: the Triton model repository; made if absent.
        name: name of the public model.
        attention: overrides the checkpoint's own attention.
        task: what is said of the task, beside what the checkpoint says.
        model_version: Triton's version number of the model.
        triton: the Triton release that is to serve the entry, such as "26.07".
        opset: version of the standard ONNX operators.
        dtype: name of the precision, one of `precision.PRECISIONS`; others are refused.
        target_cpu: what the processors have that serve an int8 graph; None for VNNI.
        max_loss: how much int8 may lose of the task's metric on `eval_file`, or without it of the answers to
            the gate's texts; None for `quality.ACCEPTED_LOSS` and `quality.ACCEPTED_DISAGREEMENT`.
        max_length: tokens at which texts are cut; None for what the checkpoint's pattern was trained at, or
            without one for what the encoder has positions for.
        truncation: which side texts of more tokens lose, or "error" to refuse them; None for the right.
        max_batch_size: the most rows of one request.
        computing: what the graph is computed with where it is served; its device is what it is judged on,
            where that is here.
        atol: accepted difference between torch in float32 and ONNX Runtime; None for the precision's own.
        eval_file: labelled texts on which the task metrics are compared and recorded.
        calibration_file: rows of the task, labelled or not, by which int8 rounds weights; None to round them
            to the nearest.
        columns: names of columns of both files by `text`, `text_pair` and `label`; the task's own elsewhere.
        texts_file: texts for the parity gate, one a line; None for built-in ones of many lengths.
        tokenizer: where texts become tokens, "graph" or "server"; None for the graph where it can be.
        token_model: write the graph of token ids beside one that takes text.
        with_baselines: write the twins too, from the same weights: dense, and eager of SSAF.
        metrics: have the server publish what the graph measures of its attention on its metrics port; that
            is done by a server-side tokenizer.
        force: replace an existing version.
        command: the command line to be recorded in the manifest.
    """

    checkpoint: str
    repository: Path
    name: str
    attention: AttentionSpec | None = None
    task: TaskOptions = field(default_factory=TaskOptions)
    model_version: int = 1
    triton: str = DEFAULT_RELEASE
    opset: int = DEFAULT_OPSET
    dtype: str = "fp32"
    target_cpu: TargetCpu | None = None
    max_loss: float | None = None
    max_length: int | None = None
    truncation: Truncation | None = None
    max_batch_size: int = 64
    computing: Computing = ALL_CORES
    atol: float | None = None
    eval_file: Path | None = None
    calibration_file: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    texts_file: Path | None = None
    tokenizer: TokenizerPlace | None = None
    token_model: bool = False
    with_baselines: bool = False
    metrics: bool = False
    force: bool = False
    command: str = ""


def target_of(options: ExportOptions) -> GraphTarget:
    """Return what the graph is made for, int8 from one in float32.

    Raises:
        OptionError: an option is out of range, or they do not go together.
    """
    if options.atol is not None and not 0 < options.atol < math.inf:
        raise OptionError(f"--atol {options.atol:g} is out of range: a finite number above 0 is needed")
    served = release(options.triton)
    precision = precision_of(options.dtype, options.computing.device)
    _refuse_of_integers(options, precision)
    _refuse_unread_columns(options)
    target = GraphTarget(
        options.opset, FP32 if precision.is_quantized else precision, options.computing.device
    )
    if not MIN_OPSET <= options.opset <= served.opset:
        raise OptionError(
            f"opset {options.opset} is out of range: Triton {served.name} runs ONNX Runtime "
            f"{served.onnxruntime}, which takes {MIN_OPSET} to {served.opset}; choose one with --opset, or "
            "a newer --triton"
        )
    if target.ir_version > served.ir_version:
        raise OptionError(
            f"opset {options.opset} needs ONNX IR {target.ir_version}, but Triton {served.name} takes at "
            f"most {served.ir_version}: choose a lower --opset"
        )
    return target


def _refuse_unread_columns(options: ExportOptions) -> None:
    for name in options.columns:
        files = {"--eval": options.eval_file}
        if name != "label":
            files["--calibration"] = options.calibration_file
        if not any(files.values()):
            raise OptionError(
                f"--{name.replace('_', '-')}-column names a column of {' or '.join(files)}, which was not "
                "given: leave it out"
            )


def target_cpu_of(options: ExportOptions) -> TargetCpu | None:
    """Return what a quantized graph is made for; None where none is asked for."""
    if not PRECISIONS[options.dtype].is_quantized:
        return None
    return options.target_cpu or ("vnni" if has_vnni() else "any")


def refuse_of_several(options: ExportOptions, tasks: Mapping[str, Task]) -> None:
    """Refuse what is read or written of one task alone."""
    asked = {
        "--eval": options.eval_file is not None,
        "--calibration": options.calibration_file is not None,
        "--with-baselines": options.with_baselines,
    }
    for option, is_given in asked.items():
        if is_given and len(tasks) > 1:
            raise OptionError(
                f"{option} is for one task, and {options.checkpoint} has {', '.join(tasks)}: choose one with "
                "--single-task, or leave it out"
            )


def _refuse_of_integers(options: ExportOptions, precision: Precision) -> None:
    """Refuse what is said of int8 alone with another precision, or is out of range."""
    of_integers = {
        "--target-cpu": options.target_cpu,
        "--calibration": options.calibration_file,
        "--max-loss": options.max_loss,
    }
    for option, value in of_integers.items():
        if value is not None and not precision.is_quantized:
            raise OptionError(f"{option} is for --dtype int8, this is {precision.name}: leave it out")
    if options.target_cpu == "vnni" and not has_vnni():
        raise OptionError(
            "--target-cpu vnni cannot be judged here: this processor has no VNNI, its sums of 8-bit integers "
            "overflow; export on one that has, or give --target-cpu any"
        )
    if options.max_loss is not None and not 0 <= options.max_loss <= 1:
        raise OptionError(f"--max-loss {options.max_loss:g} is out of range: a share from 0 to 1 is needed")
