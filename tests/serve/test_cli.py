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

from command_line import outcome
from sparse_serve.cli import app
from sparse_serve.cli import classify as classify_command
from sparse_serve.cli.options import Verbose, read_size
from sparse_serve.cli.texts import iter_texts
from sparse_serve.errors import GateError, OptionError
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton.launcher import TritonServer

MakeSpec = Callable[..., EntrySpec]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process: status, stdout, stderr."""

    def run_command(*arguments: str, commands: typer.Typer = app) -> tuple[int, str, str]:
        return outcome(capsys, commands, *arguments)

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
    status, output, _ = command("classify", "topics", "w1 w2", "--top-k", "5")
    assert status == 0
    (row,) = csv.DictReader(io.StringIO(output))
    assert row["truncated"] == "false"
    scores = {row[f"label_{place}"]: float(row[f"score_{place}"]) for place in (1, 2, 3)}
    assert set(scores) == {"a", "b", "c"}
    assert json.loads(row["label"]) == [label for label in "abc" if scores[label] >= 0.5]
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


def test_answers_to_questions(classify: Run, tmp_path: Path) -> None:
    context = "w3 é w4\r\n w5 🙂 w6"
    asked = ("spans", "w1", "--text-pair", context)
    status, output, errors = classify(*asked, "--format", "json")
    assert (status, errors) == (0, "")
    (found,) = json.loads(output)
    keys = ["text", "text_pair", "answer", "start", "end", "score", "token_count", "truncated"]
    assert list(found) == keys
    assert found["answer"] == context[found["start"] : found["end"]] != ""
    status, output, _ = classify(*asked)
    header, line = output.splitlines()
    assert header.split() == ["answer", "score", "span", "text"]
    assert line.split()[-2:] == [f"{found['start']}–{found['end']}", "w1"]
    status, output, _ = classify(*asked, "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(output))
    assert list(row) == keys
    assert (row["answer"], row["start"], row["text_pair"]) == (found["answer"], str(found["start"]), context)


def test_a_question_without_an_answer(classify: Run) -> None:
    asked = ("spans", "w1", "--text-pair", " ")
    (found,) = json.loads(classify(*asked, "--format", "json")[1])
    assert (found["answer"], found["start"], found["end"], found["score"]) == ("", -1, -1, 0.0)
    assert classify(*asked)[1].splitlines()[1].startswith("(none)")


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".tsv"])
def test_questions_of_files(classify: Run, tmp_path: Path, suffix: str) -> None:
    rows = [(f"w{number}", f"w{number + 1} w2 w3" if number else "") for number in range(10)]
    path = tmp_path / f"questions{suffix}"
    if suffix == ".json":
        paragraphs = [{"context": context, "qas": [{"question": question}]} for question, context in rows]
        path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    elif suffix == ".jsonl":
        path.write_text("\n".join(json.dumps({"question": a, "context": b}) for a, b in rows))
    else:
        path.write_text("\n".join(["question\tcontext", *map("\t".join, rows)]))
    status, output, errors = classify("spans", "--file", str(path), "--format", "jsonl")
    assert (status, errors) == (0, "")
    found = list(map(json.loads, output.splitlines()))
    assert [(each["text"], each["text_pair"]) for each in found] == rows
    assert found[0]["answer"] == ""
    assert all(each["answer"] for each in found[1:])


@pytest.mark.parametrize(("in_pairs", "second"), [(True, ""), (False, None)])
def test_an_empty_second_text_of_a_file(tmp_path: Path, in_pairs: bool, second: str | None) -> None:
    """A model of pairs is asked about it as about any; others are asked about a single text."""
    path = tmp_path / "rows.tsv"
    path.write_text("text_a\ttext_b\na\tb\nc\t\n")
    first, other = iter_texts(None, None, path, None, None, in_pairs=in_pairs)
    assert (first.pair, other.pair) == ("b", second)


def test_questions_of_stdin_have_no_context(classify: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"w1")))
    status, output, errors = classify("spans")
    assert (status, output) == (1, "")
    assert "give each question its context with --text-pair" in errors


def test_entities_of_texts(classify: Run, tmp_path: Path) -> None:
    texts = ("w3 é w4\x1b[31m 🙂 w6", "", "w7 w8 w9 w10 w11")
    status, output, errors = classify("tags", *texts, "--format", "jsonl")
    assert (status, errors) == (0, "")
    found = list(map(json.loads, output.splitlines()))
    assert list(found[0]) == ["text", "entities", "token_count", "truncated"]
    entities = [entity for each in found for entity in each["entities"]]
    assert entities
    for each in found:
        for entity in each["entities"]:
            assert list(entity) == ["label", "start", "end", "text", "score"]
            assert entity["text"] == each["text"][entity["start"] : entity["end"]]
    rows = len(entities) + sum(not each["entities"] for each in found)
    status, output, _ = classify("tags", *texts)
    lines = output.splitlines()
    assert lines[0].split() == ["entity", "label", "score", "span", "text"]
    assert len(lines) == 1 + rows
    assert "\x1b" not in output
    assert sum(line.startswith("(none)") for line in lines) == rows - len(entities)
    status, output, _ = classify("tags", *texts, "--format", "csv")
    table = list(csv.DictReader(io.StringIO(output)))
    assert list(table[0]) == [
        "text",
        "text_pair",
        "entity",
        "label",
        "start",
        "end",
        "score",
        "token_count",
        "truncated",
    ]
    assert [row["entity"] for row in table if row["start"]] == [entity["text"] for entity in entities]
    path = tmp_path / "words.conll"
    path.write_text("w3\tO\nw4\tO\n\nw5\tO\n")
    status, output, _ = classify("tags", "--file", str(path), "--format", "jsonl")
    assert [json.loads(line)["text"] for line in output.splitlines()] == ["w3 w4", "w5"]
    status, _, errors = classify("tags", "--file", str(path.rename(tmp_path / "words.txt")))
    assert (status, "has suffix '.txt'; accepted are .tsv, .csv, .jsonl" in errors) == (1, True)


def test_embeddings_of_texts(classify: Run) -> None:
    status, output, errors = classify("vectors", "w1 w2", "w3", "--format", "json")
    assert (status, errors) == (0, "")
    first, second = json.loads(output)
    assert list(first) == ["text", "embedding", "token_count", "truncated"]
    assert len(first["embedding"]) == len(second["embedding"]) == 3
    assert all(isinstance(number, float) for number in first["embedding"])
    status, output, _ = classify("vectors", "w1 w2", "w3", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(output)))
    numbers = [float(rows[1][f"embedding_{index}"]) for index in (1, 2, 3)]
    assert numbers == second["embedding"]
    status, output, _ = classify("vectors", "w1 w2")
    header, line = output.splitlines()
    assert header.split() == ["embedding", "size", "norm", "text"]
    norm = sum(number**2 for number in first["embedding"]) ** 0.5
    expected = [*(f"{number:.4f}" for number in first["embedding"]), "3", f"{norm:.4f}", "w1", "w2"]
    assert line.split() == expected


@pytest.mark.parametrize("name", ["tiny", "spans", "tags", "vectors", "several"])
@pytest.mark.parametrize(
    ("form", "expected"), [("json", "[]\n"), ("jsonl", ""), ("csv", "text,text_pair"), ("table", "")]
)
def test_no_texts_have_no_answers(
    classify: Run, monkeypatch: pytest.MonkeyPatch, name: str, form: str, expected: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    of_task = ["--task", "sts"] if name == "several" else []
    status, output, errors = classify(name, "--format", form, *of_task)
    assert (status, errors) == (0, "")
    assert output.startswith(expected)
    assert len(output.splitlines()) == (0 if form == "jsonl" else 1)


def test_texts_of_one_of_several_tasks(classify: Run) -> None:
    asked = ("several", "w1 w2", "w3", "--task", "sentiment", "--top-k", "2")
    status, output, errors = classify(*asked, "--format", "json")
    assert (status, errors) == (0, "")
    found = json.loads(output)
    keys = ["text", "task", "label", "score", "top", "logits", "token_count", "truncated"]
    assert [list(each) for each in found] == [keys, keys]
    labels = {"awful", "bad", "so-so", "good", "great"}
    for each in found:
        assert (each["task"], len(each["logits"])) == ("sentiment", 5)
        assert {best["label"] for best in each["top"]} < labels
        assert each["top"][0] == {"label": each["label"], "score": each["score"]}
    status, output, _ = classify(*asked)
    header, *lines = output.splitlines()
    assert header.split() == ["task", "label", "score", "best", "2", "tokens", "text"]
    assert [line.split()[:2] for line in lines] == [["sentiment", each["label"]] for each in found]


def test_a_column_says_the_task(classify: Run, tmp_path: Path) -> None:
    """More rows than a batch, pairs and single texts, of all tasks."""
    tasks = ["sts", "sentiment", "topics", "paraphrase"]
    rows = [
        {"text_a": f"w{row % 30}", "text_b": "w1" if row % 3 else "", "what": tasks[row % 4]}
        for row in range(150)
    ]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    asked = ("several", "--file", str(path), "--task-column", "what")
    status, output, errors = classify(*asked, "--format", "jsonl")
    assert (status, errors) == (0, "")
    found = list(map(json.loads, output.splitlines()))
    assert [(each["text"], each["task"]) for each in found] == [(row["text_a"], row["what"]) for row in rows]
    widths = {"sts": 1, "sentiment": 5, "topics": 3, "paraphrase": 2}
    assert all(len(each["logits"]) == widths[each["task"]] for each in found)
    assert all(each["score"] == each["logits"][0] for each in found[::4])
    status, output, _ = classify(*asked, "--format", "csv", "--top-k", "5")
    table = list(csv.DictReader(io.StringIO(output)))
    assert list(table[0])[:5] == ["text", "text_pair", "task", "label", "score"]
    assert [row["task"] for row in table] == [row["what"] for row in rows]
    assert all((row["label_5"] == "") == (row["task"] != "sentiment") for row in table)
    status, _, errors = classify("several", "--file", str(path), "--task-column", "other")
    assert (status, "there is no column 'other'" in errors) == (1, True)


def test_nothing_to_classify(classify: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert classify("tiny", "--format", "json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["classify", "unknown", "w1"], 1, "unknown model"),
        (["classify", "several"], 1, r"say with --task .* \(sentiment, paraphrase, sts, topics\)"),
        (["classify", "several", "w1", "--task", "art"], 1, "there is no task 'art'; this model's are sent"),
        (["classify", "tiny", "w1", "--task", "sts"], 1, "model 'tiny' has one task: leave out --task"),
        (["classify", "spans", "w1", "--task", "sts"], 1, "model 'spans' has one task: leave out --task"),
        (["classify", "several", "w1", "--task-column", "x"], 2, "--task-column is of a file"),
        (["classify", "x", "--file", "y", "--task", "a", "--task-column", "b"], 2, "not both"),
        (
            ["classify", "tiny_model", "w1"],
            1,
            "answers with .*logits.*, as no model of ours that takes texts",
        ),
        (["classify", "spans", "w1"], 1, "'spans' answers questions about a context: give each question its"),
        (
            ["classify", "spans", "w1", "--text-pair", "w2", "--top-k", "1"],
            1,
            "no model that classifies texts",
        ),
        (
            ["classify", "tags", "w1", "--text-pair", "w2"],
            1,
            "'tags' finds entities and takes no second text",
        ),
        (["classify", "tiny", "caf\udce9"], 1, "text 1 of the command line is not UTF-8"),
        (["classify", "tiny", "a", "--text-pair", "b", "--text-pair", "c"], 2, "2 --text-pair for 1 texts"),
        (["classify", "tiny", "a", "--file", "x.tsv"], 2, "not both"),
        (["classify", "tiny", "--file", "absent.tsv"], 1, "No such file or directory"),
        (["classify", "tiny", "a", "--top-k", "0"], 2, "--top-k"),
        (["classify", "tiny", "a", "--text-column", "x"], 2, "--text-column is of a file: give one with"),
        (["classify", "tiny", "a", "--format", "xml"], 2, r"'--format' .*\): 'xml' is not one of 'table',"),
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
        (["serve", "--", "--http-address=0.0.0.0"], 2, "not passed through: give --host"),
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

    @commands.command()
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


def test_a_command_waits_for_nothing_that_others_need() -> None:
    script = """
