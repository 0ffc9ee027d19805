"""Minutes of mixed traffic: all that is good is answered right, all that is bad refused, nothing lost.

    python benchmarks/serving/mixed_traffic.py CHECKPOINT --rows sst2/dev.tsv

Eight clients, half of them over HTTP and half over gRPC, send without a pause short texts (seven in ten),
batches of 2 to 32 short ones and texts of 512 tokens. Of what they send, one in twenty is bad, in one of
seven ways. Beside them one sends a text of 4 MB every three seconds, and one goes away every second, in
mid-request or before the answer. In turns as long, the same clients send the same good requests alone, drawn
in the same order; which of the two is first alternates. Told is the p99 of short texts in the mix over that
of the good alone: what of it is above 1 is what the bad ones, the large ones and those who go away cost. Each
answer is held against torch's, each refusal against the code that it should have. The memory of the server's
processes is read every two seconds, each with all that it maps (RSS) and what they share once (PSS); slopes
are fitted over the second half.

With `--gateway` all ask by way of the HAProxy that `deploy` configures. Writes `mixed_traffic.csv`.
"""

import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from clients import TIMEOUT_S, StockClient, one_line
from gateways import Urls, behind_gateway, urls_of
from references import Logits, is_right, reference_answers
from tritonclient.utils import InferenceServerException

from sparse_serve.connection import Protocol
from sparse_serve.data import read_data
from sparse_serve.profiling.memory import resident_bytes
from sparse_serve.repository.entries import read_entry
from sparse_serve.triton.launcher import TritonServer

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm
from entries import export
from environment import environment
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results, Rows
from percentiles import percentile_ms
from servers import OUTPUT, pss_bytes, served, server_version

NAME = "reviews"
CLIENTS: Sequence[Protocol] = ("http", "grpc") * 4
SHORT_TEXTS, LONG_TEXTS = 64, 8
LARGEST_BATCH = 32
BAD_SHARE = 0.05
LARGE_BYTES, LARGE_PAUSE_S = 4_000_000, 3.0
GONE_PAUSE_S = 1.0
MEMORY_PAUSE_S = 2.0
MIB = 1 << 20

INVALID = {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}
UNKNOWN = {"http": ("400", "404"), "grpc": ("StatusCode.NOT_FOUND",)}


