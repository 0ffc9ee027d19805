"""Task files: what they say, and one line for each of what they cannot."""

from pathlib import Path

import pytest

from sparse_export.attention.spec import AttentionSpec
from sparse_export.multitask import MultitaskOptions, read_task_file
from sparse_serve.errors import DataError, OptionError

ROOT = Path(__file__).parents[2]
GOOD = """
relational: [paraphrase, similarity]
tasks:
  sentiment:
    train: sst/train.tsv
    eval: sst/dev.tsv
    columns: {text: sentence}
    extra:
      - train: films.tsv
        labels: {0: 0, 1: 4, 2: null}
        factor: 0.1
  paraphrase: {train: /rows/quora.tsv, metric: f1, loss_weight: 0.5}
  similarity: {task: regression, train: sts.tsv}
"""


def write(folder: Path, text: str) -> Path:
    (folder / "tasks.yaml").write_text(text, encoding="utf-8")
    return folder / "tasks.yaml"


def test_is_read(tmp_path: Path) -> None:
    read = read_task_file(write(tmp_path, GOOD))
    assert list(read.tasks) == ["sentiment", "paraphrase", "similarity"]
    sentiment, paraphrase, similarity = read.tasks.values()
    assert sentiment.train == str(tmp_path / "sst/train.tsv")
    assert sentiment.eval == str(tmp_path / "sst/dev.tsv")
    assert sentiment.columns.text == "sentence"
    (films,) = sentiment.extra
    assert films.train == str(tmp_path / "films.tsv")
    assert (films.labels, films.factor) == ({"0": "0", "1": "4", "2": None}, 0.1)
    assert (paraphrase.train, paraphrase.headline, paraphrase.loss_weight) == ("/rows/quora.tsv", "f1", 0.5)
    assert (similarity.kind.option, similarity.headline) == ("regression", "pearson")
    assert read.relational == ("paraphrase", "similarity")


def test_the_papers_tasks_ship_as_a_file() -> None:
    read = read_task_file(ROOT / "demo" / "pal_tasks.yaml")
    assert {name: task.kind.option for name, task in read.tasks.items()} == {
        "sentiment": "classification",
        "paraphrase": "classification",
        "similarity": "regression",
    }
    assert [task.headline for task in read.tasks.values()] == ["accuracy", "accuracy", "pearson"]


