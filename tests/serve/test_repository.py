import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from fcntl import flock
from pathlib import Path
from typing import Any

import onnx
import pytest
from tiny_entry import SPANS, VECTORS, edit, take_out_of_service

from sparse_serve.digests import file_digest
from sparse_serve.errors import RepositoryError
from sparse_serve.repository import staging
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.config import CONFIG_NAME, LABELS_NAME, graph_name, read_config
from sparse_serve.repository.entries import (
    BASELINES_NAME,
    find_entries,
    find_models,
    overlay_repository,
    read_entry,
    repository_path,
)
from sparse_serve.repository.manifest import read_manifest
from sparse_serve.repository.staging import heal
from sparse_serve.repository.tunable import THREADS_PARAMETER
from sparse_serve.repository.writing import EntrySpec, refuse_unwritable, validate_name, write_entry
from sparse_serve.tasks import Classification, Regression

MakeSpec = Callable[..., EntrySpec]


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, hidden ones included, with its digest."""
    return {
        str(path.relative_to(folder)): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_an_entry_has_the_layout_of_the_contract(tmp_path: Path, make_spec: MakeSpec) -> None:
    repository = tmp_path / "models"
    graph = make_spec().graph
    public = write_entry(repository, make_spec(baselines={"padded_dense_eager": graph}))
    assert public == repository / "tiny"
    twin = "tiny/baselines/tiny_padded_dense_eager"
    assert list(contents(repository)) == sorted(
        [
            "tiny/1/manifest.json",
            f"{twin}/1/model.onnx",
            f"{twin}/config.pbtxt",
            f"{twin}/warmup/attention_mask",
            "tiny/config.pbtxt",
            "tiny/labels.txt",
            "tiny/manifest.json",
            "tiny/tokenizer.json",
            "tiny_model/1/model.onnx",
            "tiny_model/config.pbtxt",
            "tiny_model/warmup/attention_mask",
        ]
    )
    assert (public / LABELS_NAME).read_text() == "negative\npositive\n"
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_the_manifest_holds_the_digest_of_every_other_file(tmp_path: Path, make_spec: MakeSpec) -> None:
    public = write_entry(tmp_path, make_spec(baselines={"packed_dense": make_spec().graph}))
    manifest = read_manifest(public / "manifest.json")
    found = contents(tmp_path)
    assert found.pop("tiny/manifest.json") == found.pop("tiny/1/manifest.json")
    assert manifest.files == found
    assert manifest.baselines == {"packed_dense": "tiny_packed_dense"}


def test_entries_are_found_again(tmp_path: Path, make_spec: MakeSpec) -> None:
    write_entry(tmp_path, make_spec(name="second"))
    write_entry(tmp_path, make_spec(name="first"))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / CONFIG_NAME).write_text('backend: "python"')
    assert [entry.name for entry in find_entries(tmp_path)] == ["first", "second"]
    assert [path.name for path in find_models(tmp_path)] == [
        "first",
        "first_model",
        "foreign",
        "second",
        "second_model",
    ]
    assert read_entry(tmp_path / "first").graph_path == tmp_path / "first_model"
    with pytest.raises(RepositoryError, match="no entry of a model repository"):
        read_entry(tmp_path / "foreign")
    with pytest.raises(RepositoryError, match="not a folder"):
        find_entries(tmp_path / "nowhere")


def test_the_op_library_is_registered_where_the_graph_has_its_nodes(
    tmp_path: Path, make_spec: MakeSpec, graph_with_domain_nodes: Path
) -> None:
    write_entry(tmp_path, make_spec(name="with", graph=graph_with_domain_nodes))
    write_entry(tmp_path, make_spec(name="without"))
    registered = [
        list(read_config(tmp_path / name / CONFIG_NAME).model_operations.op_library_filename)
        for name in ("with_model", "without_model")
    ]
    assert registered == [["libsparse_ops.so"], []]


def test_external_weights_come_along(tmp_path: Path, make_spec: MakeSpec) -> None:
    model = onnx.load(make_spec().graph)
    graph = tmp_path / "external.onnx"
    onnx.save(model, graph, save_as_external_data=True, location="weights.bin", size_threshold=0)
    write_entry(tmp_path / "models", make_spec(graph=graph))
    version = tmp_path / "models" / "tiny_model" / "1"
    assert sorted(path.name for path in version.iterdir()) == ["model.onnx", "weights.bin"]
    onnx.checker.check_model(str(version / "model.onnx"))


@pytest.mark.parametrize(
    "name", ["", ".hidden", "../up", "a/b", "x_model", "white space", "ü", "-dash", "a" * 101, "new\nline"]
)
def test_unsafe_names_are_refused(tmp_path: Path, make_spec: MakeSpec, name: str) -> None:
    with pytest.raises(RepositoryError, match="is not allowed"):
        write_entry(tmp_path, make_spec(name=name))
    assert not contents(tmp_path)


def test_what_cannot_even_be_looked_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("a" * 300)
    with pytest.raises(RepositoryError, match="aaa cannot be read: File name too long"):
        read_entry(long)
    with pytest.raises(RepositoryError, match=r"model repository .*aaa cannot be read: File name too long"):
        repository_path(long)
    monkeypatch.setattr("sparse_serve.repository.entries.os.access", lambda path, mode: False)
    with pytest.raises(RepositoryError, match=f"model repository {tmp_path} cannot be read: Permission den"):
        repository_path(tmp_path)


def test_usable_names_pass() -> None:
    for name in ("a", "sst2-ssaf_v1.2", "9lives", "a" * 100):
        assert validate_name(name) == name


def test_an_existing_entry_is_replaced_only_by_force(tmp_path: Path, make_spec: MakeSpec) -> None:
    write_entry(
        tmp_path, make_spec(Classification(("bad", "good")), baselines={"packed_dense": make_spec().graph})
    )
    before = contents(tmp_path)
    with pytest.raises(RepositoryError, match="has version 1 already: replace it with --force"):
        write_entry(tmp_path, make_spec())
    assert contents(tmp_path) == before
    public = write_entry(tmp_path, make_spec(), force=True)
    assert (public / LABELS_NAME).read_text() == "negative\npositive\n"
    assert not (public / "baselines").exists()


def test_a_folder_in_the_way_is_not_overwritten(tmp_path: Path, make_spec: MakeSpec) -> None:
    (tmp_path / "tiny_model").mkdir()
    (tmp_path / "tiny_model" / "precious").write_text("mine")
    with pytest.raises(RepositoryError, match=r"tiny_model is in the way of entry 'tiny'"):
        write_entry(tmp_path, make_spec())
    assert list(contents(tmp_path)) == ["tiny_model/precious"]


def test_versions_live_side_by_side(tmp_path: Path, make_spec: MakeSpec) -> None:
    write_entry(tmp_path, make_spec())
    first = contents(tmp_path / "tiny_model" / "1")
    tuned = tmp_path / "tiny" / CONFIG_NAME
    edit(tuned, "count: 2", "count: 3")
    said: list[str] = []
    write_entry(tmp_path, replace(make_spec(version=2), warn=said.append))
    assert [line for line in said if line.startswith("tiny/config.pbtxt stays as the entry's other versions")]
    assert "and so do its instance_group: change them there" in said[0]
    entry = read_entry(tmp_path / "tiny")
    assert entry.versions == (1, 2)
    assert entry.manifest.version == 2
    assert read_manifest(tmp_path / "tiny" / "1" / "manifest.json").version == 1
    assert contents(tmp_path / "tiny_model" / "1") == first
    assert "count: 3" in tuned.read_text()
    # The first version's manifest still describes the bytes on disk, which both share.
    write_entry(tmp_path, make_spec(version=2, command="again"), force=True)
    assert read_entry(tmp_path / "tiny").versions == (1, 2)


def test_an_entry_is_what_its_highest_version_is(tmp_path: Path, make_spec: MakeSpec) -> None:
    """Whichever was written last."""
    public = write_entry(tmp_path, make_spec(command="first"))
    write_entry(tmp_path, make_spec(version=3, command="third"))
    write_entry(tmp_path, make_spec(version=2, command="second"))
    entry = read_entry(public)
    assert {version: each.command for version, each in entry.manifests.items()} == {
        1: "first",
        2: "second",
        3: "third",
    }
    assert (entry.manifest.command, entry.of_version(2).manifest.command) == ("third", "second")
    take_out_of_service(public, 3)
    assert (read_entry(public).versions, read_entry(public).manifest.command) == ((1, 2), "second")
    take_out_of_service(public, 2)
    entry = read_entry(public)
    assert (entry.manifest.version, entry.manifest.command) == (1, "first")
    (public / "1" / "manifest.json").unlink()  # as earlier versions of the package wrote it
    assert (read_entry(public).manifest.version, read_entry(public).manifest.command) == (1, "second")


def test_versions_may_be_exported_for_other_cores(tmp_path: Path, make_spec: MakeSpec) -> None:
    write_entry(tmp_path, make_spec(computing=Computing.on(2)))
    config = (tmp_path / "tiny_model" / CONFIG_NAME).read_text()
    assert THREADS_PARAMETER in config
    write_entry(tmp_path, make_spec(version=2))
    write_entry(tmp_path, make_spec(version=3, computing=Computing.on(8, 2)))
    assert (tmp_path / "tiny_model" / CONFIG_NAME).read_text() == config


@pytest.mark.parametrize(
    "change",
    [
        {"task": Classification(("no", "yes"))},
        {"task": Regression(("a", "b"))},
        {"max_length": 9},
        {"metrics": True},
    ],
)
def test_versions_that_differ_are_refused(
    tmp_path: Path, make_spec: MakeSpec, change: dict[str, object]
) -> None:
    write_entry(tmp_path, make_spec())
    before = contents(tmp_path)
    with pytest.raises(RepositoryError, match="the other versions of the entry have another"):
        write_entry(tmp_path, make_spec(version=2, **change))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": {"default": SPANS}}, r"gives logits FP32 \[-1, 2\] for question answering"),
        ({"tasks": {"default": VECTORS}}, "no output 'embedding', only logits"),
        ({"layers": 3}, r"gives rho \[2\] for 3 layers"),
        ({"max_length": 3}, "no room beside 3 special tokens"),
        ({"tokenizer": Path(__file__)}, "tokenizer .* cannot be read"),
        ({"graph": Path(__file__)}, "is not an ONNX file"),
        ({"graph": Path("nowhere.onnx")}, "cannot be read"),
    ],
)
def test_unusable_parts_are_named(
    tmp_path: Path, make_spec: MakeSpec, change: dict[str, object], message: str
) -> None:
    with pytest.raises(RepositoryError, match=message):
        write_entry(tmp_path, make_spec(**change))
    assert not contents(tmp_path)


def test_a_repository_that_cannot_be_written_is_named(tmp_path: Path, make_spec: MakeSpec) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RepositoryError, match=r"models cannot be written: Not a directory"):
        write_entry(tmp_path / "file" / "models", make_spec())


def test_a_repository_that_cannot_be_written_is_refused_before_there_is_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for repository in (tmp_path / "file", tmp_path / "file" / "models"):
        with pytest.raises(RepositoryError, match=r"cannot be written: Not a directory \(.*/file\)"):
            refuse_unwritable(repository)
    refuse_unwritable(tmp_path / "not" / "yet")
    assert not (tmp_path / "not").exists()
    monkeypatch.setattr("sparse_serve.repository.writing.os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(RepositoryError, match=f"cannot be written: Permission denied \\({tmp_path}\\)"):
        refuse_unwritable(tmp_path / "not" / "yet")


def test_of_a_copy_onto_a_full_disk_the_place_is_named(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))

    monkeypatch.setattr("sparse_serve.repository.writing.shutil.copyfile", full)
    with pytest.raises(RepositoryError, match=r"No space left on device \(.*\.staging/.*\)"):
        write_entry(tmp_path / "models", make_spec())


def test_of_versions_that_cannot_be_carried_over_the_reason_is_told(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, _target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)

    write_entry(tmp_path, make_spec())
    monkeypatch.setattr("sparse_serve.repository.writing._link", full)
    with pytest.raises(RepositoryError, match=r"cannot be written: .*No space left on device: '.*tiny/.*'"):
        write_entry(tmp_path, make_spec(version=2))


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sparse_serve.repository.staging.os.fsync", full)
    with pytest.raises(RepositoryError, match="cannot be written: No space left on device"):
        write_entry(tmp_path / "models", make_spec())
    assert not contents(tmp_path)


class Killed(BaseException):
    """Stands for the end of the process: nothing is caught or cleaned up after it."""


def kill_at_rename(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Have the process end just before its rename of that number."""
    rename, count = Path.rename, 0

    def counted(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == number:
            raise Killed
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", counted)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_replacement_killed_between_renames_is_finished_later(
    tmp_path: Path, make_spec: MakeSpec, number: int
) -> None:
    repository = tmp_path / "models"
    write_entry(repository, make_spec())
    write_entry(tmp_path / "wanted", make_spec(Classification(("bad", "good"))))
    with pytest.MonkeyPatch.context() as patch:
        kill_at_rename(patch, number)
        with pytest.raises(Killed):
            write_entry(repository, make_spec(Classification(("bad", "good"))), force=True)
    public, graph = repository / "tiny", repository / graph_name("tiny")
    # Never the public model of one export beside the graph of another, nor without any.
    assert number == 1 or not public.exists()
    assert graph.exists() or not public.exists()
    heal(repository)
    assert contents(repository) == contents(tmp_path / "wanted")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "wanted"]


