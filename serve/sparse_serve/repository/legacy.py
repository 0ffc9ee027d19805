"""Entries that earlier versions wrote: manifests of schema 1, and a `model.py` of their own in each version.

    schema 1                         read as
    problem_type, labels             the task "default"
    attention.kind, lambd, pattern   attention.normalizer, lambd, pattern

Their public models are of Triton's Python backend. They are served as they are, with what they were written
with: any other code in the place of `model.py` is refused.
"""

from collections.abc import Mapping
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.tasks import DEFAULT_TASK, Task

SCHEMA = 1
BACKEND = "python"


def upgraded(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest of schema 1 as this schema has it; what is malformed is left to be refused there."""
    record = dict(manifest)
    attention = record.get("attention")
    if isinstance(attention, Mapping):
        record["attention"] = _attention(attention)
    if "problem_type" in record and "labels" in record:
        kind, labels = record.pop("problem_type"), record.pop("labels")
        record["tasks"] = {DEFAULT_TASK: {"type": kind, "labels": labels}}
    return record


def _attention(attention: Mapping[str, Any]) -> dict[str, Any]:
    record = dict(attention)
    kind = record.pop("kind", None)
    is_sparse = kind == "sparsegen" or record.get("lambd") is not None
    record["normalizer"] = "sparsegen" if is_sparse else "softmax"
    if kind == "axis":
        record["pattern"] = record.get("pattern") or "axis"
    return record


def legacy_config(config: ModelConfig, task: Task) -> ModelConfig:
    """Return what an earlier version wrote where this one writes the public model's `config`."""
    legacy = ModelConfig()
    legacy.CopyFrom(config)
    legacy.backend = BACKEND
    del legacy.parameters["tasks"]
    legacy.parameters["problem_type"].string_value = task.type
    return legacy
