"""From a checkpoint to an entry of a model repository, through the parity gate."""

import json
import math
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnxruntime
import torch
import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.attention.spec import AttentionSpec, attention_of
from sparse_export.encoders.checkpoint import load_checkpoint, load_config
from sparse_export.encoders.patterned import layer_patterns
from sparse_export.encoders.sentence_transformers import stored_max_length
from sparse_export.encoders.tokenizer import (
    cut_length,
    load_tokenizer,
    require_embedded,
    stored_truncation_side,
)
from sparse_export.entry_graphs import EntryGraphs, Progress, WantedGraphs, make_graphs
from sparse_export.graph.export import DEFAULT_OPSET, MIN_OPSET, GraphTarget
from sparse_export.graph.precision import FP32, PRECISIONS, Precision, precision_of
from sparse_export.graph.text import TextReading, obstacle
from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_export.parity.examples import labelled_examples
from sparse_export.parity.gate import ParityReport
from sparse_export.parity.quality import QualityReport
from sparse_export.parity.questions import Questions
from sparse_export.parity.texts import TextParity
from sparse_export.tasks import model_head
from sparse_export.tasks.asked import TaskOptions, asked_tasks
from sparse_serve import __version__
from sparse_serve.data import TextData, read_data, read_texts
from sparse_serve.digests import file_digest
from sparse_serve.errors import OptionError, RepositoryError, UnsupportedTokenizerError
from sparse_serve.op_library import OPSET_VERSION
from sparse_serve.processor import has_vnni
from sparse_serve.repository.computing import ALL_CORES, Computing
from sparse_serve.repository.entries import (
    EntrySpec,
    refuse_occupied,
    refuse_other_models,
    validate_name,
    write_entry,
)
from sparse_serve.repository.manifest import (
    Attention,
    Manifest,
    OpLibrary,
    TargetCpu,
    TokenizerPlace,
    Versions,
)
from sparse_serve.repository.releases import DEFAULT_RELEASE, release
from sparse_serve.tasks import Embedding, Task, answered
from sparse_serve.tasks.encoding import Truncation

ASKED_FOR = "as asked for"
# Its own module needs what only training needs.
_TRAINING_RECORD = "finetune.json"