def test_a_killed_preparation_is_discarded_by_the_next_writer(tmp_path: Path, make_spec: MakeSpec) -> None:
    repository = tmp_path / "models"
    write_entry(repository, make_spec())
    before = contents(repository)
    left = tmp_path / ".models.staging" / "other" / "new" / "other"
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    heal(repository)
    assert contents(tmp_path / "models") == before
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to others")
def test_what_another_user_left_is_left_alone(tmp_path: Path, make_spec: MakeSpec) -> None:
    repository = tmp_path / "models"
    write_entry(repository, make_spec())
    left = tmp_path / ".models.staging" / "tiny"
    (left / "new" / "tiny").mkdir(parents=True)
    (left / "new" / "tiny" / "foreign").touch()
    (left / "complete").touch()
    before = contents(tmp_path)
    os.chown(left, 12345, -1)
    heal(repository)
    with pytest.raises(RepositoryError, match=r"staging/tiny is of another user, whose export of entry"):
        write_entry(repository, make_spec(), force=True)
    assert contents(tmp_path) == before
    write_entry(repository, make_spec(name="other"))
    assert {"tiny", "other"} <= {path.name for path in repository.iterdir()}
    os.chown(repository, 12345, -1)
    heal(repository)
    assert (repository / "tiny" / "foreign").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to others")
