"""Exits 0 when nothing that Triton would load or open for the model repository is foreign to this image.

On stdout it says what computes the models, "cpu" or "cuda", and so which op library is to be loaded: where
one of them computes on a GPU that with kernels for both. The image must have it then, and the machine a GPU.

    every model    names no op library but the image's own; no link of it leads out of the repository, and
                   nothing of it can be written by everybody
    every entry    was made for the version of the op library that the image has; its configurations, of one
                   model or two, have the backends and the parameters that sparse-serve writes, besides what
                   operators tune; its files are those that its manifest records, and none of them is code

Entries of earlier versions have a front of their own, which is one of those that sparse-serve wrote. What
`serve` holds beyond this, a configuration's values against the manifest, needs the package. With VERIFY=0
neither digests, links nor rights are looked at; MANIFEST_DIGESTS says which manifests entries must have.
Standard library only, for the image.
"""

import ctypes
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any

# Some of the package's modules lie beside this file, where the package is not installed.
sys.path.insert(0, str(Path(__file__).parent))

from sparse_serve.processor import vnni_warning
from sparse_serve.repository.contents import (
    Contents,
    Fault,
    access_faults,
    code_faults,
    file_faults,
    pin_faults,
    read_pins,
)
from sparse_serve.repository.tunable import (
    ACCELERATOR,
    ACCELERATOR_PARAMETERS,
    FRONT_PARAMETERS,
    SESSION_PARAMETERS,
    TEXT_PARAMETERS,
    TUNABLE,
    WARMUP_FILE,
)

LIBRARY = Path(__file__).parent / "lib" / "libsparse_ops.so"
CUDA_LIBRARY = LIBRARY.parent / "cuda" / LIBRARY.name
DRIVER = "libcuda.so.1"
LABELS = "labels.txt"

# What a configuration of an entry has beside its tunable parts; of those with but one value, that.
GRAPH = {"backend": "onnxruntime", "default_model_filename": "model.onnx"}
GRAPH_PARTS = TUNABLE | {
    "backend",
    "default_model_filename",
    "input",
    "output",
    "model_operations",
    "parameters",
}
FRONT = {"backend": "sparse_serve_text"}
FRONT_PARTS = TUNABLE | {"backend", "input", "output", "parameters"}
PARAMETERS = FRONT_PARAMETERS | {"model", "inputs", "max_length", "truncation", "tasks", "metrics"}
# Of a graph that takes text: what clients read, besides what operators tune.
TOLD_PARAMETERS = {"max_length", "truncation", "tasks"}
LEGACY_FRONT = {"backend": "python"}
LEGACY_PARAMETERS = {"model", "inputs", "max_length", "problem_type", "metrics"}

TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z0-9_.+-]+)
      | (?P<mark>[{}<>\[\]:;,])""",
    re.VERBOSE,
)
OPENING = {"{": "}", "<": ">"}

Message = dict[str, list[object]]


class UnfitError(Exception):
    """The repository is not to be served; says why in one line."""


def main() -> int:
    """Say on stderr, in one line, what keeps the repository from being served."""
    repository = Path(os.environ.get("MODEL_REPOSITORY", "/models"))
    version = ctypes.CDLL(str(LIBRARY)).SparseOpsVersion()
    device = "cpu"
    try:
        verify, pins = asked(os.environ.get("VERIFY", "1"), os.environ.get("MANIFEST_DIGESTS", ""))
        require_no_fault(pin_faults(repository, pins), f"model repository {repository}")
        for path in sorted(repository.glob("*/config.pbtxt")):
            require_own_library(path)
            if path.parent.name.startswith("."):
                raise UnfitError(f"Triton would load the hidden folder {path.parent} as a model: remove it")
            if verify:
                require_no_fault(access_faults(path.parent), f"model repository {repository}")
            if device == "cpu" and is_on_gpu(path):
                require_gpu(path.parent.name)
                device = "cuda"
        for path in sorted(repository.glob("*/manifest.json")):
            require_entry(path, version, verify=verify)
    except UnfitError as error:
        print("error:", error, file=sys.stderr)
        return 1
    print(device)
    return 0


def asked(verify: str, digests: str) -> tuple[bool, dict[str, str]]:
    """Read what is to be checked, VERIFY and MANIFEST_DIGESTS."""
    if verify not in ("0", "1"):
        raise UnfitError(f"VERIFY is {verify!r:.80}: 1 and 0 are understood")
    try:
        pins = read_pins(digests.split())
    except ValueError as error:
        raise UnfitError(f"MANIFEST_DIGESTS: {error}") from None
    if pins and verify == "0":
        raise UnfitError("MANIFEST_DIGESTS pins what VERIFY=0 does not look at: set one of them")
    return verify == "1", pins


def require_own_library(path: Path) -> None:
    """Refuse a model whose configuration names another op library: to load it is to run it."""
    for operations in messages(read_config(path), "model_operations"):
        for name in operations.get("op_library_filename", []):
            if name != LIBRARY.name:
                raise UnfitError(f"{path} names the op library {name!r:.80}: only {LIBRARY.name} is served")


def is_on_gpu(path: Path) -> bool:
    """Tell whether a model of this configuration is computed on a GPU."""
    groups = messages(read_config(path), "instance_group")
    kinds = [str(kind) for group in groups for kind in group.get("kind", [])]
    if odd := [kind for kind in kinds if not kind.startswith("KIND_")]:  # protobuf takes numbers too
        raise UnfitError(
            f"{path} has instances of kind {odd[0]!r:.80}: name it, KIND_CPU or KIND_GPU, as export does"
        )
    return "KIND_GPU" in kinds


def require_gpu(model: str) -> None:
    """Refuse a model that is computed on a GPU where there is none: Triton would say so in many lines."""
    if not CUDA_LIBRARY.is_file():
        raise UnfitError(
            f"model '{model}' computes on a GPU, and the image was built without the op library for it: "
            "build it with --build-arg CUDA=1"
        )
    try:
        driver = ctypes.CDLL(DRIVER)
        count = ctypes.c_int(0)
        failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError):
        raise UnfitError(
            f"model '{model}' computes on a GPU, and no NVIDIA driver is in the container: start it with "
            "--gpus all on a machine that has one"
        ) from None
    if failed or not count.value:
        why = f"error {failed} of CUDA" if failed else "it sees no GPU"
        raise UnfitError(
            f"model '{model}' computes on a GPU, and NVIDIA's driver does not give one ({why}): start the "
            "container with --gpus all, on a machine with a driver for the CUDA of this release of Triton"
        )


def require_entry(manifest: Path, version: int, *, verify: bool) -> None:
    """Refuse an entry for another op library, or with what Triton would load and no export writes."""
    public, name = manifest.parent, manifest.parent.name
    graph = public.parent / f"{name}_model"
    try:
        record = json.loads(manifest.read_bytes())
        served = manifests_of_versions(public, record)
        processors = {each.get("target_cpu") for each in served}
        wanted = served[-1]["op_library"]
        needed = version if wanted is None else wanted["version"]
        files = {str(file): str(digest) for file, digest in record["files"].items()}
        number = int(record.get("version", 1))
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise UnfitError(
            f"manifest {manifest} cannot be read ({type(error).__name__}): export the entry again"
        ) from None
    if needed != version:
        raise UnfitError(
            f"entry '{name}' was made for version {needed!r:.80} of the op library, the image has "
            f"version {version}: export it again, or build the image of its release"
        )
    for warning in (vnni_warning(name, each) for each in processors):
        if warning is not None:
            print("warning:", warning, file=sys.stderr)
    is_legacy = record.get("schema_version", 1) == 1
    takes_text = record.get("tokenizer") == "graph"
    if takes_text:
        require_parts(public / "config.pbtxt", GRAPH_PARTS, GRAPH)
        require_parameters(public / "config.pbtxt", SESSION_PARAMETERS | TEXT_PARAMETERS | TOLD_PARAMETERS)
    else:
        require_parts(public / "config.pbtxt", FRONT_PARTS, LEGACY_FRONT if is_legacy else FRONT)
        require_parameters(public / "config.pbtxt", LEGACY_PARAMETERS if is_legacy else PARAMETERS)
    models = [public]
    if graph.is_dir() or not takes_text:
        require_parts(graph / "config.pbtxt", GRAPH_PARTS, GRAPH)
        require_parameters(graph / "config.pbtxt", SESSION_PARAMETERS)
        models.append(graph)
    require_no_fault(code_faults(models, is_legacy=is_legacy), f"entry '{name}'")
    if verify:
        tuned = {f"{model.name}/config.pbtxt" for model in models}
        require_no_fault(file_faults(Contents(models, files, number, tuned)), f"entry '{name}'")


def manifests_of_versions(public: Path, last_written: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the manifest of each version that an entry has, ascending.

    That of the version written last lies beside them all; it may have been taken out of service.
    """
    numbers = sorted(int(path.name) for path in public.iterdir() if path.is_dir() and path.name.isdecimal())
    own = [public / str(number) / "manifest.json" for number in numbers]
    found = [
        json.loads(path.read_bytes())
        if number != last_written.get("version", 1) and path.is_file()
        else last_written
        for number, path in zip(numbers, own, strict=True)
    ]
    return found or [last_written]


