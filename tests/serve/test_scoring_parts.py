"""What a job is made of, without Ray: files, their rows, parts, answers, and whose an output folder is."""

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_entry import CLASSES, SAMPLE, SEVERAL, VECTORS

from command_line import outcome
from sparse_serve.cli import app
from sparse_serve.digests import file_digest
from sparse_serve.errors import DataError, JobError, OptionError, RepositoryError
from sparse_serve.files import unfinished
from sparse_serve.replies import Embedding, Prediction, Reply
from sparse_serve.repository.contents import MANIFEST_NAME
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.scoring.answers import answer
from sparse_serve.scoring.corpus import find_corpus
from sparse_serve.scoring.engine import Plan, _Scorer, checked_classifier
from sparse_serve.scoring.job import Job, run_job
from sparse_serve.scoring.parts import PartRecord, kept_parts, write_part
from sparse_serve.scoring.reading import InputColumns, Part, read_parts
from sparse_serve.scoring.record import (
    EntryRecord,
    FileRecord,
    JobRecord,
    alone_in,
    claim_folder,
    remove_unfinished,
    write_record,
)
from sparse_serve.scoring.storage import Location
from sparse_serve.tasks import Classification, Several, Task

COLUMNS = InputColumns("text_a", None, None, {})
PAIRS = InputColumns("text_a", "text_b", "task", {"key": "id"})
Rows = list[dict[str, Any]]


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=7)
    return path


def write_lines(path: Path, lines: Iterable[str | bytes]) -> Path:
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return path


def parts_of(name: Path | str, columns: InputColumns = COLUMNS, part_rows: int = 100) -> list[Part]:
    (group,) = find_corpus([str(name)], columns).groups()
    return list(read_parts(group, columns, part_rows, frozenset()))


def rows_of(name: Path | str, columns: InputColumns = COLUMNS) -> Rows:
    return [row for part in parts_of(name, columns) for row in part.rows.to_pylist()]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(3):
        texts = [f"text {number} {row}" for row in range(10)]
        write_parquet(folder / f"{number}.parquet", {"text_a": texts, "id": list(range(10))})
    return folder


def test_a_part_has_the_next_rows_and_says_when_it_is_the_last(corpus: Path) -> None:
    parts = parts_of(corpus, InputColumns("text_a", None, None, {"key": "id"}), part_rows=8)
    assert [(part.number, part.rows.num_rows, part.is_last) for part in parts] == [
        (0, 8, False),
        (1, 8, False),
        (2, 8, False),
        (3, 6, True),
    ]
    rows = [row for part in parts for row in part.rows.to_pylist()]
    expected = [(str(corpus / f"{file}.parquet"), row) for file in range(3) for row in range(10)]
    assert [(row["file"], row["row"]) for row in rows] == expected
    assert [row["kept:key"] for row in rows] == list(range(10)) * 3
    (group,) = find_corpus([str(corpus)], COLUMNS).groups()
    left = read_parts(group, COLUMNS, 8, frozenset({0, 2}))
    assert [(part.number, part.is_last) for part in left] == [(1, False), (3, True)]


def test_a_part_of_long_texts_has_fewer(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "long.parquet", {"text_a": ["x" * 400_000] * 7 + ["y" * 3_000_000, "z"]})
    assert [part.rows.num_rows for part in parts_of(path)] == [3, 3, 2, 1]


def test_large_files_are_read_by_themselves(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        size = (5 << 20) if name == "b" else 10
        write_lines(tmp_path / f"{name}.jsonl", [json.dumps({"text_a": "x" * size})])
    groups = find_corpus([str(tmp_path)], COLUMNS).groups()
    assert [[Path(file.name).stem for file in group] for group in groups] == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".jsonl.gz"])
