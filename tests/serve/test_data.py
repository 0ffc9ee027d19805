"""Reading labelled text: what is accepted, and that every refusal says where and why."""

import json
from collections import Counter
from pathlib import Path

import pytest

from sparse_serve.data import Columns, TextData, hold_out, read_data, read_texts, sample_records
from sparse_serve.errors import DataError
from sparse_serve.rows import Label, Span, Tag

DATA = Path(__file__).parents[2].parent / "shared" / "data"
SST2 = DATA / "sst2"
QA, TAGS = "question_answering", "token_classification"


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
        data = read_data(path, task="regression")
        assert [row.label for row in data.rows] == values
        assert data.labels == ()


def test_arrays_are_labels_of_a_multi_label_task(tmp_path: Path) -> None:
    rows = ['["b", "a"]', "[]", '["10 %", "é"]', '["a", "a"]']
    tsv = "text_a\tlabel\n" + "".join(f"x\t{row}\n" for row in rows)
    csv = "text_a,label\n" + "".join('x,"{}"\n'.format(row.replace('"', '""')) for row in rows)
    arrays = "".join(f'{{"text_a": "x", "label": {row}}}\n' for row in rows)
    strings = "".join(json.dumps({"text_a": "x", "label": row}) + "\n" for row in rows)
    for name, content in (("a.tsv", tsv), ("a.csv", csv), ("a.jsonl", arrays), ("b.jsonl", strings)):
        data = read_data(write(tmp_path / name, content), task="multi_label_classification")
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


CONTEXT = "Denver 🏈 won.\r\nThe Broncos, cafe\u0301, were glad."


def question(**changes: object) -> dict[str, object]:
    return {"question": "Who?", "context": CONTEXT, "answer": "Broncos", "answer_start": 19} | changes


def test_questions_of_all_formats_are_the_same(tmp_path: Path) -> None:
    context, tail = "The Denver Broncos won.", "\tThe Denver Broncos won.\t"
    tsv = f"question\tcontext\tanswer_start\tanswer\nWho?{tail}4\tDenver\nWhen?{tail}\t\n"
    rows: list[dict[str, object]] = [
        {"question": "Who?", "context": context, "answer": ["Denver"], "answer_start": [4]},
        {"question": "When?", "context": context, "answer": [], "answer_start": []},
    ]
    hub: list[dict[str, object]] = [
        {"question": "Who?", "context": context, "answers": {"text": ["Denver"], "answer_start": [4]}},
        {"question": "When?", "context": context, "answers": {"text": [], "answer_start": []}},
    ]
    absent: list[dict[str, object]] = [rows[0], {"question": "When?", "context": context}]
    null: list[dict[str, object]] = [
        rows[0],
        {"question": "When?", "context": context, "answer": None, "answer_start": None},
    ]
    qas = [
        {"id": "1", "question": "Who?", "answers": [{"text": "Denver", "answer_start": 4}]},
        {"id": "2", "question": "When?", "answers": [], "is_impossible": True},
    ]
    squad = json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]})
    files = [("a.tsv", tsv), ("a.csv", tsv.replace("\t", ",")), ("a.json", squad)]
    files += [
        (f"{number}.jsonl", "\n".join(json.dumps(row) for row in each))
        for number, each in enumerate((rows, hub, absent, null))
    ]
    for name, content in files:
        data = read_data(write(tmp_path / name, content), task=QA)
        assert texts(data) == [("Who?", context, (Span(4, "Denver"),)), ("When?", context, ())], name
        assert data.labels == ()
        assert data.has_pairs


