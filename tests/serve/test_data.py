"""Reading labelled text: what is accepted, and that every refusal says where and why."""

import json
from collections import Counter
from pathlib import Path

import pytest

from sparse_serve.data import Columns, TextData, hold_out, read_data, read_texts, sample_records
from sparse_serve.errors import DataError
from sparse_serve.tasks import Label

SST2 = Path(__file__).parents[2].parent / "shared" / "data" / "sst2"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(data: TextData) -> list[tuple[str, str, Label]]:
    return [(row.text, row.text_pair, row.label) for row in data.rows]


def test_tsv_knows_no_quoting(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text_a\ttext_b\tlabel\n"so ""good"\t\t1\n\'tis, "bad\t\t0\n')
    assert texts(read_data(path)) == [('"so ""good"', "", "1"), ("'tis, \"bad", "", "0")]


def test_csv_is_quoted_and_rows_may_span_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'label,text_a\r\n1,"good, ""very""\nindeed"\r\n0,bad\r\n')
    data = read_data(path)
    assert texts(data) == [('good, "very"\nindeed', "", "1"), ("bad", "", "0")]
    assert [row.line for row in data.rows] == [2, 4]


def test_json_lines(tmp_path: Path) -> None:
    records = [{"text_a": "good", "label": 1}, {"text_a": "bäd", "label": 0, "text_b": None, "id": 7}]
    path = write(tmp_path / "a.JSONL", "\n".join(map(json.dumps, records)) + "\n\n")
    assert texts(read_data(path)) == [("good", "", "1"), ("bäd", "", "0")]


def test_all_formats_read_the_same(tmp_path: Path) -> None:
    rows = [("fine", "or not", "yes"), ("", " ", "no"), ("日本語", "é", "yes")]
    tsv = "text_a\ttext_b\tlabel\n" + "".join("\t".join(row) + "\n" for row in rows)
    csv = tsv.replace("\t", ",")
    jsonl = "".join(
        json.dumps(dict(zip(("text_a", "text_b", "label"), row, strict=True))) + "\n" for row in rows
    )
    for suffix, content in (("tsv", tsv), ("csv", csv), ("jsonl", jsonl)):
        data = read_data(write(tmp_path / f"a.{suffix}", content))
        assert texts(data) == rows
        assert data.has_pairs
        assert data.labels == ("no", "yes")


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"\xef\xbb\xbftext_a\tlabel\r\ngood\t1\r\n\r\nbad\t0")
    assert texts(read_data(path)) == [("good", "", "1"), ("bad", "", "0")]


def test_line_separators_inside_a_text_stay_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text_a\tlabel\none\u2028two\x0bthree\t1\n")
    assert texts(read_data(path)) == [("one\u2028two\x0bthree", "", "1")]


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "id\tquestion\tanswer\ty\n7\twhy\tso\tno\n")
    assert texts(read_data(path, Columns("question", "answer", "y"))) == [("why", "so", "no")]
    assert texts(read_data(path, Columns("question", label="y"))) == [("why", "", "no")]


