"""Interrupted runs: what they leave, and that nothing shows it once they are resumed."""

import fcntl
import json
import os
import re
import resource
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import sparse_export.training.run as run_module
from sparse_export.attention.spec import AttentionSpec
from sparse_export.training import RECORD_NAME, FinetuneOptions, finetune
from sparse_serve.errors import CheckpointError, SparseServeError
from tiny_training import FAST, interrupted_after, make_encoder, told, weights, write_rows

ROWS = 61
STEPS = 7  # of an epoch: 55 of the rows in batches of 8, the rest are held out
RUN = replace(FAST, epochs=4)
AXIS = replace(RUN, attention=AttentionSpec.parse("axis+local1", None))


pytestmark = pytest.mark.usefixtures("single_threaded")


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "train.tsv", ROWS)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def partial(output: Path) -> Path:
    return output.with_name("out.partial")


def interrupted(
    encoder: Path,
    train: Path,
    output: Path,
    options: FinetuneOptions,
    step: int,
    console: Console | None = None,
    *,
    resume: bool = False,
) -> None:
    """Run until the user presses Ctrl-C after so many steps."""

    with interrupted_after(step):
        finetune(encoder, train, output, options, resume=resume, console=console)


def states(partial: Path) -> set[int]:
    return {int(path.name.removeprefix("checkpoint-")) for path in (partial / "states").iterdir()}


@pytest.mark.parametrize(
    ("options", "step", "newest"),
    [
        (RUN, STEPS, STEPS),  # right after an epoch
        (RUN, 2 * STEPS + 5, 2 * STEPS),  # the steps since are trained again
        (replace(RUN, save_steps=3), STEPS + 6, 12),  # from the middle of an epoch
        (replace(RUN, save_steps=3, gradient_accumulation_steps=2), STEPS + 6, 12),
        (replace(RUN, save_steps=STEPS), STEPS + 5, STEPS),
        (replace(RUN, attention=AttentionSpec()), STEPS + 1, STEPS),
        (AXIS, STEPS + 1, STEPS),
        # Between two measurements of ρ, whose last one counts on.
        (replace(AXIS, epochs=8, save_steps=3), 4 * STEPS + 6, 4 * STEPS + 5),
    ],
    ids=["epoch", "later", "step", "part", "coinciding", "softmax", "dense stage", "sparse stage"],
)
def test_a_resumed_run_ends_as_if_never_interrupted(
    encoder: Path,
    train: Path,
    output: Path,
    partial: Path,
    options: FinetuneOptions,
    step: int,
    newest: int,
) -> None:
    whole = finetune(encoder, train, output.with_name("whole"), options)
    interrupted(encoder, train, output, options, step)
    assert not output.exists()
    assert max(states(partial)) == newest
    resumed = finetune(encoder, train, output, options, resume=True)
    assert not partial.exists()
    expected, found = weights(output.with_name("whole")), weights(output)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert replace(resumed, seconds=0) == replace(whole, seconds=0)


def test_a_run_can_be_interrupted_twice(encoder: Path, train: Path, output: Path) -> None:
    whole = finetune(encoder, train, output.with_name("whole"), RUN)
    interrupted(encoder, train, output, RUN, STEPS + 1)
    interrupted(encoder, train, output, RUN, 3 * STEPS, resume=True)
    assert replace(finetune(encoder, train, output, RUN, resume=True), seconds=0) == replace(whole, seconds=0)


def fail(*_: object) -> None:
    raise ZeroDivisionError


