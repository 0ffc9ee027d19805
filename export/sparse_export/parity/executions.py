"""What the parity gate compares: torch on padded rows, and ONNX Runtime with and without the op library.

Where rows and columns are learned, every execution thresholds logits of its own. What a graph turns on is
read from it too, and `run_torch` can be made to attend by that.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor
from transformers import PreTrainedModel

from sparse_export.attention.measures import mask_shares, pairs_of_batch, zero_shares
from sparse_export.attention.spec import attention_of
from sparse_export.encoders.axis import axis_logits
from sparse_export.encoders.packing import PaddedPacking
from sparse_export.encoders.patterned import forced, recorded
from sparse_export.parity.examples import Batch
from sparse_export.tasks import model_head
from sparse_serve.cuda import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    require_provider,
    session_providers,
    telling_memory,
)
from sparse_serve.errors import CheckpointError, first_line
from sparse_serve.op_library import DOMAIN, Device
from sparse_serve.tasks import TASK_IDS

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Execution:
    """One way of ONNX Runtime to run a graph.

    Attributes:
        name: what reports and manifests call it.
        words: what messages call it, behind "ONNX Runtime".
        has_library: whether the op library is loaded; without it the model-local functions are inlined.
    """

    name: str
    words: str
    has_library: bool


EXECUTIONS = (
    Execution("library", "with the op library", has_library=True),
    Execution("portable", "without it", has_library=False),
)
"""What the gate runs a graph by, each on the provider that it is given."""


@dataclass(frozen=True)
class Answer:
    """What an execution answers to a batch.

    Attributes:
        output: the task's `graph_output`, float32: `(B, width)`, or by token `(B, L, width)`.
        measures: `rho`, with a pattern `rows_on` and `columns_on` too, `(B, layers)` float32 each.
        indicators: by layer, `(T + R, 2)` bool: whether each token's row and column are learned to be on, as
            `packing.PaddedPacking` lays tokens out; none where they are not learned. What is no key has its
            column off.
    """

    output: Array
    measures: Mapping[str, Array]
    indicators: Sequence[Tensor]


@dataclass(frozen=True)
class TorchAnswer(Answer):
    """What torch answers.

    Attributes:
        axis_logits: by layer, `(T + R, 2)` float32, of which `indicators` are those above 0.
    """

    axis_logits: Sequence[Tensor]


@torch.no_grad()
def run_torch(
    model: PreTrainedModel, batch: Batch, indicators: Sequence[Tensor] | None = None
) -> TorchAnswer:
    """Run a model on padded rows, with given rows and columns on in place of its own if there are any.

    With them, the logits of a layer are those that it has behind layers that attend by the given ones.
    """
    head = model_head(model)
    inputs = {name: torch.from_numpy(values) for name, values in batch.items()}
    mask = inputs["attention_mask"]
    spec = attention_of(model.config)
    with ExitStack() as stack:
        masks = [] if spec.pattern is None else stack.enter_context(recorded(model))
        logits = stack.enter_context(axis_logits(model))
        if indicators is not None:
            stack.enter_context(forced(model, _padded(indicators, mask)))
        outputs = model(
            **inputs,
            output_attentions=spec.lambd is not None,
            output_hidden_states=head.reads_layers,
        )
    by_mask = [mask_shares(layer, mask) for layer in masks]
    kept = outputs.attentions if spec.lambd is not None else [pairs_of_batch(layer, mask) for layer in masks]
    if kept:
        rho = zero_shares(kept, mask, last_of_first=head.reads_first_tokens)
    else:
        rho = torch.zeros(len(mask), model.config.num_hidden_layers)
    measures = {"rho": rho}
    if masks:
        measures["rows_on"] = torch.stack([shares[:, 2] for shares in by_mask], 1)
        measures["columns_on"] = torch.stack([shares[:, 3] for shares in by_mask], 1)
    packed_logits = [_packed(layer, mask) for layer in logits]
    return TorchAnswer(
        output=head.answer_padded(outputs, mask).numpy(),
        measures={name: values.numpy() for name, values in measures.items()},
        indicators=[layer > 0 for layer in packed_logits],
        axis_logits=packed_logits,
    )


def run_graph(
    graph: Path, op_library: Path | None, batches: Sequence[Batch], provider: str = CPU_PROVIDER
) -> list[Answer]:
    """Run a graph by ONNX Runtime, with an op library or on its functions alone.

    A graph of packed tokens takes rows without masked tokens among them. The graph's first output is the
    answer; the others are measures.

    Raises:
        CheckpointError: ONNX Runtime does not load it, or not on this provider.
        DeviceError: the provider is a GPU's that does not load, or is out of memory.
    """
    model, indicators = _telling_indicators(graph)
    session = open_session(model, graph.parent, op_library, provider)
    names = [output.name for output in session.get_outputs()]
    device: Device = "cuda" if provider == CUDA_PROVIDER else "cpu"
    answers = []
    for batch in batches:
        feeds = feeds_of(session, batch)
        with telling_memory(device, f"a batch of {len(batch['input_ids'])} texts of the gate"):
            outputs = dict(zip(names, session.run(names, feeds), strict=True))
        layers = [torch.from_numpy(np.stack([outputs.pop(each) for each in pair], 1)) for pair in indicators]
        for layer in layers:
            layer[np.count_nonzero(batch["attention_mask"]) :, 1] = False
        answers.append(Answer(outputs.pop(names[0]), outputs, layers))
    return answers


def open_session(
    model: str | bytes, folder: Path, op_library: Path | None, provider: str = CPU_PROVIDER
) -> onnxruntime.InferenceSession:
    """Load a graph, a path or bytes with weights that may lie in a folder.

    Raises:
        CheckpointError: ONNX Runtime does not load it, or not on this provider.
        DeviceError: the provider is a GPU's, and does not load.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if op_library is not None:
        options.register_custom_ops_library(str(op_library))
    # So that a graph given as bytes finds weights that lie beside its file.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    # Where a provider is missing, ONNX Runtime takes the CPU without a word.
    if provider not in onnxruntime.get_available_providers():
        raise CheckpointError(
            f"ONNX Runtime has no {provider} here: it has {', '.join(onnxruntime.get_available_providers())}"
        )
    try:
        session = onnxruntime.InferenceSession(model, options, providers=session_providers(provider))
    except Exception as error:  # its exceptions share no base
        raise CheckpointError(
            f"ONNX Runtime does not load the exported graph: {first_line(error)}"
        ) from error
    require_provider(session, provider)
    return session