def test_tables_are_read_as_far_as_they_can_be(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    if suffix.startswith(".jsonl"):
        lines: list[str | bytes] = [
            '{"text_a": "naïve\\ncafé", "id": 7}',
            b'{"text_a": "caf\xe9", "id": "a"}',
            "",
            '{"text_a": null, "id": [1]}',
            '{"text_a": "\\ud800"}',
            '{"text_a": 3}',
            "no JSON",
            '{"other": 1}',
        ]
    else:
        separator = "," if suffix == ".csv" else "\t"
        lines = [f"id{separator}text_a", f"7{separator}naïve café", f"a{separator}caf".encode() + b"\xe9"]
    write_lines(path, lines)
    if suffix.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    rows = rows_of(path, InputColumns("text_a", None, None, {"id": "id"}))
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert [row["kept:id"] for row in rows[:2]] == ["7", "a"]
    assert rows[0]["text"].decode().startswith("naïve")
    assert rows[1]["text"] == b"caf\xe9"
    if suffix.startswith(".jsonl"):
        assert [row["kept:id"] for row in rows[2:]] == ["[1]", None, None, None, None]
        errors = [row["error"] for row in rows[2:]]
        assert errors[:2] == [None, None]
        assert errors[2] == "malformed record: column 'text_a' holds 3; a text is needed"
        assert "line 7: not JSON" in errors[3]
        assert errors[4] is None
    with pytest.raises(UnicodeDecodeError):
        rows[1]["text"].decode()


def test_columns_of_parquet_may_be_of_any_kind_of_string(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"caf\xe9", None])
    unchecked = pa.Array.from_buffers(pa.string(), 3, texts.buffers())
    for number, values in enumerate(
        (texts, unchecked, texts.cast(pa.large_binary()), pa.array(["a", "a", None]).dictionary_encode())
    ):
        path = write_parquet(tmp_path / f"{number}.parquet", {"text_a": values})
        assert [row["text"] for row in rows_of(path)][::2] == [b"a", None]


def test_inputs_are_named_in_many_ways(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus / "below").mkdir()
    write_parquet(corpus / "below" / "3.parquet", {"text_a": ["a"]})
    (corpus / "_SUCCESS").touch()
    (corpus / ".hidden.parquet").touch()
    (corpus / "notes.txt").touch()
    monkeypatch.chdir(corpus.parent)

    def names(*inputs: str) -> str:
        return " ".join(Path(file.name).stem for file in find_corpus(inputs, COLUMNS).files)

    assert names("corpus") == names(str(corpus)) == names(corpus.as_uri()) == "0 1 2 3"
    assert names("corpus/*.parquet") == names(f"{corpus.as_uri()}/*.parquet") == "0 1 2"
    assert names("cor*/*/[3-5].parquet", "corpus/0.parquet", "corpus/0.parquet") == "0 3"
    assert find_corpus(["corpus"], COLUMNS).rows == 31
    assert all(file.name.startswith(str(corpus)) for file in find_corpus(["corpus"], COLUMNS).files)


def test_what_a_job_has_written_is_no_input(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus / "scored").mkdir()
    write_lines(corpus / "scored" / "part-0.jsonl", ['{"text_a": "a"}'])
    monkeypatch.chdir(corpus.parent)
    for inputs, output in (
        ("corpus", "corpus/scored"),
        (corpus.as_uri(), "corpus/scored"),
        ("corpus/*", str(corpus / "scored")),
    ):
        found = find_corpus([inputs], COLUMNS, Location.of(output))
        assert [Path(file.name).stem for file in found.files] == ["0", "1", "2"]
    with pytest.raises(DataError, match="files of several formats"):
        find_corpus(["corpus"], COLUMNS, Location.of("elsewhere"))
    (file,) = find_corpus(["corpus/scored"], COLUMNS, Location.of("corpus/scored")).files
    assert file.name.endswith("part-0.jsonl")


def test_inputs_may_be_behind_a_url(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ['{"text_a": "a"}', '{"text_a": "b"}'])
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        rows = rows_of(f"{url}/a.jsonl")
        server.shutdown()
    assert [(row["file"], row["row"], row["text"]) for row in rows] == [
        (f"{url}/a.jsonl", 0, b"a"),
        (f"{url}/a.jsonl", 1, b"b"),
    ]


