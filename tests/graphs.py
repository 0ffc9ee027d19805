"""Graphs of models, each traced once a session: a trace costs seconds, whatever the model's size."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from filelock import FileLock
from onnx import ModelProto
from transformers import PreTrainedModel


class GraphTable:
    """What `trace` answers, by all that it depends on: a model's class, config and weights, and the rest.

    Each trace is held to leave the model as it was. The files are shared by the processes that run the
    session, and hold nothing of an earlier one.
    """

    def __init__(self, folder: Path, trace: Callable[..., ModelProto]) -> None:
        self._folder = folder
        self._trace = trace
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, model: PreTrainedModel, *target: Any) -> Path:
        """The file of a graph, not to be written to."""
        path = self._folder / f"{_digest(model, target)}.onnx"
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                graph = self._trace(model, *target)
                assert _digest(model, target) == path.stem, "the trace has changed the model"
                unfinished = path.with_suffix(".unfinished")
                onnx.save(graph, unfinished)
                unfinished.replace(path)
        return path

    def trace(self, model: PreTrainedModel, *target: Any) -> ModelProto:
        """Stand in for the function that traces."""
        return onnx.load(self.path(model, *target))


# What saving and loading adds to a config, and no graph depends on.
_OF_FILES = ("_name_or_path", "architectures", "dtype", "transformers_version")


def _digest(model: PreTrainedModel, target: tuple[Any, ...]) -> str:
    config = {key: value for key, value in model.config.to_dict().items() if key not in _OF_FILES}
    told = {
        "class": type(model).__name__,
        "config": config,
        "attention": model.config._attn_implementation,
        "training": model.training,
        "target": [repr(each) for each in target],
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