import sys
from sparse_serve.cli import app, run
try:
    run(app, ["classify", "--help"])
finally:
    print({"onnx", "plotly", "psutil", "sparse_serve.profiling", "sparse_serve.triton"} & set(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("set()\n")


def test_verbose_adds_the_traceback() -> None:
    script = """
import typer
from sparse_serve.cli.options import Verbose, run
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
    assert errors == f"error: entry {public} is not fit to serve: 2 of 8 findings are errors\n"


def test_check_says_the_path_of_a_bare_name(
    command: Run, tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = write_entry(tmp_path / "model_repository", make_spec())
    monkeypatch.chdir(tmp_path)
    status, output, errors = command("check", public.name)
    assert (status, output) == (1, "")
    assert errors.endswith(f"give check model_repository/{public.name}\n")
    assert command("check", f"model_repository/{public.name}")[0] == 0


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
    assert found["triton"]["python_backend"] == "ready"
    assert found["devices"]["cpu"]["cores"] >= 1
    status, output, _ = command("info")
    assert status == 0
    assert "instruction_set" in output


def test_info_says_what_keeps_the_python_backend_from_running(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sparse_serve.triton.installation.version", lambda package: "2.3.0")
    status, output, _ = command("info", "--json")
    assert status == 0
    assert json.loads(output)["triton"]["python_backend"].startswith("numpy 2.3.0 breaks the Python stub")


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
    assert classify_command._DEFAULT_URLS == {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("1.5G", 3 << 29), ("7", 7), ("8b", 8), ("0.5k", 512)]
)
def test_sizes_are_numbers_with_a_unit(text: str, size: int) -> None:
    assert read_size("memory-limit", text) == size


@pytest.mark.parametrize("text", ["", "0", "0.0g", "4 MiB", "4mb", "-1m", "1e3", "m", "1.m", "2000g"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"--memory-limit '{text}' is no size up to 1024g")):
        read_size("memory-limit", text)