@pytest.mark.parametrize(
    ("inputs", "columns", "message"),
    [
        ("missing", COLUMNS, r"--input .*/missing is not there; give a file, a folder or a quoted pattern"),
        ("*.pq", COLUMNS, r"has no data file; give a file, a folder or a quoted pattern of \.parquet"),
        ("empty", COLUMNS, "has no data file"),
        ("corpus/notes.txt", COLUMNS, r"has suffix '\.txt'; accepted are \.parquet, \.tsv, \.csv, \.jsonl"),
        ("mixed", COLUMNS, r"files of several formats, \.csv \(.*a\.csv\) and \.jsonl .*; give those of one"),
        (
            "corpus",
            InputColumns("text", None, None, {}),
            r"no column 'text'; .* text_a, id: .* --text-column",
        ),
        ("corpus", InputColumns("text_a", "b", None, {}), r"no column 'b'; .* with --text-pair-column"),
        ("corpus", InputColumns("text_a", None, "t", {}), r"no column 't'; .* with --task-column"),
        ("corpus", InputColumns("text_a", None, None, {"k": "x"}), r"no column 'x'; .* with --keep"),
        ("corpus", InputColumns("id", None, None, {}), "column 'id' is of type int64, strings are needed"),
        (
            "mixed/a.csv",
            COLUMNS,
            "there is no column 'text_a'; the columns are b: name yours with --text-col",
        ),
        ("broken.parquet", COLUMNS, r"broken\.parquet cannot be read: .*; give a readable file"),
        ("blank.csv", COLUMNS, "is empty; it needs a header row"),
        ("types", InputColumns("text_a", None, None, {"id": "id"}), "column 'id' is int64 in .* and string"),
        ("nowhere://bucket/x", COLUMNS, "nowhere://bucket/x cannot be reached: .*nowhere"),
    ],
)
def test_what_is_no_corpus(
    corpus: Path, tmp_path: Path, inputs: str, columns: InputColumns, message: str
) -> None:
    for folder in ("empty", "mixed", "types"):
        (tmp_path / folder).mkdir()
    (corpus / "notes.txt").touch()
    write_lines(tmp_path / "mixed" / "a.csv", ["b", "1"])
    write_lines(tmp_path / "mixed" / "b.jsonl", ['{"text_a": ""}'])
    write_lines(tmp_path / "broken.parquet", ["no Parquet"])
    (tmp_path / "blank.csv").touch()
    for number, values in enumerate(([1], ["1"])):
        write_parquet(tmp_path / "types" / f"{number}.parquet", {"text_a": ["a"], "id": values})
    with pytest.raises(DataError, match=message) as raised:
        find_corpus([inputs if "://" in inputs else str(tmp_path / inputs)], columns)
    assert "\n" not in str(raised.value)


def test_names_that_are_not_utf8_are_told(tmp_path: Path) -> None:
    foreign = tmp_path / os.fsdecode(b"a\xff.csv")
    write_lines(foreign, ["text_a", "1"])
    for named in (tmp_path, tmp_path / "*.csv"):
        with pytest.raises(DataError, match=rf"folder {tmp_path} holds b'.*a\\xff.csv', a name that is not"):
            find_corpus([str(named)], COLUMNS)
    with pytest.raises(DataError, match="is not UTF-8; rename what it is of"):
        find_corpus([str(foreign)], COLUMNS)


def test_a_malformed_row_below_a_header_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text_a,größe\n1,2\n3\n".encode("latin-1"))
    rows = rows_of(path)
    assert [row["text"] for row in rows] == [b"1", None]
    assert rows[1]["error"].endswith("1 fields where the header has 2 (text_a, gr��e)")


def test_a_row_with_other_fields_is_an_error_of_its_own(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", ["text_a,b", "1,2", "1", "3,4"])
    (part,) = parts_of(path)
    assert part.rows["text"].to_pylist() == [b"1", None, b"3"]
    (error,) = part.rows["error"].drop_null().to_pylist()
    assert error.endswith("a.csv, line 3: 1 fields where the header has 2 (text_a, b)")


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.csv", ["text_a,b", "1", "3,4"], "line 2: 1 fields where the header has 2"),
        ("a.jsonl", ["{", '{"text_a": "3"}', "[]"], "line 1: not JSON"),
    ],
)
def test_a_malformed_record_is_no_concern_of_those_behind_it(
    tmp_path: Path, name: str, lines: list[str], message: str
) -> None:
    """Nor is the first one of all."""
    rows = rows_of(write_lines(tmp_path / name, lines))
    assert [row["text"] for row in rows][:2] == [None, b"3"]
    assert message in rows[0]["error"]


