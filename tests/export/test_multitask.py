"""Several tasks trained together: they are learned, resumed to the bit, and added to without a trace."""

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn import functional as F

from command_line import exit_status
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, load_config
from sparse_export.cli import app
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.multitask import MultitaskOptions, MultitaskRecord, finetune_tasks, read_task_file
from sparse_export.multitask.job import MultitaskJob
from sparse_export.multitask.judging import overall_score
from sparse_export.multitask.objectives import SimCSE, contrast
from sparse_export.multitask.rows import read_all, read_tests
from sparse_export.training import PatternOptions
from sparse_export.training.objectives import Part
from sparse_serve.errors import DataError, OptionError
from sparse_serve.tasks import TASK_IDS
from tiny_training import BAD, GOOD, NEUTRAL, interrupted_after, told, weights

pytestmark = pytest.mark.usefixtures("single_threaded")

ROWS = 48


def write_tasks(folder: Path, **changes: Any) -> Path:
    """Three tasks whose words decide them: good or bad, the same word twice, how many good words of three."""
    rng = np.random.default_rng(0)
    films, pairs, counts = ["text_a\tlabel"], ["text_a\ttext_b\tlabel"], ["text_a\tlabel"]
    for number in range(ROWS):
        words = rng.choice([*GOOD, *BAD], 3)
        films.append(f"the film is {words[0]}\t{'positive' if words[0] in GOOD else 'negative'}")
        second = words[1] if number % 2 else words[2]
        pairs.append(f"the {words[1]} film\t{NEUTRAL[number % 6]} {second}\t{int(second == words[1])}")
        counts.append(f"{' '.join(words)}\t{sum(word in GOOD for word in words)}")
    for name, lines in (("films", films), ("pairs", pairs), ("counts", counts)):
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "stars.tsv").write_text(
        "text_a\tlabel\ngood film\t5\nbad film\t1\na film\t3\nfine story\t5\ndull story\t1\n",
        encoding="utf-8",
    )
    tasks = {
        "sentiment": {
            "train": "films.tsv",
            "eval": "films.tsv",
            "extra": [{"train": "stars.tsv", "labels": {"1": "negative", "5": "positive", "3": None}}],
        },
        "same": {"train": "pairs.tsv", "eval": "pairs.tsv"},
        "count": {"task": "regression", "train": "counts.tsv", "eval": "counts.tsv", "test": "counts.tsv"},
    }
    path = folder / "tasks.yaml"
    path.write_text(json.dumps({"tasks": tasks} | changes), encoding="utf-8")  # JSON is YAML
    return path


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def tasks_and_topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three tasks and a multi-label one, whose targets have another shape than theirs."""
    path = write_tasks(tmp_path_factory.mktemp("topics"))
    subjects = (["film"], ["story"], ["film", "story"])
    rows = [(f"the {' '.join(topics)} is good", topics) for topics in subjects * (ROWS // 3)]
    lines = (json.dumps({"text_a": text, "label": topics}) + "\n" for text, topics in rows)
    (path.parent / "topics.jsonl").write_text("".join(lines), encoding="utf-8")
    tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"]
    tasks["topics"] = {"task": "multi-label", "train": "topics.jsonl", "eval": "topics.jsonl"}
    path.write_text(json.dumps({"tasks": tasks}), encoding="utf-8")
    return path


def options_of(tasks: Path, **given: Any) -> MultitaskOptions:
    usual: dict[str, Any] = {
        "attention": AttentionSpec(-1.0),
        "epochs": 3,
        "batch_size": 8,
        "learning_rate": 5e-3,
        "adapter_learning_rate": 5e-3,
        "warmup_ratio": 0.0,
        "seed": 1,
    }
    return MultitaskOptions(tasks=read_task_file(tasks), **usual | given)


@pytest.fixture(scope="module")
def trained(
    encoder: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, MultitaskRecord, str]:
    """A run with all that can be asked for, its checkpoint, and what it told."""
    output = tmp_path_factory.mktemp("trained") / "out"
    console = Console(file=StringIO(), soft_wrap=True, width=100)
    options = options_of(
        tasks, simcse="infonce", simcse_tasks=("count",), simcse_weight=0.1, epochs=6, share_projections=True
    )
    return output, finetune_tasks(encoder, tasks, output, options, console=console), told(console)


def test_all_tasks_are_learned(trained: tuple[Path, MultitaskRecord, str]) -> None:
    _, record, _ = trained
    assert record.metrics["sentiment.accuracy"] > 0.9
    assert record.metrics["count.pearson"] > 0.8
    assert record.metrics["score"] == pytest.approx(
        (
            record.metrics["sentiment.accuracy"]
            + record.metrics["same.accuracy"]
            + (record.metrics["count.pearson"] + 1) / 2
        )
        / 3
    )
    best = max(record.epochs, key=lambda epoch: epoch.metrics["score"])
    assert best.epoch == record.best_epoch
    assert record.train.rows == 3 * ROWS + 4


def test_figures_are_those_of_the_checkpoint(trained: tuple[Path, MultitaskRecord, str], tasks: Path) -> None:
    """Each task's model, asked by itself, has the loss and the accuracy that the record has."""
    output, record, _ = trained
    model, tokenizer = load_checkpoint(output), load_tokenizer(output)
    lines = [line.split("\t") for line in (tasks.parent / "films.tsv").read_text().splitlines()[1:]]
    labels = ModelSpec.of(model.config).tasks["sentiment"].labels
    wanted = torch.tensor([labels.index(label) for _, label in lines])
    batch = tokenizer([text for text, _ in lines], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model.of("sentiment")(**batch).logits
    assert (logits.argmax(1) == wanted).float().mean().item() == pytest.approx(
        record.metrics["sentiment.accuracy"]
    )
    assert F.cross_entropy(logits, wanted).item() == pytest.approx(record.metrics["sentiment.loss"], abs=1e-5)


def test_it_tells_of_every_task_and_tries_the_result(trained: tuple[Path, MultitaskRecord, str]) -> None:
    output, record, said = trained
    assert "sentiment: 48 + 4 rows to train on, 48 to evaluate on" in said
    assert said.count("task ") == len(record.epochs)
    for line in ("sentiment  ", "same  ", "count  "):
        assert said.count(f"\n{line}") == len(record.epochs)
    assert record.test is not None
    assert record.test.metrics.keys() == {"count.pearson", "count.spearman", "count.mse"}
    answers = (output / "count" / "predictions.jsonl").read_text().splitlines()
    assert len(answers) == ROWS
    stored = json.loads((output / "finetune.json").read_text())
    assert stored["options"]["tasks"]["tasks"]["sentiment"]["extra"][0]["labels"]["3"] is None
    assert stored["labels"] == ["sentiment", "same", "count"]


def interrupted(encoder: Path, tasks: Path, output: Path, options: MultitaskOptions, step: int) -> None:
    with interrupted_after(step):
        finetune_tasks(encoder, tasks, output, options)


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        ("tasks", {"simcse": "cross-entropy", "save_steps": 4}),
        pytest.param(
            "tasks_and_topics",
            {"attention": AttentionSpec.parse("axis+local1", None), "epochs": 4},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["within an epoch", "aaa"],
)
def test_a_resumed_run_ends_as_if_never_interrupted(
    request: pytest.FixtureRequest, encoder: Path, tmp_path: Path, rows: str, given: dict[str, Any]
) -> None:
    tasks: Path = request.getfixturevalue(rows)
    options = options_of(tasks, steps_per_epoch=6, **given)
    whole = finetune_tasks(encoder, tasks, tmp_path / "whole", options)
    interrupted(encoder, tasks, tmp_path / "out", options, 11)
    resumed = finetune_tasks(encoder, tasks, tmp_path / "out", options, resume=True)
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "out")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert replace(resumed, seconds=0) == replace(whole, seconds=0)


