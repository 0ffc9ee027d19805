"""Two processes as one, over gloo on this machine: equal to one process, and ending together."""

import json
import os
import signal
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distributed_runs
import psutil
import pytest
import torch
from distributed_runs import DOCUMENTS, EVALUATION, SEEDS, TASKS, TRAIN, make_runs
from forked_processes import Forked, launch, sparse_serve

from sparse_export.training.distributed import one_line
from sparse_serve.errors import DataError
from tiny_training import make_encoder, weights, write_rows

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
COMMAND = Path(sysconfig.get_path("scripts")) / "sparse-serve"

Record = Mapping[str, Any]


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("single_threaded")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    make_encoder(folder / "with dropout")
    make_encoder(folder / "without dropout", dropout=0)
    write_rows(folder / TRAIN, 61)
    write_rows(folder / EVALUATION, 75)
    tasks = {
        "first": {"train": TRAIN, "eval": EVALUATION},
        "second": {"train": EVALUATION, "eval": TRAIN},
    }
    (folder / TASKS).write_text(json.dumps({"tasks": tasks}), encoding="utf-8")  # JSON is YAML
    lines = (f"the film is {'very ' * (n % 4)}{'good' if n % 3 else 'bad'}\na story\n\n" for n in range(30))
    (folder / DOCUMENTS).write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Mapping[str, Any]:
    """The records of one process."""
    return make_runs(
        folder, folder / "alone", ["plain", "masked", "tasks", *(f"seed {seed}" for seed in SEEDS)]
    )


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> list[Mapping[str, Any]]:
    """What each of two processes made of the same."""
    with Forked(launch, distributed_runs.main, folder) as together:
        _, said = together.communicate(timeout=300)
    assert together.returncode == 0, said
    return [json.loads((folder / f"outcomes_{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def epochs_of(record: Record, figure: str) -> list[float]:
    return [epoch[figure] for epoch in record["epochs"]]


@pytest.mark.parametrize("name", ["plain", "accumulated"])
def test_two_processes_equal_one(
    alone: Mapping[str, Record], outcomes: list[Mapping[str, Any]], name: str
) -> None:
    """The same batches, only summed in another order: without dropout nothing else is left to differ."""
    one, two = alone["plain"], outcomes[0]["records"][name]
    assert (one["processes"], two["processes"]) == (1, 2)
    for figure in ("train_loss", "eval_loss"):
        assert epochs_of(two, figure) == pytest.approx(epochs_of(one, figure), abs=1e-5)
    assert epochs_of(two, "metrics") == epochs_of(one, "metrics")
    assert two["best_epoch"] == one["best_epoch"]
    assert two["layers"] == one["layers"] or [layer["rho"] for layer in two["layers"]] == pytest.approx(
        [layer["rho"] for layer in one["layers"]], abs=1e-3
    )


def test_a_pattern_is_learned_together(outcomes: list[Mapping[str, Any]]) -> None:
    """Its weights have no part in the dense stage; ρ is that of all rows, each counted once."""
    record = outcomes[0]["records"]["pattern"]
    assert [epoch["stage"] for epoch in record["epochs"]] == ["dense", "dense", "final", "final"]
    measured = [layer["mask"]["rho"] for layer in record["layers"]]  # by the first process alone
    assert record["rho"] == pytest.approx(statistics.mean(measured), abs=1e-6)
    assert record["rho"] == pytest.approx(record["rho_target"], abs=0.02)


def test_masked_tokens_are_the_same_and_count_alike_in_two_processes(
    alone: Mapping[str, Record], outcomes: list[Mapping[str, Any]]
) -> None:
    """The means of the two halves of a step are of different numbers of masked tokens."""
    one, two = alone["masked"], outcomes[0]["records"]["masked"]
    for figure in ("train_loss", "eval_loss"):
        assert epochs_of(two, figure) == pytest.approx(epochs_of(one, figure), abs=1e-5)
    for mine, theirs in zip(epochs_of(one, "metrics"), epochs_of(two, "metrics"), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


def test_several_tasks_are_the_same_in_two_processes(
    alone: Mapping[str, Record], outcomes: list[Mapping[str, Any]]
) -> None:
    """Where most weights have no part in a step: those of the other task."""
    one, two = alone["tasks"], outcomes[0]["records"]["tasks"]
    assert (one["processes"], two["processes"]) == (1, 2)
    for figure in ("train_loss", "eval_loss"):
        assert epochs_of(two, figure) == pytest.approx(epochs_of(one, figure), abs=1e-5)
    for mine, theirs in zip(epochs_of(one, "metrics"), epochs_of(two, "metrics"), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


def test_dropout_differs_by_less_than_seeds_do(
    alone: Mapping[str, Record], outcomes: list[Mapping[str, Any]]
) -> None:
    """Each process draws its own dropout, so that only the means over seeds can agree."""
    one, two = (
        [epochs_of(records[f"seed {seed}"], "eval_loss")[-1] for seed in SEEDS]
        for records in (alone, outcomes[0]["records"])
    )
    print("evaluation loss by seed, one process:", one, "two:", two)
    assert all(mine != theirs for mine, theirs in zip(one, two, strict=True))
    noise = statistics.stdev(one)
    assert abs(statistics.mean(one) - statistics.mean(two)) < 2 * noise
    assert max(abs(mine - theirs) for mine, theirs in zip(one, two, strict=True)) < 4 * noise


def test_every_process_returns_the_record(outcomes: list[Mapping[str, Any]]) -> None:
    assert outcomes[0]["records"] == outcomes[1]["records"]


def test_processes_wait_for_the_first_while_it_tries_a_result(outcomes: list[Mapping[str, Any]]) -> None:
    """As long as that takes; torch's own patience is 30 minutes, or 10 on GPUs."""
    assert [each["patience"] for each in outcomes] == [24 * 3600.0] * 2


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("in all", "DataError: data file ", "exit 1"),
        ("in the first", "DataError: mine", "exit 1"),
        ("in the second", "exit 2", "OptionError: mine"),
        ("indivisible", "OptionError: --batch-size is 9; ", "exit 2"),
    ],
)
def test_an_error_ends_all_and_is_raised_once(
    outcomes: list[Mapping[str, Any]], case: str, first: str, second: str
) -> None:
    assert outcomes[0][case].startswith(first)
    assert outcomes[1][case].startswith(second)


def start(folder: Path, output: Path, *more: str, by_torchrun: bool) -> subprocess.Popen[str] | Forked:
    """The command in two processes, with the options of the run "uninterrupted"."""
    command = (
        *("finetune", str(folder / "with dropout"), "--train", str(folder / TRAIN)),
        *("--eval", str(folder / EVALUATION), "--output", str(output), "--epochs", "8"),
        *("--early-stopping-patience", "8", "--learning-rate", "5e-3", "-b", "8"),
        *("--warmup-ratio", "0", "--seed", "1", *more),
    )
    if not by_torchrun:
        return Forked(launch, sparse_serve, *command)
    return subprocess.Popen(
        [*TORCHRUN, "--no-python", str(COMMAND), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("dies", ["first process", "second process", "launcher"])
def test_whoever_dies_one_line_says_so_and_the_run_resumes_to_the_same_end(
    folder: Path, tmp_path: Path, outcomes: list[Mapping[str, Any]], dies: str
) -> None:
    """Nobody can tell whether a process sees that the other is gone before the launcher ends it.

    One of the three is the command that users are told of; the others are spared its imports.
    """
    output = tmp_path / "killed"
    launcher = start(folder, output, by_torchrun=dies == "second process")
    assert launcher.stderr is not None
    with launcher:
        for line in launcher.stderr:
            if line.startswith("epoch 2 "):
                break
        processes = sorted(
            psutil.Process(launcher.pid).children(),
            key=lambda child: (child.environ().get("RANK", ""), child.pid),
        )
        if dies == "launcher":
            os.kill(launcher.pid, signal.SIGTERM)
        else:
            processes[dies == "second process"].kill()
        out, said = launcher.communicate(timeout=120)
    assert launcher.returncode != 0
    assert not out
    (error,) = (line for line in said.splitlines() if line.startswith("error: "))
    reasons = (
        "another of the 2 processes has ended, so training cannot go on",
        "the launcher has ended this run of 2 processes",
    )
    assert error.removeprefix("error: ").startswith(reasons)
    assert [path.name for path in tmp_path.iterdir()] == ["killed.partial"]
    if dies != "second process":
        return
    assert f"{output}.partial holds the run so far: the same command with --resume continues it" in said

    with start(folder, output, "--resume", "--json", by_torchrun=False) as launcher:
        out, said = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, said
    resumed, whole = json.loads(out), dict(outcomes[0]["records"]["uninterrupted"])  # one process spoke
    assert resumed.pop("seconds") > 0 < whole.pop("seconds")
    assert resumed == whole
    found, expected = weights(output), weights(folder / "together" / "uninterrupted")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@contextmanager
def ended_while() -> Iterator[None]:
    """Ends the block as the launcher's signal does, while an exception is on its way."""
    try:
        yield
    finally:
        sys.exit(128 + signal.SIGTERM)


def test_a_process_that_is_ended_while_it_says_why_has_its_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(DataError, match="mine"), one_line(), ended_while():
            raise DataError("mine")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_process_that_has_given_the_word_to_another_is_ended_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as ended, one_line(), ended_while():
        sys.exit(1)
    assert ended.value.code == 128 + signal.SIGTERM


def test_one_process_is_ended_in_silence() -> None:
    with pytest.raises(SystemExit), one_line():
        sys.exit(128 + signal.SIGTERM)