def test_what_another_user_left_inside_is_healed(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write there needs no staging folder, and Triton takes it for a model."""
    monkeypatch.setattr("sparse_serve.repository.staging._is_mount", lambda _: True)
    repository = tmp_path / "models"
    write_entry(repository, make_spec())
    left = repository / ".staging" / "tiny"
    (left / "new").mkdir(parents=True)
    os.chown(left, 12345, -1)
    heal(repository)
    assert not left.exists()


def test_an_interrupted_preparation_leaves_nothing(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sparse_serve.repository.writing.file_digest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_entry(tmp_path / "models", make_spec())
    assert not contents(tmp_path)


def test_what_another_writer_has_just_removed_is_healed(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when it was listed."""
    repository = tmp_path / "models"
    write_entry(repository, make_spec())
    monkeypatch.setattr(Path, "glob", lambda folder, _pattern: iter([folder / "gone"]))
    heal(repository)


@pytest.mark.parametrize("removed", ["before it is locked", "as it is made"])
def test_a_writer_whose_folder_is_removed_makes_another(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    """By a server that starts, to which it is what an interrupted export has left."""
    home = tmp_path / ".models.staging"
    make, attempts = Path.mkdir, 0

    def counted(descriptor: int, operation: int) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1 and removed == "before it is locked":
            shutil.rmtree(home)
        flock(descriptor, operation)

    def mkdir(folder: Path, *arguments: Any, **options: Any) -> None:
        nonlocal attempts
        if folder == home / "tiny" and removed == "as it is made" and attempts == 0:
            attempts += 1
            raise FileNotFoundError(folder)
        make(folder, *arguments, **options)

    monkeypatch.setattr(staging, "flock", counted)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    write_entry(tmp_path / "models", make_spec())
    assert attempts == 2
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_two_writers_of_one_entry_do_not_meet(tmp_path: Path, make_spec: MakeSpec) -> None:
    with (
        staging.replaced_folders(tmp_path / "models", "tiny"),
        pytest.raises(RepositoryError, match="another process is writing entry 'tiny'"),
    ):
        write_entry(tmp_path / "models", make_spec())


def test_an_overlay_edits_configurations_and_links_the_rest(tmp_path: Path, make_spec: MakeSpec) -> None:
    source, target = tmp_path / "models", tmp_path / "view"
    write_entry(source, make_spec())
    (source / "tiny_model" / BASELINES_NAME).mkdir()
    before = contents(source)

    def edit(config: object) -> None:
        config.parameters["enable_mem_arena"].string_value = "0"  # type: ignore[attr-defined]

    assert overlay_repository(source, target, edit, models=["tiny_model"]) == target
    assert [path.name for path in find_models(target)] == ["tiny_model"]
    edited = read_config(target / "tiny_model" / CONFIG_NAME)
    assert edited.parameters["enable_mem_arena"].string_value == "0"
    assert not (target / "tiny_model" / BASELINES_NAME).exists()
    assert (target / "tiny_model" / "1" / "model.onnx").samefile(source / "tiny_model" / "1" / "model.onnx")
    assert contents(source) == before
