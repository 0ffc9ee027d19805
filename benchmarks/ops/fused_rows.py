"""`SkipLayerNormalization` and `BiasGelu` beside ONNX Runtime's own, and a model with them beside it without.

    python benchmarks/ops/fused_rows.py [--threads 1] [--checkpoint FOLDER --rows FILE]

Both take turns in one process. Of an op the best time of each counts, `ort_over_this` is the time of that of
domain `com.microsoft` over ours, and `largest_difference` that of an output between them. With a checkpoint
its graph is asked too, in float32 and in 8-bit integers, as `last_layer.py` does it: times are the
processor's, a figure is the sum over batches of each one's best time.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer
from attention import OPSET, environment_of, ort_value, session
from last_layer import in_turns, loads, packed
from onnx import ModelProto, TensorProto, helper

from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.graph import export
from sparse_export.graph.export import GraphTarget, export_graph
from sparse_export.graph.functions import attach_functions
from sparse_export.graph.int8 import quantized_graph
from sparse_serve.data import read_data
from sparse_serve.op_library import DOMAIN, OPSET_VERSION
from sparse_serve.processor import has_vnni

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from lines import write_lines
from turns import best_ratio, time_in_turns

TOKENS = (24, 512, 2048)
ROUNDS = 12
ORT = "com.microsoft"
Line = dict[str, Any]


@dataclass(frozen=True)
class Op:
    """One of both: its inputs in order, by name with their rank, its attributes, and how wide rows are."""

    name: str
    inputs: Mapping[str, int]
    attributes: Mapping[str, Any]
    widths: Sequence[int]


OPS = (
    Op(
        "SkipLayerNormalization",
        {"input": 3, "skip": 3, "gamma": 1, "beta": 1, "bias": 1},
        {"epsilon": 1e-12},
        (384, 768),
    ),
    Op("BiasGelu", {"input": 3, "bias": 1}, {}, (1536, 3072)),
)


def main(
    threads: Annotated[int, typer.Option(min=1, help="Threads of both.")] = 1,
    checkpoint: Annotated[Path | None, typer.Option(help="A classifier's folder.")] = None,
    rows: Annotated[Path | None, typer.Option(help="Texts for it, such as SST-2's dev set.")] = None,
    output: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path(__file__).parent
    / "results"
    / "fused_rows.csv",
) -> None:
    """Time both on every load."""
    lines = [of_op(op, tokens, width, threads) for op in OPS for width in op.widths for tokens in TOKENS]
    if checkpoint is not None and rows is not None:
        lines += of_model(checkpoint, rows, threads)
    environment = environment_of(threads)
    write_lines(output, [line | environment for line in lines])


def told(load: str, best_ms: float, ratio: float, difference: float) -> Line:
    print(f"{load:44} {best_ms:9.3f} ms {ratio:6.2f}x", flush=True)
    return {
        "load": load,
        "best_ms": round(best_ms, 4),
        "ort_over_this": round(ratio, 3),
        "largest_difference": f"{difference:.1e}",
    }


def of_op(op: Op, tokens: int, width: int, threads: int) -> Line:
    """Return the line of one node."""
    rng = np.random.default_rng(0)
    shapes = {name: (1, tokens, width)[-rank:] for name, rank in op.inputs.items()}
    feed = {name: ort_value(rng.standard_normal(shape, dtype=np.float32)) for name, shape in shapes.items()}
    sessions = {domain: session(node(op, domain), threads, domain == DOMAIN) for domain in (DOMAIN, ORT)}
    outputs = [each.run_with_ort_values(None, feed)[0].numpy() for each in sessions.values()]
    times = time_in_turns(
        {domain: partial(each.run_with_ort_values, None, feed) for domain, each in sessions.items()}
    )
    difference = float(np.abs(outputs[0] - outputs[1]).max())
    ratio = best_ratio(times[ORT], times[DOMAIN])
    return told(f"{op.name} ({tokens}, {width})", min(times[DOMAIN]) * 1e3, ratio, difference)


def node(op: Op, domain: str) -> ModelProto:
    """Return a model of the op as one domain has it."""
    graph = helper.make_graph(
        [helper.make_node(op.name, list(op.inputs), ["output"], domain=domain, **op.attributes)],
        "fused",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
            for name, rank in op.inputs.items()
        ],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, OPSET_VERSION)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    if domain == DOMAIN:
        attach_functions(model, OPSET)
    return model


def of_model(checkpoint: Path, rows: Path, threads: int) -> list[Line]:
    """Return the lines of a checkpoint's graph, in both precisions."""
    model, tokenizer = load_checkpoint(checkpoint), load_tokenizer(checkpoint)
    with patch.object(export, "fuse_rows"):
        plain = export_graph(model, "tokens", GraphTarget())
    ours = export_graph(model, "tokens", GraphTarget())
    batches = loads([tokenizer(row.text)["input_ids"] for row in read_data(rows).rows])
    lines = []
    for precision in ("float32", "int8"):
        if precision == "int8":
            plain, ours = (quantized_graph(each, "vnni" if has_vnni() else "any") for each in (plain, ours))
        sessions = {"plain": session(plain, threads, True), "ours": session(ours, threads, True)}
        taken = {each.name for each in sessions["ours"].get_inputs()}
        for load, each in batches.items():
            feeds = [{name: packed(batch)[name] for name in taken} for batch in each]
            times, difference = in_turns(sessions, feeds, ROUNDS)
            best = {name: sum(min(runs) for runs in by_batch) for name, by_batch in times.items()}
            ratio = best["plain"] / best["ours"]
            lines.append(told(f"{precision}, {load}", 1e3 * best["ours"] / len(feeds), ratio, difference))
    return lines


if __name__ == "__main__":
    typer.run(main)