def test_a_run_that_had_lost_its_patience_is_not_trained_on(
    encoder: Path, train: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(RUN, early_stopping_patience=1, learning_rate=1e-12)
    whole = finetune(encoder, train, output.with_name("whole"), options)
    assert len(whole.epochs) == 2
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_write", fail)
        with pytest.raises(ZeroDivisionError):
            finetune(encoder, train, output, options)
    resumed = finetune(encoder, train, output, options, resume=True)
    assert replace(resumed, seconds=0) == replace(whole, seconds=0)


def test_the_user_is_told_how_to_go_on(encoder: Path, train: Path, output: Path, partial: Path) -> None:
    console = Console(file=StringIO(), soft_wrap=True)
    interrupted(encoder, train, output, RUN, STEPS + 1, console)
    assert f"{partial} holds the run so far: the same command with --resume continues it\n" in told(console)
    finetune(encoder, train, output, RUN, resume=True, console=console)
    assert f"resuming after step {STEPS} ({partial})\n" in told(console)
    assert "warning" not in told(console)
    assert "epoch 4 of 4" in told(console)


def test_a_run_in_the_way_is_neither_overwritten_nor_continued_unasked(
    encoder: Path, train: Path, output: Path, partial: Path
) -> None:
    interrupted(encoder, train, output, RUN, STEPS + 1)
    before = {path: path.stat().st_mtime_ns for path in partial.rglob("*")}
    message = f"{re.escape(str(partial))} holds an interrupted run; continue it with --resume or discard it"
    with pytest.raises(CheckpointError, match=message):
        finetune(encoder, train, output, RUN)
    assert {path: path.stat().st_mtime_ns for path in partial.rglob("*")} == before
    record = finetune(encoder, train, output, replace(RUN, epochs=1), force=True)
    assert len(record.epochs) == 1
    assert not partial.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (replace(RUN, epochs=5), r"epochs \(4, now 5\)"),
        (replace(RUN, attention=AttentionSpec()), r"attention.lambd \(-4.0, now None\)"),
        (replace(RUN, learning_rate=1e-5, seed=3), r"learning_rate \(0.005, now 1e-05\), seed \(1, now 3\)"),
    ],
)
def test_a_run_is_not_continued_with_other_options(
    encoder: Path, train: Path, output: Path, partial: Path, changed: FinetuneOptions, message: str
) -> None:
    interrupted(encoder, train, output, RUN, STEPS + 1)
    with pytest.raises(CheckpointError, match=f"was started with other settings: .*{message}"):
        finetune(encoder, train, output, changed, resume=True)
    assert states(partial) == {STEPS}
    finetune(encoder, train, output, RUN, resume=True)


def test_another_run_that_cannot_be_continued_is_discarded_where_that_was_said(
    encoder: Path, train: Path, output: Path, partial: Path
) -> None:
    """And the same one is continued, though it might have been discarded."""
    interrupted(encoder, train, output, RUN, STEPS + 1)
    console = Console(file=StringIO(), soft_wrap=True)
    other = replace(RUN, epochs=1)
    with interrupted_after(3):
        finetune(
            encoder, train, output, replace(other, save_steps=2), force=True, resume=True, console=console
        )
    assert "other settings: epochs (4, now 1): discarded" in told(console)
    assert states(partial) == {2}
    finetune(encoder, train, output, replace(other, save_steps=2), force=True, resume=True, console=console)
    assert f"resuming after step 2 ({partial})\n" in told(console)
    assert not partial.exists()


def test_a_run_is_not_continued_on_other_rows(encoder: Path, train: Path, output: Path) -> None:
    interrupted(encoder, train, output, RUN, STEPS + 1)
    write_rows(train, ROWS, names=("positive", "negative"))
    with pytest.raises(CheckpointError, match=r"other settings: train.sha256 \(\w{64}, now \w{64}\), eval"):
        finetune(encoder, train, output, RUN, resume=True)


def test_a_run_is_continued_whatever_its_result_is_tried_on(
    encoder: Path, train: Path, output: Path, partial: Path, tmp_path: Path
) -> None:
    """No weight depends on these rows; the result of a finished run does."""
    interrupted(encoder, train, output, RUN, STEPS + 1)
    test = write_rows(tmp_path / "test.tsv", 6)
    resumed = finetune(encoder, train, output, RUN, test=test, resume=True)
    assert not partial.exists()
    assert resumed.tested_on is not None
    assert resumed.tested_on.rows == 6
    write_rows(test, 8)
    with pytest.raises(CheckpointError, match="is not empty; choose another --output"):
        finetune(encoder, train, output, RUN, test=test, resume=True)


def test_a_run_is_not_continued_from_another_encoder_in_the_same_place(
    train: Path, output: Path, partial: Path, tmp_path: Path
) -> None:
    """Neither one that was interrupted nor one that was finished."""
    encoder = make_encoder(tmp_path / "encoder")
    interrupted(encoder, train, output, RUN, STEPS + 1)
    once = replace(RUN, epochs=1)
    finetune(encoder, train, output.with_name("finished"), once)
    (encoder / "finetune.json").touch()  # tells of the encoder, and is no part of it
    finetune(encoder, train, output.with_name("finished"), once, resume=True)
    make_encoder(encoder, dropout=0.2)
    message = r"other settings: encoder_digest \(\w{64}, now \w{64}\); give the same"
    with pytest.raises(CheckpointError, match=message):
        finetune(encoder, train, output, RUN, resume=True)
    assert states(partial) == {STEPS}
    with pytest.raises(CheckpointError, match="is not empty; choose another --output"):
        finetune(encoder, train, output.with_name("finished"), once, resume=True)


