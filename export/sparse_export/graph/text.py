"""The graph that takes text: a tokenizer in front of a model's graph, and its answer in words behind it.

    TEXT, TEXT_PAIR, TASK → tokenizer → graph of tokens, or of a padded batch, in runs → scores, label, …

Nothing that a client sends makes it fail: a row that is not UTF-8, names no task, or has more tokens than are
read, where that is an error, has NaN for its numbers and an empty label, and the rows beside it are answered
as ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto, helper

from sparse_export.graph.around import Middle, Nodes
from sparse_export.graph.functions import GRAPH_DOMAIN
from sparse_export.graph.inputs import BATCH
from sparse_export.graph.runs import in_runs
from sparse_export.graph.tokenizer.node import output_values, tokenizer_node
from sparse_export.graph.tokenizer.tables import TokenizerTables
from sparse_export.tasks.head import Head
from sparse_export.tasks.several import SeveralHeads
from sparse_serve.repository.measures import MEASURES
from sparse_serve.repository.signature import TASK_INPUT, TEXT_INPUT, TEXT_PAIR_INPUT, text_inputs
from sparse_serve.runs import RUN_TOKENS
from sparse_serve.tasks import TASK_IDS
from sparse_serve.tasks.encoding import Truncation

_TOLD = ("token_count", "truncated", "invalid_at")

# Versions of the standard operators that have what they say.
_EQUAL_STRINGS, _JOINS_STRINGS = 19, 20


@dataclass(frozen=True)
class TextReading:
    """How a graph reads texts.

    Attributes:
        tables: of the tokenizer.
        max_length: tokens at which a row is cut.
        truncation: which of a longer row's tokens are read.
        pad_id: the id that fills the rows of a padded batch up.
    """

    tables: TokenizerTables
    max_length: int
    pad_id: int
    truncation: Truncation = "right"


def obstacle(head: Head, opset: int) -> str | None:
    """Return why a graph that takes text cannot answer as the server does; None where it can."""
    heads = head.heads.values() if isinstance(head, SeveralHeads) else [head]
    for each in heads:
        node = each.answer_node()
        if node is None and [output.name for output in each.task.outputs] != [each.task.graph_output]:
            return f"what a model for {each.task.option} says is put into words by the server"
        needs = _JOINS_STRINGS if node is not None and node.op in ("LabelsAboveHalf", "Values") else 0
        if opset < needs:
            return f"{each.task.option} joins strings, which standard operators do from opset {needs} on"
    if len(heads) > 1 and opset < _EQUAL_STRINGS:
        return f"a task is found by its name, which standard operators do from opset {_EQUAL_STRINGS} on"
    return None


def text_graph(
    core: ModelProto, head: Head, reading: TextReading, run_tokens: int = RUN_TOKENS
) -> ModelProto:
    """Return a graph from text to answers.

    Args:
        core: the model's graph, as `export_graph` gives it, of packed tokens or of a padded batch; it becomes
            part of what is returned.
        head: what reads its answer; `obstacle` has nothing against it.
        reading: how texts become its tokens.
        run_tokens: how many tokens are computed at a time, where a row has not more.

    Returns:
        Inputs `TEXT`, for tasks that read pairs `TEXT_PAIR`, for several tasks `TASK`, `(B, 1)` strings each;
        outputs those of the task (`Task.outputs`), `token_count`, `truncated` and `invalid_at` `(B, 1)`, and
        what the core measures.
    """
    if "attention_mask" in (each.name for each in core.graph.input):
        core = _taking_tokens(core, reading.pad_id)
    graph = Middle(in_runs(core, run_tokens))
    heads = head.heads if isinstance(head, SeveralHeads) else {}
    several = heads if len(heads) > 1 else {}
    before = Nodes("before")
    is_task = _find_tasks(before, list(several)) if several else None
    _tokenize(before, head, several, reading)
    after = Nodes("after")
    answer, measures = head.task.graph_output, [m.name for m in MEASURES if m.name in graph.outputs]
    is_bad = after.add("GreaterOrEqual", "invalid_at", after.constant("zero", np.array(0, np.int32)))
    if reading.truncation == "error":
        is_bad = after.add("Or", is_bad, "truncated")
    if is_task is not None:
        is_bad = after.add("Or", is_bad, after.add("Not", is_task))
    graph.fail_rows(after, answer, is_bad)
    if answer == "logits":
        scores, label = _read(after, head, several)
        after.add("Identity", scores, output="scores")
        after.add("Where", is_bad, after.constant("nothing", np.array("", object)), label, output="label")
    types = {"FP32": TensorProto.FLOAT, "BYTES": TensorProto.STRING}
    told = {value.name: value for value in output_values()}
    outputs = [
        *(
            helper.make_tensor_value_info(o.name, types[o.datatype], (BATCH, *o.dims))
            for o in head.task.outputs
        ),
        *(told[name] for name in _TOLD),
        *(graph.outputs[name] for name in measures),
    ]
    names = text_inputs(head.task)
    texts = [helper.make_tensor_value_info(name, TensorProto.STRING, (BATCH, 1)) for name in names]
    return graph.between(before, after, texts, outputs)


def _find_tasks(nodes: Nodes, names: list[str]) -> str:
    """Write each row's task to `task_ids`, 0 where it names none; return what says which name one."""
    is_named = nodes.add("Equal", TASK_INPUT, nodes.constant("names", np.array([names], object)))
    # Earlier releases of ONNX Runtime have no ArgMax of int64.
    flags = nodes.add("Cast", is_named, to=TensorProto.INT32)
    nodes.add("ArgMax", flags, axis=1, keepdims=1, output=TASK_IDS)
    most = nodes.add("ReduceMax", flags, nodes.constant("columns", np.array([1])), keepdims=1)
    return nodes.add("Cast", most, to=TensorProto.BOOL)


