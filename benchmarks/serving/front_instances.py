"""How many instances a server-side tokenizer is best served with, and what a long request costs short ones.

    python benchmarks/serving/front_instances.py CHECKPOINT --rows sst2/dev.tsv

Serves a classifier of single texts with its tokenizer in the server, and a model that costs next to nothing
with the same one, by a server of its own for each number of instances, all at once. They are asked in turns:
by one sender of single texts, by 8 of them, and by 8 of them beside one whose texts have 200 kB, of which
nothing is counted.

Writes `front_instances.csv`, a line per window with the environment, and prints medians over the rounds and,
of each round, the ratio to one instance's.
"""

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.data import read_data
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.measure import PERCENTILE_METHOD
from sparse_serve.profiling.windows import measure_window
from sparse_serve.profiling.workload import Batch, Tokens
from sparse_serve.repository.config import TEXT_BACKEND, graph_name
from sparse_serve.repository.entries import read_entry
from sparse_serve.triton.launcher import TritonServer

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm
from entries import export, export_small
from environment import columns, environment
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results, Rows
from servers import OUTPUT, make_senders, served

FRONT, SMALL = "reviews_front", "small_front"
INSTANCES = (1, 2, 3)
LONG_BYTES = 200_000
SETTLING = 2

Loads = Mapping[str, tuple[int, Sequence[Batch], Sequence[Batch]]]
"""Senders, what they send, and what one more sends beside them, by the name of the load."""


def main(
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    seconds: Annotated[float, typer.Option(help="Of each window.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Windows of each setting and load.")] = 5,
) -> None:
    """Export what is missing, measure, and write what came out."""
    exit_on_sigterm()
    export(checkpoint, repository, FRONT, "--tokenizer=server")
    export_small(checkpoint, repository, SMALL, "--tokenizer=server")
    entry = read_entry(repository / FRONT)
    tokens = Tokens(entry.path / "tokenizer.json", entry.manifest.task, entry.manifest.max_length)
    texts = [row.text for row in read_data(rows).rows]
    singles = [tokens.batch([text]) for text in texts]
    long = [tokens.batch([(" ".join(texts) * (1 + LONG_BYTES // 1000))[:LONG_BYTES]])]
    loads: Loads = {
        "1 sender": (1, singles, ()),
        "8 senders": (8, singles, ()),
        "8 senders beside a long one": (8, singles, long),
    }
    models = [name for own in (FRONT, SMALL) for name in (own, graph_name(own))]
    with ExitStack() as stack:
        servers = {
            number: stack.enter_context(served(repository, models, partial(with_instances, number=number)))
            for number in INSTANCES
        }
        with TritonLoad(servers[1].grpc_url, FRONT, OUTPUT) as load:
            about = environment(load.server_version)
        lines: list[Line] = []
        for line in measure(servers, loads, seconds, rounds):
            lines.append(about | line)
            write_lines(results / "front_instances.csv", lines)  # what there is, should it be ended
    report(lines)


def with_instances(config: ModelConfig, number: int) -> None:
    """Change the configuration of fronts alone."""
    if config.backend == TEXT_BACKEND:
        config.instance_group[0].count = number


def measure(servers: Mapping[int, TritonServer], loads: Loads, seconds: float, rounds: int) -> Iterator[Line]:
    """Yield a line for each window; settings take turns within a load."""
    order = list(servers)
    for number in range(rounds):
        for model in (FRONT, SMALL):
            for name, (senders, batches, beside) in loads.items():
                for setting in order:
                    about = {"instances": str(setting), "model": model, "load": name, "round": str(number)}
                    yield about | asked(servers[setting].grpc_url, model, senders, batches, beside, seconds)
        order = order[1:] + order[:1]


def asked(
    grpc_url: str,
    model: str,
    senders: int,
    batches: Sequence[Batch],
    beside: Sequence[Batch],
    seconds: float,
) -> Line:
    with ExitStack() as stack:
        loads = make_senders(stack, grpc_url, model, batches, senders)
        others = make_senders(stack, grpc_url, model, beside, 1) if beside else []
        window = measure_window([*loads, *others], seconds * 1000, SETTLING)
    window = replace(window, stretches=window.stretches[:senders])  # without the long one's
    latencies = sorted(window.latencies_ms())
    return {
        "texts_per_s": f"{window.requests_per_second:.1f}",
        "p50_ms": f"{statistics.median(latencies):.2f}",
        "p90_ms": f"{np.percentile(latencies, 90, method=PERCENTILE_METHOD):.2f}",
        "p99_ms": f"{np.percentile(latencies, 99, method=PERCENTILE_METHOD):.2f}",
        **columns("load_average"),
    }


def report(lines: Sequence[Line]) -> None:
    """Print what each setting comes to."""
    for model, load in dict.fromkeys((line["model"], line["load"]) for line in lines):
        own = [line for line in lines if (line["model"], line["load"]) == (model, load)]
        first = {line["round"]: line for line in own if line["instances"] == str(INSTANCES[0])}
        typer.echo(f"{model}, {load}")
        for setting in map(str, INSTANCES):
            found = [line for line in own if line["instances"] == setting]
            rate, p50, p90, p99 = (
                statistics.median(float(line[key]) for line in found)
                for key in ("texts_per_s", "p50_ms", "p90_ms", "p99_ms")
            )
            ratio = statistics.median(
                float(line["texts_per_s"]) / float(first[line["round"]]["texts_per_s"]) for line in found
            )
            typer.echo(
                f"  {setting} instances  {rate:7.1f} texts/s  {ratio:.2f} x  p50 {p50:.1f} ms  "
                f"p90 {p90:.1f} ms  p99 {p99:.1f} ms"
            )


if __name__ == "__main__":
    typer.run(main)
