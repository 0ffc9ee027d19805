"""From a checkpoint to an entry of a model repository, through the parity gate."""

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import onnx
import onnxruntime
import torch
import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.attention.spec import AttentionSpec, attention_of
from sparse_export.checkpoint import load_checkpoint, load_config
from sparse_export.encoders.patterned import layer_patterns
from sparse_export.encoders.sentence_transformers import stored_max_length
from sparse_export.encoders.stored_files import StoredRecord, UnreachableError, stored_record
from sparse_export.encoders.tokenizer import (
    cut_length,
    load_tokenizer,
    require_embedded,
    stored_truncation_side,
)
from sparse_export.entry_graphs import EntryGraphs, Progress, WantedGraphs, make_graphs
from sparse_export.export_options import ExportOptions, refuse_of_several, target_cpu_of, target_of
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.precision import PRECISIONS
from sparse_export.graph.text import TextReading, obstacle
from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_export.parity.examples import Examples, calibration_examples, labelled_examples
from sparse_export.parity.gate import ParityReport
from sparse_export.parity.quality import QualityReport
from sparse_export.parity.questions import Questions
from sparse_export.parity.texts import TextParity
from sparse_export.tasks import model_head
from sparse_export.tasks.asked import asked_tasks
from sparse_serve import __version__
from sparse_serve.data import TextData, read_data, read_texts
from sparse_serve.digests import file_digest
from sparse_serve.errors import OptionError, RepositoryError, SparseServeError, UnsupportedTokenizerError
from sparse_serve.op_library import OPSET_VERSION
from sparse_serve.repository.manifest import (
    Attention,
    Manifest,
    OpLibrary,
    Versions,
)
from sparse_serve.repository.writing import (
    EntrySpec,
    refuse_occupied,
    refuse_other_models,
    refuse_unwritable,
    validate_name,
    write_entry,
)
from sparse_serve.tasks import Embedding, QuestionAnswering, Task, answered
from sparse_serve.tasks.encoding import Truncation

ASKED_FOR = "as asked for"


class Cut(NamedTuple):
    """How many tokens of a text are read, and what becomes of one that has more."""

    max_length: int
    truncation: Truncation


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
            was asked for. All else but `texts` is told of the graph before.
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
    target = target_of(options)
    # An entry in the place of a checkpoint would be in its own way.
    config = load_config(options.checkpoint)
    _check_destination(options)
    progress("loading the checkpoint")
    tasks = asked_tasks(options.checkpoint, config, options.task)
    refuse_of_several(options, tasks)
    data, texts = _labelled_rows(options, answered(tasks)), read_texts(options.texts_file)
    tasks = _read_as(options, tasks, data)
    task = answered(tasks)
    model = load_checkpoint(options.checkpoint, options.attention, tasks)
    target.precision.require_in_one_file(options.checkpoint, model)
    tokenizer = load_tokenizer(options.checkpoint)
    require_embedded(options.checkpoint, tokenizer, model.config)
    record = _stored_record(options, attention_of(config), warn)
    trained = _of_pattern(record, attention_of(config), options)
    cut = Cut(
        _max_length(options, model.config, tokenizer, trained, warn),
        _truncation(options, task, tokenizer, warn),
    )
    _warn_of_longer_texts(options, task, cut.max_length, warn)
    if record is None:
        _warn_of_answers_only(options, task, warn)
    served = _served_tokenizer(tokenizer, model.config)
    # Before what takes long, so that bad rows are refused at once.
    labelled = None if data is None else labelled_examples(task, served, *cut, data)
    calibration = _calibration(options, task, served, cut)
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
        calibration=calibration,
        reading=reading if isinstance(reading, TextReading) else None,
        warn=warn,
    )
    with tempfile.TemporaryDirectory(prefix="sparse-serve-export-") as scratch:
        folder = Path(scratch)
        with _scratch_errors(folder):
            graphs = make_graphs(model, target, asked, folder, _wanted_graphs(options), progress)
        progress("writing the entry")
        tokenizer_file = folder / "tokenizer.json"
        tokenizer_file.write_text(_served_tokenizer(tokenizer, model.config).to_str(), encoding="utf-8")
        manifest = _manifest(options, model, tasks, target, asked, cut, graphs, trained)
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
                warn=warn,
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