def test_answers_begin_at_code_points(tmp_path: Path) -> None:
    starts = [(0, "Denver"), (7, "🏈"), (19, "Broncos"), (28, "cafe\u0301"), (12, ".\r\nThe")]
    row = question(answer=[text for _, text in starts], answer_start=[start for start, _ in starts])
    data = read_data(write(tmp_path / "a.jsonl", json.dumps(row)), task=QA)
    assert data.rows[0].label == tuple(Span(start, text) for start, text in starts)
    csv = f'question,context,answer_start,answer\r\nWho?,"{CONTEXT}", 19 ,Broncos\r\n'
    assert read_data(write(tmp_path / "a.csv", csv), task=QA).rows[0][1:] == (
        "Who?",
        CONTEXT,
        (Span(19, "Broncos"),),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"answer_start": 20},
            "the answer is 'Broncos', but at 20 the context has 'roncos,'; starts count char",
        ),
        ({"answer_start": -1}, "answer 'Broncos' at -1 to 6 is outside of its context of 45 characters"),
        ({"answer_start": 45}, "answer 'Broncos' at 45 to 52 is outside"),
        ({"answer_start": 10**30}, "is outside of its context"),
        ({"answer_start": None}, "the start of answer 'Broncos' is None; a whole number is needed"),
        ({"answer_start": True}, "the start of answer 'Broncos' is True; a whole number"),
        ({"answer_start": 20.0}, "is 20.0; a whole number"),
        ({"answer_start": float("nan")}, "is nan; a whole number"),
        ({"answer_start": "1" * 5000}, "a whole number is needed"),
        ({"answer_start": "²"}, "a whole number is needed"),
        ({"answer_start": "-20"}, "a whole number is needed"),
        ({"answer_start": [20, 20], "answer": ["Broncos"]}, "1 answers but 2 starts"),
        (
            {"answer_start": 20, "answer": ["Broncos"]},
            "1 answers but the start 20; give two lists, or one of each",
        ),
        ({"answer_start": [20]}, "the answer 'Broncos' but a list of starts; give two lists, or one of each"),
        ({"answer_start": [20], "answer": [""]}, "the answer is ''; a text is needed"),
        ({"answer_start": [20], "answer": [7]}, "the answer is 7; a text is needed"),
        ({"answer": {"text": "x"}}, "the answer is {'text': 'x'}; a text is needed"),
        ({"id": 7, "answer_start": 0}, "line 1 (id 7): the answer is 'Broncos', but"),
        ({"context": 3}, "column 'context' holds 3; a text is needed"),
        ({"question": None}, "column 'question' holds None"),
        ({"context": "\ud83d"}, "holds half a surrogate pair"),
    ],
)
def test_an_answer_that_is_not_where_it_is_said_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps(question(**changes)))
    with pytest.raises(DataError) as caught:
        read_data(path, task=QA)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_questions_are_named_by_number_and_id(tmp_path: Path) -> None:
    qas = [
        {"id": "a1", "question": "?", "answers": [{"text": "x", "answer_start": 0}]},
        {"id": "a2", "question": "?", "answers": [{"text": "x", "answer_start": 1}]},
    ]
    content = json.dumps({"data": [{"paragraphs": [{"context": "xy", "qas": qas}]}]})
    path = write(tmp_path / "a.json", content)
    with pytest.raises(
        DataError, match=r"a.json, question 2 \(id 'a2'\): the answer is 'x', but at 1 .* has 'y'"
    ):
        read_data(path, task=QA)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "question\tcontext\nWho?\tHe.\n"),
        ("a.jsonl", '{"question": "Who?", "context": "He."}\n'),
        ("a.json", '{"data": [{"paragraphs": [{"context": "He.", "qas": [{"question": "Who?"}]}]}]}'),
    ],
)
def test_a_file_without_any_answers_is_no_labelled_one(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(
        DataError, match=r"(line|question) \d: there is no column 'answer'; the columns are question, context"
    ):
        read_data(write(tmp_path / name, content), task=QA)


def test_columns_of_questions_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "q\tc\tfrom\ta\nWho?\tHe.\t0\tHe\n")
    data = read_data(path, Columns("q", "c", "a", "from"), task=QA)
    assert texts(data) == [("Who?", "He.", (Span(0, "He"),))]


def test_whole_contexts_are_held_out(tmp_path: Path) -> None:
    rows = "".join(f"q{n}\tcontext {n // 5}\t\t\n" for n in range(100))
    data = read_data(write(tmp_path / "a.tsv", f"question\tcontext\tanswer\tanswer_start\n{rows}"), task=QA)
    rest, held = hold_out(data, 0.1, seed=1)
    assert len(held.rows) == 10
    assert sorted(rest.rows + held.rows) == list(data.rows)
    assert not {row.text_pair for row in rest.rows} & {row.text_pair for row in held.rows}
    assert hold_out(data, 0.1, seed=1) == (rest, held)
    assert hold_out(data, 0.1, seed=2)[1] != held
    assert len({row.text_pair for row in hold_out(data, 0.99, seed=1)[0].rows}) == 1
    uneven = "".join(f"q{n}\tcontext {max(n, 90)}\t\t\n" for n in range(100))
    skewed = write(tmp_path / "c.tsv", f"question\tcontext\tanswer\tanswer_start\n{uneven}")
    for seed in range(5):
        assert len(hold_out(read_data(skewed, task=QA), 0.05, seed)[1].rows) == 5
    one = write(tmp_path / "b.tsv", "question\tcontext\tanswer\tanswer_start\na\tx\t\t\nb\tx\t\t\n")
    with pytest.raises(DataError, match="questions on one context only; holding some out"):
        hold_out(read_data(one, task=QA), 0.1, seed=0)