def test_what_earlier_versions_recorded_is_not_taken_for_the_same_run(
    encoder: Path, train: Path, output: Path, partial: Path
) -> None:
    """They did not look into the encoder."""
    interrupted(encoder, train, output, RUN, STEPS + 1)
    settings = json.loads((partial / "settings.json").read_text(encoding="utf-8"))
    del settings["encoder_digest"]
    (partial / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"was started by an earlier version, .* the run with --force"):
        finetune(encoder, train, output, RUN, resume=True)
    once = replace(RUN, epochs=1)
    finetune(encoder, train, output, once, force=True)
    record = json.loads((output / RECORD_NAME).read_text(encoding="utf-8"))
    (output / RECORD_NAME).write_text(json.dumps({**record, "schema_version": 4}), encoding="utf-8")
    console = Console(file=StringIO(), soft_wrap=True)
    with pytest.raises(CheckpointError, match="is not empty; choose another --output"):
        finetune(encoder, train, output, once, resume=True, console=console)
    warning = "has schema 4, this version writes 5: whether the same run made the checkpoint cannot be told\n"
    assert warning in told(console)


def test_without_a_run_to_resume_it_starts(encoder: Path, train: Path, output: Path) -> None:
    options = replace(RUN, epochs=1)
    assert len(finetune(encoder, train, output, options, resume=True).epochs) == 1


def test_a_finished_run_is_left_alone(encoder: Path, train: Path, output: Path) -> None:
    options = replace(RUN, epochs=1)
    record = finetune(encoder, train, output, options)
    before = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    again = finetune(encoder, train, output, options, resume=True)
    assert json.loads((output / RECORD_NAME).read_text(encoding="utf-8"))["seconds"] == again.seconds
    assert list(again.epochs) == list(record.epochs)
    assert again.options == options
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == before
    with pytest.raises(CheckpointError, match="is not empty; choose another --output"):
        finetune(encoder, train, output, replace(options, seed=8), resume=True)