class Cut(NamedTuple):
    """How many tokens of a text are read, and what becomes of one that has more."""

    max_length: int
    truncation: Truncation


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
        columns: names of columns of `eval_file` by `text`, `text_pair` and `label`; the task's own elsewhere.
        texts_file: texts for the parity gate, one a line; None for built-in ones of many lengths.
        tokenizer: where texts become tokens, "graph" or "server"; None for the graph where it can be.
        token_model: write the graph of token ids beside one that takes text.
        with_baselines: write the dense twins too, from the same weights.
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
    columns: Mapping[str, str] = field(default_factory=dict)
    texts_file: Path | None = None
    tokenizer: TokenizerPlace | None = None
    token_model: bool = False
    with_baselines: bool = False
    metrics: bool = False
    force: bool = False
    command: str = ""


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        path: the public folder.
        attention: of the model.
        tasks: what it answers.
        parity: what the gate saw of the graph.
        texts: what it saw of the tokenizer in the graph; None where it is in the server.
        server_side: why the tokenizer is in the server; None where it is in the graph.
        quality: what the gate saw on labelled texts; None without them, or where the graph is quantized.
        quantized: what it saw of the quantized graph, on labelled texts where there are any; None where none
            was asked for. All else is told of the graph before.
        baselines: how far each twin is from torch.
    """

    path: Path
    attention: AttentionSpec
    tasks: Mapping[str, Task]
    parity: ParityReport
    texts: TextParity | None
    server_side: str | None
    quality: ParityReport | None
    quantized: QualityReport | None
    baselines: dict[str, float]


def export_checkpoint(
    options: ExportOptions, progress: Progress = lambda _: None, warn: Progress = lambda _: None
) -> Exported:
    """Export a checkpoint into a model repository, or raise before anything is written.

    Args:
        options: what, where to and how.
        progress: called with what is being done.
        warn: called with what is done as asked, but may not be what is wanted.

    Raises:
        OptionError: an option is out of range, or the tokenizer is asked for in the graph and cannot be.
        CheckpointError: the checkpoint cannot be loaded or exported.
        DataError: the evaluation file is malformed.
        OpLibraryError: the op library is missing or is not the installed one.
        DeviceError: what is for GPUs alone cannot be judged here.
        GateError: an ONNX graph differs from torch by more than `atol`.
        RepositoryError: the repository cannot be written or the entry exists.
    """
    target = _target(options)
    _check_destination(options)
    progress("loading the checkpoint")
    tasks = asked_tasks(options.checkpoint, load_config(options.checkpoint), options.task)
    _refuse_of_several(options, tasks)
    data, texts = _labelled_rows(options, answered(tasks)), read_texts(options.texts_file)
    tasks = _read_as(options, tasks, data)
    task = answered(tasks)
    model = load_checkpoint(options.checkpoint, options.attention, tasks)
    target.precision.require_in_one_file(options.checkpoint, model)
    tokenizer = load_tokenizer(options.checkpoint)
    require_embedded(options.checkpoint, tokenizer, model.config)
    cut = Cut(
        _max_length(options, model.config, tokenizer, warn), _truncation(options, task, tokenizer, warn)
    )
    _warn_of_longer_texts(options, task, cut.max_length, warn)
    served = _served_tokenizer(tokenizer, model.config)
    # Before what takes long, so that bad rows are refused at once.
    labelled = None if data is None else labelled_examples(task, served, *cut, data)
    progress("reading the tokenizer")
    reading = _reading(options, model, served, cut)
    refuse_other_models(
        options.repository,
        options.name,
        options.model_version,
        has_beside=isinstance(reading, str) or options.token_model,
    )
    asked = Questions.of(
        texts,
        task,
        served,
        cut.max_length,
        target,
        are_built_in=options.texts_file is None,
        atol=options.atol,
        labelled=labelled,
        reading=reading if isinstance(reading, TextReading) else None,
        warn=warn,
    )
    with tempfile.TemporaryDirectory(prefix="sparse-serve-export-") as scratch:
        folder = Path(scratch)
        graphs = make_graphs(model, target, asked, folder, _wanted_graphs(options), progress)
        progress("writing the entry")
        tokenizer_file = folder / "tokenizer.json"
        tokenizer_file.write_text(_served_tokenizer(tokenizer, model.config).to_str(), encoding="utf-8")
        manifest = _manifest(options, model, tasks, target, asked, cut, graphs)
        path = write_entry(
            options.repository,
            EntrySpec(
                graph=graphs.public,
                tokenizer=tokenizer_file,
                manifest=manifest,
                max_batch_size=options.max_batch_size,
                computing=options.computing,
                metrics=options.metrics,
                baselines={variant: twin.graph for variant, twin in graphs.twins.items()},
                token_graph=graphs.of_ids,
            ),
            force=options.force,
        )
    return Exported(
        path,
        attention_of(model.config),
        tasks,
        graphs.parity,
        graphs.texts,
        reading if isinstance(reading, str) else None,
        graphs.quality,
        graphs.quantized,
        {variant: twin.difference for variant, twin in graphs.twins.items()},
    )


def _reading(
    options: ExportOptions,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    cut: Cut,
) -> TextReading | str:
    """Return how the graph reads texts, or why it is the server that does.

    Raises:
        OptionError: the graph is asked for, and cannot.
    """
    if options.tokenizer == "server":
        return ASKED_FOR
    reason = "--metrics are published by the server" if options.metrics else None
    reason = reason or obstacle(model_head(model), options.opset)
    if reason is None:
        try:
            tables = derive_tables(tokenizer)
        except UnsupportedTokenizerError as error:
            reason = str(error)
        else:
            pad_id = model.config.pad_token_id
            return TextReading(tables, cut.max_length, 0 if pad_id is None else int(pad_id), cut.truncation)
    if options.tokenizer == "graph":
        raise OptionError(f"--tokenizer graph is not possible: {reason}; leave it out, or say server")
    return reason


def _wanted_graphs(options: ExportOptions) -> WantedGraphs:
    return WantedGraphs(
        target_cpu=_target_cpu(options),
        max_loss=options.max_loss,
        token_model=options.token_model,
        # Of a checkpoint with softmax in the place of its own attention.
        dense=partial(load_checkpoint, options.checkpoint, AttentionSpec())
        if options.with_baselines
        else None,
    )


def _refuse_of_several(options: ExportOptions, tasks: Mapping[str, Task]) -> None:
    """Refuse what is read or written of one task alone."""
    asked = {"--eval": options.eval_file is not None, "--with-baselines": options.with_baselines}
    for option, is_given in asked.items():
        if is_given and len(tasks) > 1:
            raise OptionError(
                f"{option} is for one task, and {options.checkpoint} has {', '.join(tasks)}: choose one with "
                "--single-task, or leave it out"
            )


def _labelled_rows(options: ExportOptions, task: Task) -> TextData | None:
    if options.eval_file is None:
        return None
    return read_data(options.eval_file, task.rows.named(**options.columns), task=task.type)


def _read_as(options: ExportOptions, tasks: dict[str, Task], data: TextData | None) -> dict[str, Task]:
    """Return the tasks as their labelled rows say that they are read: in pairs where those are pairs.

    Raises:
        OptionError: the command line says otherwise.
    """
    task = answered(tasks)
    if data is None or task.text_pair != "optional" or task.asked(data)[1] is None or task.reads_pairs:
        return tasks
    if options.task.paired is False:
        raise OptionError(f"{options.eval_file} has pairs of texts: leave out --single-text")
    return {name: replace(each, paired=True) for name, each in tasks.items()}


def _max_length(
    options: ExportOptions, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, warn: Progress
) -> int:
    """Return the tokens at which texts are cut.

    A pattern attends as it was trained on texts up to the length that it was trained at: that is the default,
    and more is worth a warning.
    """
    pattern = attention_of(config).pattern
    max_length = cut_length(config, tokenizer, options.max_length)
    if pattern is None:
        return max_length
    trained = _trained_length(options)
    if trained is not None and options.max_length is None:
        max_length = cut_length(config, tokenizer, min(trained, max_length))
    elif trained is not None and max_length > trained:
        warn(
            f"--max-length {max_length} is more than the {trained} tokens at which the pattern "
            f"{pattern.name} was trained: nothing is known of how well it attends to longer texts"
        )
    pattern.require_within(max_length)
    return max_length


def _warn_of_longer_texts(options: ExportOptions, task: Task, max_length: int, warn: Progress) -> None:
    """Tell where sentence-transformers, whose folder a checkpoint is, embeds less of a long text."""
    if options.max_length is not None or not isinstance(task, Embedding):
        return
    stored = stored_max_length(options.checkpoint)
    if stored is not None and stored < max_length:
        warn(
            f"sentence-transformers embeds the first {stored} tokens of a text with {options.checkpoint}, "
            f"the entry will the first {max_length}: say --max-length {stored} to have it do so too, or "
            f"--max-length {max_length}"
        )


def _truncation(
    options: ExportOptions, task: Task, tokenizer: PreTrainedTokenizerFast, warn: Progress
) -> Truncation:
    """Return what becomes of texts that are too long: they are cut from the right unless it is said.

    Raises:
        OptionError: the left is asked for of a task that reads long texts whole.
    """
    if options.truncation == "left" and task.in_windows:
        raise OptionError(
            f"--truncation left is for texts that are cut: {task.option} reads a context whole, in windows; "
            "leave it out, or say error to refuse questions that are too long"
        )
    if options.truncation is None and stored_truncation_side(tokenizer) == "left" and not task.in_windows:
        warn(
            f"the tokenizer of {options.checkpoint} cuts long texts from the left, the entry will from the "
            "right: say --truncation left to have it do so too, or --truncation right"
        )
    return options.truncation or "right"


def _trained_length(options: ExportOptions) -> int | None:
    """Return the tokens at which the attention that is exported was trained, where that is known."""
    length = _training_record(options).get("max_length")
    return length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else None


def _target(options: ExportOptions) -> GraphTarget:
    if options.atol is not None and not 0 < options.atol < math.inf:
        raise OptionError(f"--atol {options.atol:g} is out of range: a finite number above 0 is needed")
    served = release(options.triton)
    precision = precision_of(options.dtype, options.computing.device)
    _refuse_of_integers(options, precision)
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


def _target_cpu(options: ExportOptions) -> TargetCpu | None:
    """Return what a quantized graph is made for; None where none is asked for."""
    if not PRECISIONS[options.dtype].is_quantized:
        return None
    return options.target_cpu or ("vnni" if has_vnni() else "any")


def _refuse_of_integers(options: ExportOptions, precision: Precision) -> None:
    """Refuse what is said of int8 alone with another precision, or is out of range."""
    for option, value in {"--target-cpu": options.target_cpu, "--max-loss": options.max_loss}.items():
        if value is not None and not precision.is_quantized:
            raise OptionError(f"{option} is for --dtype int8, this is {precision.name}: leave it out")
    if options.target_cpu == "vnni" and not has_vnni():
        raise OptionError(
            "--target-cpu vnni cannot be judged here: this processor has no VNNI, its sums of 8-bit integers "
            "overflow; export on one that has, or give --target-cpu any"
        )
    if options.max_loss is not None and not 0 <= options.max_loss <= 1:
        raise OptionError(f"--max-loss {options.max_loss:g} is out of range: a share from 0 to 1 is needed")


def _check_destination(options: ExportOptions) -> None:
    """Refuse before the long work what `write_entry` would refuse after it."""
    try:
        validate_name(options.name)
    except RepositoryError as error:
        raise OptionError(f"--name: {error}") from None
    if not options.force:
        refuse_occupied(options.repository, options.name, options.model_version)


def _served_tokenizer(tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig) -> Tokenizer:
    """Return the tokenizer of the entry."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if config.pad_token_id is not None:
        # Rows are filled up with what the model takes for padding, whatever the tokenizer says.
        backend.enable_padding(pad_id=config.pad_token_id, pad_token=tokenizer.pad_token or "[PAD]")
    return backend


