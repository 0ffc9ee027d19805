"""What is to be measured of each entry: its variants, its texts by length, and the rows it is judged by."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparse_serve.cuda import require_gpu
from sparse_serve.data import read_data, read_texts
from sparse_serve.errors import OptionError
from sparse_serve.profiling.evaluation import Evaluation, read_evaluation
from sparse_serve.profiling.options import ProfileOptions
from sparse_serve.profiling.subjects import Subject, find_subjects
from sparse_serve.profiling.workload import (
    BUILT_IN,
    ONE_TASK,
    Tokens,
    Turns,
    Workload,
    make_workload,
    own_workload,
    read_token_counts,
    recorded_workload,
)
from sparse_serve.records import PLAIN
from sparse_serve.report.measured import Absent
from sparse_serve.repository.config import CONFIG_NAME, device_of, read_config
from sparse_serve.repository.entries import TOKENIZER_NAME, Entry, read_entry, repository_path
from sparse_serve.rows import TextData


@dataclass(frozen=True)
class Plan:
    """One entry, ready to be measured."""

    entry: Entry
    turns: Turns
    subjects: list[Subject]
    absent: list[Absent]
    workloads: list[Workload]
    evaluation: Evaluation | None

    @property
    def limited(self) -> list[Subject]:
        """Those of which it is looked for what fits a memory limit."""
        return [subject for subject in self.subjects if subject.variant != "control"]


def make_plan(name: str, options: ProfileOptions) -> Plan:
    """Read an entry and find what of it is measured, on which texts.

    Raises:
        OptionError: a length or batch beyond what the entry takes, or a task that it has not.
        RepositoryError: the entry is missing or malformed.
        DataError: the texts or labels cannot be read or used.
    """
    entry = _read_entry(name, options)
    longest = entry.manifest.max_length
    for length in options.lengths if options.input_data is options.input_lengths is None else ():
        if length > longest:
            raise OptionError(
                f"length {length} is more than the {longest} tokens '{entry.name}' takes; "
                f"give --lengths up to {longest}"
            )
    config = read_config(entry.graph_path / CONFIG_NAME)
    if options.url is None and device_of(config) == "cuda":
        require_gpu(f"model '{entry.name}'")
    most = config.max_batch_size
    if options.batch_size > most:
        raise OptionError(
            f"batch size {options.batch_size} is more than the {most} rows '{entry.name}' takes; "
            f"give -b up to {most}"
        )
    turns = _turns(entry, options.task_mix)
    subjects, absent = _subjects(entry, options)
    if not subjects:
        raise OptionError(
            f"'{entry.name}' has none of the variants {', '.join(options.variants)}; give others"
        )
    evaluation = _evaluation(entry, turns, options)
    workloads = _workloads(entry, turns, options)
    rows = max(len(batch.row_lengths) for workload in workloads for batch in workload.batches)
    if rows > most and any(subject.variant != "text" for subject in subjects):
        raise OptionError(
            f"a request of {options.batch_size} texts has up to {rows} rows, as long texts are read in "
            f"windows, and '{entry.name}' takes {most}; give a smaller -b, or --variants text, which sends "
            "as many requests as it takes"
        )
    return Plan(entry, turns, subjects, absent, workloads, evaluation)


def steps(plan: Plan, options: ProfileOptions) -> int:
    """Return how many steps a plan takes, of which progress is told."""
    a_round = len(plan.workloads) * (
        len(options.arrivals) + (options.url is None and bool(options.concurrencies))
    )
    once = len(plan.subjects) if plan.evaluation is not None else 0
    if options.memory_limit is not None and options.url is None:
        once += len(plan.limited)
    return len(plan.subjects) * options.rounds * a_round + once


def tokens_of(entry: Entry) -> Tokens:
    """Return the tokenizer of an entry's texts."""
    manifest, path = entry.manifest, entry.path / TOKENIZER_NAME
    return Tokens(path, manifest.task, manifest.max_length, manifest.truncation, in_graph=entry.takes_text)


def _read_entry(name: str, options: ProfileOptions) -> Entry:
    made = options.exported.get(name)
    return read_entry(repository_path(options.repository if made is None else made.repository) / name)


def _subjects(entry: Entry, options: ProfileOptions) -> tuple[list[Subject], list[Absent]]:
    if options.url is None:
        fitting = [each for each in options.variants if options.image is None or each != "portable"]
        subjects, absent = find_subjects(entry, fitting)
        if len(fitting) < len(options.variants):
            reason = "the image has the op library: measure it without --docker"
            absent.append(Absent(model=entry.name, variant="portable", reason=reason))
        return subjects, absent
    subjects, _ = find_subjects(entry, ("model",) if entry.takes_text else ("text",))
    # What the server has beside the public model is not known.
    return [replace(subject, variant="model") if entry.takes_text else subject for subject in subjects], []


def _workloads(entry: Entry, turns: Turns, options: ProfileOptions) -> list[Workload]:
    tokens = tokens_of(entry)
    if options.input_data is not None:
        data = _own_data(entry, turns, options.input_data, options)
        return [own_workload(tokens, data, options.batch_size, turns)]
    texts, source = read_texts(options.inputs), str(options.inputs or BUILT_IN)
    if options.input_lengths is not None:
        counts, recorded = read_token_counts(options.input_lengths), str(options.input_lengths)
        return [recorded_workload(tokens, texts, counts, options.batch_size, recorded, turns)]
    return [
        make_workload(tokens, texts, length, options.batch_size, source, turns) for length in options.lengths
    ]


def _own_data(entry: Entry, turns: Turns, path: Path, options: ProfileOptions) -> TextData:
    """Read rows of the entry's task, whose labels need not be there; lines of plain text are texts."""
    if path.suffix in PLAIN:
        return read_data(path, labelled=False)
    task = entry.manifest.task.member(turns[0])
    columns = task.rows.named(options.text_column, options.text_pair_column, options.label_column)
    return read_data(path, columns, task=task.type, labelled=False)


def _turns(entry: Entry, mix: Mapping[str, int]) -> Turns:
    """Return the tasks that an entry's texts are of in turn."""
    tasks = entry.manifest.tasks
    if len(tasks) == 1:
        if mix:
            raise OptionError(
                f"'{entry.name}' has one task: leave out --task and --task-mix, or profile it by itself"
            )
        return ONE_TASK
    for name in mix:
        if name not in tasks:
            raise OptionError(f"'{entry.name}' has no task '{name}'; its tasks are {', '.join(tasks)}")
    shares = mix or dict.fromkeys(tasks, 1)
    return tuple(name for name, share in shares.items() for _ in range(share))


def _evaluation(entry: Entry, turns: Turns, options: ProfileOptions) -> Evaluation | None:
    if options.evaluation is None:
        return None
    asked = [name for name in dict.fromkeys(turns) if name is not None]
    if len(asked) > 1:
        raise OptionError(
            f"--eval has the rows of one task, and '{entry.name}' is asked for {', '.join(asked)}: say with "
            "--task which one it is"
        )
    rows = entry.manifest.task.member(turns[0]).rows
    columns = rows.named(options.text_column, options.text_pair_column, options.label_column)
    return read_evaluation(options.evaluation, entry, columns, turns[0])
