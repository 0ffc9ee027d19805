"""What the parity gate compares: torch on padded rows, and ONNX Runtime with and without the op library.

Where rows and columns are learned, every execution thresholds logits of its own. What a graph turns on is
read from it too, and `run_torch` can be made to attend by that.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_export.attention.implementations import zero_share
from sparse_export.encoders.axis import AxisLayer, LayerMask, forced, recorded
from sparse_export.encoders.checkpoint import AttentionSpec
from sparse_export.encoders.families import layers_of
from sparse_export.graph.packed import Packing
from sparse_export.parity.examples import Batch
from sparse_serve.errors import CheckpointError
from sparse_serve.op_library import DOMAIN

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Answer:
    """What an execution answers to a batch.

    Attributes:
        logits: `(B, C)` float32.
        measures: `rho`, with a pattern `rows_on` and `columns_on` too, `(B, layers)` float32 each.
        indicators: by layer, `(T + R, 2)` bool: whether each token's row and column are learned to be on, as
            `packed.Packing` lays tokens out; none where they are not learned. What is no key has its column
            off.
    """

    logits: Array
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
    """Run a classifier on padded rows, with given rows and columns on in place of its own if there are any.

    With them, the logits of a layer are those that it has behind layers that attend by the given ones.
    """
    inputs = {name: torch.from_numpy(values) for name, values in batch.items()}
    mask = inputs["attention_mask"]
    spec = AttentionSpec.from_config(model.config)
    with ExitStack() as stack:
        masks = [] if spec.pattern is None else stack.enter_context(recorded(model))
        logits = stack.enter_context(_axis_logits(model))
        if indicators is not None:
            stack.enter_context(forced(model, _padded(indicators, mask)))
        outputs = model(**inputs, output_attentions=spec.lambd is not None)
    if spec.lambd is not None:
        rho = [zero_share(weights, mask) for weights in outputs.attentions]
    elif masks:
        rho = [_share_forbidden(layer, mask) for layer in masks]
    else:
        rho = [torch.zeros(len(mask))] * model.config.num_hidden_layers
    measures = {"rho": rho}
    if masks:
        measures["rows_on"] = [_share_on(layer, layer.rows, mask) for layer in masks]
        measures["columns_on"] = [_share_on(layer, layer.columns, mask) for layer in masks]
    axis_logits = [_packed(layer, mask) for layer in logits]
    return TorchAnswer(
        logits=outputs.logits.numpy(),
        measures={name: torch.stack(layers, 1).numpy() for name, layers in measures.items()},
        indicators=[layer > 0 for layer in axis_logits],
        axis_logits=axis_logits,
    )


def run_graph(graph: Path, op_library: Path | None, batches: Sequence[Batch]) -> list[Answer]:
    """Run a graph by ONNX Runtime, with an op library or on its functions alone.

    Raises:
        CheckpointError: ONNX Runtime does not load it.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if op_library is not None:
        options.register_custom_ops_library(str(op_library))
    # So that a graph given as bytes finds weights that lie beside its file.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(graph.parent)
    )
    model, indicators = _telling_indicators(graph)
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"ONNX Runtime does not load the exported graph: {reason}") from error
    names = [output.name for output in session.get_outputs()]
    answers = []
    for batch in batches:
        outputs = dict(zip(names, session.run(names, batch), strict=True))
        layers = [torch.from_numpy(np.stack([outputs.pop(each) for each in pair], 1)) for pair in indicators]
        for layer in layers:
            layer[np.count_nonzero(batch["attention_mask"]) :, 1] = False
        answers.append(Answer(outputs.pop("logits"), outputs, layers))
    return answers


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


@contextmanager
def _axis_logits(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Collect the logits `(B, L, 2)` that each layer has of its rows and columns, imposed ones or not."""
    logits: list[Tensor] = []

    def collect(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        axis = getattr(layer, "axis", None)
        if isinstance(axis, AxisLayer):
            logits.append(axis(args[0] if args else kwargs["hidden_states"]))

    hooks = [layer.register_forward_pre_hook(collect, with_kwargs=True) for layer in layers_of(model)]
    try:
        yield logits
    finally:
        for hook in hooks:
            hook.remove()


def _packed(logits: Tensor, mask: Tensor) -> Tensor:
    """Gather `(B, L, 2)` as a graph's tokens lie, `(T + R, 2)`; what is no key has no column to turn on."""
    packing = Packing.of(mask)
    packed = logits.reshape(-1, 2)[packing.tokens]
    packed[packing.hidden.rows, 1] = -torch.inf
    return packed


def _padded(layers: Sequence[Tensor], mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return packed rows and columns `(T + R, 2)` as `(B, L)` each; those of padding are off."""
    tokens = Packing.of(mask).tokens
    padded = []
    for layer in layers:
        on = torch.zeros(mask.numel(), 2, dtype=torch.bool)
        on[tokens] = layer
        rows, columns = on.view(*mask.shape, 2).unbind(-1)
        padded.append((rows, columns))
    return padded


def _share_forbidden(layer: LayerMask, mask: Tensor) -> Tensor:
    """Return the share of each row's pairs that are not allowed `(B,)`, which softmax leaves at zero."""
    tokens = mask != 0
    pairs = layer.pairs(tokens.cumsum(1) - 1, tokens.sum(1))
    return zero_share(pairs[:, None], mask)


def _share_on(layer: LayerMask, learned: Tensor | None, mask: Tensor) -> Tensor:
    tokens = mask != 0
    on = layer.pattern.on(tokens.cumsum(1) - 1, learned)
    return (on & tokens).sum(1) / tokens.sum(1).clamp_min(1)