@pytest.mark.parametrize(
    ("name", "lines"), [("a.csv", ["b"]), ("a.csv", ["b", "1,2"]), ("a.jsonl", ["{", '{"b": ""}'])]
)
def test_columns_are_looked_for_whatever_records_there_are(
    tmp_path: Path, name: str, lines: list[str]
) -> None:
    path = write_lines(tmp_path / name, lines)
    with pytest.raises(DataError, match="there is no column 'text_a'; the columns are b: name yours"):
        find_corpus([str(path)], COLUMNS)


def test_a_table_whose_quotes_do_not_end_ends_the_job(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", ["text_a,b", "1,2", '"1'])
    with pytest.raises(DataError, match=r"a\.csv, line 3: not a well-formed table"):
        parts_of(path)


def test_two_runs_are_not_at_work_in_one_folder(tmp_path: Path) -> None:
    folder = Location.of(str(tmp_path))
    with (
        alone_in(folder),
        pytest.raises(JobError, match="another run of this job is at work in --output"),
        alone_in(folder),
    ):
        pass
    with alone_in(folder):
        pass


class Answering:
    """Stands in for a classifier: labels say what was asked."""

    def __init__(self, task: Task, kind: type[Reply] = Prediction) -> None:
        self.kind = kind
        self.too_long = "more than 16 tokens"
        self.entry = SimpleNamespace(manifest=SimpleNamespace(task=task))
        self.is_several = isinstance(task, Several)

    def replies(
        self, texts: Sequence[str], pairs: Sequence[str] | None, tasks: Sequence[str] | None
    ) -> list[Reply | None]:
        assert (tasks is not None) == self.is_several
        if self.kind is Embedding:
            assert pairs is None
            vectors = [np.array([len(text), 0.5], np.float32) for text in texts]
            return [Embedding(vector=vector, token_count=1, truncated=False) for vector in vectors]
        return [
            None
            if text == "too long"
            else Prediction(
                label=f"{text}|{pair}",
                score=0.5,
                scores=(0.5, 0.25),
                logits=(0, 0),
                task=task,
                token_count=len(text),
                truncated=text == "long",
            )
            for text, pair, task in zip(
                texts, pairs or [""] * len(texts), tasks or repeat(None, len(texts)), strict=True
            )
        ]


def asked(answering: Answering, rows: dict[str, list[Any]], task: str | None = None) -> tuple[Rows, Any]:
    rows = {"file": ["f"] * len(rows["text"]), "row": [*range(len(rows["text"]))], **rows}
    table = pa.table({"error": pa.nulls(len(rows["text"]), pa.string()), **rows})
    answered = answer(answering, table, task)  # type: ignore[arg-type]
    return answered.rows.to_pylist(), answered


def test_rows_that_cannot_be_answered_are_no_concern_of_the_others() -> None:
    rows, answered = asked(
        Answering(CLASSES),
        {
            "text": [b"a", None, b"caf\xe9", b"long", b"", b"b", b"too long"],
            "error": [*[None] * 5, "malformed record: x", None],
        },
    )
    assert [row["label"] for row in rows] == ["a|", None, None, "long|", "|", None, None]
    assert [row["error"] for row in rows] == [
        None,
        "no text",
        "not UTF-8: byte 0xe9 at 3",
        None,
        None,
        "malformed record: x",
        "too long: more than 16 tokens",
    ]
    assert list(rows[0]) == ["file", "row", "label", "score", "scores", "token_count", "truncated", "error"]
    assert (rows[3]["token_count"], rows[3]["truncated"], rows[1]["truncated"]) == (4, True, None)
    assert (answered.tokens, answered.truncated) == (5, 1)
    assert answered.refused == {"no text": 1, "not UTF-8": 1, "malformed record": 1, "too long": 1}


def test_pairs_and_tasks() -> None:
    several = Several(
        tasks={name: task for name, task in SEVERAL.tasks.items() if name != "paraphrase"}
        | {"paraphrase": Classification(("no", "yes"), paired=True)}
    )
    rows, _ = asked(
        Answering(several),
        {
            "text": [b"a", b"b", b"too long", b"d", b"e", b"c"],
            "text_pair": [b"x", None, b"x", b"y", b"\xff", None],
            "task": [b"paraphrase", b"paraphrase", b"paraphrase", b"mood", None, b"sentiment"],
        },
    )
    assert [row["label"] for row in rows] == ["a|x", None, None, None, None, "c|"]
    tasks = ["paraphrase", None, "paraphrase", None, None, "sentiment"]
    assert [row["task"] for row in rows] == tasks
    errors = [row["error"] for row in rows]
    assert errors[1] == "no second text"
    assert errors[3].startswith("unknown task: 'mood'; this model's are sentiment")
    assert errors[4] == "no task"
    assert errors[2] == "too long: more than 16 tokens"
    rows, _ = asked(Answering(several), {"text": [b"a"]}, "sentiment")
    assert (rows[0]["label"], rows[0]["task"]) == ("a|", "sentiment")


def test_embeddings_are_lists_of_numbers() -> None:
    rows, _ = asked(Answering(VECTORS, Embedding), {"text": [b"abc", None]})
    assert [row["embedding"] for row in rows] == [[3.0, 0.5], None]


def part(number: int, **changes: Any) -> PartRecord:
    told: dict[str, Any] = {"rows": 1, "tokens": 1, "truncated": 0, "refused": {}, "is_last": False}
    return PartRecord(group=0, number=number, **{**told, **changes})


def test_a_part_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Location.of(str(tmp_path))
    rows = pa.table({"row": [1]})
    for number in (1, 0, 2, 3):
        write_part(folder, part(number), rows)
    write_part(folder, part(0), rows)
    content = (tmp_path / part(2).name).read_bytes()
    (tmp_path / part(2).name).write_bytes(content[: len(content) // 2])
    (tmp_path / part(3).name).rename(tmp_path / part(4).name)
    write_parquet(tmp_path / part(5).name, {"row": [1]})
    (tmp_path / unfinished(part(6).name)).write_bytes(content)
    assert kept_parts(folder) == [part(0), part(1)]
    assert pq.read_table(tmp_path / part(0).name).to_pylist() == [{"row": 1}]
    remove_unfinished(folder)
    assert not list(tmp_path.glob(".*"))


@pytest.fixture
def job() -> JobRecord:
    return JobRecord(
        package="1",
        entry=EntryRecord(name="tiny", version=1, sha256="a" * 64),
        columns={"text": "text_a"},
        task=None,
        keep={},
        part_rows=8,
        files=(FileRecord(name="a.csv", size=1, modified=None),),
    )


def test_a_folder_belongs_to_one_job(tmp_path: Path, job: JobRecord) -> None:
    folder = Location.of((tmp_path / "new" / "folder").as_uri())
    assert claim_folder(folder, job) == job
    write_record(folder, job.model_copy(update={"state": "finished"}))
    assert claim_folder(folder, job).state == "finished"


def test_another_version_is_no_other_entry(tmp_path: Path, make_spec: Callable[..., EntrySpec]) -> None:
    path = write_entry(tmp_path, make_spec())
    before = EntryRecord.of(read_entry(path), 1)
    write_entry(tmp_path, make_spec(version=2))
    assert EntryRecord.of(read_entry(path), 1) == before
    shutil.rmtree(path / "2")
    (path / "1" / MANIFEST_NAME).unlink()
    assert EntryRecord.of(read_entry(path), 1).sha256 == file_digest(path / MANIFEST_NAME)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"entry": EntryRecord(name="tiny", version=1, sha256="b" * 64)},
            "of another job, of entry tiny, version 1, sha256 aaaaaaaa… where this one is of .* bbb",
        ),
        (
            {"columns": {"text": "b"}},
            "which reads the columns text_a, this one b; give a new or empty folder",
        ),
        ({"keep": {"key": "id"}}, "which keeps none, this one id"),
        ({"task": "mood"}, "which is of task None, this one mood"),
        ({"part_rows": 9}, "which has parts of so many rows: 8, this one 9"),
        ({"files": ()}, r"which reads a\.csv too"),
        ({"files": (FileRecord(name="a.csv", size=2, modified=None),)}, r"read a\.csv before it was changed"),
    ],
)
def test_the_folder_of_another_job_is_refused(
    tmp_path: Path, job: JobRecord, changes: dict[str, Any], message: str
) -> None:
    folder = Location.of(str(tmp_path))
    claim_folder(folder, job)
    with pytest.raises(JobError, match=message):
        claim_folder(folder, job.model_copy(update=changes))


