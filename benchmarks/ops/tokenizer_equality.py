"""Hold the tokenizer ops against the `tokenizers` library, id for id, on every code point and many texts.

    python benchmarks/ops/tokenizer_equality.py TOKENIZER_JSON [--data DIRECTORY] [--random 50000] [--offsets]

Compared are ids, type ids, positions, counts and truncation, with `--offsets` those of a node that answers
offsets too, and what the tables are made of with what the normalizer says of each code point alone. DIRECTORY
has folders with a `dev.tsv` of `text_a`, `text_b`. Ends with status 1 where anything differs.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from operator import ne
from pathlib import Path
from typing import Annotated

import typer
from tokenizers import Tokenizer

from sparse_export.graph.tokenizer.code_points import code_points
from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_export.graph.tokenizer.wordpiece import normalized_points
from sparse_export.parity.hostile import random_kinds
from sparse_serve.op_library import library_path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from tokenizing import GraphTokenizer, Texts, cutting, differing

CUTS = (16, 64, 512)

Case = tuple[str, int, Texts]


def main(
    tokenizer: Annotated[Path, typer.Argument(help="A tokenizer.json.", exists=True)],
    data: Annotated[Path | None, typer.Option(help="Folders with a dev.tsv each.")] = None,
    random_texts: Annotated[int, typer.Option("--random", help="Random texts, of every kind.")] = 50_000,
    offsets: Annotated[bool, typer.Option("--offsets", help="Compare offsets too.")] = False,
    library: Annotated[Path | None, typer.Option(help="Another op library than the installed one.")] = None,
) -> None:
    """Compare, print what was tried and what differs."""
    reference = Tokenizer.from_file(str(tokenizer))
    points = code_points()
    wrong = 0
    if reference.normalizer is not None:
        alone = list(map(reference.normalizer.normalize_str, points))
        differ = sum(map(ne, alone, normalized_points(reference)))
        wrong += report("each code point alone, normalized", len(points), differ)
    tables = derive_tables(reference)
    for name, max_length, texts in cases(reference, points, data, random_texts):
        pairs = bool(texts) and not isinstance(texts[0], str)
        graph = GraphTokenizer(tables, max_length, library or library_path(), pairs=pairs, offsets=offsets)
        found = differing(graph, cutting(reference, max_length), texts)
        wrong += report(f"{name}, cut at {max_length}", len(texts), len(found))
        for text in found[:3]:
            print("   ", ascii(text))
    sys.exit(wrong > 0)


def report(name: str, tried: int, wrong: int) -> int:
    print(f"{name}: {tried} tried, {wrong} differ", flush=True)
    return wrong


def cases(
    tokenizer: Tokenizer, points: Sequence[str], data: Path | None, random_texts: int
) -> Iterator[Case]:
    singles, pairs = ([], []) if data is None else dev_texts(data)
    for max_length in CUTS:
        yield "dev texts", max_length, singles
        yield "dev pairs", max_length, pairs
    yield "every code point", 64, points
    yield "every code point within a word", 64, [f"a{point}b" for point in points]
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip:
            beside = [f"a{point}{token.content}{point}b" for point in points]
            yield f"every code point beside {token.content}", 64, beside
    kinds = random_kinds(tokenizer, singles or ["A text of words, as they come."], points)
    texts = [make() for make in kinds for _ in range(random_texts // len(kinds))]
    random.Random(3).shuffle(texts)
    for max_length in (16, 128):
        yield "random texts", max_length, texts
    # The library makes a row of every two parts that it cuts off: gigabytes, where both are long.
    short = [text[:50] for text in texts]
    for max_length in (9, 16, 17, 128):
        yield "random pairs", max_length, list(zip(short[::2], short[1::2], strict=False))


def dev_texts(data: Path) -> tuple[list[str], list[tuple[str, str]]]:
    singles: list[str] = []
    pairs: list[tuple[str, str]] = []
    for file in sorted(data.glob("**/dev.tsv")):
        header, *lines = file.read_text(encoding="utf-8").split("\n")
        for line in filter(None, lines):
            row = dict(zip(header.split("\t"), line.split("\t"), strict=True))
            singles.append(row["text_a"])
            if row["text_b"]:
                singles.append(row["text_b"])
                pairs.append((row["text_a"], row["text_b"]))
    return singles, pairs


if __name__ == "__main__":
    typer.run(main)
