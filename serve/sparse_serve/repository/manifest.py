"""`manifest.json`: what an entry of the model repository is, from what it was made, and its digests."""

from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    model_validator,
)

from sparse_serve.errors import RepositoryError
from sparse_serve.tasks import ProblemType, Task

SCHEMA_VERSION: Literal[1] = 1
# Triton reads a version as a signed 64-bit integer; nobody needs more than this many.
MAX_VERSION = 2**31 - 1
MANIFEST_NAME = "manifest.json"
# What can name a model: one folder, and nothing that a shell, a URL or a configuration reads in its own way.
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


# Types of a graph's weights and of what it computes on; its logits are FP32 in any case.
Dtype = Literal["fp32", "fp16"]


def _inside(path: str) -> str:
    """Keep a path that is joined to the repository's from leaving it."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0].startswith("/") or ".." in parts or "\0" in path:
        raise ValueError("a path must be relative to the repository and stay inside it")
    return path


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

    `lambd` is sparsegen-lin's λ < 1. Kind "axis" has a `pattern`, by the name that `export --attention`
    takes, and its numbers: the sizes `local`, `global_size` and `random` (with the `seed` of its draws), and
    the `diagonals`, offsets that are on, of all layers or of each. Where `finetune` made the checkpoint, its
    `rho` is the share of pairs that are not allowed, and `rho_target` what was asked for.
    """

    kind: Literal["softmax", "sparsegen", "axis"]
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

    `files` maps paths relative to the repository (`NAME/labels.txt`) to sha256 and is filled in by
    `write_entry`; `parity` and `quality` hold the figures of the export gates; `baselines` maps a variant
    to the model of that name under `NAME/baselines/`.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    name: str
    version: int = Field(default=1, ge=1, le=MAX_VERSION)
    versions: Versions
    opset: int
    ir_version: int
    dtype: Dtype = "fp32"
    triton_release: str
    attention: Attention
    problem_type: ProblemType
    labels: tuple[str, ...]
    max_length: int = Field(ge=1)
    layers: int = Field(ge=1)
    op_library: OpLibrary | None
    files: dict[_RelativePath, str] = {}
    parity: dict[str, JsonValue] | None = None
    quality: dict[str, JsonValue] | None = None
    baselines: dict[str, _ModelName] = {}
    command: str = ""

    @model_validator(mode="after")
    def _can_be_served(self) -> Self:
        _ = self.task
        return self

    @property
    def task(self) -> Task:
        """What the entry answers."""
        return Task(self.problem_type, self.labels)

    def to_json(self) -> str:
        """Return the manifest as indented JSON with a final newline."""
        return self.model_dump_json(indent=2) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read a `manifest.json`.

    Raises:
        RepositoryError: the file is missing, unreadable, or does not follow the schema.
    """
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RepositoryError(f"manifest {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise RepositoryError(
            f"manifest {path} is not of schema version {SCHEMA_VERSION}: {where}: {first['msg']}; "
            "export the entry again"
        ) from error
