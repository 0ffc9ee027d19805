"""Entries whose files are spoiled: `check`, `serve` and the image say what is wrong in one line.

`FUZZ_FILES` (150) makes it more, `FUZZ_SEED` others:

    FUZZ_FILES=1000 pytest tests/serve/test_fuzz_files.py
"""

import io
import json
import os
import random
import shutil
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import mutations
import onnx
import pytest
from tiny_entry import DOCKER, SAMPLE

from command_line import outcome
from sparse_serve.cli import app
from sparse_serve.digests import file_digest
from sparse_serve.errors import OptionError, RepositoryError
from sparse_serve.op_library import library_path
from sparse_serve.repository.check import check_entry
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton.preflight import servable_models

MakeSpec = Callable[..., EntrySpec]
Change = Callable[[random.Random, bytes], bytes]

FILES = int(os.environ.get("FUZZ_FILES", "150"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
MOST_CHARACTERS = 2000
"""Of a verdict: a line that somebody reads."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, make_spec: MakeSpec) -> Path:
    """An entry of each kind: behind the text backend, and with the tokenizer in the graph."""
    repository = tmp_path_factory.mktemp("whole") / "models"
    write_entry(repository, make_spec())
    shutil.copytree(SAMPLE, repository / "sample")
    return repository


def odd_json(rng: random.Random, content: bytes) -> bytes:
    """A value of the file's JSON is another, is not there, or there twice."""
    value = json.loads(content)
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(some_places(rng, value))
        if rng.random() < 0.3:
            del container[key]
        else:
            container[key] = mutations.odd_value(rng)
        if not mutations.places(value):
            break
    return mutations.encoded(value)


def some_places(rng: random.Random, value: Any) -> list[tuple[Any, Any]]:
    """Return places of a JSON value, of a vocabulary not more than of all else."""
    found = mutations.places(value)
    shallow = [place for place in found if len(place[0]) < 100]
    return shallow if shallow and rng.random() < 0.9 else found


def nested(rng: random.Random, content: bytes) -> bytes:
    """Deeper than anybody recurses, in the place of a number, a text or all."""
    opening, closing = rng.choice(
        [(b"[", b"]"), (b"{", b"}"), (b'{"a":', b"}"), (b"a{", b"}"), (b"<", b">"), (b"(", b")")]
    )
    depth = rng.choice([100, 2000, 100_000])
    deep = opening * depth + b"1" + closing * depth
    at = rng.randrange(len(content) + 1)
    return rng.choice(
        [deep, content[:at] + deep + content[at:], content.replace(b"1", deep, 1), content + deep]
    )


def odd_words(rng: random.Random, content: bytes) -> bytes:
    """Numbers, names and lines are others."""
    lines = content.split(b"\n")
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        words = lines[at].split(b" ")
        word = rng.randrange(len(words))
        number = str(rng.choice(mutations.ODD_NUMBERS)).encode()
        text = rng.choice(mutations.ODD_TEXTS).encode("utf-8", "surrogatepass")
        words[word] = rng.choice(
            [number, text, b'"' + text + b'"', b"", b"[", b"{", b"9" * 5000, b"-", b"\xff", b"TYPE_FP64"]
        )
        lines[at] = rng.choice(
            [b" ".join(words), b" ".join(words), lines[at] + b"\n" + lines[at], b"", rng.choice(lines)]
        )
    return b"\n".join(lines)


def emptied(rng: random.Random, content: bytes) -> bytes:
    return rng.choice(
        [
            b"",
            b"\0" * 100,
            b"\n",
            content[: rng.randrange(len(content))],
            b"\xef\xbb\xbf" + content,
            content.decode("latin-1").encode("utf-16"),
        ]
    )


def odd_graph(rng: random.Random, content: bytes) -> bytes:
    """A field of the ONNX file is another, or is not there: sizes, types, names, weights elsewhere."""
    model = onnx.load_from_string(content)
    for _ in range(rng.randint(1, 3)):
        messages = [model]
        for _ in range(rng.randint(0, 6)):  # a way down
            inner = [
                each
                for field, value in messages[-1].ListFields()
                if field.message_type
                for each in (value if field.is_repeated else [value])
            ]
            if not inner:
                break
            messages.append(rng.choice(inner))
        change_message(rng, messages[-1])
    for tensor in model.graph.initializer:
        if rng.random() < 0.05:
            put_elsewhere(rng, tensor)
    odd: bytes = model.SerializeToString()
    return odd


def change_message(rng: random.Random, message: Any) -> None:
    fields = message.ListFields()
    if not fields:
        return
    field, value = rng.choice(fields)
    repeated = field.is_repeated
    if rng.random() < 0.3:
        message.ClearField(field.name)
    elif field.type in (field.TYPE_INT64, field.TYPE_INT32):
        largest = 2**63 - 1 if field.type == field.TYPE_INT64 else 2**31 - 1
        number = rng.choice([0, -1, 7, 99, 10**9, largest, -largest])
        if repeated:
            value.append(number)
        else:
            setattr(message, field.name, number)
    elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        text = rng.choice(["", "x", "/etc/passwd", "../x", "a\nb", "y" * 3000, "ai.sparse_serve", "é"])
        new: Any = text if field.type == field.TYPE_STRING else text.encode()
        if repeated:
            value.append(new)
        else:
            setattr(message, field.name, new)
    elif repeated and rng.random() < 0.5:
        value.add().CopyFrom(rng.choice(value))
    elif repeated:
        value.pop(rng.randrange(len(value)))


def put_elsewhere(rng: random.Random, tensor: onnx.TensorProto) -> None:
    """Let a tensor say that its numbers are in another file."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (
        (
            "location",
            rng.choice(["model.onnx", "../../manifest.json", "/etc/passwd", "none", "", "1", "a\nb"]),
        ),
        ("offset", str(rng.choice(mutations.ODD_NUMBERS))),
        ("length", str(rng.choice(mutations.ODD_NUMBERS))),
    ):
        tensor.external_data.add(key=key, value=value)


ANY: tuple[Change, ...] = (mutations.spoiled, emptied)
CHANGES: dict[str, tuple[Change, ...]] = {
    "tiny/manifest.json": (odd_json, odd_json, nested, *ANY),
    "tiny/tokenizer.json": (odd_json, odd_json, nested, *ANY),
    "tiny/config.pbtxt": (odd_words, odd_words, nested, *ANY),
    "tiny/labels.txt": (odd_words, *ANY),
    "tiny_model/config.pbtxt": (odd_words, nested, *ANY),
    "tiny_model/1/model.onnx": (odd_graph, odd_graph, mutations.spoiled, mutations.spoiled, emptied),
    "tiny_model/warmup/attention_mask": ANY,
    "sample/manifest.json": (odd_json, nested, *ANY),
    "sample/config.pbtxt": (odd_words, nested, *ANY),
    "sample/1/model.onnx": (odd_graph, odd_graph, *ANY),
}
"""The files that are spoiled, and how."""


class Said(NamedTuple):
    """What a check says on stderr, as if it were a finding."""

    message: str


def entry_of(name: str) -> str:
    return name.partition("/")[0].removesuffix("_model")


def make_digest_agree(repository: Path, name: str) -> None:
    """Let the manifest record a file as it is now, as who can write a repository can."""
    for manifest in repository.glob(f"{entry_of(name)}/**/manifest.json"):
        record = json.loads(manifest.read_bytes())
        record["files"][name] = file_digest(repository / name)
        manifest.write_text(json.dumps(record))


def verdict(judge: Callable[[], Any]) -> list[str]:
    """Return what is said of an entry, and what is wrong with how it is said."""
    try:
        messages = [finding.message for finding in judge()]
    except (RepositoryError, OptionError) as error:
        messages = [str(error)]
    except BaseException:  # a panic of Rust's is no Exception
        return ["raised " + traceback.format_exc()[-1500:]]
    return [
        f"said {each[:500]!r}"
        for each in messages
        if len(each.splitlines()) > 1 or len(each) > MOST_CHARACTERS
    ]


@pytest.fixture
def image_check(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[Said]]:
    """The check of the image's entry point, in this process: what it says of a repository."""
    specification = spec_from_file_location("check_entries", DOCKER / "check_entries.py")
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "LIBRARY", library_path())

    def check(repository: Path) -> list[Said]:
        monkeypatch.setenv("MODEL_REPOSITORY", str(repository))
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
            status = module.main()
        assert status == (1 if "error: " in errors.getvalue() else 0)
        return [Said(errors.getvalue())]

    return check


def test_spoiled_files_have_a_verdict(
    written: Path, tmp_path: Path, image_check: Callable[[Path], list[Said]]
) -> None:
    rng, found = random.Random(SEED), []
    for number in range(FILES):
        repository = tmp_path / "models"
        shutil.copytree(written, repository)
        name = rng.choice(list(CHANGES))
        change = rng.choice(CHANGES[name])
        path = repository / name
        path.write_bytes(change(rng, path.read_bytes()))
        if not name.endswith("manifest.json") and rng.random() < 0.5:
            make_digest_agree(repository, name)
        entry = repository / entry_of(name)
        wrong = verdict(lambda entry=entry: check_entry(entry))  # type: ignore[misc]
        wrong += verdict(lambda repository=repository: servable_models(repository) and [])  # type: ignore[misc]
        wrong += verdict(lambda repository=repository: image_check(repository))  # type: ignore[misc]
        found += [f"{number} {change.__name__} of {name}: {each}" for each in wrong]
        shutil.rmtree(repository)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", CHANGES)
def test_the_command_says_it_in_one_line(
    written: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Path(shutil.copytree(written, tmp_path / "models"))
    (repository / name).write_bytes(b'{"a\n": \xff' * 3)
    entry = repository / entry_of(name)
    for arguments in (["check", str(entry)], ["serve", str(repository), "--dry-run"]):
        status, output, errors = outcome(capsys, app, *arguments)
        assert status == 1
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1
        assert "Traceback" not in output + errors