ONE = "tasks: {a: {train: a.tsv}}"
LOCAL = AttentionSpec.parse("local2", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: [", "is not YAML: "),
        ("tasks:\n  a: {train: x.tsv}\n  a: {train: y.tsv}\n", "is not YAML: 'a' stands there twice"),
        ("tasks: {}", "tasks is empty; name one or more"),
        ("{}", "the entry 'tasks' is missing"),
        ("tasks: {a: {}}", "the entry 'train' of tasks.a is missing"),
        ("tasks: {a: {train: x.tsv, lables: {}}}", "there is no entry 'lables' of tasks.a"),
        (f"{ONE}\nrelation: [a]", "there is no entry 'relation'"),
        (
            f"tasks: {{{'x' * 900}: {{train: x.tsv, lables: {{}}}}}}",
            "there is no entry 'lables' of tasks.xxx",
        ),
        ("tasks: {a b: {train: x.tsv}}", "'a b' cannot name a task: at most 64 letters, digits, _ and -"),
        ("tasks: {../a: {train: x.tsv}}", "'../a' cannot name a task"),
        ("tasks: {default: {train: x.tsv}}", "a task cannot be called 'default'"),
        ("tasks: {a: {train: x.tsv, task: mlm}}", "task is 'mlm'; tasks that are trained together read the"),
        ("tasks: {a: {train: x.tsv, task: question-answering}}", "classification, multi-label, regression"),
        ("tasks: {a: {train: x.tsv, metric: pearson}}", "metric is 'pearson'; classification has accuracy, "),
        (
            "tasks: {a: {train: x.tsv, task: regression, metric: mse}}",
            "metric is 'mse'; regression has pearson, spearman, of which more is better",
        ),
        ("tasks: {a: {train: x.tsv, loss_weight: 0}}", "tasks.a.loss_weight: Input should be greater than 0"),
        ("tasks: {a: {train: x.tsv, max_train_rows: 1}}", "tasks.a.max_train_rows: Input should be greater"),
        (
            "tasks: {a: {train: x.tsv, task: regression, labels: {1: 2}}}",
            "labels are mapped of classification alone, and this is regression",
        ),
        (
            "tasks: {a: {train: x.tsv, labels: {yes: 1, no: 0}}}",
            "YAML reads yes and no as true and false: put them in quotes",
        ),
        (
            "tasks: {a: {train: x.tsv, extra: [{train: y.tsv, labels: {1: yes}}]}}",
            "YAML reads yes and no as true and false: put them in quotes",
        ),
        (f"{ONE}\nrelational: [a]", "relational must name two or more different tasks, or none"),
        (f"{ONE}\nrelational: [a, b]", "relational names b, which is no task of this file"),
    ],
)
def test_what_it_cannot_say(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(OptionError) as error:
        read_task_file(path)
    assert str(error.value).startswith(f"--tasks {path}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 900


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read: No such file or directory; give a YAML file"):
        read_task_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"adapters": False, "adapter_size": 8}, "--adapter-size has no effect with --no-adapters"),
        (
            {"adapters": False, "adapter_learning_rate": 1e-3},
            "--adapter-learning-rate has no effect with",
        ),
        ({"simcse_weight": 0.5}, "--simcse-weight has no effect with no --simcse"),
        ({"simcse_temperature": 0.5}, "--simcse-temperature has no effect with no --simcse"),
        ({"adapters": False, "share_projections": True}, "--share-projections has no effect with --no-adap"),
        ({"add_task": True, "adapters": False}, "--no-adapters has no effect with --add-task"),
        ({"add_task": True, "adapter_size": 8}, "--adapter-size has no effect with --add-task"),
        ({"add_task": True, "adapter_heads": 2}, "--adapter-heads has no effect with --add-task"),
        ({"add_task": True, "share_projections": True}, "--share-projections has no effect with --add-task"),
        ({"add_task": True, "freeze_encoder": True}, "--freeze-encoder has no effect with --add-task"),
        ({"add_task": True, "freeze_layers": 1}, "--freeze-layers has no effect with --add-task"),
        (
            {"add_task": True, "dense_epochs": 1, "attention": LOCAL},
            "--dense-epochs has no effect with --add",
        ),
        ({"add_task": True, "from_scratch": True}, "--from-scratch makes all weights anew, and --add-task"),
        ({"sampling": "sequential", "steps_per_epoch": 9}, "--steps-per-epoch has no effect with --sampling"),
        ({"simcse_tasks": ("sentiment",)}, "--simcse-tasks has no effect with no --simcse"),
        (
            {"simcse": "cross-entropy", "simcse_temperature": 0.1},
            "--simcse-temperature has no effect with --simcse cross-entropy; leave one of the two out",
        ),
        ({"simcse": "infonce", "dropout": 0.0}, "--simcse has no effect with --dropout 0; leave one"),
        (
            {"simcse": "infonce", "freeze_encoder": True, "adapters": False},
            "--simcse has no effect with --freeze-encoder and --no-adapters; leave one of the two out",
        ),
        ({"simcse": "infonce", "simcse_tasks": ("x",)}, "--simcse-tasks names x; the tasks are sentiment, "),
        ({"sampling": "round-robin"}, "a factor of 0.1 is for --sampling annealed, and this is round-robin"),
        ({"sampling": "random"}, "--sampling is random; it must be one of annealed, round-robin, sequential"),
        ({"adapter_learning_rate": 0.0}, "--adapter-learning-rate is 0.0; it must be above 0 and finite"),
        ({"adapter_heads": 0}, "--adapter-heads is 0; it must be at least 1"),
        (
            {"freeze_encoder": True, "from_scratch": True},
            "--from-scratch has no effect with --freeze-encoder",
        ),
        (
            {"freeze_encoder": True, "freeze_layers": 0},
            "--freeze-layers has no effect with --freeze-encoder; leave one of the two out",
        ),
        ({"metric": "accuracy"}, "--metric is accuracy; it must be one of score, sentiment.loss, sentiment."),
    ],
)
def test_options_out_of_range_or_without_effect(
    tmp_path: Path, given: dict[str, object], message: str
) -> None:
    tasks = read_task_file(write(tmp_path, GOOD))
    with pytest.raises(OptionError) as error:
        MultitaskOptions(tasks=tasks, **{"attention": AttentionSpec()} | given)  # type: ignore[arg-type]
    assert message in str(error.value)
