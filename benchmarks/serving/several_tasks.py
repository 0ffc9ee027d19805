"""One model of three tasks beside three models of one: memory, load time, file size, latency, throughput.

    python benchmarks/serving/several_tasks.py ENCODER

Puts three heads and projected attention layers on `ENCODER`, with weights of the adapters that are random
(what they cost does not depend on what they have learned), and exports it as one entry; and three single
models of the same encoder, as three. Each is served by a Triton of its own, one after the other, on the same
cores, several times in turn.

- memory: PSS of all server processes after one request of every task, so that shared pages count once
- load time: from the start of the server to its first answer
- throughput: a stream of texts whose tasks are drawn at random, `--concurrency` requests in flight
- latency: of the graph in this process, a batch of 32 × 128 tokens of one task, and of all in turn, with
  adapters and without

Writes `several_tasks.csv`: a line per measurement, with the environment.
"""

import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import onnxruntime
import torch
import typer

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_config, new_model, save_checkpoint
from sparse_export.encoders.extension import extension_modules
from sparse_export.encoders.projected_attention import EXTENSION, ProjectedAttentionSettings, Projections
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_serve.client import Client
from sparse_serve.data import read_texts
from sparse_serve.op_library import library_path
from sparse_serve.tasks import Classification, Regression, Task
from sparse_serve.triton.launcher import TritonServer

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm
from environment import columns
from lines import Line, write_lines
from servers import pss_bytes, served
from turns import times_in_turns

TASKS: dict[str, Task] = {
    "sentiment": Classification(tuple("01234")),
    "paraphrase": Classification(("0", "1")),
    "similarity": Regression(),
}
TOGETHER = "several"
BATCH, LENGTH = 32, 128
TURNS = 10


def main(
    encoder: Annotated[str, typer.Argument(help="Folder of a pretrained encoder, or a hub id.")],
    *,
    results: Annotated[Path, typer.Option(help="Folder for the file.")] = Path(__file__).parent,
    lambd: Annotated[
        float | None, typer.Option("--lambda", help="λ of the trunk; softmax if not given.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.")] = 8,
    seconds: Annotated[float, typer.Option(help="Of each measurement of throughput.")] = 10,
    rounds: Annotated[int, typer.Option(help="How often each server is started.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of the graph in this process.")] = 2,
) -> None:
    """Make the models, serve them in turn, and write what came out."""
    exit_on_sigterm()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        attention = AttentionSpec(lambd)
        repositories = make_entries(encoder, attention, folder)
        for name, repository in repositories.items():
            graphs = sorted(repository.glob("*_model/1/model.onnx"))
            lines.append({"served": name, "figure": "file_mb", "value": f"{sum(map(size_mb, graphs)):.1f}"})
        for number in range(rounds):
            for name, repository in repositories.items():
                if name == "heads":
                    continue
                for figure, value in measure(repository, name, concurrency, seconds).items():
                    lines.append({"served": name, "round": str(number), "figure": figure, "value": value})
        lines += latencies(repositories, threads)
    environment = {
        "encoder": Path(encoder).name,
        "attention": attention.name if lambd is None else f"{attention.name} {lambd:g}",
        "concurrency": str(concurrency),
        "threads": str(threads),
        **columns("cpu", "system", "onnxruntime"),
    }
    write_lines(results / "several_tasks.csv", [line | environment for line in lines])
    report(lines)


def make_entries(encoder: str, attention: AttentionSpec, folder: Path) -> dict[str, Path]:
    """Export the models; return the repository of each way of serving them."""
    settings = ProjectedAttentionSettings.scaled(load_config(encoder)).to_json()
    ways: dict[str, dict[str, tuple[Task | dict[str, Task], dict[str, object]]]] = {
        "one": {TOGETHER: (TASKS, {EXTENSION: settings})},
        "three": {name: (task, {}) for name, task in TASKS.items()},
        "heads": {TOGETHER: (TASKS, {})},
    }
    repositories = {}
    for way, models in ways.items():
        repositories[way] = folder / way
        for name, (task, extensions) in models.items():
            model = new_model(encoder, attention, task, extensions=extensions)  # type: ignore[arg-type]
            torch.manual_seed(0)
            for module in extension_modules(model):
                if isinstance(module, Projections):
                    torch.nn.init.normal_(module.contract.weight, std=0.02)
            checkpoint = folder / f"{way}_{name}"
            checkpoint.mkdir()
            save_checkpoint(model.eval(), load_tokenizer(encoder), checkpoint)
            options = ExportOptions(
                checkpoint=str(checkpoint), repository=folder / way, name=name, tokenizer="server"
            )
            export_checkpoint(options)
    return repositories