@dataclass
class Seen:
    """What was answered: seconds by kind of request, what was refused as it should, and all else."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, kind: str, seconds: float) -> None:
        with self._lock:
            self.seconds.setdefault(kind, []).append(seconds)

    def refusal(self, kind: str) -> None:
        with self._lock:
            self.refused[kind] += 1

    def fault(self, kind: str, what: str) -> None:
        with self._lock:
            self.faults[f"{kind}: {what}"] += 1

    def lines(self, who: str) -> list[Line]:
        lines = [
            {
                "who": who,
                "kind": kind,
                "right": str(len(took)),
                "p50_ms": f"{percentile_ms(took, 50):.1f}",
                "p99_ms": f"{percentile_ms(took, 99):.1f}",
            }
            for kind, took in sorted(self.seconds.items())
        ]
        lines += [
            {"who": who, "kind": kind, "refused_as_due": str(count)}
            for kind, count in sorted(self.refused.items())
        ]
        return lines + [
            {"who": who, "kind": "FAULT", "count": str(count), "what": what}
            for what, count in self.faults.items()
        ]


class Client(StockClient):
    """A client that asks for texts, or for something odd."""

    def ask(self, rows: Sequence[bytes], **odd: Any) -> Logits:
        """Return the logits of texts; `odd` replaces the model, the output, the shape, or the array sent."""
        array = odd.get("array", np.array([[row] for row in rows], object))
        kind = "BYTES" if array.dtype == object else "INT64"
        tensor = self.api.InferInput(odd.get("input", "TEXT"), list(array.shape), kind)
        tensor.set_data_from_numpy(array)
        tensor.set_shape(odd.get("shape", list(array.shape)))
        logits: Logits = self.infer(odd.get("model", NAME), [tensor], odd.get("output", OUTPUT))
        return logits


BAD: Mapping[str, tuple[dict[str, Any], Mapping[str, Any]]] = {
    "another type": ({"array": np.ones((1, 1), np.int64)}, INVALID),
    "two axes more": ({"shape": [1, 1, 1, 1]}, INVALID),
    "more rows than are sent": ({"shape": [3, 1]}, INVALID),
    "a batch of 65": ({"array": np.array([[b"film"]] * 65, object)}, INVALID),
    "no such model": ({"model": "no_such"}, UNKNOWN),
    "no such output": ({"output": "colour"}, INVALID),
    "no such input": ({"input": "colour"}, INVALID),
}
"""Bad requests: how they differ from a good one, and the codes that they should get."""


@dataclass(frozen=True)
class Traffic:
    """What is sent, and what is right."""

    short: Sequence[tuple[bytes, Logits]]
    long: Sequence[tuple[bytes, Logits]]
    urls: Urls
    seed: int

    def good(self, client: Client, rng: random.Random, seen: Seen) -> None:
        """Send a good request and judge its answer."""
        drawn = rng.random()
        if drawn < 0.7:
            kind, rows = "short", [rng.choice(self.short)]
        elif drawn < 0.9:
            kind, rows = "batch", rng.choices(self.short, k=rng.randint(2, LARGEST_BATCH))
        else:
            kind, rows = "512 tokens", [rng.choice(self.long)]
        start = time.monotonic()
        try:
            logits = client.ask([text for text, _ in rows])
        except Exception as error:  # whatever a client raises
            seen.fault(kind, one_line(error))
            return
        seen.answer(kind, time.monotonic() - start)
        if not all(is_right(row, right) for row, (_, right) in zip(logits, rows, strict=True)):
            seen.fault(kind, "another answer")

    def bad(self, client: Client, rng: random.Random, seen: Seen) -> None:
        """Send a bad request and judge how it is refused."""
        kind = rng.choice(list(BAD))
        odd, codes = BAD[kind]
        self._refused(client, kind, seen, codes[client.protocol], lambda: client.ask([b"film"], **odd))

    def large(self, client: Client, seen: Seen) -> None:
        """Send a text that is refused before it is read."""
        codes = ("400", "413", INVALID["grpc"])
        text = (b"a fine film " * (LARGE_BYTES // 12 + 1))[:LARGE_BYTES]
        self._refused(client, "4 MB", seen, codes, lambda: client.ask([text]))

    def _refused(
        self,
        client: Client,
        kind: str,
        seen: Seen,
        codes: str | Sequence[str],
        ask: Callable[[], object],
    ) -> None:
        try:
            ask()
        except InferenceServerException as error:
            if str(error.status()) in ((codes,) if isinstance(codes, str) else codes):
                seen.refusal(kind)
            else:
                seen.fault(kind, f"{error.status()} {one_line(error)}")
        except Exception as error:  # whatever a client raises
            seen.fault(kind, one_line(error))
        else:
            seen.fault(kind, f"{client.protocol} answered")

    def go_away(self, rng: random.Random) -> None:
        """Begin an HTTP request or its answer, and close the connection."""
        host, port = self.urls["http"].split(":")
        text = rng.choice(self.long)[0].decode()
        body = f'{{"inputs":[{{"name":"TEXT","shape":[1,1],"datatype":"BYTES","data":["{text}"]}}]}}'.encode()
        head = f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with suppress(OSError), socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            connection.sendall(head.encode() + body[: rng.choice([10, len(body)])])
            time.sleep(0.02)


def run_turn(traffic: Traffic, turn: int, seconds: float, seen: Seen, *, with_bad: bool) -> None:
    """Send for so long, from all clients at the same time.

    What is good is drawn by the number of the turn and the client, whatever bad is sent between.
    """
    end = time.monotonic() + seconds
    stop = threading.Event()

    def goes_on() -> bool:
        return time.monotonic() < end and not stop.is_set()

    def good(number: int) -> None:
        rng, bad = (random.Random(f"{traffic.seed} {turn} {number} {kind}") for kind in ("good", "bad"))
        client = Client(traffic.urls[CLIENTS[number]], CLIENTS[number])
        while goes_on():
            if with_bad and bad.random() < BAD_SHARE:
                traffic.bad(client, bad, seen)
            else:
                traffic.good(client, rng, seen)

    def now_and_then(act: Callable[[random.Random], None], pause: float) -> None:
        rng = random.Random(f"{traffic.seed} {turn}")
        while goes_on():
            act(rng)
            time.sleep(pause)

    with ThreadPoolExecutor(len(CLIENTS) + 2) as pool:
        sending = [pool.submit(good, number) for number in range(len(CLIENTS))]
        if with_bad:
            clients = [Client(traffic.urls[protocol], protocol) for protocol in ("http", "grpc")]
            sending.append(
                pool.submit(now_and_then, lambda rng: traffic.large(rng.choice(clients), seen), LARGE_PAUSE_S)
            )
            sending.append(pool.submit(now_and_then, traffic.go_away, GONE_PAUSE_S))
        try:
            for each in sending:
                each.result()
        finally:
            stop.set()


class MemoryMeter:
    """The memory of a server's processes, by the second: the sum of their resident memory, and their PSS."""

    def __init__(self, server: TritonServer) -> None:
        self._server, self._stop = server, threading.Event()
        self.readings: list[tuple[float, float, float]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "MemoryMeter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stop.wait(MEMORY_PAUSE_S):
            pids = self._server.process_ids()
            self.readings.append((time.monotonic(), resident_bytes(pids) / MIB, pss_bytes(pids) / MIB))

    def lines(self) -> list[Line]:
        """Return of each the first and the last reading, the most by quarter, and the last half's slope."""
        times, *both = np.array(self.readings).T
        half = len(times) // 2
        return [
            {
                "who": "server",
                "kind": kind,
                "first_mib": f"{sizes[0]:.1f}",
                "last_mib": f"{sizes[-1]:.1f}",
                "most_mib_by_quarter": " ".join(f"{part.max():.1f}" for part in np.array_split(sizes, 4)),
                "slope_mib_per_minute": f"{np.polyfit(times[half:] / 60, sizes[half:], 1)[0]:.3f}",
            }
            for kind, sizes in zip(("resident memory", "proportional memory"), both, strict=True)
        ]


def main(
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    seconds: Annotated[float, typer.Option(help="Of mixed traffic, and as many of good alone.")] = 600,
    turns: Annotated[int, typer.Option(min=1, help="Of either; which is first alternates.")] = 6,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Ask by way of the gateway that `deploy` writes; needs HAProxy.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
) -> None:
    """Export what is missing, send, and write what came out; status 1 where anything is not as due."""
    exit_on_sigterm()
    export(checkpoint, repository, NAME)
    entry = read_entry(repository / NAME)
    texts = [row.text for row in read_data(rows).rows][: SHORT_TEXTS + LONG_TEXTS * 60]
    short = texts[:SHORT_TEXTS]
    long = [" ".join(texts[SHORT_TEXTS + 60 * number :][:60]) for number in range(LONG_TEXTS)]
    answers = reference_answers(checkpoint, entry.path, [*short, *long])
    asked = [(text.encode(), right) for text, right in zip([*short, *long], answers, strict=True)]
    alone, mixed = Seen(), Seen()
    with served(repository, [NAME]) as server:
        about = environment(server_version(server.grpc_url))
        with (
            behind_gateway(server, entry) if gateway else nullcontext(urls_of(server)) as urls,
            MemoryMeter(server) as memory,
        ):
            traffic = Traffic(asked[:SHORT_TEXTS], asked[SHORT_TEXTS:], urls, seed)
            run_turn(traffic, turns, min(2.0, seconds / turns), Seen(), with_bad=False)
            for turn in range(turns):
                for with_bad in (True, False) if turn % 2 else (False, True):
                    seen = mixed if with_bad else alone
                    run_turn(traffic, turn, seconds / turns, seen, with_bad=with_bad)
        server.check()
    ratio = percentile_ms(mixed.seconds["short"], 99) / percentile_ms(alone.seconds["short"], 99)
    lines = [*alone.lines("good alone"), *mixed.lines("mixed"), *memory.lines()]
    lines.append({"who": "mixed", "kind": "p99 of short over that of good alone", "ratio": f"{ratio:.2f}"})
    told = {"gateway": "yes" if gateway else "no", "seconds": f"{seconds:g}"}
    write_lines(results / "mixed_traffic.csv", [about | told | line for line in lines])
    for line in lines:
        typer.echo("  ".join(f"{name} {value}" for name, value in line.items()))
    if alone.faults or mixed.faults:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