def test_a_folder_that_is_no_jobs_is_refused(tmp_path: Path, job: JobRecord) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(JobError, match=r"has a\.txt, but no job\.json: it is no job's; give a new or empty"):
        claim_folder(Location.of(str(tmp_path)), job)
    with pytest.raises(JobError, match=r"a\.txt is a file; give a folder"):
        claim_folder(Location.of(str(tmp_path / "a.txt")), job)
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(JobError, match=r"job\.json is no record of a job .*; give another --output"):
        claim_folder(Location.of(str(tmp_path)), job)
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(JobError, match="cannot be written"):
            claim_folder(Location.of(str(tmp_path / "locked")), job)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "mood"}, "the model has one task: leave out --task and --task-column"),
        ({"task_column": "task"}, "the model has one task: leave out --task and --task-column"),
        ({"task": "mood", "task_column": "task"}, "with --task, or of each with --task-column, not both"),
        ({"text_pair_column": "b"}, "the model was trained on single texts: leave out --text-pair-column"),
        ({"keep": {"label": "label"}}, "the output has a column 'label' of its own; .* label=NAME"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_options_that_are_not_for_the_model(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        run_job(Job(SAMPLE, [str(tmp_path)], str(tmp_path / "output"), **options))


@pytest.mark.parametrize("name", ["1/model.onnx", "labels.txt"])
@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"x"])
def test_files_are_looked_at_before_the_graph_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[bytes], bytes]
) -> None:
    entry = Path(shutil.copytree(SAMPLE, tmp_path / "sample"))
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: pytest.fail("the graph is opened"))
    with pytest.raises(pytest.fail.Exception, match="the graph is opened"):
        checked_classifier(entry, None, 1)
    (entry / name).write_bytes(change((entry / name).read_bytes()))
    job = Job(entry, [str(tmp_path)], str(tmp_path / "output"))
    plan = Plan(entry, 1, 1, None, {}, {}, COLUMNS, 1, Location.of(job.output))
    for start in (partial(run_job, job), partial(_Scorer, plan)):
        with pytest.raises(RepositoryError, match=f"sample/{name} has been changed since it was exported"):
            start()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run_command(*arguments: str) -> tuple[int, str]:
        named = ("score", "sample", "--model-repository", SAMPLE.parent)
        status, _, errors = outcome(capsys, app, *named, *arguments)
        return status, errors

    return run_command


def test_errors_of_the_command_are_one_line(
    command: Callable[..., tuple[int, str]],
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to = ("--output", str(tmp_path / "output"))
    status, told = command("--input", str(corpus), *to, "--text-column", "sentence")
    assert status == 1
    assert told.startswith("error: ")
    assert told.endswith(
        "there is no column 'sentence'; the columns are text_a, id: name yours with --text-column\n"
    )
    status, told = command("--input", str(corpus), "--output", str(corpus))
    assert (status, told.count("\n")) == (1, 1)
    assert "has 0.parquet and other files, but no job.json" in told
    for keep, message in (("=x", "names no column"), ("id", "a column 'id' is kept already")):
        status, told = command("--input", str(corpus), *to, "--keep", "id", "--keep", keep)
        assert status == 2
        assert message in told
    told = command("--input", str(corpus), *to, "--address", "127.0.0.1:9")[1]
    assert told.startswith(
        "error: --address 127.0.0.1:9: nothing answers there ([Errno 111] Connection refused); "
    )
