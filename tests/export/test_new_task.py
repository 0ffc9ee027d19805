"""A task that no package has: two files of one name and a line in the table, trained and exported."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparse_export.tasks
import sparse_serve.tasks
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.spec import ModelSpec
from sparse_export.entry import export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.training import FinetuneOptions, finetune
from sparse_serve.repository.check import Level as Severity
from sparse_serve.repository.check import check_entry
from sparse_serve.repository.config import read_config
from sparse_serve.repository.entries import read_entry
from tiny_training import FAST, make_encoder

FILES = Path(__file__).parent / "new_task"
WORDS = ("bad", "film", "good")


@pytest.fixture
def _in_the_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the files beside those of the other tasks, and the line into the table."""
    monkeypatch.setattr(sparse_serve.tasks, "__path__", [*sparse_serve.tasks.__path__, str(FILES / "serve")])
    monkeypatch.setattr(
        sparse_export.tasks, "__path__", [*sparse_export.tasks.__path__, str(FILES / "model")]
    )
    level = importlib.import_module("sparse_serve.tasks.level").Level
    monkeypatch.setitem(sparse_serve.tasks.TASKS, level.type, level)
    yield
    for package in ("sparse_serve", "sparse_export"):
        sys.modules.pop(f"{package}.tasks.level", None)


@pytest.mark.usefixtures("_in_the_table", "single_threaded")
def test_a_new_task_is_two_files_and_a_line(tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    lines = [f"the film is {'very ' * (n % 3)}{WORDS[n % 3]}\t{5 * (n % 3)}" for n in range(48)]
    rows.write_text("text_a\tlabel\n" + "\n".join(lines) + "\n")
    options = FinetuneOptions(**{**vars(FAST), "task": "level", "epochs": 6})
    record = finetune(make_encoder(tmp_path / "encoder"), rows, tmp_path / "out", options, evaluation=rows)
    assert record.metrics["hits"] > 0.8

    model = load_checkpoint(tmp_path / "out")
    task = ModelSpec.of(model.config).task
    assert task.to_json() == {"type": "level", "steps": 10}

    exported = export_checkpoint(
        ExportOptions(
            checkpoint=str(tmp_path / "out"), repository=tmp_path / "repository", name="far", eval_file=rows
        )
    )
    assert exported.quality is not None
    assert exported.quality.torch_metrics == record.metrics
    entry = read_entry(exported.path)
    assert entry.manifest.task == task
    assert read_config(exported.path / "config.pbtxt").output[0].name == "level"
    assert all(finding.level is not Severity.error for finding in check_entry(exported.path))


def test_who_does_not_know_a_task_says_so() -> None:
    """The backend of another version, for one, which has the tasks that it came with."""
    code = "from sparse_serve.tasks import read_task; read_task({'type': 'level'})"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "task 'level' is not known here" in failed.stderr
    assert "upgrade sparse-serve" in failed.stderr
