"""What Triton would load or open for a model is what the package writes, or nothing is started."""

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from image_runs import check_in_image
from tiny_entry import (
    AAA,
    CLASSES,
    DOCKER,
    LEGACY,
    SEVERAL,
    SPANS,
    TAGS,
    VECTORS,
    add,
    edit,
    tiny_graph,
)

from sparse_serve.errors import RepositoryError
from sparse_serve.op_library import LIBRARY_NAME
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.config import CONFIG_NAME, LABELS_NAME, text_graph_config
from sparse_serve.repository.entries import find_entries, read_entry
from sparse_serve.repository.signature import Signature
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.tasks import Classification
from sparse_serve.triton.container import ContainerServer
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.preflight import servable_models
from sparse_serve.triton.server import Server, ServerOptions

MakeSpec = Callable[..., EntrySpec]

SOURCE = """
#include <cstdio>
__attribute__((constructor)) static void leave_a_mark() { std::fclose(std::fopen(MARK, "w")); }
"""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A library whose constructor leaves a mark, and the mark."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "foreign.cc").write_text(SOURCE)
    mark = folder / "mark"
    define = f'-DMARK="{mark}"'
    command = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", define, "-o", "foreign.so", "foreign.cc"]
    subprocess.run(command, cwd=folder, check=True)
    ctypes.CDLL(str(folder / "foreign.so"))
    mark.unlink()  # it is one that runs
    return folder / "foreign.so", mark


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, make_spec: MakeSpec) -> Path:
    """Entries of several tasks, and one of an earlier version."""
    folder = tmp_path_factory.mktemp("agreement") / "models"
    for task, name in ((CLASSES, "tiny"), (SPANS, "spans"), (TAGS, "tags"), (SEVERAL, "several")):
        write_entry(folder, make_spec(task, name=name))
    write_entry(folder, make_spec(VECTORS, name="vectors", metrics=True))
    axes = tiny_graph(folder.parent / "axes.onnx", axes=True)
    write_entry(folder, make_spec(name="patterned", graph=axes, attention=AAA, metrics=True))
    write_entry(folder, make_spec(name="reading", takes_text=True))
    shutil.copytree(LEGACY, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture
def repository(tmp_path: Path, written: Path) -> Path:
    shutil.copytree(written, tmp_path / "models")
    return tmp_path / "models"


def test_every_entry_that_was_written_is_fit(repository: Path, image: Path) -> None:
    names = [entry.name for entry in find_entries(repository)]
    assert names == ["patterned", "reading", "sample", "several", "spans", "tags", "tiny", "vectors"]
    assert len(servable_models(repository)) == 2 * len(names) - 1  # "reading" is one model
    assert check_in_image(image, repository) == ""


@pytest.mark.parametrize("where", ["tiny_model", "tiny", "reading", "sample_model", "another"])
@pytest.mark.parametrize("kind", [TritonServer, ContainerServer])
def test_a_foreign_library_never_runs(
    repository: Path, image: Path, foreign: tuple[Path, Path], where: str, kind: type[Server]
) -> None:
    library, mark = foreign
    if where == "another":
        shutil.copytree(repository / "tiny_model", repository / "another")
        edit(repository / "another" / CONFIG_NAME, 'name: "tiny_model"\n', "")
    config = repository / where / CONFIG_NAME
    if LIBRARY_NAME in config.read_text():
        edit(config, LIBRARY_NAME, str(library))
    else:
        add(config, f'model_operations {{ op_library_filename: "{library}" }}')
    server = kind(ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0))
    with pytest.raises(RepositoryError, match=f"{where}/config.pbtxt names the op library") as raised:
        server.start()
    assert "\n" not in str(raised.value)
    assert f"{where}/config.pbtxt names the op library" in check_in_image(image, repository)
    assert not mark.exists()


def test_a_hidden_model_is_one_too(repository: Path, image: Path, foreign: tuple[Path, Path]) -> None:
    """Triton loads every folder, whatever its name begins with."""
    library, mark = foreign
    shutil.copytree(repository / "sample_model", repository / ".hidden")
    edit(repository / ".hidden" / CONFIG_NAME, LIBRARY_NAME, str(library))
    options = ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)
    with pytest.raises(RepositoryError, match=r"Triton would load the hidden folder \.hidden as a model"):
        TritonServer(options).start()
    assert "names the op library" in check_in_image(image, repository)
    assert not mark.exists()


