"""The command line of the serving side: outputs, one-line errors, exit statuses."""

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from sparse_serve import cli_classify
from sparse_serve.cli import app, run
from sparse_serve.cli_options import CONTEXT, Verbose
from sparse_serve.errors import GateError
from sparse_serve.repository.entries import EntrySpec, write_entry
from sparse_serve.triton.launcher import TritonServer

MakeSpec = Callable[..., EntrySpec]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process: status, stdout, stderr."""

    def run_command(*arguments: str, commands: typer.Typer = app) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run(commands, arguments)
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return run_command


@pytest.fixture
def classify(command: Run, server: TritonServer) -> Run:
    def run_classify(*arguments: str) -> tuple[int, str, str]:
        return command("classify", *arguments, "--url", server.http_url)

    return run_classify


def test_texts_of_the_command_line(classify: Run) -> None:
    status, output, errors = classify("tiny", "w1 w2", "", "--format", "jsonl", "--top-k", "2")
    assert (status, errors) == (0, "")
    first, second = map(json.loads, output.splitlines())
    assert list(first) == ["text", "label", "score", "top", "logits", "token_count", "truncated"]
    assert first["top"][0] == {"label": first["label"], "score": first["score"]}
    assert (first["token_count"], second["token_count"]) == (4, 2)


def test_pairs_of_the_command_line(classify: Run) -> None:
    status, output, _ = classify("tiny", "a", "--text-pair", "b c", "--format", "json")
    assert status == 0
    (answer,) = json.loads(output)
    assert (answer["text"], answer["text_pair"], answer["token_count"]) == ("a", "b c", 6)


def test_grpc_and_the_environment(
    command: Run, server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSE_SERVE_INTERFACE", "grpc")
    monkeypatch.setenv("SPARSE_SERVE_URL", server.grpc_url)
    monkeypatch.setenv("SPARSE_SERVE_FORMAT", "csv")
    status, output, _ = command("classify", "topics", "w1", "--top-k", "5")
    assert status == 0
    (row,) = csv.DictReader(io.StringIO(output))
    assert row["truncated"] == "false"
    assert json.loads(row["label"]) is not None
    assert {row["label_1"], row["label_2"], row["label_3"]} == {"a", "b", "c"}
    assert row["label_5"] == ""


def test_several_labels_and_values_are_shown_as_what_they_are(classify: Run) -> None:
    def answer(model: str, text: str) -> tuple[dict[str, Any], str]:
        _, output, _ = classify(model, text, "--format", "jsonl")
        status, table, _ = classify(model, text)
        assert status == 0
        return json.loads(output), table.splitlines()[1]

    for text in ("w1", "w2", "w3 w4", ""):
        topics, line = answer("topics", text)
        expected = [label for label, logit in zip("abc", topics["logits"], strict=True) if logit >= 0]
        assert topics["label"] == expected
        assert line.startswith(", ".join(expected) or "(none)")
    value, line = answer("value", "w1 w2")
    assert float(value["label"]) == pytest.approx(value["score"])
    assert value["score"] == value["logits"][0]
    assert line.startswith(value["label"])


def test_a_table_is_for_reading(classify: Run) -> None:
    status, output, _ = classify("tiny", "w1 [red] \x1b[31m", "w2 " * 15, "--top-k", "1")
    assert status == 0
    assert output.split()[:6] == ["label", "score", "best", "1", "tokens", "text"]
    assert "[red]" in output
    assert "\x1b" not in output
    assert "16 (cut)" in output


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_files_are_answered_in_order(classify: Run, tmp_path: Path, suffix: str) -> None:
    texts = [(f"w{number % 30}", "w1" if number % 3 else "") for number in range(130)]
    path = tmp_path / f"texts{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text_a": a, "text_b": b}) + "\n" for a, b in texts))
    else:
        separator = "\t" if suffix == ".tsv" else ","
        path.write_text("".join(f"{a}{separator}{b}\n" for a, b in [("text_a", "text_b"), *texts]))
    status, output, errors = classify("tiny", "--file", str(path), "--format", "jsonl")
    assert (status, errors) == (0, "")
    answers = list(map(json.loads, output.splitlines()))
    assert [(answer["text"], answer.get("text_pair", "")) for answer in answers] == texts


def test_columns_can_be_named(classify: Run, tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text('body,other\n"w1, w2",w3\n')
    status, output, _ = classify(
        "tiny",
        "--file",
        str(path),
        "--text-column",
        "body",
        "--text-pair-column",
        "other",
        "--format",
        "json",
    )
    assert status == 0
    assert json.loads(output)[0]["text_pair"] == "w3"
    status, _, errors = classify("tiny", "--file", str(path))
    assert status == 1
    assert "there is no column 'text_a'; the columns are body, other" in errors


def test_lines_of_stdin(classify: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("w1\r\n\nw2 é".encode())))
    status, output, _ = classify("tiny", "--format", "json")
    assert status == 0
    assert [answer["text"] for answer in json.loads(output)] == ["w1", "", "w2 é"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"w1\ncaf\xe9\n")))
    status, _, errors = classify("tiny", "--format", "jsonl")
    assert (status, errors) == (1, "error: line 2 of stdin is not UTF-8\n")


def test_nothing_to_classify(classify: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert classify("tiny", "--format", "json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["classify", "unknown", "w1"], 1, "unknown model"),
        (["classify", "tiny_model", "w1"], 1, "unexpected inference output 'label'"),
        (["classify", "tiny_model", "w1", "--top-k", "1"], 1, "no output 'scores'"),
        (["classify", "tiny", "caf\udce9"], 1, "text 1 of the command line is not UTF-8"),
        (["classify", "tiny", "a", "--text-pair", "b", "--text-pair", "c"], 2, "2 --text-pair for 1 texts"),
        (["classify", "tiny", "a", "--file", "x.tsv"], 2, "not both"),
        (["classify", "tiny", "--file", "absent.tsv"], 1, "No such file or directory"),
        (["classify", "tiny", "a", "--top-k", "0"], 2, "--top-k"),
        (["classify", "tiny", "a", "--format", "xml"], 2, "--format"),
        (["classify"], 2, "Missing argument"),
        (["classify", "tiny", "a", "--url", "http://host"], 2, "give host:port"),
        (["classify", "tiny", "a", "--url", "host:65536"], 2, "give host:port"),
        (["classify", "tiny", "a", "--url", "127.0.0.1:1"], 1, "Connection refused"),
        (
            ["classify", "tiny", "a", "--url", "127.0.0.1:1", "-i", "grpc"],
            1,
            "is `sparse-serve serve` running",
        ),
        (["serve", "nowhere"], 1, "model repository .*nowhere is not a folder"),
        (["serve", "--http-port", "70000"], 2, "--http-port"),
        (["serve", ".", "more"], 2, "unexpected argument 'more'"),
        (["serve", ".", "--", "--http-address=0.0.0.0"], 2, "not passed through: give --host"),
        (["check", "nowhere"], 1, "no entry of a model repository"),
        (["check"], 2, "Missing argument"),
        (["frobnicate"], 2, "No such command"),
        (["info", "--frobnicate"], 2, "No such option"),
    ],
)
def test_errors_are_one_line_and_have_their_status(
    command: Run, server: TritonServer, arguments: list[str], status: int, message: str
) -> None:
    if arguments[0] == "classify" and "--url" not in arguments and len(arguments) > 1:
        arguments = [*arguments, "--url", server.http_url]
    found, output, errors = command(*arguments)
    assert (found, output) == (status, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert re.search(message, errors)


def failing(error: BaseException) -> typer.Typer:
    commands = typer.Typer()

    @commands.command(context_settings=CONTEXT)
    def fail(verbose: Verbose = False) -> None:
        raise error

    return commands


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (GateError("two\nlines"), 3, "error: two lines\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            ZeroDivisionError("oops"),
            1,
            "error: internal error: ZeroDivisionError: oops; run again with --verbose\n",
        ),
    ],
)
def test_every_failure_is_one_line(command: Run, error: BaseException, status: int, line: str) -> None:
    found, _, errors = command(commands=failing(error))
    assert (found, errors.lstrip("\n")) == (status, line)


def test_verbose_adds_the_traceback() -> None:
    script = """