@contextmanager
def _scratch_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SparseServeError(
            f"graphs cannot be written to {folder}, where they lie until they are judged: {error.strerror}; "
            "make room there, several times the model's size, or name a folder that has it by TMPDIR"
        ) from error


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
        target_cpu=target_cpu_of(options),
        max_loss=options.max_loss,
        token_model=options.token_model,
        # Of a checkpoint with softmax in the place of its own attention.
        dense=partial(load_checkpoint, options.checkpoint, AttentionSpec())
        if options.with_baselines
        else None,
    )


def _labelled_rows(options: ExportOptions, task: Task) -> TextData | None:
    if options.eval_file is None:
        return None
    return read_data(options.eval_file, task.rows.named(**options.columns), task=task.type)


def _calibration(options: ExportOptions, task: Task, tokenizer: Tokenizer, cut: Cut) -> Examples | None:
    if options.calibration_file is None:
        return None
    rows = read_data(
        options.calibration_file, task.rows.named(**options.columns), task=task.type, labelled=False
    )
    return calibration_examples(task, tokenizer, *cut, rows)


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


def _stored_record(options: ExportOptions, own: AttentionSpec, warn: Progress) -> StoredRecord | None:
    try:
        return stored_record(options.checkpoint)
    except UnreachableError as error:
        if own.pattern is not None and options.max_length is None:
            warn(
                f"{error}, which says at how many tokens its pattern {own.pattern.name} was trained: texts "
                "are cut where the encoder has no more positions, unless --max-length says otherwise"
            )
        return None


def _of_pattern(record: StoredRecord | None, own: AttentionSpec, options: ExportOptions) -> StoredRecord:
    """Return what a checkpoint's record says of the pattern that is exported.

    It tells of the one that was trained, whatever makes its weights: of another one it says nothing.
    """
    is_own = options.attention is None or options.attention.pattern == own.pattern
    return record if record is not None and is_own else StoredRecord()


def _max_length(
    options: ExportOptions,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerFast,
    record: StoredRecord,
    warn: Progress,
) -> int:
    """Return the tokens at which texts are cut.

    A pattern attends as it was trained on texts up to the length that it was trained at: that is the default,
    and more is worth a warning.
    """
    pattern = attention_of(config).pattern
    max_length = cut_length(config, tokenizer, options.max_length)
    if pattern is None:
        return max_length
    trained = record.max_length
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


def _warn_of_answers_only(options: ExportOptions, task: Task, warn: Progress) -> None:
    """Tell where nothing says whether a question may have no answer, as in another program's checkpoint."""
    if not isinstance(task, QuestionAnswering) or task.no_answer or options.task.no_answer is not None:
        return
    warn(
        f"{options.checkpoint} does not say whether a question may have no answer in its context, and the "
        "entry will always give one: say --no-answer if it was trained on such questions (SQuAD 2.0), or "
        "--answers-only"
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


def _check_destination(options: ExportOptions) -> None:
    """Refuse before the long work what `write_entry` would refuse after it."""
    try:
        validate_name(options.name)
    except RepositoryError as error:
        raise OptionError(f"--name: {error}") from None
    refuse_unwritable(options.repository)
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
    trained: StoredRecord,
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
        target_cpu=target_cpu_of(options),
        triton_release=options.triton,
        attention=_attention(model, trained),
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


def _attention(model: PreTrainedModel, record: StoredRecord) -> Attention:
    spec = attention_of(model.config)
    pattern = spec.pattern
    if pattern is None:
        return Attention(normalizer=spec.normalizer, lambd=spec.lambd)
    diagonals = [layer.diagonals for layer in layer_patterns(model)]
    return Attention(
        normalizer=spec.normalizer,
        lambd=spec.lambd,
        pattern=pattern.name,
        local=pattern.local,
        global_size=pattern.global_size or None,
        random=pattern.random or None,
        seed=pattern.seed if pattern.random else None,
        diagonals=tuple(diagonals[:1] if len(set(diagonals)) == 1 else diagonals),
        rho_target=record.rho_target,
        rho=record.rho,
    )