def test_integer_labels_sort_by_value_and_names_by_name(tmp_path: Path) -> None:
    numbers = write(tmp_path / "a.tsv", "text_a\tlabel\n" + "".join(f"x\t{n}\n" for n in (10, 2, 0, -1)))
    names = write(tmp_path / "b.tsv", "text_a\tlabel\n" + "".join(f"x\t{n}\n" for n in ("b", " a ", "10")))
    assert read_data(numbers).labels == ("-1", "0", "2", "10")
    assert read_data(names).labels == ("10", "a", "b")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", "is empty"),
        ("a.jsonl", "", "is empty"),
        ("a.tsv", "text_a\tlabel\n", "has no rows"),
        ("a.txt", "x", "suffix '.txt'; accepted are .tsv, .csv, .jsonl"),
        ("a.tsv", "text\tlabel\nx\t1\n", "line 1: there is no column 'text_a'; the columns are text, label"),
        ("a.tsv", "text_a\ty\nx\t1\n", "there is no column 'label'; the columns are text_a, y"),
        ("a.jsonl", '{"text_a": "x", "label": 1}\n{"text_a": "x"}\n', "line 2: there is no column 'label'"),
        ("a.tsv", "text_a\tlabel\tlabel\nx\t1\t2\n", "line 1: a column name occurs twice"),
        ("a.tsv", "text_a\tlabel\nx\t1\nx\ty\t1\n", "line 3: 3 fields where the header has 2"),
        ("a.csv", "text_a,label\nx\n", "line 2: 1 fields where the header has 2"),
        ("a.csv", 'text_a,label\n"x,1\ny,0\n', "line 2: not a well-formed table: unexpected end of data"),
        ("a.tsv", b"text_a\tlabel\nok\t1\nn\xe9e\t1\n", "line 3: not UTF-8 (byte 0xe9 at position 1)"),
        ("a.tsv", "text_a\tlabel\nx\t1\ny\t\n", "line 3: the label is missing"),
        ("a.tsv", "text_a\tlabel\nx\t4.6\n", "line 2: the label is '4.6'"),
        ("a.jsonl", f'{{"text_a": "x", "label": {"9" * 5000}}}\n', "line 1: not JSON: Exceeds the limit"),
        ("a.jsonl", '{"text_a": "x", "label": null}\n', "line 1: the label is missing"),
        ("a.jsonl", '{"text_a": "x", "label": 0.5}\n', "line 1: the label is 0.5"),
        ("a.jsonl", '{"text_a": "x", "label": ["a"]}\n', "line 1: the label is ['a']"),
        ("a.jsonl", '{"text_a": 3, "label": 1}\n', "line 1: column 'text_a' holds 3; a text is needed"),
        (
            "a.jsonl",
            '{"text_a": "\\ud83d", "label": 1}\n',
            "line 1: column 'text_a' holds half a surrogate pair",
        ),
        ("a.jsonl", '{"text_a": "x"\n', "line 1: not JSON"),
        ("a.jsonl", "[" * 100_000, "line 1: not JSON: nested too deeply"),
        ("a.jsonl", "[1]\n", "line 1: a JSON list where an object is needed"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as caught:
        read_data(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_named_pair_column_must_exist(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text_a\tlabel\nx\t1\n")
    with pytest.raises(DataError, match="no column 'answer'"):
        read_data(path, Columns(text_pair="answer"))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(DataError, match="No such file"):
        read_data(tmp_path / "none.tsv")
    with pytest.raises(DataError, match="Is a directory"):
        read_data(tmp_path / "folder.tsv")


@pytest.fixture
def thousand(tmp_path: Path) -> Path:
    rows = "".join(f"text {n}\t{'b' if n % 4 == 0 else 'a'}\n" for n in range(1000))
    return write(tmp_path / "thousand.tsv", "text_a\tlabel\n" + rows + "rare\tc\n")


def test_sample_is_seeded_ordered_and_uniform(thousand: Path) -> None:
    first, again = (read_data(thousand, max_rows=200, seed=3) for _ in range(2))
    assert first == again
    assert first != read_data(thousand, max_rows=200, seed=4)
    assert [row.line for row in first.rows] == sorted({row.line for row in first.rows})
    assert (len(first.rows), first.total_rows, first.labels) == (200, 1001, ("a", "b", "c"))
    # 200 draws of a share of 1/4: 50 within four standard deviations, and no half of the file preferred.
    assert abs(Counter(row.label for row in first.rows)["b"] - 50) < 25
    assert abs(sum(row.line > 500 for row in first.rows) - 100) < 29


def test_sample_larger_than_the_file_is_the_file(thousand: Path) -> None:
    assert read_data(thousand, max_rows=5000) == read_data(thousand)


def test_sample_of_nothing_is_refused(thousand: Path) -> None:
    with pytest.raises(ValueError, match="max_rows is 0"):
        read_data(thousand, max_rows=0)


def test_numbers_are_labels_of_a_regression(tmp_path: Path) -> None:
    cells = ("4.6", " -3 ", "1e-3", ".5", "+2.")
    values = [4.6, -3.0, 1e-3, 0.5, 2.0]
    tsv = write(tmp_path / "a.tsv", "text_a\tlabel\n" + "".join(f"x\t{cell}\n" for cell in cells))
    jsonl = write(tmp_path / "a.jsonl", "".join(f'{{"text_a": "x", "label": {n}}}\n' for n in values))
    for path in (tsv, jsonl):
        data = read_data(path, problem_type="regression")
        assert [row.label for row in data.rows] == values
        assert data.labels == ()


def test_arrays_are_labels_of_a_multi_label_task(tmp_path: Path) -> None:
    rows = ['["b", "a"]', "[]", '["10 %", "é"]', '["a", "a"]']
    tsv = "text_a\tlabel\n" + "".join(f"x\t{row}\n" for row in rows)
    csv = "text_a,label\n" + "".join('x,"{}"\n'.format(row.replace('"', '""')) for row in rows)
    arrays = "".join(f'{{"text_a": "x", "label": {row}}}\n' for row in rows)
    strings = "".join(json.dumps({"text_a": "x", "label": row}) + "\n" for row in rows)
    for name, content in (("a.tsv", tsv), ("a.csv", csv), ("a.jsonl", arrays), ("b.jsonl", strings)):
        data = read_data(write(tmp_path / name, content), problem_type="multi_label_classification")
        assert [row.label for row in data.rows] == [("b", "a"), (), ("10 %", "é"), ("a",)]
        assert data.labels == ("10 %", "a", "b", "é")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("text_a\ttext_b\tlabel\na\tb\t1\nc\t\t0\n", 3),
        ("text_a\ttext_b\tlabel\na\t\t1\nc\t\t1\nc\td\t0\n", 2),
    ],
)
def test_a_pair_that_lacks_its_second_text_is_refused(tmp_path: Path, content: str, line: int) -> None:
    path = write(tmp_path / "a.tsv", content)
    with pytest.raises(DataError, match=rf"line {line}: the second text \('text_b'\) is missing, but line"):
        read_data(path)


def test_a_missing_key_is_a_missing_second_text(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"text_a": "x", "text_b": "y", "label": 1}\n{"text_a": "x", "label": 0}\n'
    )
    with pytest.raises(DataError, match="line 2: the second text"):
        read_data(path)


