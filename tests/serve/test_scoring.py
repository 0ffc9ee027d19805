"""Jobs on a Ray of this machine: the answers of the class, each row once, whatever is killed on the way."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from serving import wait_for
from tiny_entry import SAMPLE

from command_line import exit_status, outcome, own_process
from sparse_serve import Classifier
from sparse_serve.cli import app
from sparse_serve.scoring.engine import connected
from sparse_serve.scoring.job import Job, Progress, run_job

SCORE = ("score", "sample", "--model-repository", SAMPLE.parent)
WORDS = ["a", "warm", "funny", "and", "beautifully", "acted", "little", "film", "that", "comes", "together"]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [" ".join(WORDS[: number % 11]) + f" {number % 17}" * (number % 5) for number in range(1500)]


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """One Ray for all jobs of this process."""
    with connected(None):
        yield


def rows_of(output: Path) -> list[dict[str, Any]]:
    """All rows, in the order of the parts."""
    tables = [pq.read_table(path) for path in sorted(output.glob("part-*.parquet"))]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return rows


def require_answers(rows: Sequence[dict[str, Any]], texts: Sequence[str]) -> None:
    """See that rows are those of the class, in the order of the texts."""
    expected = Classifier(SAMPLE, threads=1)(texts)
    assert len(rows) == len(texts)
    for row, reply in zip(rows, expected, strict=True):
        assert (row["label"], row["token_count"]) == (reply.label, reply.token_count)
        assert (row["truncated"], row["error"]) == (reply.truncated, None)
        assert row["scores"] == pytest.approx(reply.scores, abs=1e-6)
        assert row["score"] == max(row["scores"])


def processes_of(pid: int) -> list[psutil.Process]:
    """What a process started, but for Ray's agents, which take a while to see that their node is gone."""
    started = psutil.Process(pid).children(recursive=True)
    return [each for each in started if each.is_running() and "Agent" not in each.name()]


@pytest.mark.slow
def test_a_killed_job_goes_on(ray: None, texts: list[str], tmp_path: Path) -> None:
    """Killed with -9 in the middle: no process stays, what is finished does, and every row comes once."""
    source = tmp_path / "corpus"
    source.mkdir()
    for number in range(2):
        half = texts[number::2] * 4
        table = pa.table({"text_a": half, "id": range(len(half))})
        pq.write_table(table, source / f"{number}.parquet", row_group_size=500)
    output = tmp_path / "output"
    options = ("--input", str(source), "--output", str(output), "--part-rows", "100", "--keep", "id=key")
    driver = subprocess.Popen(own_process(*SCORE, *options))
    try:
        wait_for(lambda: driver.poll() is not None or len(list(output.glob("part-*"))) >= 3, 120)
        started = processes_of(driver.pid)
    finally:
        driver.kill()
    assert driver.wait() == -signal.SIGKILL
    assert "raylet" in {each.name() for each in started}
    before = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*")}
    job = json.loads((output / "job.json").read_text())
    assert job["state"] == "running"

    told: list[Progress] = []
    same = Job(SAMPLE, [str(source)], str(output), keep={"key": "id"}, part_rows=100)
    summary = run_job(same, told.append)
    rows = rows_of(output)
    require_answers(rows, texts[::2] * 4 + texts[1::2] * 4)
    places = [(row["file"], row["row"]) for row in rows]
    assert places == [(str(source / f"{file}.parquet"), row) for file in range(2) for row in range(3000)]
    assert [row["key"] for row in rows] == [*range(3000)] * 2
    assert 3 <= summary.kept < summary.parts == 60
    assert (summary.rows, summary.scored) == (6000, 6000 - 100 * summary.kept)
    assert [each.rows for each in told] == list(range(100 * summary.kept, 6001, 100))
    assert told[0].total == 6000
    finished = json.loads((output / "job.json").read_text())
    assert finished["state"] == "finished"
    assert finished["summary"]["rows"] == 6000
    kept = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*")}
    assert before.items() <= kept.items()
    assert {path.name for path in output.iterdir()} == {"job.json", *kept}
    psutil.wait_procs(started, timeout=30)
    assert not [each for each in started if each.is_running()]

    assert run_job(same).scored == 0


