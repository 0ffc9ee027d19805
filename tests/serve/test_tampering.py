"""An entry that is not as it was exported starts no process: neither with `serve` nor in the image."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from fake_triton import PRINTING_TRITON
from image_runs import check_in_image, entrypoint
from serving import ANY_PORTS
from tiny_entry import LEGACY, add, edit, take_out_of_service

from command_line import outcome
from sparse_serve.cli import app
from sparse_serve.digests import file_digest
from sparse_serve.errors import RepositoryError
from sparse_serve.repository.check import check_entry
from sparse_serve.repository.config import CONFIG_NAME
from sparse_serve.repository.manifest import OpLibrary
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton.container import ContainerServer
from sparse_serve.triton.preflight import remove_compiled_fronts, servable_models
from sparse_serve.triton.server import ServerOptions

MakeSpec = Callable[..., EntrySpec]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, make_spec: MakeSpec) -> Path:
    """One entry of two versions; the graphs of the second keep their weights beside them."""
    folder = tmp_path_factory.mktemp("tampering")
    write_entry(folder / "models", make_spec())
    graph = folder / "model.onnx"
    onnx.save(
        onnx.load(make_spec().graph), graph, save_as_external_data=True, location="weights", size_threshold=0
    )
    write_entry(folder / "models", make_spec(version=2, graph=graph))
    assert (folder / "models" / "tiny_model" / "2" / "weights").is_file()
    return folder / "models"


@pytest.fixture
def repository(tmp_path: Path, written: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "models"))


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def link_to_the_outside(repository: Path) -> None:
    outside = repository.parent / "labels.txt"
    shutil.copy(repository / "tiny" / "labels.txt", outside)
    link(repository / "tiny" / "labels.txt", Path("../../labels.txt"))


def link_to_a_folder(repository: Path) -> None:
    (repository / "tiny_model" / "1").rename(repository / "kept")
    link(repository / "tiny_model" / "1", Path("../kept"))


def put_a_pipe_in_the_place_of_a_graph(repository: Path) -> None:
    graph = repository / "tiny_model" / "1" / "model.onnx"
    graph.unlink()
    os.mkfifo(graph)


def take_out_of_one_model(repository: Path) -> None:
    shutil.rmtree(repository / "tiny" / "2")


TAMPERING: dict[str, tuple[Callable[[Path], object], str]] = {
    "library": (
        lambda path: add(
            path / "tiny_model" / CONFIG_NAME, 'model_operations { op_library_filename: "/tmp/other.so" }'
        ),
        "tiny_model/config.pbtxt names the op library '/tmp/other.so'",
    ),
    "backend": (
        lambda path: edit(path / "tiny_model" / CONFIG_NAME, '"onnxruntime"', '"python"'),
        "tiny_model/config.pbtxt has",
    ),
    "parameter": (
        lambda path: add(
            path / "tiny" / CONFIG_NAME,
            'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/tmp/other.tar.gz" } }',
        ),
        "tiny/config.pbtxt has the parameter 'EXECUTION_ENV_PATH'",
    ),
    "warm-up": (
        lambda path: edit(
            path / "tiny_model" / CONFIG_NAME,
            'input_data_file: "attention_mask"',
            'input_data_file: "../../../secret"',
        ),
        "tiny_model/config.pbtxt warms up with '../../../secret'",
    ),
    "model": (
        lambda path: append(path / "tiny_model" / "1" / "model.onnx"),
        "tiny_model/1/model.onnx has been changed since it was exported; export it again",
    ),
    "no model": (
        lambda path: (path / "tiny_model" / "1" / "model.onnx").unlink(),
        "tiny_model/1/model.onnx is missing; export it again",
    ),
    "pipe": (put_a_pipe_in_the_place_of_a_graph, "tiny_model/1/model.onnx is missing"),
    "tokenizer": (
        lambda path: edit(path / "tiny" / "tokenizer.json", '"w1"', '"v1"'),
        "tiny/tokenizer.json has been changed since it was exported",
    ),
    "labels": (
        lambda path: edit(path / "tiny" / "labels.txt", "negative\npositive", "positive\nnegative"),
        "labels.txt has",
    ),
    "warm-up file": (
        lambda path: append(path / "tiny_model" / "warmup" / "attention_mask"),
        "tiny_model/warmup/attention_mask has been changed",
    ),
    "link out": (
        link_to_the_outside,
        "tiny/labels.txt is a link to ../../labels.txt, which is not in the repository; put a copy",
    ),
    "link to a folder": (link_to_a_folder, "tiny_model/1 is a link to ../kept, which is a folder"),
    "link to nothing": (
        lambda path: link(path / "tiny" / "1" / "more", Path("absent")),
        "tiny/1/more is a link to absent, which is not there",
    ),
    "link inside": (
        lambda path: link(path / "tiny" / "1" / "more", Path("../labels.txt")),
        "tiny/1/more is not of the export; remove it",
    ),
    "external data": (
        lambda path: append(path / "tiny_model" / "2" / "weights"),
        "tiny_model/2/weights has been changed since it was exported",
    ),
    "more external data": (
        lambda path: append(write(path / "tiny_model" / "1" / "weights")),
        "tiny_model/1/weights is not of the export; remove it",
    ),
    "two lines": (
        lambda path: write(path / "tiny_model" / "1" / "a\nb"),
        r"'tiny_model/1/a\nb' is not of the export; remove it",
    ),
    "file for everybody": (
        lambda path: (path / "tiny_model" / "1" / "model.onnx").chmod(0o666),
        "tiny_model/1/model.onnx can be written by everybody; chmod -R o-w ",
    ),
    "folder for everybody": (
        lambda path: (path / "tiny" / "1").chmod(0o777),
        "tiny/1 can be written by everybody; chmod -R o-w ",
    ),
    "swapped versions": (
        lambda path: swap(path / "tiny_model" / "1", path / "tiny_model" / "2"),
        "tiny_model/",
    ),
    "another version": (
        lambda path: shutil.copytree(path / "tiny_model" / "1", path / "tiny_model" / "3"),
        "tiny_model/3/model.onnx is not of the export; remove it",
    ),
    "half a version": (
        take_out_of_one_model,
        "tiny_model has the versions 1, 2, tiny has 1; export it again",
    ),
    "another manifest": (
        lambda path: edit(path / "tiny" / "2" / "manifest.json", "26.07", "26.08"),
        "tiny/2/manifest.json is not the entry's manifest.json",
    ),
    "a configuration by another name": (
        lambda path: write(path / "tiny" / "configs" / "other.pbtxt"),
        "tiny/configs/other.pbtxt is not of the export",
    ),
    "a hidden model": (
        lambda path: shutil.copytree(path / "tiny_model", path / ".tiny"),
        "Triton would load the hidden folder",
    ),
}


def write(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    return path


@pytest.mark.parametrize("name", TAMPERING)
def test_what_was_tampered_with_starts_nothing(
    repository: Path,
    image: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*arguments: object, **_: object) -> None:
        raise AssertionError(f"started {arguments}")

    tamper, message = TAMPERING[name]
    tamper(repository)
    environment = {**os.environ, "MODEL_REPOSITORY": str(repository)}
    process = entrypoint(image, PRINTING_TRITON, **environment)
    output, of_image = process.communicate(timeout=30)
    assert (process.returncode, output) == (1, "")
    monkeypatch.setattr(subprocess, "Popen", start)
    status, output, of_serve = outcome(capsys, app, "serve", repository, *ANY_PORTS)
    assert (status, output) == (1, "")
    for errors in (of_image, of_serve):
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1
    assert message in of_serve
    # The image has no labels to compare with: their digest tells.
    assert message.replace("labels.txt has", "labels.txt has been changed") in of_image


def serves_in_image(image: Path, repository: Path, **environment: str) -> bool:
    process = entrypoint(image, PRINTING_TRITON, MODEL_REPOSITORY=str(repository), **environment)
    output, errors = process.communicate(timeout=30)
    assert bool(errors) == bool(process.returncode)
    return f"--model-repository={repository}" in output


def test_as_it_was_exported_an_entry_is_served(repository: Path, image: Path) -> None:
    link(repository / "tiny" / "labels.txt", Path("../kept.txt"))

    (repository / "kept.txt").write_text("negative\npositive\n")
    assert servable_models(repository) == ("tiny", "tiny_model")
    assert serves_in_image(image, repository)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_version_can_be_taken_out_of_service(repository: Path, image: Path, version: str) -> None:
    for model in ("tiny", "tiny_model"):
        shutil.rmtree(repository / model / version)
    assert servable_models(repository) == ("tiny", "tiny_model")
    assert serves_in_image(image, repository)


def test_the_image_looks_at_the_versions_that_there_are(
    repository: Path, image: Path, make_spec: MakeSpec
) -> None:
    public = write_entry(repository, make_spec(version=3, op_library=OpLibrary(version=99, sha256="")))
    assert "was made for version 99 of the op library" in check_in_image(image, repository)
    take_out_of_service(public, 3)
    assert serves_in_image(image, repository)


def test_it_can_be_served_unverified(repository: Path, image: Path) -> None:
    append(repository / "tiny_model" / "1" / "model.onnx")
    (repository / "tiny").chmod(0o777)
    assert servable_models(repository, verify=False) == ("tiny", "tiny_model")
    assert serves_in_image(image, repository, VERIFY="0")
    assert not serves_in_image(image, repository, VERIFY="1")
    assert not serves_in_image(image, repository, VERIFY="no")


def test_compiled_fronts_are_not_run(tmp_path: Path, image: Path) -> None:
    """Python would take one that says it is of the front beside it, whatever is in it."""
    repository = Path(shutil.copytree(LEGACY, tmp_path / "models"))
    compiled = write(repository / "sample" / "1" / "__pycache__" / "model.cpython-312.pyc")
    with pytest.raises(RepositoryError, match=r"model\.cpython-312\.pyc is not of the export; remove it"):
        servable_models(repository)
    assert "is not of the export; remove it" in check_in_image(image, repository)
    remove_compiled_fronts(repository)
    assert not compiled.parent.exists()
    assert servable_models(repository) == ("sample", "sample_model")
    assert check_in_image(image, repository) == ""
    compiled.parent.symlink_to(tmp_path)
    with pytest.raises(RepositoryError, match=r"__pycache__ cannot be removed: .*; remove it"):
        remove_compiled_fronts(repository)


def test_a_manifest_can_be_pinned_from_outside(
    repository: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who can write the repository can make a manifest that its files agree with."""

    def serve(*pins: str) -> tuple[int, str]:
        asked = (f"--manifest-digest={pin}" for pin in pins)
        code, _, errors = outcome(capsys, app, "serve", repository, "--dry-run", *asked)
        return code, errors if code else ""

    (manifest, *_) = check_entry(repository / "tiny")
    pin = f"tiny={manifest.message.removeprefix('sha256 ')}"
    assert serve(pin) == (0, "")
    assert serve(pin.upper().replace("TINY", "tiny"), pin) == (0, "")
    assert serves_in_image(image, repository, MANIFEST_DIGESTS=pin)

    edit(repository / "tiny" / "manifest.json", "26.07", "26.08")
    shutil.copy(repository / "tiny" / "manifest.json", repository / "tiny" / "2" / "manifest.json")
    assert serve() == (0, "")
    assert serves_in_image(image, repository)
    for pins, status, message in (
        (
            [pin],
            1,
            f"the manifest of 'tiny' has the sha256 {file_digest(repository / 'tiny' / 'manifest.json')}",
        ),
        ([pin.replace("tiny", "other")], 1, "there is no entry 'other', whose manifest is pinned; export it"),
        (["tiny"], 2, "'tiny' pins no manifest: give NAME=SHA256"),
        ([pin, f"tiny={'0' * 64}"], 2, "entry 'tiny' is pinned to two manifests"),
    ):
        found, errors = serve(*pins)
        assert (found, errors.count("\n")) == (status, 1)
        assert message in errors
        assert message in check_in_image(image, repository, MANIFEST_DIGESTS=" ".join(pins))


def test_pins_are_for_what_is_verified(
    repository: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = f"tiny={file_digest(repository / 'tiny' / 'manifest.json')}"
    asked = ("--dry-run", "--no-verify", f"--manifest-digest={pin}")
    status, _, errors = outcome(capsys, app, "serve", repository, *asked)
    assert status == 2
    assert "--manifest-digest pins what --no-verify does not look at" in errors
    errors = check_in_image(image, repository, VERIFY="0", MANIFEST_DIGESTS=pin)
    assert "MANIFEST_DIGESTS pins what VERIFY=0 does not look at" in errors


def test_a_container_checks_what_serve_checks(repository: Path) -> None:
    def line(**asked: Any) -> str:
        return str(ContainerServer(ServerOptions(repository, **asked)).launch_line())

    assert "VERIFY" not in line()
    assert "--env VERIFY=0" in line(verify=False)
    pins = {"tiny": file_digest(repository / "tiny" / "manifest.json")}
    assert f"--env MANIFEST_DIGESTS=tiny={pins['tiny']}" in line(pins=pins)