def test_activations_computed_again_give_the_same_weights(encoder: Path, tasks: Path, tmp_path: Path) -> None:
    """To the bit, where each task has adapters of its own: they read what went into their layer."""
    found = []
    for again in (False, True):
        options = options_of(tasks, epochs=1, max_steps=6, gradient_checkpointing=again)
        finetune_tasks(encoder, tasks, tmp_path / f"{again}", options)
        found.append(weights(tmp_path / f"{again}"))
    assert all(torch.equal(weight, found[1][name]) for name, weight in found[0].items())


def test_a_task_added_later_leaves_the_others_to_the_bit(
    trained: tuple[Path, MultitaskRecord, str], tasks: Path, tmp_path: Path
) -> None:
    checkpoint, *_ = trained
    more = tmp_path / "more.yaml"
    entry = {"train": str(tasks.parent / "films.tsv"), "eval": str(tasks.parent / "films.tsv")}
    more.write_text(json.dumps({"tasks": {"mood": entry}}), encoding="utf-8")
    options = options_of(more, add_task=True, epochs=4)
    record = finetune_tasks(checkpoint, more, tmp_path / "out", options)
    assert record.metrics["mood.accuracy"] > 0.9
    before, after = weights(checkpoint), weights(tmp_path / "out")
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    models = [load_checkpoint(folder) for folder in (checkpoint, tmp_path / "out")]
    batch = load_tokenizer(checkpoint)(
        ["good film", "the bad story is dull"], padding=True, return_tensors="pt"
    )
    for number in range(3):
        ids = torch.full((2, 1), number)
        with torch.no_grad():
            old, new = (model(**batch, task_ids=ids).logits for model in models)
        assert torch.equal(old, new)
    assert list(ModelSpec.of(models[1].config).tasks) == ["sentiment", "same", "count", "mood"]


