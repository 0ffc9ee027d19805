"""Each fault of an entry is found, and nothing else."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from tiny_entry import edit, take_out_of_service, tiny_graph

from command_line import outcome
from sparse_serve.cli import app
from sparse_serve.digests import file_digest
from sparse_serve.errors import OpLibraryError, OptionError, RepositoryError
from sparse_serve.repository import check, releases
from sparse_serve.repository.check import Fault, Finding, Level, check_entry, require_no_error
from sparse_serve.repository.config import CONFIG_NAME
from sparse_serve.repository.manifest import Attention, OpLibrary
from sparse_serve.repository.signature import graph_signature
from sparse_serve.repository.writing import EntrySpec, write_entry

MakeSpec = Callable[..., EntrySpec]


@pytest.fixture
def entry(tmp_path: Path, make_spec: MakeSpec) -> Path:
    return write_entry(tmp_path, make_spec(baselines={"packed_dense": make_spec().graph}))


def faults(path: Path, release: str | None = None) -> list[Finding]:
    return [finding for finding in check_entry(path, release) if finding.level is not Level.ok]


def test_a_fresh_entry_passes(entry: Path) -> None:
    assert [(finding.level, finding.check) for finding in check_entry(entry)] == [
        (Level.ok, "manifest"),
        (Level.ok, "access"),
        (Level.ok, "digests"),
        (Level.ok, "public model"),
        (Level.ok, "op library"),
        (Level.ok, "processor"),
        (Level.ok, "device"),
        (Level.ok, "tiny_model 1"),
        (Level.ok, "tiny_packed_dense 1"),
    ]


def test_what_may_not_have_a_fault(tmp_path: Path) -> None:
    def unreadable() -> Iterator[Fault]:
        yield Level.error, (tmp_path / "absent").read_text()

    harmless = (Level.warning, "it is another")
    require_no_error([harmless], "entry tiny")
    with pytest.raises(RepositoryError, match=r"^entry tiny: it is missing; export it again$"):
        require_no_error(
            iter([(Level.warning, "it is another"), (Level.error, "it is missing")]), "entry tiny"
        )
    with pytest.raises(RepositoryError, match=r"^entry tiny: .*absent cannot be read: No such file"):
        require_no_error(unreadable(), "entry tiny")


def test_a_name_that_cannot_be_looked_for_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = outcome(capsys, app, "check", "a" * 300)
    assert status == 1
    assert errors.endswith("aaa cannot be read: File name too long\n")


def test_a_link_to_an_entry_is_none(entry: Path) -> None:
    """As to a server."""
    link = entry.parent / "other"
    link.symlink_to("tiny")
    (finding,) = faults(link)
    assert (finding.level, finding.check) == (Level.error, "access")
    assert finding.message == "other is a link to tiny, which is a folder"


def test_changed_missing_and_foreign_files(entry: Path) -> None:
    (entry / "tokenizer.json").unlink()
    (entry.parent / "tiny_model" / "1" / "notes.txt").write_text("")
    (entry / "1" / "__pycache__").mkdir()
    (entry / "1" / "__pycache__" / "model.pyc").write_text("")
    (entry / "1" / "libtriton_sparse_serve_text.so").write_text("")
    messages = [(finding.level, finding.message) for finding in faults(entry)]
    assert messages[0] == (Level.error, "tiny/tokenizer.json is missing")
    assert messages[1:5] == [
        (Level.error, "tiny/1/__pycache__/model.pyc is not of the export"),
        (Level.error, "tiny/1/libtriton_sparse_serve_text.so is not of the export"),
        (Level.error, "tiny_model/1/notes.txt is not of the export"),
        (Level.error, "tiny/1/libtriton_sparse_serve_text.so is code, which no entry has"),
    ]
    assert messages[5][1].startswith("tokenizer.json cannot be read")
    assert len(messages) == 6


def test_tuned_scheduling_is_only_a_warning(entry: Path) -> None:
    edit(entry / CONFIG_NAME, "count: 2", "count: 1")
    assert [finding.level for finding in faults(entry)] == [Level.warning]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dims: 2", "dims: 3", "tiny/config.pbtxt has another output than the export wrote"),
        ("TYPE_STRING", "TYPE_INT64", "has another input than the export wrote"),
        (
            'string_value: "16"',
            'string_value: "512"',
            "has '512' for the parameter 'max_length', the export wrote '16'",
        ),
        ('name: "tiny"', 'name: "other"', "names the model 'other', the folder is 'tiny'"),
        ("max_batch_size: 64", "max_batch_size: 128", "is above the graph's 64"),
        ("max_batch_size: 64", "", "has max_batch_size 0, at least 1 is needed"),
        ('backend: "sparse_serve_text"', "backend: sparse_serve_text", "is malformed"),
        ("TYPE_STRING", str(-(2**63)), "is malformed: Value out of range"),
        (
            'backend: "sparse_serve_text"',
            'backend: "python"',
            "another backend .*: 'python' for 'sparse_serve_text'",
        ),
    ],
)
def test_faults_of_the_public_configuration(entry: Path, old: str, new: str, message: str) -> None:
    edit(entry / CONFIG_NAME, old, new)
    assert any(
        re.search(message, finding.message) for finding in faults(entry) if finding.check == "public model"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name: "tiny"', 'name: "{}"'),
        ('backend: "sparse_serve_text"', 'backend: "{}"'),
        ("max_batch_size: 64", 'max_batch_size: 64 model_operations {{ op_library_filename: "{}" }}'),
    ],
)
def test_a_long_value_of_a_configuration_is_told_in_a_line(entry: Path, old: str, new: str) -> None:
    edit(entry / CONFIG_NAME, old, new.format(r"x\n" * 5000))
    messages = [finding.message for finding in faults(entry)]
    assert any(r"x\nx" in message for message in messages)
    assert all(len(message) < 300 and len(message.splitlines()) == 1 for message in messages)


def test_faults_of_the_graphs_configuration(entry: Path) -> None:
    edit(entry.parent / "tiny_model" / CONFIG_NAME, "TYPE_FP32", "TYPE_FP16")
    messages = [finding.message for finding in faults(entry) if finding.check == "tiny_model 1"]
    assert messages == ["tiny_model/config.pbtxt has another output than the export wrote"]


def test_measures_that_the_graph_does_not_give(tmp_path: Path, make_spec: MakeSpec) -> None:
    public = write_entry(tmp_path, make_spec(metrics=True))
    assert not faults(public)
    edit(public / CONFIG_NAME, 'string_value: "rho"', 'string_value: "rho,rows_on"')
    messages = [finding.message for finding in faults(public) if finding.level is Level.error]
    assert messages == [
        "tiny/config.pbtxt has 'rho,rows_on' for the parameter 'metrics', the export wrote 'rho'"
    ]


def test_axes_belong_to_axis_attention(tmp_path: Path, make_spec: MakeSpec) -> None:
    axes, axis = (
        tiny_graph(tmp_path / "axes.onnx", axes=True),
        Attention(normalizer="softmax", pattern="axis+local2"),
    )
    assert not faults(write_entry(tmp_path / "models", make_spec(graph=axes, attention=axis, metrics=True)))
    without = write_entry(tmp_path / "without", make_spec(attention=axis))
    beside = write_entry(tmp_path / "beside", make_spec(graph=axes))
    assert [finding.message for path in (without, beside) for finding in faults(path)] == [
        "the graph measures rho, the manifest says pattern axis+local2",
        "the graph measures rho, rows_on, columns_on, the manifest says pattern none",
    ]


@pytest.mark.parametrize(
    ("opset", "ir_version", "release", "message"),
    [
        (24, 9, "25.02", "opset 24 is above 21, the newest that ONNX Runtime 1.20.1 of Triton 25.02 runs"),
        (20, 12, "25.02", "IR version 12 is above 10"),
        (24, 12, "26.07", None),
    ],
)
def test_a_release_that_cannot_run_the_graph_is_named(
    tmp_path: Path, make_spec: MakeSpec, opset: int, ir_version: int, release: str, message: str | None
) -> None:
    model = onnx.load(make_spec().graph)
    model.opset_import[0].version = opset
    model.ir_version = ir_version
    onnx.save(model, tmp_path / "newer.onnx")
    public = write_entry(tmp_path / "models", make_spec(graph=tmp_path / "newer.onnx"))
    found = [finding.message for finding in faults(public, release)]
    assert (not found) if message is None else (len(found) == 1 and message in found[0])


def test_the_bundled_release_runs_the_onnxruntime_of_this_environment(
    entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not faults(entry, "24.10")
    limits = {"1.31.1": (26, 13), "1.24.9": (25, 13), "1.19.0": (21, 10)}
    for installed, newest in limits.items():
        monkeypatch.setattr(releases, "onnxruntime_version", lambda version=installed: version)
        found = releases.release("24.10")
        assert (found.onnxruntime, found.opset, found.ir_version) == (installed, *newest)
    monkeypatch.setattr(releases, "onnxruntime_version", lambda: None)
    with pytest.raises(OptionError, match=r"ONNX Runtime installed here, and there is none: pip install"):
        check_entry(entry, "24.10")


def test_an_unknown_release_is_refused(entry: Path) -> None:
    with pytest.raises(OptionError, match=r"'99.99' is not known, known are 24.10, 25.02, .*26.07"):
        check_entry(entry, "99.99")


def test_a_graph_that_is_not_valid_onnx(tmp_path: Path, make_spec: MakeSpec) -> None:
    model = onnx.load(make_spec().graph)
    model.graph.node[0].op_type = "Gatherer"
    onnx.save(model, tmp_path / "invalid.onnx")
    public = write_entry(tmp_path / "models", make_spec(graph=tmp_path / "invalid.onnx"))
    (found,) = faults(public)
    assert "is not valid ONNX" in found.message
    assert "Gatherer" in found.message
    assert "\n" not in found.message


def test_a_graph_without_its_fallback(
    tmp_path: Path, make_spec: MakeSpec, graph_with_domain_nodes: Path
) -> None:
    complete = write_entry(tmp_path / "models", make_spec(graph=graph_with_domain_nodes))
    assert not faults(complete)
    model = onnx.load(graph_with_domain_nodes)
    del model.functions[:]
    onnx.save(model, tmp_path / "bare.onnx")
    bare = write_entry(tmp_path / "models", make_spec(name="bare", graph=tmp_path / "bare.onnx"))
    (found,) = faults(bare)
    assert (found.level, found.message) == (Level.warning, "no fallback for Same: --portable cannot serve it")


def test_the_installed_library_is_held_against_the_entry(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    library.write_bytes(b"as exported")
    made_for = OpLibrary(version=1, sha256=file_digest(library))
    public = write_entry(tmp_path / "models", make_spec(op_library=made_for))
    monkeypatch.setattr(check, "verify_library", lambda device: library)
    monkeypatch.setattr(check, "library_version", lambda path: 1)
    assert not faults(public)
    library.write_bytes(b"of another build")
    assert [finding.level for finding in faults(public)] == [Level.warning]
    monkeypatch.setattr(check, "library_version", lambda path: 2)
    assert [finding.message for finding in faults(public)] == [
        "installed is version 2, the entry was made for 1"
    ]

    def missing(device: str) -> Path:
        raise OpLibraryError("it is missing")

    monkeypatch.setattr(check, "verify_library", missing)
    assert [finding.message for finding in faults(public)] == ["it is missing"]


def test_a_version_that_was_taken_out_of_service_is_not_checked(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning of processors is of any that is served."""
    monkeypatch.setattr("sparse_serve.processor.has_vnni", lambda: False)
    axes = tiny_graph(tmp_path / "axes.onnx", axes=True)
    axis = Attention(normalizer="softmax", pattern="axis+local2")
    public = write_entry(tmp_path / "models", make_spec(graph=axes, attention=axis, target_cpu="vnni"))
    write_entry(tmp_path / "models", make_spec(version=2, graph=axes, attention=axis))
    (warning,) = faults(public)
    assert (warning.level, warning.check) == (Level.warning, "processor")
    write_entry(tmp_path / "models", make_spec(version=3, graph=axes, target_cpu="vnni"))
    assert [finding.level for finding in faults(public)] == [Level.error, Level.warning]
    take_out_of_service(public, 3)
    take_out_of_service(public, 1)
    assert faults(public) == []