def test_a_foreign_library_beside_ours_is_refused_without_ours_too(
    repository: Path, foreign: tuple[Path, Path]
) -> None:
    library, mark = foreign
    text = f'model_operations {{ op_library_filename: ["{LIBRARY_NAME}", "{library}"] }}'
    add(repository / "tiny_model" / CONFIG_NAME, text)
    options = ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0, portable=True)
    with pytest.raises(RepositoryError, match="names the op library"):
        TritonServer(options).start()
    assert not mark.exists()


EDITS = {
    "a parameter": ("tiny", 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/x" } }'),
    "a parameter of the graph": (
        "tiny_model",
        'parameters { key: "session.load_model_format" value { string_value: "ORT" } }',
    ),
    "a platform": ("tiny", 'platform: "ensemble"'),
    "an ensemble": ("tiny", 'ensemble_scheduling { step { model_name: "other" model_version: -1 } }'),
    "a file name": ("tiny", 'default_model_filename: "other.py"'),
    "file names": ("tiny_model", 'cc_model_filenames { key: "8.0" value: "/x.onnx" }'),
    "a runtime": ("tiny", 'runtime: "other.py"'),
    "an agent": ("tiny_model", 'model_repository_agents { agents { name: "checksum" } }'),
    "an accelerator": (
        "tiny_model",
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }',
    ),
    "an accelerator's allocator": (
        "tiny_model",
        "optimization { execution_accelerators { gpu_execution_accelerator "
        '{ name: "cuda" parameters { key: "gpu_external_alloc" value: "4096" } } } }',
    ),
    "a file outside": (
        "tiny_model",
        'model_warmup { inputs { key: "input_ids" value { input_data_file: "../../tokens" } } }',
    ),
    "a ragged batch": ("tiny_model", 'batch_output { target_name: "rho" }'),
    "a parameter of an earlier version": (
        "sample",
        'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/x" } }',
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_no_export_writes_is_refused(repository: Path, image: Path, name: str) -> None:
    model, text = EDITS[name]
    add(repository / model / CONFIG_NAME, text)
    with pytest.raises(RepositoryError, match=rf"{model}/config\.pbtxt (has|is|asks|warms)") as raised:
        servable_models(repository)
    assert "\n" not in str(raised.value)
    assert f"{model}/config.pbtxt" in check_in_image(image, repository)


@pytest.mark.parametrize(
    ("model", "old", "new", "is_seen_in_image"),
    [
        ("tiny", 'backend: "sparse_serve_text"', 'backend: "python"', True),
        ("tiny_model", 'backend: "onnxruntime"', 'backend: "python"', True),
        ("tiny_model", 'filename: "model.onnx"', 'filename: "../../other.onnx"', True),
        ("sample", 'backend: "python"', 'backend: "other"', True),
        ("tiny", 'string_value: "tiny_model"', 'string_value: "spans_model"', False),
        ("tiny", "negative", "other", False),
        ("tiny", 'string_value: "1048576"', 'string_value: "0"', False),
        ("reading", 'string_value: "4194304"', 'string_value: "4 MiB"', False),
        ("spans", '\\"stride\\": 4', '\\"stride\\": 5', False),
        ("sample", 'string_value: "64"', 'string_value: "65"', False),
        ("vectors", 'string_value: "rho"', 'string_value: "rho,rows_on"', False),
        ("several", ",task_ids", "", False),
        ("several", '\\"sts\\"', '\\"sta\\"', False),
        ("several", 'name: "TASK"', 'name: "JOB"', False),
        ("several_model", 'name: "task_ids"\n  data_type: TYPE_INT64', 'name: "task_ids"', False),
        ("spans", "max_batch_size: 64", "max_batch_size: 65", False),
        ("reading", 'backend: "onnxruntime"', 'backend: "sparse_serve_text"', True),
        ("reading", 'name: "TEXT"', 'name: "input_ids"', False),
        ("reading", 'name: "TEXT"\n  data_type: TYPE_STRING', 'name: "TEXT"\n  data_type: TYPE_INT64', False),
        ("reading", "negative", "other", False),
        ("tiny", 'label_filename: "labels.txt"', 'label_filename: "../../secret"', True),
    ],
)
def test_what_an_export_writes_otherwise_is_refused(
    repository: Path, image: Path, model: str, old: str, new: str, is_seen_in_image: bool
) -> None:
    edit(repository / model / CONFIG_NAME, old, new)
    with pytest.raises(RepositoryError, match="is not fit to serve"):
        servable_models(repository)
    assert bool(check_in_image(image, repository)) == is_seen_in_image


@pytest.mark.parametrize(
    ("model", "old", "new"),
    [
        ("tiny", "max_batch_size: 64", "max_batch_size: 8"),
        ("tiny", "count: 2", "count: 3"),
        ("tiny_model", "kind: KIND_CPU", "kind: KIND_CPU rate_limiter { priority: 2 }"),
        ("tiny_model", "dynamic_batching {", "dynamic_batching { max_queue_delay_microseconds: 500"),
        ("tiny_model", "dynamic_batching {\n}", ""),
        ("tiny_model", "version_policy {\n  all {\n  }\n}", "version_policy { latest { num_versions: 1 } }"),
        (
            "tiny_model",
            "dynamic_batching {\n}",
            "optimization { graph { level: 1 } execution_accelerators { gpu_execution_accelerator "
            '{ name: "cuda" parameters { key: "gpu_mem_limit" value: "1" } } } }',
        ),
        ("tiny", 'string_value: "1048576"', 'string_value: "65536"'),
        ("reading", 'string_value: "4194304"', 'string_value: "1000000"'),
        ("sample", "count: 1", "count: 2"),
        ("reading", "count: 1", "count: 2"),
        (
            "reading",
            "dynamic_batching {\n}",
            'parameters { key: "intra_op_thread_count" value { string_value: "2" } }',
        ),
        (
            "tiny_model",
            "dynamic_batching {\n}",
            'parameters { key: "intra_op_thread_count" value { string_value: "2" } }',
        ),
        ("patterned", 'string_value: "rho,rows_on,columns_on"', 'string_value: "columns_on"'),
    ],
)
def test_what_operators_tune_is_theirs(repository: Path, image: Path, model: str, old: str, new: str) -> None:
    edit(repository / model / CONFIG_NAME, old, new)
    assert model in servable_models(repository)
    assert check_in_image(image, repository) == ""


@pytest.mark.parametrize(
    "name",
    [
        "tiny/1/model.py",
        "tiny/libtriton_sparse_serve_text.so",
        "tiny_model/1/libx.so.1",
        "sample_model/model.py",
        "reading/1/model.py",
    ],
)
def test_code_in_an_entry_is_refused(repository: Path, image: Path, name: str) -> None:
    (repository / name).write_text("")
    with pytest.raises(RepositoryError, match=rf"{name} is code, which no entry has"):
        servable_models(repository)
    assert f"{name} is code" in check_in_image(image, repository)


def test_a_front_of_an_earlier_version_is_one_that_it_wrote(repository: Path, image: Path) -> None:
    front = repository / "sample" / "1" / "model.py"
    front.write_text(front.read_text() + "# another\n")
    with pytest.raises(
        RepositoryError, match=r"sample/1/model\.py is no front that a version of sparse-serve"
    ):
        servable_models(repository)
    assert "sample/1/model.py is no front that a version" in check_in_image(image, repository)


def test_entries_of_an_earlier_version_are_read(make_spec: MakeSpec, tmp_path: Path) -> None:
    entry = read_entry(LEGACY / "sample")
    assert entry.manifest.is_legacy
    assert entry.manifest.task == Classification(("negative", "positive"))
    attention = entry.manifest.attention
    assert (attention.normalizer, attention.lambd, attention.pattern) == ("sparsegen", -4.0, None)
    findings = check_entry(LEGACY / "sample")
    # Another build of the op library than the sample's is to be expected.
    assert [finding for finding in findings if finding.level is Level.error] == []
    # A new version beside an old one would have another front.
    shutil.copytree(LEGACY, tmp_path / "models")
    with pytest.raises(RepositoryError, match="the other versions of the entry have another sample/"):
        write_entry(tmp_path / "models", make_spec(name="sample", version=2))
    write_entry(tmp_path / "models", make_spec(name="sample"), force=True)
    assert not read_entry(tmp_path / "models" / "sample").manifest.is_legacy


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ({"kind": "softmax"}, ("softmax", None, None)),
        ({"kind": "sparsegen", "lambd": 0.5}, ("sparsegen", 0.5, None)),
        ({"kind": "axis", "pattern": "axis+local2"}, ("softmax", None, "axis+local2")),
        ({"kind": "axis", "pattern": "local2", "lambd": -1.0}, ("sparsegen", -1.0, "local2")),
    ],
)
def test_an_earlier_attention_is_a_normalizer_and_a_pattern(
    tmp_path: Path, attention: dict[str, object], expected: tuple[object, ...]
) -> None:
    shutil.copytree(LEGACY, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "sample" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention": attention}))
    found = read_entry(tmp_path / "sample").manifest.attention
    assert (found.normalizer, found.lambd, found.pattern) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 4}, "is of schema version 4, known here are up to 3: upgrade sparse-serve"),
        (
            {"tasks": {"default": {"type": "translation"}}},
            "task 'translation' is not known here, .*: upgrade",
        ),
        ({"tasks": {}}, "descriptions by name are needed, one or more"),
        (
            {"tasks": {name: {"type": "embedding", "size": 1} for name in "ab"}},
            "task a is embedding, which answers other tensors .*: serve it as an entry of its own",
        ),
        (
            {"tasks": {name: {"type": "regression", "labels": ["x"]} for name in ("sts", "../x")}},
            "manifest.json: '../x' cannot name a task: at most 64 letters, digits, _ and - are needed",
        ),
        (
            {"tasks": {name: {"type": "regression", "labels": ["x"]} for name in ("sts", "score")}},
            "tiny_model/config.pbtxt: graph has no input task_ids, by which rows of the tasks sts, score are",
        ),
    ],
)
def test_a_manifest_that_is_not_for_this_version_is_named(
    repository: Path, change: dict[str, object], message: str
) -> None:
    path = repository / "tiny" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RepositoryError, match=message) as raised:
        servable_models(repository)
    assert "\n" not in str(raised.value)