def measure(repository: Path, way: str, concurrency: int, seconds: float) -> dict[str, str]:
    """Start a server, measure it, and stop it."""
    texts = read_texts(None)
    started = time.monotonic()
    with served(repository) as server:
        with Client(server.http_url.removeprefix("http://")) as client:
            ask(client, way, "sentiment", texts[0])
            loaded = time.monotonic() - started
            for task in TASKS:
                ask(client, way, task, texts[0])
        memory = pss_bytes(server.process_ids())
        rate = throughput(server, way, texts, concurrency, seconds)
    return {
        "load_s": f"{loaded:.2f}",
        "resident_mb": f"{memory / 2**20:.1f}",
        "texts_per_s": f"{rate:.1f}",
    }


def ask(client: Client, way: str, task: str, text: str) -> None:
    """Ask for one text's answer."""
    if way == "one":
        client.classify(TOGETHER, [text], task=task)
    else:
        client.classify(task, [text])


def throughput(
    server: TritonServer, way: str, texts: Sequence[str], concurrency: int, seconds: float
) -> float:
    """Return the texts per second of a mixed stream of single texts."""
    counts = [0] * concurrency
    begin, end = threading.Event(), threading.Event()

    def run(number: int) -> None:
        stream = random.Random(number)
        with Client(server.http_url.removeprefix("http://")) as client:
            ask(client, way, "sentiment", texts[0])
            begin.wait()
            while not end.is_set():
                ask(client, way, stream.choice([*TASKS]), stream.choice(texts))
                counts[number] += 1

    clients = [threading.Thread(target=run, args=(number,)) for number in range(concurrency)]
    for each in clients:
        each.start()
    time.sleep(1)
    begin.set()
    started = time.monotonic()
    time.sleep(seconds)
    end.set()
    passed = time.monotonic() - started
    for each in clients:
        each.join()
    return sum(counts) / passed


def latencies(repositories: dict[str, Path], threads: int) -> Iterator[Line]:
    """Yield the medians of the graph's time with adapters and without, interleaved."""
    runs: dict[tuple[str, str], Callable[[], object]] = {}
    for way in ("one", "heads"):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(str(library_path()))
        graph = repositories[way] / f"{TOGETHER}_model" / "1" / "model.onnx"
        session = onnxruntime.InferenceSession(graph, options)
        for mix, tasks in (("one task", np.zeros(BATCH)), ("mixed", np.arange(BATCH) % len(TASKS))):
            rng = np.random.default_rng(0)
            inputs = {
                "input_ids": rng.integers(1000, 20000, (BATCH, LENGTH)),
                "attention_mask": np.ones((BATCH, LENGTH), np.int64),
                "token_type_ids": np.zeros((BATCH, LENGTH), np.int64),
                "task_ids": tasks.astype(np.int64)[:, None],
            }
            taken = {each.name: inputs[each.name] for each in session.get_inputs()}
            runs[way, mix] = partial(session.run, ["logits"], taken)
    for (way, mix), measured in times_in_turns(runs, range(TURNS)).items():
        value = f"{statistics.median(measured) * 1000:.1f}"
        yield {"served": way, "figure": f"latency_ms {mix}", "value": value}


def size_mb(path: Path) -> float:
    """Return a file's size."""
    return path.stat().st_size / 2**20


def report(lines: list[Line]) -> None:
    """Print the medians side by side."""
    for figure in dict.fromkeys(line["figure"] for line in lines):
        values = {
            way: statistics.median(
                float(line["value"]) for line in lines if (line["figure"], line["served"]) == (figure, way)
            )
            for way in dict.fromkeys(line["served"] for line in lines if line["figure"] == figure)
        }
        told = ", ".join(f"{way} {value:g}" for way, value in values.items())
        first, *others = values.values()
        print(f"{figure}: {told}; {', '.join(f'{first / other:.3f}' for other in others)}")


if __name__ == "__main__":
    typer.run(main)