def test_labels_that_are_not_utf8(entry: Path) -> None:
    (entry / "labels.txt").write_bytes(b"n\xe9gatif\npositif\n")
    messages = [finding.message for finding in faults(entry) if finding.check == "public model"]
    assert messages == ["labels.txt is not UTF-8: invalid continuation byte at byte 1"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "tiny/../../secret", "", ".", "tiny/\0"])
def test_a_manifest_cannot_name_files_outside_the_repository(entry: Path, path: str) -> None:
    manifest = json.loads((entry / "manifest.json").read_text())
    manifest["files"] = {path: "0" * 64}
    (entry / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RepositoryError, match="must be relative to the repository and stay inside it"):
        check_entry(entry)


@pytest.mark.parametrize("name", ["../other", "/other", "", "..", "a/b", "line\n"])
def test_a_manifest_cannot_name_baselines_elsewhere(entry: Path, name: str) -> None:
    manifest = json.loads((entry / "manifest.json").read_text())
    manifest["baselines"] = {"packed_dense": name}
    (entry / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RepositoryError, match=r"baselines\.packed_dense: "):
        check_entry(entry)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema_version": 99}', '{"schema_version": 1, "name": "tiny", "surprise": 1}']
)
def test_a_malformed_manifest_is_refused(entry: Path, content: str) -> None:
    (entry / "manifest.json").write_text(content)
    with pytest.raises(RepositoryError, match=r"manifest\.json is (not )?of schema version (3|99)"):
        check_entry(entry)