def _tokenize(nodes: Nodes, head: Head, several: Mapping[str, Head], reading: TextReading) -> None:
    pair = TEXT_PAIR_INPUT if head.task.reads_pairs else None
    single = None
    is_single = [not each.task.reads_pairs for each in several.values()]
    if pair is not None and any(is_single):
        single = nodes.add("Gather", nodes.constant("single", np.array(is_single)), TASK_IDS)
    node, tables = tokenizer_node(
        reading.tables, reading.max_length, TEXT_INPUT, pair, single, truncation=reading.truncation
    )
    nodes.nodes.append(node)
    nodes.constants += tables


def _taking_tokens(core: ModelProto, pad_id: int) -> ModelProto:
    """Return a graph of a padded batch as one of packed tokens, which it pads."""
    graph, before = Middle(core), Nodes("padded")
    padded = ["input_ids", "attention_mask", "token_type_ids"]
    packed = [value for value in output_values() if value.name in (*padded, "cu_seqlens")]
    for name in padded:
        graph.rename(name, f"{name}.padded")
    before.nodes.append(
        helper.make_node(
            "PaddedTokens",
            ["input_ids", "token_type_ids", "cu_seqlens"],
            [f"{name}.padded" for name in padded],
            domain=GRAPH_DOMAIN,
            pad_id=pad_id,
        )
    )
    return graph.between(before, Nodes("unpadded"), packed, graph.outputs.values())


def _read(nodes: Nodes, head: Head, several: Mapping[str, Head]) -> tuple[str, str]:
    """Read scores and labels off `logits`, those of each row as its task does."""
    if not several:
        (only,) = head.heads.values() if isinstance(head, SeveralHeads) else (head,)
        return _answer(nodes, only, "logits")
    zero, first, columns = (
        nodes.constant("no_score", np.array(0, np.float32)),
        nodes.constant("first", np.array([0])),
        nodes.constant("last_axis", np.array([1])),
    )
    scores, label = zero, nodes.constant("no_label", np.array("", object))
    for number, each in enumerate(several.values()):
        width, missing = each.task.width, head.task.width - each.task.width
        own = nodes.add("Slice", "logits", first, nodes.constant("width", np.array([width])), columns)
        own_scores, own_label = _answer(nodes, each, own)
        if missing:
            filled = nodes.constant("filled", np.array([0, 0, 0, missing]))
            own_scores = nodes.add("Pad", own_scores, filled, zero)
        is_own = nodes.add("Equal", TASK_IDS, nodes.constant("number", np.array(number)))
        scores = nodes.add("Where", is_own, own_scores, scores)
        label = nodes.add("Where", is_own, own_label, label)
    return scores, label


def _answer(nodes: Nodes, head: Head, logits: str) -> tuple[str, str]:
    """Add what reads a head's logits, and return the names of scores and label."""
    node = head.answer_node()
    assert node is not None  # an obstacle
    scores, label = nodes.call(node.op, logits, outputs=("scores", "label"), **node.attributes)
    return scores, label
