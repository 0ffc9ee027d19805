"""The whole way of a job: entry, corpus, folder, Ray, summary."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparse_serve import __version__
from sparse_serve.errors import OptionError
from sparse_serve.rows import TEXT_PAIR
from sparse_serve.scoring import PART_ROWS
from sparse_serve.scoring.answers import RESERVED
from sparse_serve.scoring.corpus import Corpus, find_corpus
from sparse_serve.scoring.engine import Plan, checked_classifier, require_ray, run
from sparse_serve.scoring.parts import PartRecord, kept_parts
from sparse_serve.scoring.reading import InputColumns, InputFile
from sparse_serve.scoring.record import (
    EntryRecord,
    FileRecord,
    JobRecord,
    Summary,
    alone_in,
    claim_folder,
    remove_unfinished,
    write_record,
)
from sparse_serve.scoring.storage import Location
from sparse_serve.tasks import Classification, Several, Task, require_task_named_once


@dataclass(frozen=True)
class Job:
    """What is to be scored, and how.

    Attributes:
        entry: the public folder of the entry; its tokenizer is in the graph.
        inputs: files, folders, patterns or URLs of Parquet, JSONL, CSV or TSV, all of one format.
        output: the folder of the parts, a path or a URL.
        version: of the entry; None for the highest.
        text_column: of the texts; None for `text_a`.
        text_pair_column: of second texts, where the model reads pairs; None for `text_b`.
        task: of all texts, where the model has several.
        task_column: that names the task of each.
        keep: further columns of the input, by the names that they get in the output.
        part_rows: how many rows a part has at most: a file of the output, and what is done again where a
            worker was killed.
        workers: how many actors; None for as many as Ray has cores for.
        threads: of each actor.
        address: of a Ray cluster, where every machine has this package and sees the entry, the input and the
            output by the same names; None for a Ray of this machine.
    """

    entry: Path
    inputs: Sequence[str]
    output: str
    version: int | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    task: str | None = None
    task_column: str | None = None
    keep: Mapping[str, str] = field(default_factory=dict)
    part_rows: int = PART_ROWS
    workers: int | None = None
    threads: int = 1
    address: str | None = None


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes:
        rows: in the output.
        total: of the input; None where only reading tells.
        kept: rows that were there when this run began.
    """

    rows: int
    total: int | None
    kept: int


def run_job(job: Job, progress: Callable[[Progress], object] | None = None) -> Summary:
    """Do a job, or what is left of it.

    Args:
        job: what is to be scored.
        progress: called when the work begins, and with each part.

    Raises:
        RepositoryError: there is no such entry, it is damaged, or its graph takes token ids.
        OptionError: an option is not for this model, Ray is missing, or there is no such cluster.
        DataError: the input is missing or malformed, or lacks a column.
        JobError: the output folder belongs to another job or cannot be written, or workers died again and
            again.
    """
    for name, number in (("threads", job.threads), ("workers", job.workers), ("part_rows", job.part_rows)):
        if number is not None and number < 1:
            raise OptionError(f"{name} is {number}, at least 1 is needed")
    require_ray()
    # Opened here too: what is wrong with it is found before anything is started.
    classifier = checked_classifier(job.entry, job.version, threads=1)
    entry = classifier.entry
    columns = _columns(entry.manifest.task, job)
    version = classifier.version
    del classifier
    folder = Location.of(job.output)
    corpus = find_corpus(job.inputs, columns, folder)
    own = JobRecord(
        package=__version__,
        entry=EntryRecord.of(entry, version),
        columns=columns.texts,
        task=job.task,
        keep=dict(columns.keep),
        part_rows=job.part_rows,
        files=tuple(
            FileRecord(name=file.name, size=file.size, modified=file.modified) for file in corpus.files
        ),
    )
    found = claim_folder(folder, own)
    with alone_in(folder):
        kept = kept_parts(folder)
        groups, finished = _left(corpus, kept)
        plan = Plan(
            entry=entry.path.absolute(),
            version=version,
            threads=job.threads,
            task=job.task,
            groups=groups,
            finished=finished,
            columns=columns,
            part_rows=job.part_rows,
            output=folder,
        )
        parts = {part.name: part for part in kept}
        before = sum(part.rows for part in kept)
        rows = before
        started = time.monotonic()
        tell = progress or (lambda _: None)
        tell(Progress(rows, corpus.rows, before))
        for part in run(plan, job.workers, job.address) if groups else ():
            parts[part.name] = part
            rows += part.rows
            tell(Progress(rows, corpus.rows, before))
        summary = _summary([*parts.values()], kept, time.monotonic() - started)
        if found.state != "finished":
            remove_unfinished(folder)
            write_record(folder, own.model_copy(update={"state": "finished", "summary": summary}))
    return summary


def _left(
    corpus: Corpus, kept: Sequence[PartRecord]
) -> tuple[dict[int, tuple[InputFile, ...]], dict[int, frozenset[int]]]:
    """Return the groups that are not finished, and what of them is."""
    numbers: dict[int, set[int]] = {}
    last = {part.group: part.number for part in kept if part.is_last}
    for part in kept:
        numbers.setdefault(part.group, set()).add(part.number)
    groups = {
        number: files
        for number, files in enumerate(corpus.groups())
        if number not in last or len(numbers[number]) <= last[number]
    }
    return groups, {number: frozenset(numbers.get(number, ())) for number in groups}


def _summary(parts: Sequence[PartRecord], kept: Sequence[PartRecord], seconds: float) -> Summary:
    before = {part.name for part in kept}
    new = [part for part in parts if part.name not in before]
    refused: Counter[str] = Counter()
    for part in parts:
        refused.update(part.refused)
    scored, tokens = sum(part.rows for part in new), sum(part.tokens for part in new)
    return Summary(
        rows=sum(part.rows for part in parts),
        parts=len(parts),
        kept=len(kept),
        tokens=sum(part.tokens for part in parts),
        truncated=sum(part.truncated for part in parts),
        refused=dict(refused),
        scored=scored,
        seconds=seconds,
        texts_per_second=scored / seconds if scored else None,
        tokens_per_second=tokens / seconds if scored else None,
    )


def _columns(task: Task, job: Job) -> InputColumns:
    """Return what a model is to be given.

    Raises:
        OptionError: an option is not for this model.
    """
    require_task_named_once(job.task, job.task_column)
    if isinstance(task, Several):
        if job.task is None and job.task_column is None:
            raise OptionError(
                f"the model has several tasks, {', '.join(task.tasks)}: say with --task which all texts are "
                "of, or with --task-column which column names them"
            )
        if job.task is not None and job.task not in task.tasks:
            raise OptionError(f"there is no task '{job.task}'; this model's are {', '.join(task.tasks)}")
    elif job.task is not None or job.task_column is not None:
        raise OptionError("the model has one task: leave out --task and --task-column")
    asked = task.tasks[job.task] if isinstance(task, Several) and job.task is not None else task
    reads_pairs = asked.reads_pairs
    if job.text_pair_column is not None and not reads_pairs:
        raise OptionError("the model was trained on single texts: leave out --text-pair-column")
    for name in job.keep:
        if name in RESERVED:
            raise OptionError(
                f"--keep {name}: the output has a column '{name}' of its own; keep it as another, {name}=NAME"
            )
    named = Classification.rows.named(job.text_column, job.text_pair_column)
    pair = (named.text_pair or TEXT_PAIR) if reads_pairs else None
    return InputColumns(named.text, pair, job.task_column, job.keep)