def require_parts(path: Path, parts: Set[str], values: dict[str, str]) -> None:
    """Refuse parts of a configuration that sparse-serve does not write, and other values of those it does."""
    config = read_config(path)
    foreign = sorted(config.keys() - parts)
    if foreign:
        raise UnfitError(f"{path} has {foreign[0]!r:.80}, which no entry has: export it again")
    for key, value in values.items():
        if config.get(key) != [value]:
            raise UnfitError(f"{path} has {config.get(key)!r:.80} as {key}, not '{value}': export it again")
    require_tuned(config, path)
    for output in messages(config, "output"):
        for name in output.get("label_filename", []):
            if name != LABELS:
                raise UnfitError(f"{path} takes labels from {name!r:.80}, not {LABELS}: export it again")


def require_tuned(config: Message, path: Path) -> None:
    """Refuse what, in the parts that operators tune, names a file or an address."""
    for optimization in messages(config, "optimization"):
        for accelerators in messages(optimization, "execution_accelerators"):
            for each in (each for kind in accelerators for each in messages(accelerators, kind)):
                if each.get("name") != [ACCELERATOR]:
                    raise UnfitError(f"{path} asks for an accelerator other than {ACCELERATOR}: remove it")
                require_keys(each, ACCELERATOR_PARAMETERS, path)
    for warmup in messages(config, "model_warmup"):
        for sample in (value for each in messages(warmup, "inputs") for value in messages(each, "value")):
            for name in sample.get("input_data_file", []):
                if not re.fullmatch(WARMUP_FILE, str(name)):
                    raise UnfitError(
                        f"{path} warms up with {name!r:.80}, no file of the folder warmup: remove it"
                    )


def require_parameters(path: Path, known: Set[str]) -> None:
    """Refuse a parameter of a configuration that sparse-serve does not write."""
    require_keys(read_config(path), known, path)


def require_keys(holder: Message, known: Set[str], path: Path) -> None:
    """Refuse the parameters of a message that are not known."""
    for parameter in messages(holder, "parameters"):
        for key in parameter.get("key", []):
            if not isinstance(key, str) or key not in known:
                raise UnfitError(f"{path} has the parameter {key!r:.80}, which no entry has: remove it")


def require_no_fault(faults: Iterable[Fault], subject: str) -> None:
    """Refuse what has a fault, or cannot be read."""
    try:
        for fault in faults:
            raise UnfitError(f"{subject} is not fit to serve: {fault.message}; {fault.remedy}")
    except OSError as error:
        raise UnfitError(f"{error.filename} cannot be read: {error.strerror}") from None


def messages(config: Message, key: str) -> list[Message]:
    """Return the messages in a field, repeated or not."""
    return [each for each in config.get(key, []) if isinstance(each, dict)]


def read_config(path: Path) -> Message:
    """Read a configuration in protobuf's text format: lists of values by field, strings without quotes."""
    try:
        text = path.read_text(encoding="utf-8")
        return message(tokens(text), "")
    except OSError as error:
        raise UnfitError(f"configuration {path} cannot be read: {error.strerror}") from None
    except (ValueError, StopIteration, RecursionError) as error:
        raise UnfitError(f"configuration {path} is malformed ({error}): export the entry again") from None


def tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each token, with an empty one at the end."""
    position = 0
    while position < len(text):
        found = TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"unexpected {text[position]!r} at character {position}")
        position = found.end()
        if found.lastgroup != "skip":
            yield str(found.lastgroup), found.group()
    yield "end", ""


def message(stream: Iterator[tuple[str, str]], end: str) -> Message:
    """Read the fields of a message up to the token that ends it."""
    fields: Message = {}
    kind, token = next(stream)
    while token != end or kind == "string":
        if kind != "word":
            raise ValueError(f"{token!r:.80} where the name of a field is due")
        values = fields.setdefault(token, [])
        kind, token = next(stream)
        if token == ":" and kind == "mark":
            kind, token = next(stream)
        if token == "[" and kind == "mark":
            kind, token = next(stream)
            while token != "]" or kind == "string":
                found, (kind, token) = value(stream, kind, token)
                values.append(found)
                if token == "," and kind == "mark":
                    kind, token = next(stream)
            kind, token = next(stream)
        else:
            found, (kind, token) = value(stream, kind, token)
            values.append(found)
        if token in (",", ";") and kind == "mark":
            kind, token = next(stream)
    return fields


def value(stream: Iterator[tuple[str, str]], kind: str, token: str) -> tuple[object, tuple[str, str]]:
    """Return the value that begins with a token, and the token after it."""
    if kind == "mark" and token in OPENING:
        return message(stream, OPENING[token]), next(stream)
    if kind == "word":
        return token, next(stream)
    if kind != "string":
        raise ValueError(f"{token!r:.80} where a value is due")
    parts = []
    while kind == "string":  # strings side by side are one
        parts.append(token[1:-1])
        kind, token = next(stream)
    text = "".join(parts)
    # What is escaped is kept so: no name of ours is, and a name in disguise is foreign all the same.
    return text, (kind, token)


if __name__ == "__main__":
    sys.exit(main())
