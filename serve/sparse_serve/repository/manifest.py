"""`manifest.json`: what an entry of the model repository is, from what it was made, and its digests."""

import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationError,
)

from sparse_serve.errors import RepositoryError, TaskError, first_fault, in_brief
from sparse_serve.op_library import Device
from sparse_serve.repository import legacy
from sparse_serve.repository.contents import MODEL_NAME
from sparse_serve.tasks import Task, answered, read_tasks
from sparse_serve.tasks.encoding import Truncation

SCHEMA_VERSION: Literal[3] = 3
# Triton reads a version as a signed 64-bit integer; nobody needs more than this many.
MAX_VERSION = 2**31 - 1


# Where texts become tokens: in the graph itself, or in the backend of the public model.
TokenizerPlace = Literal["graph", "server"]

# Types of a graph's weights and of what it computes on; its logits are FP32 in any case.
Dtype = Literal["fp32", "fp16", "bf16", "int8"]

# What the processors that run an int8 graph have: instructions that add products of 8 bits in 32, or not
# necessarily.
TargetCpu = Literal["vnni", "any"]


def _inside(path: str) -> str:
    """Keep a path that is joined to the repository's from leaving it."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0].startswith("/") or ".." in parts or "\0" in path:
        raise ValueError("a path must be relative to the repository and stay inside it")
    return path


def _tasks(value: Any) -> dict[str, Task]:
    """Read tasks, or take them as they are; a TaskError is no fault of the schema, and passes.

    Raises:
        TaskError: there is none, one is unknown or malformed, or one entry cannot answer them all.
    """
    is_read = isinstance(value, dict) and value and all(isinstance(task, Task) for task in value.values())
    tasks = dict(value) if is_read else read_tasks(value)
    try:
        answered(tasks)
    except ValueError as error:
        raise TaskError(str(error)) from None
    return tasks


_Tasks = Annotated[
    dict[str, Task],
    PlainValidator(_tasks),
    PlainSerializer(lambda tasks: {name: task.to_json() for name, task in tasks.items()}),
]
_RelativePath = Annotated[str, AfterValidator(_inside)]
_ModelName = Annotated[str, StringConstraints(pattern=f"^{MODEL_NAME}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Versions(_Record):
    """Versions of what made the entry; None where it took no part."""

    package: str
    torch: str | None = None
    transformers: str | None = None
    onnx: str | None = None
    onnxruntime: str | None = None


class Attention(_Record):
    """The attention of every layer: all keys with softmax or sparsegen-lin, or those of a pattern.

    `lambd` is sparsegen-lin's λ < 1. A `pattern` goes by the name that `export --attention` takes, with its
    numbers: the sizes `local`, `global_size` and `random` (with the `seed` of its draws), and the
    `diagonals`, offsets that are on, of all layers or of each. Where `finetune` made the checkpoint, its
    `rho` is the share of pairs that are not allowed, of all queries, and `rho_target` what was asked for.
    """

    normalizer: Literal["softmax", "sparsegen"]
    lambd: float | None = None
    pattern: str | None = None
    local: int | None = Field(default=None, ge=0)
    global_size: int | None = Field(default=None, ge=0)
    random: int | None = Field(default=None, ge=0)
    seed: int | None = Field(default=None, ge=0)
    diagonals: tuple[tuple[int, ...], ...] | None = None
    rho_target: float | None = Field(default=None, ge=0, le=1)
    rho: float | None = Field(default=None, ge=0, le=1)


class OpLibrary(_Record):
    """The op library that passed the parity gate: domain version and sha256."""

    version: int
    sha256: str


class Manifest(_Record):
    """Everything recorded about one entry.

    `tasks` are what it answers, by name, in the order of the graph's `task_ids` where they are several; of
    texts of more than `max_length` tokens `truncation` says which of them are read, by a `tokenizer` in the
    graph or in the server; `device` is what it was made to be computed on, `target_cpu` what int8 weights
    were made for, None for others. `files` maps paths relative to the repository (`NAME/labels.txt`) to
    sha256 and is filled in by `write_entry`; `parity` and `quality` hold the figures of the export gates,
    `quantized` those of an int8 graph; `baselines` maps a variant to the model of that name under
    `NAME/baselines/`. One of schema 1 has been read as `legacy` says; until schema 3 all tokenizers were in
    the server.
    """

    schema_version: Literal[1, 2, 3] = SCHEMA_VERSION
    name: str
    version: int = Field(default=1, ge=1, le=MAX_VERSION)
    versions: Versions
    opset: int
    ir_version: int
    dtype: Dtype = "fp32"
    device: Device = "cpu"
    target_cpu: TargetCpu | None = None
    triton_release: str
    attention: Attention
    tasks: _Tasks
    max_length: int = Field(ge=1)
    truncation: Truncation = "right"
    tokenizer: TokenizerPlace = "server"
    layers: int = Field(ge=1)
    op_library: OpLibrary | None
    files: dict[_RelativePath, str] = {}
    parity: dict[str, JsonValue] | None = None
    quality: dict[str, JsonValue] | None = None
    quantized: dict[str, JsonValue] | None = None
    baselines: dict[str, _ModelName] = {}
    command: str = ""

    @property
    def task(self) -> Task:
        """What the entry answers: its only task, or `Several`."""
        return answered(self.tasks)

    @property
    def is_legacy(self) -> bool:
        """Whether an earlier version wrote the entry, with a front of its own."""
        return self.schema_version == legacy.SCHEMA

    def to_json(self) -> str:
        """Return the manifest as indented JSON with a final newline."""
        return self.model_dump_json(indent=2) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read a `manifest.json`, of this schema or an earlier one.

    Raises:
        RepositoryError: the file is missing, unreadable, or does not follow a schema known here.
    """
    try:
        record = json.loads(path.read_bytes())
        version = record.get("schema_version", legacy.SCHEMA) if isinstance(record, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise RepositoryError(
                f"manifest {path} is of schema version {in_brief(version)}, known here are up to "
                f"{SCHEMA_VERSION}: upgrade sparse-serve"
            )
        return Manifest.model_validate(legacy.upgraded(record) if version == legacy.SCHEMA else record)
    except OSError as error:
        raise RepositoryError(f"manifest {path} cannot be read: {error.strerror}") from error
    except TaskError as error:
        raise RepositoryError(f"manifest {path}: {error}") from error
    except (ValidationError, ValueError, RecursionError) as error:
        raise RepositoryError(
            f"manifest {path} is not of schema version {SCHEMA_VERSION}: {_first_fault(error)}; "
            "export the entry again"
        ) from error


def _first_fault(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return first_fault(error)
    return f"the file: not JSON: {in_brief(error)}"
