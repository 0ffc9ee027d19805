"""Fills RESULTS.md from what a run of run.sh has left: which steps ran, for how long, and what came out.

    python benchmarks/gpu/ledger.py OUT [--page benchmarks/gpu/RESULTS.md]

`OUT/steps.csv` has a line for each step that has ended; the CSV files beside it are those of the steps.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from roofline import replaced, table

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from lines import Line, read_lines

PAGE = Path(__file__).parent / "RESULTS.md"
# Goals at 32 sequences of 12 heads of 64 in bfloat16, on an H200: ours over which peers, by length.
DENSE = ("sdpa_flash", "sdpa_cudnn", "flex_dense")
GOALS: tuple[tuple[str, tuple[str, ...], dict[int, float]], ...] = (
    ("SparsegenAttention", ("adasplash_alpha2",), dict.fromkeys((512, 1024, 2048, 4096, 8192), 10.0)),
    ("SparsegenAttention", DENSE, {512: 1.0, 1024: 1.3, 2048: 1.3, 4096: 1.3, 8192: 1.3}),
    ("AxisAttention", DENSE, {512: 2.0, 2048: 6.0, 8192: 15.0}),
)
MOST_MEMORY, LEAST_JUDGED = 0.02, 512  # of eager's scores, from so many tokens on


def steps(lines: Iterable[Line]) -> Iterator[list[str]]:
    """Yield how each step ended when it was last taken: well, failed, or waiting for what it lacks."""
    yield ["step", "ended", "minutes", "result"]
    for line in {line["step"]: line for line in lines}.values():
        yield [f"`{line['step']}`", line["ended"], line["minutes"], line["result"]]


def goals(lines: list[Line]) -> Iterator[list[str]]:
    """Yield each goal with what was reached: the time of the best peer over ours."""
    yield ["op", "peers", "L", "goal", "reached", "met"]
    times = {
        (line["variant"], int(line["length"])): float(line["best_ms"])
        for line in lines
        if line["dtype"] == "bfloat16" and line["best_ms"]
    }
    for op, peers, by_length in GOALS:
        for length, goal in by_length.items():
            theirs = [times[peer, length] for peer in peers if (peer, length) in times]
            own = times.get((op, length))
            reached = None if own is None or not theirs else min(theirs) / own
            shown = "not measured" if reached is None else f"{reached:.2f}x"
            met = "–" if reached is None else "yes" if reached >= goal else "no"
            yield [op, ", ".join(peers), f"{length:,}", f"{goal:g}x", shown, met]


def memory(lines: list[Line]) -> Iterator[list[str]]:
    """Yield the memory of ours beyond inputs and outputs, as a share of eager's scores."""
    yield ["op", "dtype", "L", "bytes", "of eager's scores", f"at most {MOST_MEMORY:.0%}"]
    for line in lines:
        if line["variant"] in ("SparsegenAttention", "AxisAttention") and line["extra_bytes"]:
            length, share = int(line["length"]), int(line["extra_bytes"]) / int(line["eager_score_bytes"])
            met = "–" if length < LEAST_JUDGED else "yes" if share <= MOST_MEMORY else "no"
            yield [line["variant"], line["dtype"], f"{length:,}", line["extra_bytes"], f"{share:.2%}", met]


def models(lines: list[Line]) -> Iterator[list[str]]:
    """Yield whole models beside the padded twin of the same batch."""
    yield ["model", "L", "batch", "lengths", "texts/s", "padded dense fused", "over it"]
    padded = {
        (line["model"], line["length"], line["batch"], line["lengths"]): float(line["texts_per_second"])
        for line in lines
        if line["variant"] == "padded_fused"
    }
    for line in lines:
        if line["variant"] == "own":
            key = (line["model"], line["length"], line["batch"], line["lengths"])
            peer = padded.get(key) or padded.get(("ssaf", *key[1:]))
            own = float(line["texts_per_second"])
            theirs, ratio = ("–", "–") if peer is None else (f"{peer:,.0f}", f"{own / peer:.2f}x")
            yield [*key[:1], *key[1:], f"{own:,.0f}", theirs, ratio]


def entries(lines: list[Line]) -> Iterator[list[str]]:
    """Yield how far each entry's answers are from torch's and from those of a processor."""
    yield ["computed on", "precision", "gate: from torch", "from the processor's", "other labels"]
    for line in lines:
        told = [line["gate_apart"], line["logits_apart"], f"{line['other_labels']} of {line['texts']}"]
        yield [line["computed_on"], line["dtype"], *([line["error"], "–", "–"] if line["error"] else told)]


def correctness(lines: list[Line]) -> Iterator[list[str]]:
    """Yield by op and type how many answers are within their budgets."""
    yield ["op", "dtype", "within budget", "of", "first that is not"]
    for op, dtype in dict.fromkeys((line["op"], line["dtype"]) for line in lines):
        own = [line for line in lines if (line["op"], line["dtype"]) == (op, dtype)]
        failed = [line["case"] for line in own if line["passed"] != "yes"]
        yield [op, dtype, str(len(own) - len(failed)), str(len(own)), (failed or ["–"])[0]]


def results(out: Path) -> str:
    """Return the page's part on what came out."""
    measured = read_lines(out / "op_speed.csv")
    sections = {
        "Steps": table(steps(read_lines(out / "steps.csv"))),
        "Correctness": table(correctness(read_lines(out / "correctness.csv"))),
        "Entries": table(entries(read_lines(out / "entries.csv"))),
        "Ops beside their peers: the goals": table(goals(measured)),
        "Device memory of the ops": table(memory(measured)),
        "Models": table(models(read_lines(out / "model_speed.csv"))),
    }
    seen = {(line["gpu"] or line["cpu"], line["driver"], line["cuda"]) for line in measured}
    machine = "; ".join(" ".join(filter(None, each)) for each in sorted(seen)) or "no machine"
    return f"\nOn {machine}.\n\n" + "\n".join(f"### {title}\n\n{text}\n" for title, text in sections.items())


def main(
    out: Path, page: Annotated[Path, typer.Option(help="The page whose results are filled in.")] = PAGE
) -> None:
    """Fill the page in."""
    text = page.read_text(encoding="utf-8")
    page.write_text(replaced(text, "results", results(out)), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
