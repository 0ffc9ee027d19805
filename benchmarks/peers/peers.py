"""Our entries beside what else serves the same classifier: throughput, latency and memory, in turns.

    python benchmarks/peers/peers.py CHECKPOINT --rows sst2/dev.tsv --long-rows imdb_long/dev.tsv

Makes the environment of each peer, from the versions pinned in this folder, and exports CHECKPOINT, a BERT
classifier of single texts, for each: the same weights, attended with dense softmax. Beside our dense entry
stands our SSAF one, both in fp32 and int8. Infinity and our entries, by Triton, are asked over HTTP in JSON
by the same client on the same cores. In processes of their own, our graphs, a lean loop over optimum's O3
and int8 graphs, and the Transformers pipeline time their own calls.

Each round starts all candidates. With each load they are asked right after one another, as other work on
a shared machine comes and goes within minutes; then they are ended. The order turns from round to round.
Before its first measurement a candidate must answer as our dense fp32 entry does, within 1e-3 of a
probability, unless it computes something else. One that fails gets a line that says why.

Writes `peers.csv`, a line for each candidate, texts, load and round with the environment, and prints medians
over the rounds, with their ratios to the best fp32 peer in the same place and round, dense and SSAF apart:
dense is what the peers compute. A round takes 10 to 20 minutes on two cores, and five more the first time.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer
from candidates import (
    IN_PROCESS,
    LOADS,
    SERVED,
    Candidate,
    Load,
    Place,
    Precision,
    Probabilities,
    Running,
    Start,
    infinity,
    ours,
    worker,
)
from environments import environment_of, pinned
from texts import COUNTS, LONG, MIXED, SHORT, longest, text_sets
from weights import ENTRIES, export_entries, export_onnx, plain_checkpoint

from sparse_serve import Classifier
from sparse_serve.errors import SparseServeError
from sparse_serve.report.estimates import least_samples

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm
from environment import columns, environment
from lines import Line, read_lines, write_lines
from options import Add, Checkpoint, Results, Rows
from percentiles import percentile_ms
from servers import pss_bytes

APART = 1e-3
CHECKED = 8
MIB = 1 << 20
BUILD = Path("build/peers")
PACKAGES = {
    "infinity": ("infinity_emb", "torch", "transformers", "onnxruntime"),
    "optimum": ("optimum-onnx", "onnxruntime", "tokenizers"),
    "transformers": ("transformers", "torch"),
}
"""The environments, and the versions in them that are told."""


@dataclass(frozen=True)
class Figure:
    """What is asked for: our rate over that of the best peer, each at its best load of so many."""

    place: Place
    texts: str
    ours: str
    peers: str
    wanted: float
    loads: Sequence[str] | None = None

    def __str__(self) -> str:
        loads = "" if self.loads is None else f", {' or '.join(self.loads)}"
        return f"{self.place}, {self.texts}{loads}: our {self.ours} over the best {self.peers} peer"


ATTENTIONS = ("dense", "ssaf")
FIGURES = (
    Figure(SERVED, MIXED, "fp32", "fp32", 2.0),
    Figure(SERVED, MIXED, "int8", "fp32", 4.0),
    Figure(SERVED, LONG, "fp32", "fp32", 1.1),
    Figure(SERVED, LONG, "int8", "fp32", 2.0),
    Figure(IN_PROCESS, MIXED, "int8", "int8", 1.5),
    Figure(IN_PROCESS, SHORT, "fp32", "fp32", 1.1, ("1 x 1",)),
)


def main(
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    long_rows: Annotated[Path, typer.Option(help="Labelled texts, 32 of them of 512 tokens and more.")],
    build: Annotated[Path, typer.Option(help="Folder of environments, exported models and logs.")] = BUILD,
    results: Results = Path(__file__).parent,
    only: Annotated[
        list[str] | None, typer.Option(help="Candidates whose names have this in them; again for more.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every candidate.")] = 1,
    add: Add = False,
) -> None:
    """Make what is missing, measure, and write what came out."""
    exit_on_sigterm()
    try:
        plain = plain_checkpoint(checkpoint, build / "models").absolute()
        texts = text_sets(rows, long_rows, plain / "tokenizer.json")
    except SparseServeError as error:
        raise SystemExit(f"error: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        known = candidates(plain, repository, build)
        chosen = [each for each in known if not only or any(part in each.name for part in only)]
        if not chosen:
            names = "; ".join(each.name for each in known)
            raise SystemExit(f"error: --only {', '.join(only or ())} is in no name; there are {names}")
        chosen, lines = prepared(chosen, plain, build)
        export_entries(plain, repository)
        checked = [text for each in texts.values() for text in each[-CHECKED:]]
        checked.append(longest(long_rows))
        right = reference(repository / "dense_fp32", checked)
        about = environment("")
        path = results / "peers.csv"
        kept = read_lines(path) if add else []
        for line in measure(chosen, texts, checked, right, rounds):
            lines.append(about | columns("load_average") | line)
            write_lines(path, [*kept, *lines])  # what there is, should it be ended
    report(chosen, lines)


def candidates(plain: Path, repository: Path, build: Path) -> list[Candidate]:
    """Return all that can be measured."""
    models, logs = plain.parent, build / "logs"
    labels = list(json.loads((plain / "config.json").read_text("utf-8"))["id2label"].values())
    programs = {name: (build / name / "bin").absolute() for name in PACKAGES}

    def peer(
        name: str, place: Place, environment: str, start: Start, precision: Precision = "fp32"
    ) -> Candidate:
        return Candidate(name, place, precision, False, precision == "fp32", environment, start)

    def lean(folder: str, log: str) -> Start:
        return partial(worker, programs["optimum"], "token-graph", models / folder, logs / log)

    def engine(name: str, model: Path) -> Start:
        return partial(infinity, programs["infinity"], name, model, labels, logs / f"infinity_{name}.log")

    own: list[Candidate] = []
    for entry in ENTRIES:
        attention, digits = entry.split("_")
        precision: Precision = "int8" if digits == "int8" else "fp32"
        starts: dict[Place, Start] = {
            SERVED: partial(ours, repository, entry),
            IN_PROCESS: partial(worker, None, "text-graph", repository / entry, logs / f"{entry}.log"),
        }
        for place, start in starts.items():
            name = f"ours, {attention} {precision}, {place}"
            own.append(Candidate(name, place, precision, True, entry == "dense_fp32", None, start))
    return [
        *own,
        replace(
            peer("Infinity, ONNX engine", SERVED, "infinity", engine("optimum", models / "o3")), cuts=False
        ),
        peer("Infinity, torch engine", SERVED, "infinity", engine("torch", plain)),
        peer("optimum O3, lean loop", IN_PROCESS, "optimum", lean("o3", "o3.log")),
        peer("optimum int8, lean loop", IN_PROCESS, "optimum", lean("int8", "int8.log"), "int8"),
        peer(
            "Transformers pipeline",
            IN_PROCESS,
            "transformers",
            partial(worker, programs["transformers"], "pipeline", plain, logs / "pipeline.log"),
        ),
    ]


def prepared(chosen: Sequence[Candidate], plain: Path, build: Path) -> tuple[list[Candidate], list[Line]]:
    """Make the environments and graphs of candidates; return those that can start, a line for each other."""
    failed: dict[str | None, str] = {}
    for name in sorted({each.environment for each in chosen if each.environment}):
        try:
            environment_of(name, build)
            if name != "transformers":
                export_onnx(plain, environment_of("optimum", build))
        except (OSError, RuntimeError) as error:
            failed[name] = str(error)
    lines = [about(each) | fault(failed[each.environment]) for each in chosen if each.environment in failed]
    return [each for each in chosen if each.environment not in failed], lines


def reference(entry: Path, texts: Sequence[str]) -> Probabilities:
    """Return what our dense entry answers in fp32, `(N, C)`."""
    return np.array([each.scores for each in Classifier(entry)(texts)])


def measure(
    chosen: Sequence[Candidate],
    texts: Mapping[str, Sequence[str]],
    checked: Sequence[str],
    right: Probabilities,
    rounds: int,
) -> Iterator[Line]:
    """Yield the lines of round after round."""
    order = list(chosen)
    for number in range(rounds):
        with ExitStack() as stack:
            ready: list[tuple[Candidate, Running, Line]] = []
            for each in order:
                print(f"round {number + 1} of {rounds}: {each.name} is started", flush=True)
                told = about(each) | {"round": str(number)}
                try:
                    running = stack.enter_context(each.start())
                    ready.append((each, running, told | check(each, running, checked, right)))
                except Exception as error:  # whatever is wrong with one, the others are measured
                    yield told | fault(str(error) or type(error).__name__)
            for name, own in texts.items():
                for place, loads in LOADS.items():
                    for load in loads:
                        print(f"round {number + 1} of {rounds}: {place}, {name}, {load}", flush=True)
                        for each, running, told in ready:
                            if each.place == place:
                                yield told | asked(running, name, own, load)
        order = order[1:] + order[:1]


def check(each: Candidate, running: Running, texts: Sequence[str], right: Probabilities) -> Line:
    """Return how far a candidate's probabilities are from those of our dense entry.

    The last text is longer than the models read: it goes to those that cut it.

    Raises:
        RuntimeError: too far for the same model.
    """
    asked = len(texts) - (not each.cuts)
    apart = float(np.abs(running.probabilities(texts[:asked]) - right[:asked]).max())
    if each.same and not apart <= APART:
        raise RuntimeError(f"its probabilities are {apart:.1e} from ours: it is not the same model")
    return {"probabilities_apart": f"{apart:.1e}", "cuts_long_texts": "yes" if each.cuts else "no"}


def asked(running: Running, name: str, texts: Sequence[str], load: Load) -> Line:
    """Return what came of a set of texts with one load."""
    told = {"texts": name, "load": str(load)}
    try:
        window = running.measure(texts, load, COUNTS[name])
        held = memory(running.process_ids())
    except Exception as error:  # as above
        return told | fault(str(error) or type(error).__name__)
    latencies = [timing.total_ns / 1e9 for timing in window.timings]
    return told | {
        "requests": str(len(latencies)),
        "texts_per_s": f"{window.requests_per_second * load.texts:.2f}",
        "p50_ms": f"{percentile_ms(latencies, 50):.2f}",
        "p99_ms": f"{percentile_ms(latencies, 99):.2f}" if len(latencies) >= least_samples(99) else "",
        "client_cores": f"{window.client_cores:.2f}",
        **held,
    }


def memory(process_ids: Sequence[int]) -> Line:
    """Return what processes hold now, together: pages that they share counted in each, and once."""
    return {
        "rss_mib": f"{sum(psutil.Process(each).memory_info().rss for each in process_ids) / MIB:.0f}",
        "pss_mib": f"{pss_bytes(process_ids) / MIB:.0f}",
    }


def about(each: Candidate) -> Line:
    versions = pinned(each.environment, PACKAGES[each.environment]) if each.environment else ""
    return {
        "candidate": each.name,
        "place": each.place,
        "precision": each.precision,
        "versions": versions,
    }


def fault(reason: str) -> Line:
    typer.echo(f"  failed: {' '.join(reason.split())[:300]}", err=True)
    return {"error": " ".join(reason.split())[:300]}


def report(chosen: Sequence[Candidate], lines: Sequence[Line]) -> None:
    """Print what each candidate comes to, and each figure that is asked for."""
    good = [line for line in lines if "texts_per_s" in line]
    peers = {each.name for each in chosen if not each.ours}
    full = [line for line in good if line["candidate"] in peers and line["precision"] == "fp32"]
    for place, texts, load in dict.fromkeys((line["place"], line["texts"], line["load"]) for line in good):
        typer.echo(f"{place}, {texts}, {load}")
        for name in dict.fromkeys(line["candidate"] for line in good):
            own = [line for line in good if line["candidate"] == name]
            own = [line for line in own if same_kind(line, place, texts, [load])]
            if not own:
                continue
            rate, p50, rss, pss = (
                statistics.median(float(line[key]) for line in own)
                for key in ("texts_per_s", "p50_ms", "rss_mib", "pss_mib")
            )
            p99 = f"{statistics.median(known):.1f}" if (known := known_p99(own)) else "–"
            others = [line for line in full if same_kind(line, place, texts, [load])]
            value = ratio(own, others)
            beside = f"{value:5.2f} x" if value else "       "
            typer.echo(
                f"  {name:28} {rate:7.1f} texts/s {beside}  p50 {p50:7.1f} ms  p99 {p99:>7} ms  "
                f"RSS {rss:5.0f}, PSS {pss:5.0f} MiB"
            )
    for figure in FIGURES:
        kind = [line for line in good if same_kind(line, figure.place, figure.texts, figure.loads)]
        others = [line for line in kind if line["candidate"] in peers and line["precision"] == figure.peers]
        for attention in ATTENTIONS:
            name = f"ours, {attention} {figure.ours}, {figure.place}"
            own = [line for line in kind if line["candidate"] == name]
            if value := ratio(own, others):
                typer.echo(f"{figure}, {attention}: {value:.2f} (wanted {figure.wanted:g})")


def known_p99(lines: Sequence[Line]) -> list[float]:
    """Return the p99 in ms of the rounds that had requests enough for one; none unless all had."""
    known = [float(line["p99_ms"]) for line in lines if line["p99_ms"]]
    return known if len(known) == len(lines) else []


def same_kind(line: Line, place: str, texts: str, loads: Sequence[str] | None) -> bool:
    return line["place"] == place and line["texts"] == texts and (loads is None or line["load"] in loads)


def ratio(own: Sequence[Line], others: Sequence[Line]) -> float | None:
    """Return the median over the rounds of the best rate of some over the best of others."""
    best, base = (best_rates(each) for each in (own, others))
    both = best.keys() & base.keys()
    return statistics.median(best[each] / base[each] for each in both) if both else None


def best_rates(lines: Sequence[Line]) -> dict[str, float]:
    """Return the highest rate of each round."""
    found: dict[str, float] = {}
    for line in lines:
        found[line["round"]] = max(found.get(line["round"], 0), float(line["texts_per_s"]))
    return found


if __name__ == "__main__":
    typer.run(main)