def test_records_of_any_source_are_read_alike(tmp_path: Path) -> None:
    records = [{"text_a": f"text {n}", "label": n % 3} for n in range(50)]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, records)))
    from_file = read_data(path, max_rows=7, seed=5)
    elsewhere = sample_records("hub/set", enumerate(records, start=1), Columns(), max_rows=7, seed=5)
    assert (elsewhere.rows, elsewhere.labels) == (from_file.rows, from_file.labels)
    assert elsewhere.source == "hub/set"
    with pytest.raises(DataError, match="hub/set, line 1: the label is missing"):
        sample_records("hub/set", [(1, {"text_a": "x", "label": None})], Columns())


def test_hold_out_splits_every_row_once(thousand: Path) -> None:
    data = read_data(thousand)
    rest, held = hold_out(data, 0.1, seed=1)
    assert len(held.rows) == 100
    assert sorted(rest.rows + held.rows) == list(data.rows)
    assert hold_out(data, 0.1, seed=1) == (rest, held)
    assert hold_out(data, 0.1, seed=2)[1] != held


def test_hold_out_of_tiny_data_keeps_both_sides_filled(tmp_path: Path) -> None:
    two = read_data(write(tmp_path / "a.tsv", "text_a\tlabel\nx\t1\ny\t0\n"))
    assert [len(part.rows) for part in hold_out(two, 0.9, seed=0)] == [1, 1]
    one = read_data(write(tmp_path / "b.tsv", "text_a\tlabel\nx\t1\n"))
    with pytest.raises(DataError, match="has 1 row"):
        hold_out(one, 0.1, seed=0)


def test_plain_texts_are_the_lines_that_are_not_blank(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\n\n  two\xe2\x80\xa8still two \n \nthree")
    assert read_texts(path) == ("one", "two\u2028still two", "three")


def test_texts_come_with_the_package() -> None:
    texts = read_texts(None)
    assert len(set(texts)) == len(texts) > 40


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "holds no text"),
        (b" \n\n", "holds no text"),
        (b"caf\xe9\n", "is not UTF-8 at byte 3"),
    ],
)
def test_a_bad_file_of_texts_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.txt"
    if content is not None:
        write(path, content)
    with pytest.raises(DataError, match=message) as caught:
        read_texts(path)
    assert str(path) in str(caught.value)


@pytest.mark.skipif(not SST2.exists(), reason=f"{SST2} is not here")
def test_real_data_reads_whole() -> None:
    data = read_data(SST2 / "dev.tsv")
    assert (len(data.rows), data.labels, data.has_pairs) == (872, ("0", "1"), False)
