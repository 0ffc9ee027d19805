"""int8 beside fp32, in one process on the same texts: time, bytes, and what becomes of the answers.

    python benchmarks/serving/int8.py CHECKPOINT --rows sst2/dev.tsv --long-rows imdb_long/dev.tsv

Exports CHECKPOINT, a classifier of single texts, in both precisions and asks both by ONNX Runtime in this
process, one after the other in turns: 1, 8 and 32 short texts, 1 and 8 long ones. Told is the median and the
best time of a call of each, and the median of the turns' ratios. Every text of `--rows` is asked alone and in
batches of 32: the largest difference of a logit between the two must be 0. Writes `int8.csv`.
"""

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import typer
from onnx import numpy_helper

from sparse_serve.data import read_data
from sparse_serve.op_library import library_path
from sparse_serve.repository.config import GRAPH_NAME
from sparse_serve.repository.signature import TEXT_INPUT, nested

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from entries import export
from environment import environment
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results, Rows
from turns import times_in_turns, turns_for

NAMES = {"fp32": "reviews", "int8": "reviews_int8"}
BATCH = 32
OUTPUT = "logits"


def open_session(graph: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # The threads of one session would wait at the other's cost.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.register_custom_ops_library(str(library_path()))
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def ask(session: onnxruntime.InferenceSession, texts: Sequence[str]) -> npt.NDArray[Any]:
    logits: npt.NDArray[Any] = session.run([OUTPUT], {TEXT_INPUT: np.array(texts, object)[:, None]})[0]
    return logits


def in_batches(session: onnxruntime.InferenceSession, texts: Sequence[str], size: int) -> npt.NDArray[Any]:
    return np.concatenate([ask(session, texts[at : at + size]) for at in range(0, len(texts), size)])


def figures(sessions: dict[str, onnxruntime.InferenceSession], texts: Sequence[str], seconds: float) -> Line:
    """Return the figures of calls with these texts, of each precision in turn."""
    calls = {name: partial(ask, session, texts) for name, session in sessions.items()}
    took = times_in_turns(calls, turns_for(seconds, at_least=5))
    ratios = [full / small for full, small in zip(took["fp32"], took["int8"], strict=True)]
    return {
        **{f"{name}_median_ms": f"{statistics.median(each) * 1e3:.2f}" for name, each in took.items()},
        **{f"{name}_best_ms": f"{min(each) * 1e3:.2f}" for name, each in took.items()},
        "turns": str(len(ratios)),
        "median_ratio": f"{statistics.median(ratios):.2f}",
        "best_ratio": f"{min(took['fp32']) / min(took['int8']):.2f}",
    }


def linear_bytes(graph: Path) -> int:
    """Return the bytes of the linear layers' weights and of their scales."""
    model = onnx.load(graph)
    sizes = {each.name: numpy_helper.to_array(each).nbytes for each in model.graph.initializer}
    products = [
        node for node in nested(model.graph.node) if node.op_type in ("MatMul", "Gemm", "MatMulInteger")
    ]
    read = {node.input[1] for node in products} & sizes.keys()
    scales = {f"{name.removesuffix('.int8')}.scale" for name in read}
    return sum(sizes[name] for name in read | (scales & sizes.keys()))


def benchmark(
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    long_rows: Annotated[Path, typer.Option(help="Labelled texts of 512 tokens and more.")],
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    threads: Annotated[int, typer.Option(min=1, help="That compute.")] = 1,
    seconds: Annotated[float, typer.Option(help="For each kind of call, both precisions.")] = 10,
) -> None:
    export(checkpoint, repository, NAMES["fp32"])
    export(checkpoint, repository, NAMES["int8"], "--dtype=int8")
    graphs = {precision: repository / name / "1" / GRAPH_NAME for precision, name in NAMES.items()}
    sessions = {precision: open_session(graph, threads) for precision, graph in graphs.items()}
    texts, long_texts = ([row.text for row in read_data(path).rows] for path in (rows, long_rows))
    lines: list[Line] = []
    for kind, asked in {
        "1 short text": texts[:1],
        "8 short texts": texts[:8],
        "32 short texts": texts[:32],
        "1 text of 512 tokens": long_texts[:1],
        "8 texts of 512 tokens": long_texts[:8],
    }.items():
        lines.append({"what": kind, **figures(sessions, asked, seconds)})
        print(kind, lines[-1]["median_ratio"], lines[-1]["best_ratio"], flush=True)
    sizes = {precision: (linear_bytes(graph), graph.stat().st_size) for precision, graph in graphs.items()}
    for number, what in enumerate(("linear weights and scales", "file")):
        full, small = (sizes[precision][number] for precision in ("fp32", "int8"))
        lines.append(
            {
                "what": f"bytes of {what}",
                "fp32": str(full),
                "int8": str(small),
                "share": f"{small / full:.3f}",
            }
        )
    full_logits, logits = (in_batches(sessions[name], texts, BATCH) for name in ("fp32", "int8"))
    apart = float(np.abs(in_batches(sessions["int8"], texts, 1) - logits).max())
    lines += [
        {"what": "largest difference of a logit, alone and among 32", "int8": f"{apart:g}"},
        {
            "what": "other labels than in fp32",
            "int8": str(int((logits.argmax(1) != full_logits.argmax(1)).sum())),
        },
        {"what": "texts", "int8": str(len(texts))},
    ]
    for line in lines[-5:]:
        print(line)
    write_lines(
        results / "int8.csv", [{**environment(""), "threads": str(threads), **line} for line in lines]
    )
    if apart:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(benchmark)
