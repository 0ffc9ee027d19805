"""What users of Transformers' Trainer expect of a run: what each option changes, and what it leaves alone."""

import json
import os
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import BertConfig

import sparse_export.training.distributed as distributed_module
import sparse_export.training.reporting as reporting_module
import sparse_export.training.task as task_module
import sparse_export.training.trainer as trainer_module
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.projected_attention import ProjectedAttentionSettings
from sparse_export.training import (
    FinetuneOptions,
    TrainingOptions,
    TrainingRecord,
    finetune,
    sources_of,
    sweep,
    write_sweep,
)
from sparse_export.training.attentions import Attentions
from sparse_export.training.callbacks import Steering
from sparse_export.training.hub_data import DatasetSplit
from sparse_export.training.sources import Reading, Rows, read_rows
from sparse_serve.errors import CheckpointError, DataError, OptionError
from tiny_training import FAST, make_encoder, weights, write_rows

AXIS = AttentionSpec.parse("axis", None)
STEPS = 12  # of an epoch: 96 rows in batches of 8

pytestmark = pytest.mark.usefixtures("single_threaded")


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "train.tsv", 96)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "eval.tsv", 20)


def are_equal(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_steps_end_a_run_within_an_epoch(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    record = finetune(
        encoder, train, tmp_path / "out", replace(FAST, max_steps=STEPS + 3), evaluation=evaluation
    )
    assert [(each.step, each.epoch) for each in record.epochs] == [(STEPS, 1), (STEPS + 3, 1.25)]
    assert record.best_epoch in (1, 1.25)
    assert record.metrics == record.best.metrics


def test_a_model_within_an_epoch_may_be_the_best(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    class Recorder(Steering):
        def on_evaluate(self, *args: Any, **rest: Any) -> None:
            state = rest["model"].state_dict()
            seen.append({name: weight.detach().clone() for name, weight in state.items()})
            super().on_evaluate(*args, **rest)

    answers = iter({"loss": loss, "accuracy": 0.5, "f1": 0.5, "matthews": 0.0} for loss in (9, 8, 3, 7, 6))
    monkeypatch.setattr(trainer_module, "Steering", Recorder)
    monkeypatch.setattr(task_module, "figures_of", lambda *_: lambda _: next(answers))
    options = replace(FAST, eval_steps=5, metric="loss", early_stopping_patience=2)
    record = finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation)
    # After 5, 10, an epoch's 12, 15 and 20 steps; then two evaluations were no better.
    assert [each.step for each in record.epochs] == [5, 10, 12, 15, 20]
    assert (record.best_epoch, record.best.step) == (1, 12)
    kept = weights(tmp_path / "out")
    assert [all(torch.equal(kept[name], state[name]) for name in kept) for state in seen] == [
        step == 12 for step in (5, 10, 12, 15, 20)
    ]


@pytest.mark.parametrize(
    "attention",
    [AttentionSpec(-4.0), pytest.param(AXIS, marks=pytest.mark.slow)],
    ids=["sparsegen", "axis"],
)
def test_a_run_with_steps_resumes_to_the_same_end(
    encoder: Path,
    train: Path,
    evaluation: Path,
    tmp_path: Path,
    attention: AttentionSpec,
) -> None:
    options = replace(FAST, attention=attention, max_steps=3 * STEPS + 4, eval_steps=5, metric="loss")
    whole = finetune(encoder, train, tmp_path / "whole", options, evaluation=evaluation)

    class Interrupting(Steering):
        def on_step_begin(self, *args: Any, **_: Any) -> None:
            if args[1].global_step == 2 * STEPS + 2:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "Steering", Interrupting)
        with pytest.raises(KeyboardInterrupt):
            finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation)
    resumed = finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation, resume=True)
    assert replace(resumed, seconds=0) == replace(whole, seconds=0)
    assert are_equal(tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize("attention", [AttentionSpec(-4.0), AXIS], ids=["sparsegen", "axis"])
def test_activations_computed_again_give_the_same_weights(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path, attention: AttentionSpec
) -> None:
    """To the bit, dropout and the draws of a pattern included."""
    for name, again in (("kept", False), ("again", True)):
        options = replace(FAST, attention=attention, epochs=2, gradient_checkpointing=again)
        finetune(encoder, train, tmp_path / name, options, evaluation=evaluation)
    assert are_equal(tmp_path / "kept", tmp_path / "again")


@pytest.mark.parametrize(
    "changed",
    [
        {"dropout": 0.5},
        {"label_smoothing": 0.2},
        {"max_grad_norm": 0.01},
        {"lr_scheduler_type": "constant"},
        {"bf16": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_option_changes_what_is_learned(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    one = replace(FAST, epochs=1)
    finetune(encoder, train, tmp_path / "one", one, evaluation=evaluation)
    record = finetune(encoder, train, tmp_path / "other", replace(one, **changed), evaluation=evaluation)
    assert not are_equal(tmp_path / "one", tmp_path / "other")
    assert all(weight.isfinite().all() for weight in weights(tmp_path / "other").values())
    assert record.options == replace(one, **changed)


def test_bfloat16_learns_the_same_task(encoder: Path, train: Path, evaluation: Path, tmp_path: Path) -> None:
    for attention, epochs in ((AttentionSpec(-4.0), 4), (AXIS, 10)):
        options = replace(FAST, attention=attention, epochs=epochs, bf16=True)
        record = finetune(encoder, train, tmp_path / attention.name, options, evaluation=evaluation)
        assert record.metrics["accuracy"] > 0.8
        assert load_checkpoint(tmp_path / attention.name).dtype == torch.float32


def test_no_dropout_is_none_at_all(encoder: Path, train: Path, evaluation: Path, tmp_path: Path) -> None:
    """What remains is the same, whatever is drawn besides."""
    without = make_encoder(tmp_path / "encoder", dropout=0)
    options = replace(FAST, epochs=1, dropout=0.0)
    finetune(encoder, train, tmp_path / "one", options, evaluation=evaluation)
    finetune(without, train, tmp_path / "other", replace(options, dropout=None), evaluation=evaluation)
    assert are_equal(tmp_path / "one", tmp_path / "other")


def test_a_sample_of_the_evaluation_rows(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    options = replace(FAST, epochs=1, max_eval_rows=7)
    record = finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation)
    assert (record.evaluation.rows, record.evaluation.total_rows) == (7, 20)


def test_of_rows_that_are_held_out_a_sample_is_judged(train: Path) -> None:
    """What is trained on stays the same, and of what a job cannot do without enough is left."""

    def read(most: int | None, least: int = 1) -> tuple[Rows, Rows]:
        options = replace(FAST, max_eval_rows=most)
        console = Answering()
        rows, judged, held_out = read_rows(train, None, options, Reading(options.task, least=least), console)
        assert held_out
        some = f", by {most} of them" if most == 4 else ""
        assert (f"the best epoch{some}\n" in console.said) == (most != 1)
        return rows, judged

    (rows, whole), (same, some) = read(None), read(4)
    assert (len(rows.data.rows), len(whole.data.rows), len(some.data.rows)) == (86, 10, 4)
    assert (some.record.rows, some.record.total_rows) == (4, 96)
    assert same == rows
    assert set(some.data.rows) < set(whole.data.rows)
    assert read(4)[1] == some
    assert read(100)[1] == whole
    assert len(read(1, least=2)[1].data.rows) == 2


def test_a_test_file_is_answered_as_served(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    record = finetune(encoder, train, output, FAST, evaluation=evaluation, test=evaluation)
    assert record.test is not None
    assert record.test.metrics == record.metrics  # the rows that have chosen the epoch
    stored = json.loads((output / "test.json").read_text(encoding="utf-8"))
    assert stored["metrics"] == record.test.metrics
    assert stored["data"]["rows"] == 20
    predicted = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    lines = evaluation.read_text(encoding="utf-8").splitlines()
    assert [each["line"] for each in predicted] == list(range(2, len(lines) + 1))
    right = [each["label"] == line.split("\t")[1] for each, line in zip(predicted, lines[1:], strict=True)]
    assert sum(right) / 20 == record.metrics["accuracy"]
    assert predicted[0].keys() == {"line", "scores", "label", "logits"}


def test_a_test_file_without_labels_is_answered(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text_a": "the film is good"}\n{"text_a": ""}\n', encoding="utf-8")
    record = finetune(encoder, train, tmp_path / "out", FAST, evaluation=evaluation, test=texts)
    assert record.test is not None
    assert (record.test.metrics, record.test.data.rows) == ({}, 2)
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 2
    again = finetune(encoder, train, tmp_path / "out", FAST, evaluation=evaluation, test=texts, resume=True)
    assert replace(again, labels=tuple(again.labels)) == record


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "text_a\tlabel\nthe film\tsplendid\n",
            "line 2: label 'splendid' is not one of the model's 2 labels",
        ),
        ("text_a\ttext_b\tlabel\nthe\tfilm\tpositive\n", "only one of .* and .* has second texts"),
        ("text_a\ttext_b\nthe\tfilm\n", "only one of .* and .* has second texts"),
        ("text_a\n", "has no rows"),
    ],
    ids=["labels", "pairs", "pairs without labels", "none"],
)
def test_rows_that_the_result_cannot_be_tried_on_are_refused_before_it_is_trained(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path, rows: str, message: str
) -> None:
    (tmp_path / "test.tsv").write_text(rows, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        finetune(encoder, train, tmp_path / "out", FAST, evaluation=evaluation, test=tmp_path / "test.tsv")
    assert not (tmp_path / "out.partial").exists()


class Answering(Console):
    """A console whose text is kept."""

    def __init__(self) -> None:
        super().__init__(file=StringIO(), soft_wrap=True)

    @property
    def said(self) -> str:
        assert isinstance(self.file, StringIO)
        return self.file.getvalue()


def test_logs_are_not_in_a_folder_that_goes_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    monkeypatch.setattr(reporting_module, "get_available_reporting_integrations", lambda: ["tensorboard"])
    with reporting_module.reporting("tensorboard", tmp_path / "out"):
        assert os.environ["TENSORBOARD_LOGGING_DIR"] == f"{tmp_path}/out.logs"
    with reporting_module.reporting(None, tmp_path / "out"):
        assert "TENSORBOARD_LOGGING_DIR" not in os.environ
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "elsewhere")
    with reporting_module.reporting("tensorboard", tmp_path / "out"):
        assert os.environ["TENSORBOARD_LOGGING_DIR"] == "elsewhere"


def test_idle_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_module, "on_cpu", lambda: False)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    alone, together = Answering(), Answering()
    distributed_module.warn_of_idle_devices(1, alone)
    distributed_module.warn_of_idle_devices(4, together)
    assert alone.said == (
        "warning: 4 devices are here and one of them trains; to use all: torchrun --nproc-per-node 4 "
        "--no-python sparse-serve finetune …\n"
    )
    assert not together.said


def test_a_device_without_bfloat16_is_told(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sparse_export.training.precision as precision_module  # noqa: PLC0415

    monkeypatch.setattr(precision_module, "on_cpu", lambda: False)
    monkeypatch.setattr(precision_module, "is_torch_bf16_gpu_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: "cuda")
    with pytest.raises(OptionError, match="--bf16: cuda does not compute in bfloat16; leave it out"):
        precision_module.require_precision(FinetuneOptions(bf16=True))


def test_a_warm_up_that_the_schedule_has_none_of_is_refused() -> None:
    with pytest.raises(OptionError, match=r"--warmup-ratio 0\.2 has no effect with --lr-scheduler-type con"):
        FinetuneOptions(warmup_ratio=0.2, lr_scheduler_type="constant")
    assert FinetuneOptions(lr_scheduler_type="constant").warmup_ratio  # was not asked for
    FinetuneOptions(warmup_ratio=0, lr_scheduler_type="constant")
    FinetuneOptions(warmup_ratio=0.2, lr_scheduler_type="constant_with_warmup")


@pytest.mark.parametrize(
    ("size", "heads"), [(204, 12), (24, 12), (200, 10), (256, 16), (102, 17), (101, 1), (18, 9)]
)
def test_adapters_of_any_size_have_about_as_many_heads_as_in_proportion(size: int, heads: int) -> None:
    settings = ProjectedAttentionSettings.scaled(BertConfig(hidden_size=768), size)
    assert (settings.size, settings.heads) == (size, heads)
    stored = {"size": size, "heads": 1, "share_projections": False}
    assert ProjectedAttentionSettings.of_json(stored).heads == 1  # as earlier versions have trained it


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_tilde_is_the_home_folder_in_whatever_is_read(home: Path) -> None:
    (home / "data").mkdir()
    train, evaluation, test = sources_of("~/rows.tsv", "~/data", "~rows.tsv", None, None, None)
    assert (train, test) == (home / "rows.tsv", Path("~rows.tsv"))
    assert evaluation == DatasetSplit(str(home / "data"), None, "validation")


def test_a_tilde_is_the_home_folder_in_all_that_is_written(encoder: Path, train: Path, home: Path) -> None:
    """Also where several runs are compared, whose table is whole or as it was."""
    runs = {name: replace(FAST, epochs=1, seed=seed) for seed, name in enumerate(("a", "b"))}
    output = Path("~/sweep")

    def make(folder: Path, options: TrainingOptions) -> TrainingRecord:
        assert isinstance(options, FinetuneOptions)
        return finetune(encoder, train, folder, options)

    records = sweep(runs, make, output, force=False, resume=False)
    attentions = Attentions({name: options.attention for name, options in runs.items()})
    write_sweep(records, attentions, output)
    names = {"a", "b", "sweep.json"}
    assert {path.name for path in (home / "sweep").iterdir()} == names
    written = (home / "sweep" / "sweep.json").read_bytes()
    assert json.loads(written)["runs"].keys() == {"a", "b"}

    def fill_up(path: Path, *_: object, **__: object) -> None:
        path.write_bytes(b"{")
        raise OSError(28, "No space left on device", str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_text", fill_up)
        with pytest.raises(CheckpointError, match=f"No space left on device .{home}/sweep.$"):
            write_sweep(records, attentions, output)
    assert {path.name for path in (home / "sweep").iterdir()} == names
    assert (home / "sweep" / "sweep.json").read_bytes() == written