@pytest.fixture
def image_check() -> ModuleType:
    specification = spec_from_file_location("check_entries", DOCKER / "check_entries.py")
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_image_knows_what_the_package_knows(image_check: ModuleType) -> None:
    assert image_check.LIBRARY.name == LIBRARY_NAME
    assert image_check.LABELS == LABELS_NAME
    written = text_graph_config(
        "name", Signature((), ()), tasks={"default": CLASSES}, max_length=8, truncation="left"
    )
    assert set(written.parameters) == image_check.TOLD_PARAMETERS | image_check.TEXT_PARAMETERS


@pytest.mark.parametrize(
    "text",
    [
        'model_operations: < op_library_filename: "/x.so" >',
        "model_operations { op_library_filename: '/x.so' }",
        'model_operations { op_library_filename: "/x" ".so" };',
        'model_operations { op_library_filename: ["libsparse_ops.so" , "\\057x.so"] }',
        '# {\nmodel_operations { # }\n op_library_filename: "/x.so", }',
    ],
)
def test_the_image_reads_text_format_as_triton_does(image: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / CONFIG_NAME).write_text('name: "m" input { name: "}" dims: [-1, 2] }\n' + text)
    assert "names the op library" in check_in_image(image, tmp_path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tiny/manifest.json", {"op_library": {"version": "x" * 5000}}),
        ("tiny/manifest.json", {"files": {"x" * 5000: ""}}),
        ("tiny/config.pbtxt", "x" * 5000),
    ],
)
def test_the_image_says_in_a_line_what_is_long(
    image: Path, repository: Path, file: str, content: str | dict[str, object]
) -> None:
    path = repository / file
    if isinstance(content, str):
        add(path, f'; "{content}"')
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **content}))
    assert "error: " in (told := check_in_image(image, repository))
    assert len(told) < 2000


def test_the_image_refuses_a_parameter_whose_key_is_no_text(image: Path, repository: Path) -> None:
    add(repository / "tiny" / CONFIG_NAME, "parameters { key { } }\n")
    assert "has the parameter {}, which no entry has: remove it" in check_in_image(image, repository)


@pytest.mark.parametrize("text", ["name: ", "name {", "[x.y]: 1", 'name: "x', "} ", "name: 1 $"])
def test_the_image_refuses_what_it_cannot_read(image: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / CONFIG_NAME).write_text(text)
    assert "is malformed" in check_in_image(image, tmp_path)
