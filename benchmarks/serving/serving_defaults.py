"""What an entry is best served with on so many cores: instances and threads, queue delay, rows of a batch.

    python benchmarks/serving/serving_defaults.py CHECKPOINT --rows sst2/dev.tsv

Serves the same entry by a server of its own for each setting, all at once, and asks one after another: by one
sender, by 8 and by 64 of single texts, and by 8 whose every tenth text is as long as the model reads. Only
the one that is asked computes. How many tokens a run has, `resident_memory.py` compares.

Writes `serving_defaults.csv`, a line per window with the environment, and prints medians over the rounds and,
of each round, the ratio to the first setting's.
"""

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
from sparse_serve.repository.entries import read_entry
from sparse_serve.triton.launcher import TritonServer

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm
from entries import export
from environment import columns, environment
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results, Rows
from servers import OUTPUT, make_senders, served

NAME = "reviews"
EVERY_LONG = 10
SETTLING = 2


@dataclass(frozen=True)
class Setting:
    """What is written into the configuration; 0 threads are as many as cores."""

    instances: int = 1
    threads: int = 2
    delay_us: int = 0
    rows: int = 64

    def edit(self, config: ModelConfig) -> None:
        config.instance_group[0].count = self.instances
        config.parameters["intra_op_thread_count"].string_value = str(self.threads)
        config.dynamic_batching.max_queue_delay_microseconds = self.delay_us
        config.max_batch_size = self.rows

    def __str__(self) -> str:
        return f"{self.instances} x {self.threads}, {self.delay_us} us, {self.rows} rows"


SETTINGS = (
    Setting(),
    Setting(2, 1),
    Setting(1, 1),
    Setting(2, 2),
    *(Setting(delay_us=delay) for delay in (200, 500, 1000, 2000)),
    *(Setting(rows=rows) for rows in (8, 16, 32)),
)


def main(
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    seconds: Annotated[float, typer.Option(help="Of each window.")] = 1.5,
    rounds: Annotated[int, typer.Option(min=1, help="Windows of each setting and load.")] = 4,
    loads: Annotated[
        str | None, typer.Option(help="Loads, separated by semicolons.", show_default="all")
    ] = None,
) -> None:
    """Export what is missing, measure, and write what came out."""
    exit_on_sigterm()
    export(checkpoint, repository, NAME)
    entry = read_entry(repository / NAME)
    texts = [row.text for row in read_data(rows).rows]
    tokens = Tokens(
        entry.path / "tokenizer.json", entry.manifest.task, entry.manifest.max_length, in_graph=True
    )
    mixed = with_long_ones(texts)
    streams = {
        "1 sender": (1, [tokens.batch([text]) for text in texts]),
        "8 senders": (8, [tokens.batch([text]) for text in texts]),
        "64 senders": (64, [tokens.batch([text]) for text in texts]),
        "8 senders, some long": (8, [tokens.batch([text]) for text in mixed]),
    }
    if loads is not None:
        streams = {name: stream for name, stream in streams.items() if name in loads.split(";")}
    with ExitStack() as stack:
        servers = {str(each): stack.enter_context(served(repository, [NAME], each.edit)) for each in SETTINGS}
        with TritonLoad(next(iter(servers.values())).grpc_url, NAME, OUTPUT) as load:
            about = environment(load.server_version)
        lines: list[Line] = []
        for line in measure(servers, streams, seconds, rounds):
            lines.append(about | line)
            write_lines(results / "serving_defaults.csv", lines)  # what there is, should it be ended
    report(lines)


def with_long_ones(texts: Sequence[str]) -> list[str]:
    """Return texts of which every tenth goes on with those behind it, for longer than is read."""
    return [
        " ".join(texts[number : number + 60]) if number % EVERY_LONG == 0 else text
        for number, text in enumerate(texts[:-60])
    ]


def measure(
    servers: Mapping[str, TritonServer],
    streams: Mapping[str, tuple[int, Sequence[Batch]]],
    seconds: float,
    rounds: int,
) -> Iterator[Line]:
    """Yield a line for each window; settings take turns within a load."""
    order = list(servers)
    for number in range(rounds):
        for stream, (senders, batches) in streams.items():
            for name in order:
                yield {"setting": name, "load": stream, "round": str(number)} | asked(
                    servers[name].grpc_url, senders, batches, seconds
                )
        order = order[1:] + order[:1]


def asked(grpc_url: str, senders: int, batches: Sequence[Batch], seconds: float) -> Line:
    with ExitStack() as stack:
        loads = make_senders(stack, grpc_url, NAME, batches, senders)
        window = measure_window(loads, seconds * 1000, SETTLING)
    latencies = window.latencies_ms()
    return {
        "texts_per_s": f"{window.requests_per_second:.1f}",
        "p50_ms": f"{statistics.median(latencies):.2f}",
        "p99_ms": f"{np.percentile(latencies, 99, method=PERCENTILE_METHOD):.2f}",
        **columns("load_average"),
    }


def report(lines: Sequence[Line]) -> None:
    """Print what each setting comes to."""
    for load in dict.fromkeys(line["load"] for line in lines):
        own = [line for line in lines if line["load"] == load]
        first = {line["round"]: line for line in own if line["setting"] == own[0]["setting"]}
        typer.echo(load)
        for setting in dict.fromkeys(line["setting"] for line in own):
            found = [line for line in own if line["setting"] == setting]
            rate, p50, p99 = (
                statistics.median(float(line[key]) for line in found)
                for key in ("texts_per_s", "p50_ms", "p99_ms")
            )
            ratio = statistics.median(
                float(line["texts_per_s"]) / float(first[line["round"]]["texts_per_s"]) for line in found
            )
            best = max(float(line["texts_per_s"]) for line in found)
            typer.echo(
                f"  {setting:24}  {rate:7.1f} texts/s (best {best:.1f})  {ratio:.2f} x  "
                f"p50 {p50:.1f} ms  p99 {p99:.1f} ms"
            )


if __name__ == "__main__":
    typer.run(main)
