from pathlib import Path

import pytest

from sparse_serve.errors import DataError
from sparse_serve.records import iter_records, text_of


def write(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", 'text_a\tlabel\n"quoted, as it is\t1\n\t0\n'),
        ("t.csv", 'text_a,label\n"""quoted, as it is",1\n,0\n'),
        ("t.jsonl", '{"text_a": "\\"quoted, as it is", "label": "1"}\n\n{"text_a": "", "label": "0"}'),
        ("T.TSV", b'\xef\xbb\xbftext_a\tlabel\r\n"quoted, as it is\t1\r\n\t0\r\n'),
    ],
)
def test_the_same_records_in_each_format(tmp_path: Path, name: str, content: str | bytes) -> None:
    records = [record for _, record in iter_records(write(tmp_path, name, content), ["text_a", "label"])]
    assert records == [{"text_a": '"quoted, as it is', "label": "1"}, {"text_a": "", "label": "0"}]


def test_records_know_the_line_they_start_in(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", 'text_a\n"two\nlines"\nlast\n')
    assert [(line, record["text_a"]) for line, record in iter_records(path, ["text_a"])] == [
        (2, "two\nlines"),
        (4, "last"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", "text", r"has suffix '\.txt'; accepted are \.tsv, \.csv, \.jsonl"),
        ("t.tsv", "", "is empty"),
        ("t.tsv", "a\tb\n1\n", r"line 2: 1 fields where the header has 2 \(a, b\)"),
        ("t.tsv", "a\ta\n", "a column name occurs twice"),
        ("t.tsv", "b\n1\n", "line 1: there is no column 'a'; the columns are b"),
        ("t.tsv", b"a\ncaf\xe9\n", "line 2: not UTF-8 .byte 0xe9 at position 3.; convert"),
        ("t.csv", 'a\n"open\n', "line 2: not a well-formed table"),
        ("t.jsonl", "{\n", "line 1: not JSON"),
        ("t.jsonl", "[1]\n", "line 1: a JSON list where an object is needed"),
        ("t.jsonl", '{"a": 1}\n{"b": 1}\n', "line 2: there is no column 'a'"),
    ],
)
def test_malformed_files_are_named_with_their_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        list(iter_records(write(tmp_path, name, content), ["a"]))


@pytest.mark.parametrize(
    ("required", "options"), [(["b"], "--text-column"), (["a", "b"], "--text-column and --text-pair-column")]
)
def test_a_missing_column_names_its_options(tmp_path: Path, required: list[str], options: str) -> None:
    with pytest.raises(DataError, match=f"no column 'b'; the columns are a: name yours with {options}$"):
        list(iter_records(write(tmp_path, "t.tsv", "a\nx\n"), required))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.tsv cannot be read: No such file or directory"):
        list(iter_records(tmp_path / "absent.tsv", ["a"]))


@pytest.mark.parametrize(
    ("value", "message"), [(3, "holds 3; a text is needed"), ("\ud800", "holds half a surrogate pair")]
)
def test_values_that_are_no_text_are_refused(value: object, message: str) -> None:
    assert text_of(Path("t.jsonl"), 7, {"a": "fine"}, "a") == "fine"
    with pytest.raises(DataError, match=f"t.jsonl, line 7: column 'a' {message}"):
        text_of(Path("t.jsonl"), 7, {"a": value}, "a")
