"""A graph whose last layer computes first tokens alone, beside the same graph with all its rows.

    python benchmarks/ops/last_layer.py checkpoints/reviews --rows sst2/dev.tsv [--threads 1]

Both take turns in one process on the same batches of packed texts: so many of a file's a run, and texts
joined until they have 512 tokens. A turn is all batches, so that a graph finds its weights in the caches as
in a server: fetching them from memory costs a single short text as much in either. Times are the processor's,
of all threads, which others on the machine stretch least; a figure is the sum over batches of each one's best
time, or of its median.

Writes `results/last_layer.csv`, a line per load with the environment. `largest_difference`
is that of a logit between the two, whose linear layers may be computed in other blocks.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import typer
from attention import environment_of, session
from torch import Tensor
from transformers import PreTrainedModel

from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.packing import Packing
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.graph.export import GraphTarget, export_graph
from sparse_export.tasks.first_token import FirstTokenHead
from sparse_serve.data import read_data

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from lines import write_lines

Feed = dict[str, npt.NDArray[Any]]

TEXTS_A_RUN = (1, 8, 32)
LONG = 512
BATCHES = 20


@contextmanager
def all_rows() -> Iterator[None]:
    """Have heads read first tokens off a last layer that computes every row."""
    own = FirstTokenHead.answer_packed

    def answer(
        head: FirstTokenHead, model: PreTrainedModel, states: Sequence[Tensor], packing: Packing
    ) -> Tensor:
        return own(head, model, [states[-1].index_select(0, packing.first)], packing)

    with (
        patch.object(FirstTokenHead, "answer_packed", answer),
        patch.object(FirstTokenHead, "reads_first_tokens", False),
    ):
        yield


def main(
    checkpoint: Annotated[Path, typer.Argument(help="A classifier's folder, such as checkpoints/reviews.")],
    rows: Annotated[Path, typer.Option(help="Texts, such as SST-2's dev set.")],
    threads: Annotated[int, typer.Option(min=1, help="Threads of both.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each graph on each batch.")] = 12,
    output: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path(__file__).parent
    / "results"
    / "last_layer.csv",
) -> None:
    """Time both on every load."""
    model = load_checkpoint(checkpoint)
    with all_rows():
        whole = export_graph(model, "tokens", GraphTarget())
    graphs = {"all rows": whole, "first tokens": export_graph(model, "tokens", GraphTarget())}
    sessions = {name: session(graph, threads, with_library=True) for name, graph in graphs.items()}
    taken = {each.name for each in next(iter(sessions.values())).get_inputs()}
    tokenizer = load_tokenizer(checkpoint)
    texts = [tokenizer(row.text)["input_ids"] for row in read_data(rows).rows]
    lines = []
    for load, batches in loads(texts).items():
        feeds = [{name: packed(batch)[name] for name in taken} for batch in batches]
        times, difference = in_turns(sessions, feeds, rounds)
        best = {name: sum(min(runs) for runs in each) for name, each in times.items()}
        middle = {name: sum(median(runs) for runs in each) for name, each in times.items()}
        lines.append(
            {
                "load": load,
                "tokens_a_run": round(float(np.mean([len(feed["input_ids"]) for feed in feeds])), 1),
                "layers": model.config.num_hidden_layers,
                "best_ms": round(1e3 * best["first tokens"] / len(feeds), 3),
                "best_ratio": round(best["all rows"] / best["first tokens"], 3),
                "median_ratio": round(middle["all rows"] / middle["first tokens"], 3),
                "largest_difference": f"{difference:.1e}",
                **environment_of(threads),
            }
        )
        print(*(f"{name} {value}" for name, value in islice(lines[-1].items(), 7)), flush=True)
    write_lines(output, lines)


def loads(texts: list[list[int]]) -> dict[str, list[list[list[int]]]]:
    """Return batches of texts by what a run is of."""
    by_count = {
        f"{count} texts": [texts[first : first + count] for first in range(0, count * BATCHES, count)]
        for count in TEXTS_A_RUN
    }
    words = [token for text in texts for token in text[1:-1]]
    first, last = texts[0][0], texts[0][-1]
    size = LONG - 2
    long = [[[first, *words[at : at + size], last]] for at in range(0, size * BATCHES, size)]
    return by_count | {f"1 text of {LONG} tokens": long[: BATCHES // 2]}


def packed(texts: Sequence[list[int]]) -> Feed:
    """Return what a graph of packed tokens takes of texts."""
    ids = np.concatenate([np.array(text, np.int64) for text in texts])
    return {
        "input_ids": ids,
        "positions": np.concatenate([np.arange(len(text)) for text in texts]),
        "cu_seqlens": np.cumsum([0, *map(len, texts)]).astype(np.int32),
        "token_type_ids": np.zeros_like(ids),
    }


def in_turns(
    sessions: dict[str, Any], feeds: Sequence[Feed], rounds: int
) -> tuple[dict[str, list[list[float]]], float]:
    """Return the seconds of every run, by graph and batch, and the largest difference of a logit."""
    times: dict[str, list[list[float]]] = {name: [[] for _ in feeds] for name in sessions}
    logits = {name: [runner.run(None, feed)[0] for feed in feeds] for name, runner in sessions.items()}
    one, other = logits.values()
    difference = max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))
    for turn in range(rounds):
        for name, runner in list(sessions.items())[:: 1 if turn % 2 else -1]:
            for batch, feed in enumerate(feeds):
                start = time.process_time()
                runner.run(None, feed)
                times[name][batch].append(time.process_time() - start)
    return times, difference


if __name__ == "__main__":
    typer.run(main)
