"""Graphs of models, each traced once a session: a trace costs seconds, whatever the model's size."""

import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from filelock import FileLock
from onnx import ModelProto
from torch.onnx._internal.exporter._registration import ONNXRegistry
from transformers import PreTrainedModel

from sparse_export.attention.spec import CONFIG_KEY


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
                attention = model.config._attn_implementation  # that no graph depends on
                with _spared():
                    graph = self._trace(model, *target)
                assert _digest(model, target) == path.stem, "the trace has changed the model"
                assert model.config._attn_implementation == attention
                unfinished = path.with_suffix(".unfinished")
                onnx.save(graph, unfinished)
                unfinished.replace(path)
        return path

    def trace(self, model: PreTrainedModel, *target: Any) -> ModelProto:
        """Stand in for the function that traces."""
        return onnx.load(self.path(model, *target))


@contextmanager
def _spared() -> Iterator[None]:
    """Spare a trace the garbage collector, and gathering anew all operators that torch can export."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(_every_operator))
        gc.disable()
        try:
            yield
        finally:
            gc.enable()


_every_operator = cache(ONNXRegistry.from_torchlib)


# What saving and loading adds to a config, and how answers are read and called: no graph depends on that.
_OF_FILES = ("_name_or_path", "architectures", "dtype", "transformers_version")
_OF_ANSWERS = ("id2label", "label2id", "problem_type")
_OF_ANSWERS_TO_A_TASK = ("labels", "max_answer_tokens", "no_answer", "paired", "stride", "type")


def _config(model: PreTrainedModel) -> dict[str, Any]:
    """Return what a graph depends on."""
    config = _without(model.config.to_dict(), *_OF_FILES, *_OF_ANSWERS)
    if (own := config.get(CONFIG_KEY)) is not None:
        tasks = {name: _without(task, *_OF_ANSWERS_TO_A_TASK) for name, task in own["tasks"].items()}
        config[CONFIG_KEY] = own | {"tasks": tasks}
    return config


def _without(entries: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name not in names}


def _digest(model: PreTrainedModel, target: tuple[Any, ...]) -> str:
    told = {
        "class": type(model).__name__,
        "config": _config(model),
        "training": model.training,
        "target": [repr(each) for each in target],
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
