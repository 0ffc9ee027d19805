"""The runs that `test_distributed` makes in one process and, as a program under torchrun, in two.

Each process writes what came of them to `outcomes_RANK.json` in the folder that it is given.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import logging

from sparse_export.attention.spec import AttentionSpec
from sparse_export.multitask import MultitaskOptions, finetune_tasks, read_task_file
from sparse_export.pretraining import PretrainOptions, pretrain
from sparse_export.training import FinetuneOptions, TrainingOptions, finetune
from sparse_export.training.distributed import agreed, join_processes
from sparse_serve.errors import DataError, OptionError, SparseServeError
from tiny_training import FAST

SEEDS = (0, 1, 2)
# 61 rows leave 5 for the last batch of 8, and 75 to evaluate on are no multiple of processes times 64.
TRAIN, EVALUATION = "train.tsv", "eval.tsv"
DOCUMENTS = "documents.txt"
TASKS = "tasks.yaml"

MASKED = PretrainOptions(
    attention=FAST.attention, epochs=2, learning_rate=5e-3, batch_size=8, warmup_ratio=0, seed=1, nsp=True
)


def tasks_of(folder: Path) -> MultitaskOptions:
    """Options of several tasks: a step is of one of them, in both processes of the same."""
    return MultitaskOptions(
        tasks=read_task_file(folder / TASKS),
        attention=FAST.attention,
        epochs=3,
        learning_rate=5e-3,
        batch_size=8,
        warmup_ratio=0,
        seed=1,
        gradient_accumulation_steps=2,
    )


def options_of_runs(folder: Path) -> Mapping[str, tuple[str, TrainingOptions]]:
    """Encoder and options by the name of the run."""
    return {
        "tasks": ("without dropout", tasks_of(folder)),
        "plain": ("without dropout", FAST),
        "accumulated": ("without dropout", replace(FAST, gradient_accumulation_steps=2)),
        "masked": ("without dropout", MASKED),
        "pattern": ("with dropout", replace(FAST, epochs=4, attention=AttentionSpec.parse("axis", None))),
        "uninterrupted": ("with dropout", replace(FAST, epochs=8, early_stopping_patience=8)),
        **{f"seed {seed}": ("with dropout", replace(FAST, epochs=4, seed=seed)) for seed in SEEDS},
    }


def make_runs(folder: Path, output: Path, names: list[str]) -> dict[str, object]:
    """Train, and return the records by name."""
    records: dict[str, object] = {}
    for name in names:
        encoder, options = options_of_runs(folder)[name]
        if isinstance(options, MultitaskOptions):
            records[name] = asdict(finetune_tasks(folder / encoder, folder / TASKS, output / name, options))
        elif isinstance(options, PretrainOptions):
            text = folder / DOCUMENTS
            records[name] = asdict(pretrain(folder / encoder, text, output / name, options, evaluation=text))
        elif isinstance(options, FinetuneOptions):
            train, evaluation = folder / TRAIN, folder / EVALUATION
            records[name] = asdict(
                finetune(folder / encoder, train, output / name, options, evaluation=evaluation)
            )
    return records


def outcome(action: Callable[[], object]) -> str:
    """Tell how an action ended: an error that is to be said, or an exit in silence."""
    try:
        action()
    except SparseServeError as error:
        return f"{type(error).__name__}: {error}"
    except SystemExit as ended:
        return f"exit {ended.code}"
    return "passed"


def fail_in(process: int, error: Exception) -> None:
    with agreed():
        if PartialState().process_index == process:
            raise error


def patience() -> float:
    """Return how many seconds this process waits for the others."""
    group = torch.distributed.group.WORLD
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    return float(backend.options._timeout.total_seconds())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    output = folder / "together"
    rank = join_processes().process_index
    outcomes = {
        "in all": outcome(lambda: finetune(folder / "no", folder / "no.tsv", output / "x", FAST)),
        "in the first": outcome(lambda: fail_in(0, DataError("mine"))),
        "in the second": outcome(lambda: fail_in(1, OptionError("mine"))),
        "indivisible": outcome(
            lambda: finetune(
                folder / "with dropout", folder / TRAIN, output / "x", replace(FAST, batch_size=9)
            )
        ),
        "records": make_runs(folder, output, list(options_of_runs(folder))),
        "patience": patience(),  # the trainer has been there
    }
    (folder / f"outcomes_{rank}.json").write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