def _manifest(
    options: ExportOptions,
    model: PreTrainedModel,
    tasks: Mapping[str, Task],
    target: GraphTarget,
    asked: Questions,
    cut: Cut,
    graphs: EntryGraphs,
) -> Manifest:
    texts = {} if graphs.texts is None else {"texts": graphs.texts.to_json()}
    return Manifest(
        name=options.name,
        version=options.model_version,
        versions=Versions(
            package=__version__,
            torch=torch.__version__,
            transformers=transformers.__version__,
            onnx=onnx.__version__,
            onnxruntime=onnxruntime.__version__,
        ),
        opset=target.opset,
        ir_version=target.ir_version,
        dtype=PRECISIONS[options.dtype].name,
        device=target.device,
        target_cpu=_target_cpu(options),
        triton_release=options.triton,
        attention=_attention(options, model),
        tasks=dict(tasks),
        max_length=cut.max_length,
        truncation=cut.truncation,
        tokenizer="server" if asked.reader is None else "graph",
        layers=int(model.config.num_hidden_layers),
        op_library=OpLibrary(version=OPSET_VERSION, sha256=file_digest(asked.library)),
        parity=graphs.parity.to_json() | texts,
        quality=None if graphs.quality is None else graphs.quality.to_json(),
        quantized=None if graphs.quantized is None else graphs.quantized.to_json(),
        command=options.command or shlex.join(sys.argv),
    )


def _attention(options: ExportOptions, model: PreTrainedModel) -> Attention:
    spec = attention_of(model.config)
    pattern = spec.pattern
    if pattern is None:
        return Attention(normalizer=spec.normalizer, lambd=spec.lambd)
    diagonals = [layer.diagonals for layer in layer_patterns(model)]
    record = _training_record(options)
    return Attention(
        normalizer=spec.normalizer,
        lambd=spec.lambd,
        pattern=pattern.name,
        local=pattern.local,
        global_size=pattern.global_size or None,
        random=pattern.random or None,
        seed=pattern.seed if pattern.random else None,
        diagonals=tuple(diagonals[:1] if len(set(diagonals)) == 1 else diagonals),
        rho_target=_share(record.get("rho_target")),
        rho=_share(record.get("rho")),
    )


def _training_record(options: ExportOptions) -> Mapping[str, Any]:
    """Return what `finetune` wrote beside the weights; nothing where another program trained them.

    It tells of the attention that was trained: of another one it says nothing either.
    """
    if options.attention not in (None, attention_of(load_config(options.checkpoint))):
        return {}
    try:
        record = json.loads((Path(options.checkpoint) / _TRAINING_RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None
