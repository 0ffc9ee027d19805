import json
from pathlib import Path

import pytest

from sparse_serve.errors import DataError
from sparse_serve.records import CONLL, PLAIN, SQUAD, TABLES, Format, iter_records, place, text_of


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
        ("t.jsonl", '{"a": 1, "b": 1, "a": 2}\n', "line 1: the key 'a' is there twice; give each key once"),
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


def test_a_line_of_plain_text_is_a_record(tmp_path: Path) -> None:
    path = write(tmp_path, "t.txt", "one\r\n\nthree")
    assert list(iter_records(path, ["a"], PLAIN)) == [(1, {"a": "one"}), (2, {"a": ""}), (3, {"a": "three"})]


def test_squad_has_a_record_for_each_question(tmp_path: Path) -> None:
    answer = {"text": "Denver", "answer_start": 4}
    squad = {
        "version": "v2.0",
        "data": [
            {
                "title": "A",
                "paragraphs": [
                    {
                        "context": "The Denver Broncos.",
                        "qas": [
                            {"id": "a", "question": "Who?", "answers": [answer], "is_impossible": False},
                            {
                                "id": "b",
                                "question": "When?",
                                "answers": [],
                                "plausible_answers": [answer],
                                "is_impossible": True,
                            },
                        ],
                    },
                    {"context": "", "qas": []},
                ],
            },
            {"paragraphs": [{"context": "x", "qas": [{"question": "Unlabelled?"}]}]},
        ],
    }
    path = write(tmp_path, "t.json", json.dumps(squad, indent=1))
    context = {"context": "The Denver Broncos."}
    assert list(iter_records(path, ["question", "context"], SQUAD)) == [
        (1, {"question": "Who?", "id": "a", "answer": ["Denver"], "answer_start": [4], **context}),
        (2, {"question": "When?", "id": "b", "answer": [], "answer_start": [], **context}),
        (3, {"question": "Unlabelled?", "context": "x"}),
    ]


def qas(question: object, context: object = "x") -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [question]}]}]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("{", "not JSON: .*; a SQuAD file is one object"),
        ("[" * 100_000, "not JSON: nested too deeply"),
        ("[]", "not SQuAD's JSON: it has no list 'data'; it is an object"),
        ('{"data": {}}', "it has no list 'data'"),
        ('{"data": [7]}', r"data\[0\] has no list 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', r"data\[0\].paragraphs\[0\] has no list 'qas'"),
        ('{"data": [{"paragraphs": [null]}]}', r"data\[0\].paragraphs\[0\] has no list 'qas'"),
        (qas(3), "question 1: a JSON int where a question is needed"),
        (qas({"question": "q", "answers": "x"}), "question 1: its answers are 'x'; a list of objects"),
        (qas({"question": "q", "answers": ["x"]}), r"question 1: its answers are \['x'\]; a list of objects"),
        (qas({"question": "q", "answers": [{"text": "x"}]}), "an answer has no 'answer_start', only text"),
        (qas({"question": "q", "answers": [{}]}), "an answer has no 'text', only nothing"),
        (qas({"question": "q", "is_impossible": 1}), "is_impossible is 1; true or false is needed"),
        (
            qas({"question": "q", "is_impossible": True, "answers": [{"text": "x", "answer_start": 0}]}),
            "question 1: it is_impossible, but has 1 answers",
        ),
    ],
)
def test_json_of_another_shape_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        list(iter_records(write(tmp_path, "t.json", content), ["question", "context"], SQUAD))
    assert "\n" not in str(caught.value)


def test_columns_of_other_names_are_not_in_files_that_have_their_own(tmp_path: Path) -> None:
    squad = write(tmp_path, "t.json", qas({"question": "q"}))
    with pytest.raises(
        DataError, match="question 1: there is no column 'text_a'; the columns are question, con"
    ):
        list(iter_records(squad, ["text_a"], SQUAD))
    with pytest.raises(DataError, match="no column 'words'; the columns are tokens, tags"):
        list(iter_records(write(tmp_path, "t.conll", "a O\n"), ["words"], CONLL))


@pytest.mark.parametrize("name", ["t.conll", "t.txt", "T.CONLL"])
@pytest.mark.parametrize("separator", ["\t", " ", "   "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_sentence_of_columns_is_a_record(tmp_path: Path, name: str, separator: str, end: str) -> None:
    lines = [
        "-DOCSTART- -X- -X- O",
        "",
        "EU NNP B-NP B-ORG",
        "rejects VBZ B-VP O",
        "",
        "",
        "# sent_id = 7",
        "# text = # is O",
        "# NN B-NP O",
        "# VBZ O I-MISC",
        ". . O O",
        "-DOCSTART- -X- O O",
        "Bonn NNP I-NP B-LOC",
    ]
    content = end.join(line if "=" in line else line.replace(" ", separator) for line in lines)
    assert list(iter_records(write(tmp_path, name, content), ["tokens"], CONLL)) == [
        (3, {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}),
        (9, {"tokens": ["#", "#", "."], "tags": ["O", "I-MISC", "O"]}),
        (13, {"tokens": ["Bonn"], "tags": ["B-LOC"]}),
    ]


def test_tokens_between_tabs_may_hold_blanks_and_hashes(tmp_path: Path) -> None:
    path = write(tmp_path, "t.conll", "#\tO\nNew York\tB-LOC\n\t\n#tag\tO\n\u3000\tO\n# x\tO\n")
    assert [record["tokens"] for _, record in iter_records(path, ["tokens"], CONLL)] == [
        ["#", "New York"],
        ["#tag", "\u3000", "# x"],
    ]


def test_a_token_without_a_tag_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "t.conll", "a O\nb\n")
    with pytest.raises(DataError, match="line 2: 'b' is one column; a token and its tag are needed"):
        list(iter_records(path, ["tokens"], CONLL))


@pytest.mark.parametrize("formats", [TABLES, {**TABLES, **SQUAD}, CONLL])
def test_what_a_file_may_be_is_told(tmp_path: Path, formats: dict[str, Format]) -> None:
    with pytest.raises(
        DataError, match=f"suffix '.xml'; accepted are {', '.join(formats)}".replace(".", r"\.")
    ):
        list(iter_records(tmp_path / "t.xml", ["a"], formats))


def test_a_place_is_a_line_or_a_question() -> None:
    assert place(Path("a/t.tsv"), 3) == "a/t.tsv, line 3"
    assert place("dev.JSON", 3) == "dev.JSON, question 3"


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.jsonl"])
def test_a_text_may_be_a_book(tmp_path: Path, name: str) -> None:
    book = "w1 " * 100_000
    content = json.dumps({"a": book}) if name == "t.jsonl" else f"a\n{book}\n"
    assert [record["a"] for _, record in iter_records(write(tmp_path, name, content), ["a"])] == [book]