@pytest.mark.parametrize(
    "fault", [{"versions": {"x\n" * 5000: 1}}, {"schema_version": 10**4000}, {"x" * 10**6: 1}]
)
def test_what_is_said_of_a_manifest_can_be_read(entry: Path, fault: dict[str, object]) -> None:
    manifest = json.loads((entry / "manifest.json").read_text())
    (entry / "manifest.json").write_text(json.dumps(manifest | fault))
    with pytest.raises(RepositoryError, match=r"manifest\.json is (not )?of schema version") as refused:
        check_entry(entry)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("elem_type", [onnx.TensorProto.COMPLEX64, 9999])
def test_a_graph_with_a_type_that_is_not_served(entry: Path, elem_type: int) -> None:
    model = onnx.load(entry.parent / "tiny_model" / "1" / "model.onnx")
    model.graph.output[0].type.tensor_type.elem_type = elem_type
    with pytest.raises(
        RepositoryError, match=r"is of type (COMPLEX64|number 9999), which Triton does not serve"
    ):
        graph_signature(model)


def test_what_the_checker_of_onnx_cannot_even_say(entry: Path) -> None:
    """It quotes the operator, whose name is no UTF-8."""
    path = entry.parent / "tiny_model" / "1" / "model.onnx"
    model = onnx.load(path)
    model.graph.node[0].op_type = "x" * 20
    path.write_bytes(model.SerializeToString().replace(b"x" * 20, b"\x87" * 20))
    with pytest.raises(UnicodeDecodeError):
        onnx.checker.check_model(str(path))
    assert any("is not valid ONNX" in finding.message for finding in faults(entry))


@pytest.mark.parametrize("name", [b"log\xffts", b"logits" * 50], ids=["no text", "long"])
def test_a_graph_with_a_name_that_is_not_served(entry: Path, name: bytes) -> None:
    model = onnx.load(entry.parent / "tiny_model" / "1" / "model.onnx")
    model.graph.output[0].name = "x" * len(name)
    model.ParseFromString(model.SerializeToString().replace(b"x" * len(name), name))
    with pytest.raises(RepositoryError, match="has a name that is not served: UTF-8 of up to 200") as refused:
        graph_signature(model)
    assert len(str(refused.value)) < 1000