def test_words_and_tags_of_both_formats_are_the_same(tmp_path: Path) -> None:
    conll = write(tmp_path / "a.conll", "I\tI-PER\n😀\tO\n\nNew York\tB-LOC\ne\u0301t\tNOUN\n")
    records = [
        {"tokens": ["I", "😀"], "tags": ["I-PER", "O"]},
        {"tokens": ["New York", "e\u0301t"], "tags": ["B-LOC", "NOUN"], "id": 2},
    ]
    jsonl = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, records)))
    for path in (conll, jsonl):
        data = read_data(path, task=TAGS)
        assert texts(data) == [
            ("I 😀", "", (Tag(0, 1, "I-PER"), Tag(2, 3, "O"))),
            ("New York e\u0301t", "", (Tag(0, 8, "B-LOC"), Tag(9, 12, "NOUN"))),
        ]
        assert data.labels == ("B-LOC", "I-PER", "NOUN", "O")
        assert not data.has_pairs


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "line 1: 2 tokens but 1 tags; give each token one"),
        ({"tokens": ["a"], "tags": ["O", "O"]}, "line 1: 1 tokens but 2 tags"),
        ({"tokens": ["a"], "tags": ["B-"]}, "tag 'B-' of token 1 ('a') has no type after B-"),
        ({"tokens": ["a"], "tags": [""]}, "tag '' of token 1 ('a') is empty"),
        ({"tokens": ["a"], "tags": [" "]}, "tag ' ' of token 1 ('a') is empty"),
        ({"tokens": ["a", "b"], "tags": ["O", "U-PER"]}, "tag 'U-PER' of token 2 ('b') has the prefix U-;"),
        ({"tokens": ["a"], "tags": ["X-"]}, "tag 'X-' of token 1 ('a') has the prefix X-"),
        ({"tokens": ["a", ""], "tags": ["O", "O"]}, "token 2 is ''; a token is a word"),
        ({"tokens": [" "], "tags": ["O"]}, "token 1 is ' '"),
        ({"tokens": [], "tags": []}, "column 'tokens' holds []; a list of texts is needed"),
        ({"tokens": "a b", "tags": ["O"]}, "column 'tokens' holds 'a b'; a list of texts is needed"),
        ({"tokens": ["a"], "tags": "O"}, "column 'tags' holds 'O'; a list of texts is needed"),
        ({"tokens": ["a"], "tags": [0]}, "column 'tags' holds 0 in its list; texts are needed"),
        ({"tokens": ["a"], "tags": [float("nan")]}, "column 'tags' holds nan in its list"),
        ({"tokens": ["\ud800"], "tags": ["O"]}, "column 'tokens' holds half a surrogate pair"),
        ({"tokens": ["a"]}, "there is no column 'tags'; the columns are tokens"),
        ({"tags": ["O"]}, "there is no column 'tokens'; the columns are tags"),
    ],
)
def test_tags_that_do_not_fit_their_words_are_refused(
    tmp_path: Path, record: dict[str, object], message: str
) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps(record))
    with pytest.raises(DataError) as caught:
        read_data(path, task=TAGS)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_each_task_has_its_own_files(tmp_path: Path) -> None:
    text, squad = write(tmp_path / "a.txt", "a O\n"), write(tmp_path / "a.json", "{}")
    with pytest.raises(DataError, match=r"suffix '.json'; accepted are .jsonl, .conll, .txt"):
        read_data(squad, task=TAGS)
    with pytest.raises(DataError, match=r"suffix '.txt'; accepted are .tsv, .csv, .jsonl, .json"):
        read_data(text, task=QA)
    assert texts(read_data(text, task=TAGS)) == [("a", "", (Tag(0, 1, "O"),))]
    assert texts(read_data(text, labelled=False)) == [("a O", "", "")]


@pytest.mark.skipif(not (DATA / "squad").exists(), reason=f"{DATA / 'squad'} is not here")
def test_real_questions_read_whole() -> None:
    data = read_data(DATA / "squad" / "dev.json", task=QA)
    assert len(data.rows) == 227
    assert all(row.label for row in data.rows)


@pytest.mark.skipif(not (DATA / "wnut17").exists(), reason=f"{DATA / 'wnut17'} is not here")
def test_real_tags_read_whole() -> None:
    data = read_data(DATA / "wnut17" / "dev.conll", task=TAGS)
    assert (len(data.rows), len(data.labels)) == (1009, 13)
    words = (DATA / "wnut17" / "dev.conll").read_text(encoding="utf-8").count("\t")
    assert sum(isinstance(row.label, tuple) and len(row.label) for row in data.rows) == words