def test_a_damaged_record_is_not_of_a_finished_run(encoder: Path, train: Path, output: Path) -> None:
    options = replace(RUN, epochs=1)
    finetune(encoder, train, output, options)
    record = json.loads((output / RECORD_NAME).read_text(encoding="utf-8"))
    (output / RECORD_NAME).write_text(json.dumps({**record, "epochs": "all"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not empty; choose another --output"):
        finetune(encoder, train, output, options, resume=True)


@pytest.mark.parametrize("removed", [None, "settings.json"])
def test_a_folder_that_a_finished_run_left_is_removed(
    encoder: Path, train: Path, output: Path, partial: Path, removed: str | None
) -> None:
    """As a kill leaves it after the last rename."""
    finetune(encoder, train, output, RUN)
    interrupted(encoder, train, output.with_name("other"), RUN, STEPS + 1)
    output.with_name("other.partial").rename(partial)
    if removed is not None:
        (partial / removed).unlink()
    finetune(encoder, train, output, RUN, resume=True)
    assert not partial.exists()


def test_another_run_beside_a_finished_one_stays(
    encoder: Path, train: Path, output: Path, partial: Path
) -> None:
    options = replace(RUN, epochs=1)
    finetune(encoder, train, output, options)
    interrupted(encoder, train, output.with_name("other"), RUN, STEPS + 1)
    output.with_name("other.partial").rename(partial)
    finetune(encoder, train, output, options, resume=True)
    assert states(partial) == {STEPS}


def test_another_environment_is_warned_of(encoder: Path, train: Path, output: Path, partial: Path) -> None:
    interrupted(encoder, train, output, RUN, STEPS + 1)
    settings = json.loads((partial / "settings.json").read_text(encoding="utf-8"))
    settings["threads"], settings["versions"]["python"] = 7, "3.0"
    (partial / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    console = Console(file=StringIO(), soft_wrap=True)
    finetune(encoder, train, output, RUN, resume=True, console=console)
    warning = (
        r"^warning: started in another environment: threads \(7, now 1\), versions.python \(3.0, now .+\);"
    )
    assert re.search(warning, told(console), re.MULTILINE)


def test_a_run_goes_on_with_what_takes_less_memory(tmp_path: Path, train: Path, output: Path) -> None:
    """As is advised where the memory was not enough."""
    encoder = make_encoder(tmp_path / "encoder", dropout=0.0)
    interrupted(encoder, train, output, replace(RUN, save_steps=3), STEPS + 6)
    console = Console(file=StringIO(), soft_wrap=True)
    smaller = replace(RUN, gradient_accumulation_steps=2, gradient_checkpointing=True)
    record = finetune(encoder, train, output, smaller, resume=True, console=console)
    said = told(console)
    assert "resuming after step 12" in said
    assert re.search(
        r"^warning: started with other settings: .*gradient_accumulation_steps \(1, now 2\).*; the result",
        said,
        re.MULTILINE,
    )
    assert record.options == smaller
    whole = finetune(encoder, train, output.with_name("whole"), RUN)
    assert [epoch.epoch for epoch in record.epochs] == [epoch.epoch for epoch in whole.epochs]
    assert record.best.eval_loss == pytest.approx(whole.best.eval_loss, rel=1e-4)


def test_states_that_a_kill_left_half_written_are_passed_over(
    encoder: Path, train: Path, output: Path, partial: Path
) -> None:
    whole = finetune(encoder, train, output.with_name("whole"), RUN)
    interrupted(encoder, train, output, RUN, 2 * STEPS + 1)
    newest = partial / "states" / f"checkpoint-{2 * STEPS}"
    (newest / "whole").unlink()  # written last
    (newest / "rng_state.pth").write_bytes(b"half")
    (partial / "states" / "checkpoint-999").mkdir()
    (partial / "checkpoint").mkdir()
    (partial / "checkpoint" / "model.safetensors").touch()
    resumed = finetune(encoder, train, output, RUN, resume=True)
    assert replace(resumed, seconds=0) == replace(whole, seconds=0)


def test_a_run_may_move(encoder: Path, train: Path, output: Path, partial: Path, tmp_path: Path) -> None:
    """The best epoch is found again, though Trainer remembers the path of its state."""
    options = replace(RUN, metric="loss", learning_rate=0.5)  # the first epoch will be the best
    whole = finetune(encoder, train, output.with_name("whole"), options)
    interrupted(encoder, train, output, options, 3 * STEPS + 1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(partial, elsewhere / partial.name)
    resumed = finetune(encoder, train, elsewhere / "out", options, resume=True)
    assert resumed.best_epoch == whole.best_epoch
    expected, found = weights(output.with_name("whole")), weights(elsewhere / "out")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_anything_else_in_the_way_is_refused(encoder: Path, train: Path, output: Path, partial: Path) -> None:
    partial.mkdir()
    (partial / "thesis.tex").touch()
    choices: tuple[dict[str, Any], ...] = ({}, {"force": True}, {"resume": True})
    for choice in choices:
        with pytest.raises(CheckpointError, match="is in the way, and is not of an interrupted run"):
            finetune(encoder, train, output, RUN, **choice)
    assert (partial / "thesis.tex").exists()


def test_two_runs_cannot_share_a_folder(encoder: Path, train: Path, output: Path, partial: Path) -> None:
    interrupted(encoder, train, output, RUN, STEPS + 1)
    descriptor = os.open(partial, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        choices: tuple[dict[str, Any], ...] = ({"force": True}, {"resume": True})
        for choice in choices:
            with pytest.raises(CheckpointError, match=r"another process is training in .*: wait for it"):
                finetune(encoder, train, output, RUN, **choice)
    finally:
        os.close(descriptor)
    assert states(partial) == {STEPS}


def test_a_checkpoint_whose_replacement_did_not_arrive_comes_back(
    encoder: Path, train: Path, output: Path, partial: Path
) -> None:
    """As a kill leaves it between the two renames."""
    finetune(encoder, train, output, replace(RUN, epochs=1))
    interrupted(encoder, train, output.with_name("other"), RUN, STEPS + 1)
    output.with_name("other.partial").rename(partial)
    output.rename(partial / "replaced")
    with pytest.raises(SparseServeError):
        finetune(encoder, train, output, RUN)
    assert (output / "model.safetensors").exists()
    assert not (partial / "replaced").exists()


def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(
    encoder: Path, train: Path, output: Path, partial: Path
) -> None:
    """The optimiser's state is the largest file; torch.save has no error of its own for what hinders it."""
    interrupted(encoder, train, output, RUN, STEPS + 1)
    state = partial / "states" / f"checkpoint-{STEPS}"
    room = (state / "model.safetensors").stat().st_size + 1000
    assert room < (state / "optimizer.pt").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(CheckpointError, match="was not written: the state cannot be saved"):
            finetune(encoder, train, output, RUN, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert finetune(encoder, train, output, RUN, resume=True).best_epoch
