"""The tokenizer ops beside the `tokenizers` library, one process and one thread.

    python benchmarks/ops/tokenizer.py TOKENIZER_JSON... --data DIRECTORY [--output tokenizer.csv] [--offsets]

DIRECTORY has the sets of `SETS`, a `dev.tsv` of `text_a`, `text_b` in each. The library encodes a batch as a
Python server asks it to (`encode_batch_fast`, with `--offsets` `encode_batch`), the op runs in a session of
ONNX Runtime that is asked from Python. The two take turns and the best time of each counts: read the ratio.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tokenizers
import typer
from tokenizer_equality import dev_texts

from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_export.graph.tokenizer.tables import TokenizerTables
from sparse_serve.op_library import library_path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from environment import columns
from lines import write_lines
from turns import Run, best_ratio, time_in_turns

from tokenizing import GraphTokenizer, Texts, cutting, feeds

MOST_TEXTS = 800  # of a set
VARIANTS = ("tokenizers", "op")


@dataclass(frozen=True)
class Set:
    """Texts of a set, or pairs of texts, so many in a call."""

    name: str
    batch: int
    max_length: int
    pairs: bool = False

    def texts(self, data: Path) -> Texts:
        singles, pairs = dev_texts(data / self.name)
        return pairs[:MOST_TEXTS] if self.pairs else singles[:MOST_TEXTS]


SETS = (
    Set("sst2", 32, 128),
    Set("sst2", 1, 128),
    Set("cfimdb", 32, 512),
    Set("imdb_long", 32, 512),
    Set("imdb_long", 32, 4096),
    Set("mrpc", 32, 128, pairs=True),
)


def main(
    files: Annotated[list[Path], typer.Argument(help="A tokenizer.json of each kind.", exists=True)],
    data: Annotated[Path, typer.Option(help="The sets.", exists=True)],
    output: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path(__file__).parent
    / "results"
    / "tokenizer.csv",
    offsets: Annotated[bool, typer.Option("--offsets", help="Both answer offsets, too.")] = False,
    seconds: Annotated[float, typer.Option(help="For each variant of each case.")] = 2.0,
    library: Annotated[Path | None, typer.Option(help="Another op library than the installed one.")] = None,
) -> None:
    """Time both on every set and write one CSV line for each."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    lines: list[dict[str, Any]] = []
    for file in files:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        start = time.perf_counter()
        tables = derive_tables(tokenizer)
        derived = time.perf_counter() - start
        for each in SETS:
            ops = library or library_path()
            line = measure(tokenizer, tables, each, data, ops, seconds, offsets=offsets)
            lines.append(line | {"derive_s": round(derived, 2)} | environment())
            print(*(f"{name}={value}" for name, value in line.items()), flush=True)
    write_lines(output, lines)


def measure(
    tokenizer: tokenizers.Tokenizer,
    tables: TokenizerTables,
    each: Set,
    data: Path,
    library: Path,
    seconds: float,
    *,
    offsets: bool,
) -> dict[str, Any]:
    texts = each.texts(data)
    starts = range(0, len(texts), each.batch)
    batches: list[Texts] = [texts[start : start + each.batch] for start in starts]
    start = time.perf_counter()
    graph = GraphTokenizer(tables, each.max_length, library, pairs=each.pairs, offsets=offsets)
    created = time.perf_counter() - start
    cut = cutting(tokenizer, each.max_length)
    encode = cut.encode_batch if offsets else cut.encode_batch_fast
    columns = [feeds(batch) for batch in batches]
    variants: dict[str, Run] = {
        "tokenizers": lambda: [encode(batch) for batch in batches],
        "op": lambda: [graph.session.run(None, column) for column in columns],
    }
    times = time_in_turns(variants, seconds)
    sizes = [len("".join(text).encode()) for text in texts]
    return {
        "op": tables.op,
        "set": each.name,
        "offsets": offsets,
        "texts": len(texts),
        "mean_bytes": round(float(np.mean(sizes)), 1),
        "batch": each.batch,
        "max_length": each.max_length,
        **{f"{name}_us_per_text": round(min(times[name]) / len(texts) * 1e6, 2) for name in VARIANTS},
        "tokenizers_over_op": round(best_ratio(times["tokenizers"], times["op"]), 2),
        "rounds": len(times["op"]),
        "session_ms": round(created * 1e3, 1),
    }


def environment() -> dict[str, Any]:
    """What the figures depend on besides the problem."""
    return {"threads": 1} | columns("cpu", "cores", "onnxruntime", "tokenizers", "numpy")


if __name__ == "__main__":
    typer.run(main)