def feeds_of(session: onnxruntime.InferenceSession, batch: Batch) -> Mapping[str, Array]:
    """Return what a graph takes of a padded batch: the batch, or its tokens one row behind another."""
    takes_packed = "cu_seqlens" in (each.name for each in session.get_inputs())
    return _packed_tokens(batch) if takes_packed else batch


def _packed_tokens(batch: Batch) -> dict[str, Array]:
    """Return the tokens of a padded batch one row behind another, as a tokenizer in the graph gives them."""
    keep = batch["attention_mask"] != 0
    lengths = keep.sum(1)
    packed: dict[str, Array] = {
        name: values if name == TASK_IDS else values[keep]  # which are one a row
        for name, values in batch.items()
        if name != "attention_mask"
    }
    packed["positions"] = np.concatenate([np.arange(length) for length in lengths])
    packed["cu_seqlens"] = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    return packed


def _telling_indicators(graph: Path) -> tuple[str | bytes, list[tuple[str, str]]]:
    """Return a graph that gives its learned rows and columns too, and their names by layer."""
    model = onnx.load(graph, load_external_data=False)
    names = [
        (node.output[0], node.output[1])
        for node in model.graph.node
        if (node.domain, node.op_type) == (DOMAIN, "AxisMask")
    ]
    if not names:
        return str(graph), []
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.BOOL, [None]) for pair in names for name in pair
    )
    return model.SerializeToString(), names


def _packed(logits: Tensor, mask: Tensor) -> Tensor:
    """Gather `(B, L, 2)` as a graph's tokens lie, `(T + R, 2)`; what is no key has no column to turn on."""
    packing = PaddedPacking.of(mask)
    packed = logits.reshape(-1, 2)[packing.tokens]
    packed[packing.ranks < 0, 1] = -torch.inf
    return packed


def _padded(layers: Sequence[Tensor], mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return packed rows and columns `(T + R, 2)` as `(B, L)` each; those of padding are off."""
    tokens = PaddedPacking.of(mask).tokens
    padded = []
    for layer in layers:
        on = torch.zeros(mask.numel(), 2, dtype=torch.bool)
        on[tokens] = layer
        rows, columns = on.view(*mask.shape, 2).unbind(-1)
        padded.append((rows, columns))
    return padded