def test_adapters_are_trained_further_as_they_are(
    trained: tuple[Path, MultitaskRecord, str], encoder: Path, tasks: Path, tmp_path: Path
) -> None:
    """Their heads have no shape of their own, by which other ones would be found out."""
    checkpoint, *_ = trained
    own = ModelSpec.of(load_config(checkpoint)).extensions
    once = options_of(tasks, max_steps=1)
    finetune_tasks(checkpoint, tasks, tmp_path / "out", once)
    assert ModelSpec.of(load_config(tmp_path / "out")).extensions == own
    apart = tmp_path / "apart"
    finetune_tasks(encoder, tasks, apart, replace(once, adapter_size=6, adapter_heads=3))
    for start, option, given in (
        (checkpoint, "--adapter-size 34", {"adapter_size": 34}),
        (apart, "--adapter-heads 2", {"adapter_size": 6, "adapter_heads": 2}),
        (apart, "--share-projections", {"share_projections": True}),
    ):
        with pytest.raises(OptionError, match=f"{option} is not how the adapters of .* leave it out, or"):
            finetune_tasks(start, tasks, tmp_path / "other", replace(once, **given))


def test_a_pattern_stays_as_it_was_learned_where_a_task_is_added(
    encoder: Path, tasks: Path, tmp_path: Path
) -> None:
    """At the length that it was learned at, which what is exported is cut at, and with its target."""
    few: dict[str, Any] = {"attention": AttentionSpec.parse("axis+local1", None), "max_steps": 4}
    learning = PatternOptions(rho_target=0.4)
    options = options_of(tasks, **few, learning=learning, max_length=12)
    first = finetune_tasks(encoder, tasks, tmp_path / "first", options)
    assert (first.max_length, first.rho_target) == (12, 0.4)
    more = tmp_path / "more.yaml"
    films = str(tasks.parent / "films.tsv")
    more.write_text(json.dumps({"tasks": {"mood": {"train": films, "eval": films}}}), encoding="utf-8")
    same = options_of(more, **few, add_task=True)
    with pytest.raises(
        OptionError, match=r"--max-length 16 is not the 12 tokens .* axis\+local1 of .*: leave it out"
    ):
        finetune_tasks(tmp_path / "first", more, tmp_path / "out", replace(same, max_length=16))
    added = finetune_tasks(tmp_path / "first", more, tmp_path / "out", same)
    assert (added.max_length, added.rho_target) == (12, 0.4)


