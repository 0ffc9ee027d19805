"""The model side of sparse-serve: sparse attention in Transformers models, fine-tuned, exported and looked
at.

    from sparse_export import load_checkpoint

    model = load_checkpoint("checkpoints/reviews")    # attends as it was trained; a stock AutoModel would not

What a library user needs is here, and loads torch when it is first asked for: the command line, which lives
in this package too, works where there is none. The rooms, in the order of the way a model takes; none knows
of those behind it, which `make test` checks:

    attention    the mathematics: sparsegen-lin, patterns, how they are learned, what is measured
    encoders     families, specs of their models, extensions with weights of their own, packed tokens
    tasks        heads, one file a task
    checkpoint   an encoder and its heads, read from a folder and written to one
    training     an encoder and rows in, a checkpoint out; pretraining does so without labels, multitask with
                 the rows of several tasks
    graph        a checkpoint's ONNX graph, its nodes and their functions
    parity       the graph held against torch
    entry        all of it: a checkpoint in, an entry of a model repository out
    inspection   what a checkpoint attends to
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparse_export.attention.implementations import axis_attention, sparsegen_attention
    from sparse_export.attention.patterns import Pattern
    from sparse_export.attention.sparsegen import sparsegen_lin
    from sparse_export.attention.spec import AttentionSpec
    from sparse_export.checkpoint import load_checkpoint, new_model, save_checkpoint
    from sparse_export.encoders.spec import ModelSpec
    from sparse_export.encoders.tokenizer import load_tokenizer
    from sparse_export.entry import export_checkpoint
    from sparse_export.export_options import ExportOptions
    from sparse_export.multitask import MultitaskOptions, finetune_tasks, read_task_file
    from sparse_export.pretraining import PretrainOptions, pretrain
    from sparse_export.training import FinetuneOptions, finetune

__all__ = [
    "AttentionSpec",
    "ExportOptions",
    "FinetuneOptions",
    "ModelSpec",
    "MultitaskOptions",
    "Pattern",
    "PretrainOptions",
    "axis_attention",
    "export_checkpoint",
    "finetune",
    "finetune_tasks",
    "load_checkpoint",
    "load_tokenizer",
    "new_model",
    "pretrain",
    "read_task_file",
    "save_checkpoint",
    "sparsegen_attention",
    "sparsegen_lin",
]

_HOMES = {
    "AttentionSpec": "attention.spec",
    "ExportOptions": "export_options",
    "FinetuneOptions": "training",
    "ModelSpec": "encoders.spec",
    "MultitaskOptions": "multitask",
    "Pattern": "attention.patterns",
    "PretrainOptions": "pretraining",
    "axis_attention": "attention.implementations",
    "export_checkpoint": "entry",
    "finetune": "training",
    "finetune_tasks": "multitask",
    "load_checkpoint": "checkpoint",
    "load_tokenizer": "encoders.tokenizer",
    "new_model": "checkpoint",
    "pretrain": "pretraining",
    "read_task_file": "multitask",
    "save_checkpoint": "checkpoint",
    "sparsegen_attention": "attention.implementations",
    "sparsegen_lin": "attention.sparsegen",
}


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
