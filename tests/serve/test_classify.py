"""`classify` on many texts: several requests at a time, replies in order, bounded memory."""

import json
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from command_line import outcome
from sparse_serve.cli import app
from sparse_serve.cli import replies as shown_replies
from sparse_serve.cli.classify import Ask, _ask
from sparse_serve.cli.replies import Format, Shown
from sparse_serve.cli.texts import Text
from sparse_serve.errors import DataError, RefusedTextError, RequestError
from sparse_serve.replies import Prediction
from sparse_serve.triton.launcher import TritonServer


class Echo(Ask):
    """Replies with the texts, without a server."""

    def __call__(self, _client: Any, batch: Sequence[Text]) -> Any:
        if batch[0].text == "refused":
            raise RefusedTextError("no", 0, "refused")
        return [f"reply to {text.text}" for text in batch]


ECHO = Echo("127.0.0.1:1", "http", 0, "any", None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    with path.open("w") as stream:
        for number in range(600):
            pair = {"text_b": "w3"} if number % 100 > 90 else {}
            stream.write(json.dumps({"text_a": f"w{number % 30} w{number % 7}", **pair}) + "\n")
    return path


@pytest.mark.parametrize("interface", ["http", "grpc"])
def test_replies_stay_in_order(
    server: TritonServer, capsys: pytest.CaptureFixture[str], file: Path, interface: str
) -> None:
    url = server.http_url if interface == "http" else server.grpc_url
    asked = (
        "tiny",
        f"--file={file}",
        f"--url={url}",
        f"--interface={interface}",
        "--format=jsonl",
        "--top-k=2",
    )
    one, several = (outcome(capsys, app, "classify", *asked, f"--concurrency={number}") for number in (1, 3))
    assert (one[0], one[2]) == (several[0], several[2]) == (0, "")
    replies = [json.loads(line) for line in several[1].splitlines()]
    alone = [json.loads(line) for line in one[1].splitlines()]
    sent = [json.loads(line)["text_a"] for line in file.read_text().splitlines()]
    assert [reply["text"] for reply in replies] == [reply["text"] for reply in alone] == sent
    assert [reply["label"] for reply in replies] == [reply["label"] for reply in alone]


def test_a_refused_text_is_numbered_in_the_whole_file(
    server: TritonServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tasks = ["sts"] * 400 + ["absent"] + ["sts"] * 99
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps({"text_a": "w1 w2", "task": task}) for task in tasks))
    asked = ("several", f"--file={path}", "--task-column=task", f"--url={server.http_url}", "--concurrency=2")
    status, output, errors = outcome(capsys, app, "classify", *asked, "--format=jsonl")
    assert (status, errors.count("\n")) == (1, 1)
    assert "there is no task 'absent'" in errors
    assert errors.endswith("it is text 401, 'w1 w2'\n")
    assert 300 < output.count("\n") <= 400


@pytest.mark.parametrize("concurrency", [1, 3])
def test_texts_are_read_as_replies_are_taken(concurrency: int) -> None:
    read: list[int] = []

    def texts() -> Iterator[Text]:
        for number in count():
            read.append(number)
            yield Text(str(number), None)

    answered = _ask(ECHO, 5, texts(), concurrency)
    taken: list[Any] = list(islice(answered, 42))
    assert taken == [(Text(str(number), None), f"reply to {number}") for number in range(42)]
    assert len(read) <= 45 + 5 * 2 * concurrency + 1
    answered.close()  # type: ignore[attr-defined]


def test_what_comes_before_a_refusal_is_answered() -> None:
    texts = iter([*(Text(str(number), None) for number in range(10)), Text("refused", None)])
    answered = _ask(ECHO, 5, texts, 4)
    assert len(list(islice(answered, 10))) == 10
    with pytest.raises(RefusedTextError, match="no; it is text 11, 'refused'"):
        next(answered)


def test_what_comes_before_an_error_of_the_source_is_answered() -> None:
    def texts() -> Iterator[Text]:
        yield from (Text(str(number), None) for number in range(12))
        raise DataError("line 13: not UTF-8")

    answered = _ask(ECHO, 5, texts(), 4)
    assert [text.text for text, _ in islice(answered, 12)] == [str(number) for number in range(12)]
    with pytest.raises(DataError, match="line 13"):
        next(answered)


def test_long_tables_come_in_parts(
    server: TritonServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_replies, "_ROWS_OF_TABLE", 2)
    texts = ("w1", "w2", "w3", "w4")
    status, output, _ = outcome(capsys, app, "classify", "tiny", *texts, "--url", server.http_url)
    assert status == 0
    heads = [number for number, line in enumerate(output.splitlines()) if line.startswith("label")]
    assert heads == [0, 3]


@pytest.mark.parametrize("form", ["json", "table"])
def test_what_was_answered_before_a_refusal_is_shown(
    capsys: pytest.CaptureFixture[str], form: Format
) -> None:
    reply = Prediction(label="a", score=0.5, logits=(0.5,), scores=(0.5,), token_count=3, truncated=False)

    def answered() -> Iterator[tuple[Text, Prediction]]:
        yield Text("fine", None), reply
        raise RequestError("refused")

    with pytest.raises(RequestError):
        shown_replies.write(answered(), Prediction, form, Shown(0, False))
    output = capsys.readouterr().out
    told = json.loads(output)[0]["text"] if form == "json" else output.split()[-1]
    assert told == "fine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "its column text_b is read as second texts, and model 'tags' takes none: rename or remove the"),
        (["--text-pair-column", "text_b"], "model 'tags' takes none: leave out --text-pair-column"),
    ],
)
def test_second_texts_of_a_file_are_told_as_such(
    server: TritonServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("text_a\ttext_b\nw1\t\nw2\tw3\n")
    asked = ("tags", f"--file={file}", f"--url={server.http_url}", "--format=jsonl", *arguments)
    status, output, errors = outcome(capsys, app, "classify", *asked)
    assert (status, output.count("\n")) == (1, 1)
    assert f"{file}: its column text_b" in errors
    assert message in errors


def test_a_header_is_a_name_and_a_value(server: TritonServer, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("classify", "tiny", "w1", "--url", f"http://{server.http_url}")
    assert outcome(capsys, app, *asked, "-H", "Authorization: Bearer x:y", "-H", "X-Trace:1")[0] == 0
    status, _, errors = outcome(capsys, app, *asked, "--header", "Bearer x")
    assert status == 2
    assert "--header 'Bearer x' is no header: give 'NAME: VALUE'" in errors