def test_a_task_is_added_to_a_model_with_softmax(
    encoder: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which stays so, where the command line names no attention."""
    films = str(tasks.parent / "films.tsv")
    for name in ("first", "second"):
        entry = {"train": films, "eval": films}
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"tasks": {name: entry}}), encoding="utf-8")
    few = ["--max-steps", "1", "--batch-size", "4", "--max-length", "16", "--no-adapters"]
    base = ["finetune", encoder, "--tasks", tmp_path / "first.yaml", "--output", tmp_path / "base", *few]
    assert exit_status(app, *base, "--attention", "softmax") == 0
    more = ["--add-task", "--tasks", tmp_path / "second.yaml", "--output", tmp_path / "more", *few[:-1]]
    assert exit_status(app, "finetune", tmp_path / "base", *more) == 0
    spec = ModelSpec.of(load_config(tmp_path / "more"))
    assert (list(spec.tasks), spec.attention) == (["first", "second"], AttentionSpec())

    more[more.index(tmp_path / "more")] = tmp_path / "fast"
    assert exit_status(app, "finetune", tmp_path / "base", *more, "--adapter-learning-rate", "1e-3") == 2
    assert "--adapter-learning-rate 0.001 has no effect" in " ".join(capsys.readouterr().err.split())


def test_what_cannot_be_added(
    trained: tuple[Path, MultitaskRecord, str], encoder: Path, tasks: Path, tmp_path: Path
) -> None:
    checkpoint, *_ = trained
    for start, message in (
        (checkpoint, "has sentiment, same, count already; rename them in the task file"),
        (encoder, "--add-task needs a checkpoint of several tasks, and .* has none by name"),
    ):
        with pytest.raises(OptionError, match=message):
            finetune_tasks(start, tasks, tmp_path / "out", options_of(tasks, add_task=True))
    more = tmp_path / "more.yaml"
    more.write_text(
        json.dumps({"tasks": {"mood": {"train": str(tasks.parent / "films.tsv")}}}), encoding="utf-8"
    )
    with pytest.raises(
        OptionError, match="--add-task leaves the encoder as it is, which attends by sparsegen"
    ):
        finetune_tasks(
            checkpoint, more, tmp_path / "out", options_of(more, add_task=True, attention=AttentionSpec())
        )
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_simcse_of_rows_that_are_computed_alone_is_refused(
    encoder: Path, tasks: Path, tmp_path: Path
) -> None:
    """There is no other text to tell one from; two rows at once are enough."""
    options = options_of(tasks, simcse="infonce", gradient_accumulation_steps=8)
    with pytest.raises(OptionError, match=r"--simcse infonce tells rows apart .*, and that is one row"):
        finetune_tasks(encoder, tasks, tmp_path / "out", options)
    assert not list(tmp_path.iterdir())
    job = MultitaskJob(replace(options, gradient_accumulation_steps=4))
    train, evaluation, _ = job.read(tasks, None, Console(quiet=True))
    assert len(job.prepare(str(encoder), train.data, evaluation.data).objectives) == 2


@pytest.mark.parametrize(("most", "rows"), [(None, 60), (40, 40)])
def test_rows_that_are_left_out_are_counted_nowhere(tmp_path: Path, most: int | None, rows: int) -> None:
    """Of 90 rows a third; a sample is one of the others, and of them a tenth is held out."""
    lines = [f"film {number}\t{number % 3}" for number in range(90)]
    (tmp_path / "rows.tsv").write_text("\n".join(["text_a\tlabel", *lines]) + "\n", encoding="utf-8")
    path = tmp_path / "tasks.yaml"
    mapped = {"train": "rows.tsv", "labels": {"0": "bad", "1": "good", "2": None}, "max_train_rows": most}
    path.write_text(
        json.dumps({"tasks": {"a": {**mapped, "test": "rows.tsv", "extra": [mapped]}}}), encoding="utf-8"
    )
    options = options_of(path)
    train, evaluation, is_held_out = read_all(path, options, Console(quiet=True))
    assert is_held_out
    own, (extra,) = train.data["a"].own, train.data["a"].extra
    held = evaluation.data["a"].own
    assert (len(own.rows), len(held.rows), len(extra.rows)) == (rows - rows // 10, rows // 10, rows)
    assert (train.record.rows, evaluation.record.rows) == (2 * rows - rows // 10, rows // 10)
    assert train.record.total_rows == 2 * 60
    for row in (*own.rows, *held.rows, *extra.rows):
        assert row.label == ("bad", "good")[int(row.text.split()[1]) % 3]
        assert lines[row.line - 2].startswith(row.text + "\t")
    tests = read_tests(path, options)
    assert (len(tests.data["a"].data.rows), tests.record.rows, tests.record.total_rows) == (60, 60, 60)


@pytest.mark.parametrize(
    ("rows", "entry", "message"),
    [
        ("text_a\tlabel\n", {}, "has no rows; it needs one labelled text or more"),
        ("text_a\tlabel\nx\tnan\ny\t1\n", {"task": "regression"}, "line 2.*'nan'; regression needs a finite"),
        ("text_a\tlabel\nx\t1\ny\t2\n", {"labels": {"1": "0"}}, "line 3: label '2' is not among those that"),
        ("text_a\tlabel\nx\t1\ny\t1\n", {"labels": {"1": None}}, "leaves out the labels of all of its rows"),
        ("text_a\tlabel\nx\t1\ny\t1\n", {}, "has the one label '1'; a classifier needs two or more"),
        ("text_a\tlabel\nx\t1\ny\t2\n", {"extra": [{"train": "pairs.tsv"}]}, "only one of .* second texts"),
    ],
)
def test_rows_that_cannot_be_trained_on(
    encoder: Path, tmp_path: Path, rows: str, entry: dict[str, Any], message: str
) -> None:
    """One line, and nothing is written."""
    (tmp_path / "rows.tsv").write_text(rows, encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("text_a\ttext_b\tlabel\nx\ty\t1\n", encoding="utf-8")
    path = tmp_path / "tasks.yaml"
    place = {"train": "rows.tsv", "eval": "rows.tsv"}
    path.write_text(json.dumps({"tasks": {"a": place | entry}}), encoding="utf-8")
    with pytest.raises(DataError, match=message) as error:
        finetune_tasks(encoder, path, tmp_path / "out", options_of(path))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_labels_of_an_evaluation_file_that_the_task_does_not_know(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text_a\tlabel\nx\t0\ny\t4\n", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("text_a\tlabel\nx\t0\ny\t9\n", encoding="utf-8")
    path = tmp_path / "tasks.yaml"
    path.write_text(json.dumps({"tasks": {"a": {"train": "train.tsv", "eval": "dev.tsv"}}}), encoding="utf-8")
    with pytest.raises(DataError, match="line 3: label '9' is not one of the model's 2 labels"):
        finetune_tasks(encoder, path, tmp_path / "out", options_of(path))


def test_rows_that_the_result_is_tried_on_have_the_labels_of_the_task(encoder: Path, tmp_path: Path) -> None:
    """Their file's are mapped as those of the rows to train on are, and checked before any training."""
    lines = [f"{(GOOD, BAD)[number % 2][number % 4]} film\t{number % 2}" for number in range(16)]
    (tmp_path / "rows.tsv").write_text("\n".join(["text_a\tlabel", *lines]) + "\n", encoding="utf-8")
    path = tmp_path / "tasks.yaml"
    entry = {"train": "rows.tsv", "eval": "rows.tsv", "test": "rows.tsv", "labels": {"0": "pos", "1": "neg"}}
    path.write_text(json.dumps({"tasks": {"a": entry}}), encoding="utf-8")
    record = finetune_tasks(encoder, path, tmp_path / "out", options_of(path, epochs=4))
    assert record.test is not None
    assert record.test.metrics.items() <= record.metrics.items()
    assert record.test.metrics["a.accuracy"] > 0.9
    (tmp_path / "test.tsv").write_text("text_a\tlabel\nx\t0\ny\t2\n", encoding="utf-8")
    for labels, message in (
        (entry["labels"], "line 3: label '2' is not among those that the task file maps: 0, 1"),
        ({}, "line 3: label '2' is not one of the model's 2 labels"),
    ):
        tasks = {"tasks": {"a": entry | {"test": "test.tsv", "labels": labels}}}
        path.write_text(json.dumps(tasks), encoding="utf-8")
        with pytest.raises(DataError, match=message):
            finetune_tasks(encoder, path, tmp_path / "other", options_of(path))
    assert not (tmp_path / "other.partial").exists()


def test_the_score_is_the_papers() -> None:
    """Its best model: 0.516, 0.862 and a correlation of 0.866 make 0.770."""
    figures = {"sst.accuracy": 0.516, "para.accuracy": 0.862, "sts.pearson": 0.866}
    assert overall_score(figures) == pytest.approx(0.770, abs=5e-4)


def test_simcse_is_its_authors_formula() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(5, 16), torch.randn(5, 16)
    cosines = [[F.cosine_similarity(one, other, dim=0) for other in second] for one in first]
    losses = [
        -math.log(math.exp(row[i] / 0.05) / sum(math.exp(s / 0.05) for s in row))
        for i, row in enumerate(cosines)
    ]
    assert contrast(first, second, "infonce", 0.05).item() == pytest.approx(sum(losses) / 5, rel=1e-5)
    dots = (first @ second.T / 4).double()
    losses = [-math.log(row[i].exp() / row.exp().sum()) for i, row in enumerate(dots)]
    assert contrast(first, second, "cross-entropy", 0.05).item() == pytest.approx(sum(losses) / 5, rel=1e-5)


def test_simcse_joins_the_steps_of_its_tasks_alone() -> None:
    simcse = SimCSE("infonce", 0.5, 0.05, [1])
    states = torch.randn(4, 3, 8)

    class Outputs:
        hidden_states = (states,)

    def loss(task: int) -> Any:
        inputs = {TASK_IDS: torch.full((4, 1), task)}
        return simcse.loss(Part(inputs, Outputs, [], None, 1))

    assert loss(0) == 0.0
    expected = 0.5 * contrast(states[:2, 0], states[2:, 0], "infonce", 0.05)
    torch.testing.assert_close(loss(1), expected)