@pytest.mark.slow
def test_a_killed_worker_is_replaced(ray: None, texts: list[str], tmp_path: Path) -> None:
    """Rows that cannot be answered are told of, and no row is lost or there twice."""
    source = tmp_path / "rows.jsonl"
    lines = [json.dumps({"sentence": text}) for text in texts]
    lines[700:700] = ['{"sentence": null}', "no JSON", '{"sentence": "\\ud800"}']
    source.write_text("\n".join(lines) + "\n")
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        if not killed and progress.rows:
            workers = [each for each in processes_of(os.getpid()) if "_Scorer" in " ".join(each.cmdline())]
            killed.append(workers[0].pid)
            workers[0].kill()

    job = Job(
        SAMPLE, [str(tmp_path / "*.jsonl")], str(tmp_path / "output"), text_column="sentence", part_rows=50
    )
    summary = run_job(job, kill)
    assert killed
    rows = rows_of(tmp_path / "output")
    assert [row["row"] for row in rows] == [*range(1503)]
    require_answers(rows[:700] + rows[703:], texts)
    assert [(row["label"], row["error"]) for row in rows[700:703]] == [
        (None, "no text"),
        (
            None,
            f"malformed record: {source}, line 702: not JSON: Expecting value; each line must be one object",
        ),
        (None, "not UTF-8: byte 0xed at 0"),
    ]
    assert summary.refused == {"no text": 1, "malformed record": 1, "not UTF-8": 1}
    assert (summary.rows, summary.parts, summary.kept) == (1503, 31, 0)
    assert summary.tokens == sum(row["token_count"] or 0 for row in rows)


def test_the_command_scores_csv(
    ray: None, texts: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It tells of a malformed table in one line, and goes on where it was mended."""
    pa.csv.write_csv(pa.table({"text_a": texts[:300], "id": range(300)}), tmp_path / "a.csv")
    output = tmp_path / "output"
    arguments = (*SCORE, "--workers", "1", "--input", tmp_path / "*.csv", "--output")
    status, told, errors = outcome(capfd, app, *arguments, output, "--json")
    assert (status, errors) == (0, "")
    assert json.loads(told)["rows"] == 300
    require_answers(rows_of(output), texts[:300])
    with (tmp_path / "a.csv").open("a") as file:
        file.write('"1,2\n')
    for folder, message in (
        (output, f"is of another job, which read {tmp_path / 'a.csv'} before it was changed"),
        (tmp_path / "other", f"{tmp_path / 'a.csv'}, line 302: not a well-formed table"),
    ):
        status, told, errors = outcome(capfd, app, *arguments, folder)
        assert (status, told, errors.count("\n")) == (1, "", 1)
        assert message in errors


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_any_column_can_be_kept_beside_the_one_that_is_read(
    ray: None, texts: list[str], tmp_path: Path, suffix: str
) -> None:
    source = tmp_path / f"a.{suffix}"
    others = [f"other {number}" for number in range(30)]
    table = pa.table({"text": others, "body": texts[:30], "text_pair": others})
    (pa.csv.write_csv if suffix == "csv" else pq.write_table)(table, source)
    for text_column, read in (("text", others), ("body", texts[:30])):
        files = ("--input", source, "--output", tmp_path / text_column)
        columns = ("--text-column", text_column, "--keep", "text", "--keep", "body=text_pair")
        assert exit_status(app, *SCORE, "--workers", "1", *files, *columns) == 0
        rows = rows_of(tmp_path / text_column)
        require_answers(rows, read)
        assert [(row["text"], row["text_pair"]) for row in rows] == list(zip(others, texts[:30], strict=True))