import typer
from sparse_serve.cli_options import Verbose, run
app = typer.Typer()
@app.command()
def fail(verbose: Verbose = False) -> None:
    raise ZeroDivisionError("oops")
run(app, ["--verbose"])
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: internal error: ZeroDivisionError")


def test_check_as_table_and_as_json(command: Run, tmp_path: Path, make_spec: MakeSpec) -> None:
    public = write_entry(tmp_path, make_spec())
    status, output, errors = command("check", str(public), "--json")
    assert (status, errors) == (0, "")
    assert {finding["level"] for finding in json.loads(output)} == {"ok"}
    (public / "labels.txt").write_text("other\n")
    status, output, errors = command("check", str(public))
    assert status == 1
    assert "labels.txt has been changed" in " ".join(output.split())
    assert errors == f"error: entry {public} is not fit to serve: 2 of 4 findings are errors\n"


def test_a_table_for_a_program_is_not_folded(classify: Run) -> None:
    _, output, _ = classify("tiny", "w1 " * 15, "w2", "--top-k", "2")
    assert len(output.splitlines()) == 3
    assert "w1 " * 15 in output


def test_info_says_what_is_here(command: Run) -> None:
    status, output, errors = command("info", "--json")
    assert (status, errors) == (0, "")
    found = json.loads(output)
    assert found["versions"]["sparse-serve"] == version("sparse-serve")
    assert found["op_library"]["domain"] == "ai.sparse_serve"
    assert found["triton"]["path"].endswith("tritonserver")
    assert found["devices"]["cpu"]["cores"] >= 1
    status, output, _ = command("info")
    assert status == 0
    assert "instruction_set" in output


def test_the_version_is_shown() -> None:
    program = Path(sys.executable).parent / "sparse-serve"
    result = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"sparse-serve {version('sparse-serve')}\n"


def test_the_serving_side_loads_no_torch() -> None:
    script = (
        "import sys, sparse_serve.cli\n"
        "print([name for name in ('torch', 'transformers', 'sparse_export') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_default_addresses_are_tritons() -> None:
    assert cli_classify._DEFAULT_URLS == {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}
