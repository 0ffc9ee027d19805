"""A graph of token ids that no ids make fail.

A server runs the rows of several clients together, and some servers fail them together. So an id or a type
that the encoder does not embed, or a token beyond its positions, is put right before it is looked up, and its
row is answered by NaN; the rows beside it are answered as ever.
"""

import numpy as np
from onnx import ModelProto
from transformers import PreTrainedModel

from sparse_export.encoders.families import family_of, joins_neighbours, max_tokens
from sparse_export.graph.around import Middle, Nodes
from sparse_export.tasks import model_head

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"


def guarded_graph(core: ModelProto, model: PreTrainedModel) -> ModelProto:
    """Return a graph of a padded batch whose rows fail alone.

    Rows that are too long are told apart in packed graphs alone: a padded one fails a batch of more columns
    than there are positions, in which every row is as long.

    Args:
        core: the model's graph of a padded batch, as `export_graph` gives it; it becomes part of what is
            returned.
        model: whose graph it is.

    Returns:
        A graph of the same inputs and outputs.
    """
    graph, before, after = Middle(core), Nodes("before"), Nodes("after")
    limits = {
        IDS: int(model.get_input_embeddings().num_embeddings) - 1,
        TYPES: int(getattr(model.config, "type_vocab_size", 0)) - 1,
    }
    is_readable = _within(before, model)
    mask = before.add("Where", is_readable, MASK, before.constant("no_token", np.array(0)))
    graph.rename(MASK, mask)
    for name in (name for name in limits if name in graph.inputs):
        known, is_known = before.call("KnownIds", name, outputs=("known", "is_known"), last=limits[name])
        is_readable = before.add("And", is_known, is_readable)
        if name == IDS and joins_neighbours(model.config):
            # What the mask hides is read as a neighbour: one that is no id counts as padding.
            padding = before.constant("padding", np.array(model.config.pad_token_id))
            known = before.add("Where", is_known, known, padding)
        graph.rename(name, known)
    (is_bad,) = before.call("UnreadableRows", MASK, is_readable, outputs=("is_unreadable",))

    answer = model_head(model).task.graph_output
    axes = len(graph.outputs[answer].type.tensor_type.shape.dim)
    if axes > 2:
        is_bad = after.add("Unsqueeze", is_bad, after.constant("axes", np.arange(2, axes)))
    graph.fail_rows(after, answer, is_bad)
    return graph.between(before, after, graph.inputs.values(), graph.outputs.values())


def _within(nodes: Nodes, model: PreTrainedModel) -> str:
    """Return what says which tokens have a position, `(L,)` or `(B, L)` bool."""
    positions = max_tokens(model.config)
    if family_of(model.config).counts_ids:
        pad_id = int(model.config.pad_token_id)
        outputs = nodes.call("CountedWithin", IDS, outputs=("is_within",), positions=positions, pad_id=pad_id)
    else:
        outputs = nodes.call("ColumnsWithin", IDS, outputs=("is_within",), positions=positions)
    return outputs[0]
