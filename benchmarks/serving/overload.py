"""Four times what a server can do, by way of the gateway: what is answered, how soon the rest is refused.

    python benchmarks/serving/overload.py CHECKPOINT --rows sst2/dev.tsv

First as many requests are kept in flight as the gateway lets in: the peak. Then requests begin at four times
that rate, whether or not others have been answered. Each is right, wrong, refused (503) or lost. Meanwhile
the gateway is asked five times a second whether it is ready. In the end one text after another is asked, and
the time is taken until one is answered within twice the p99 of before. All are sent by one thread, over
HTTP, from bytes that were made before. With `--client-cores` it has cores of its own, as clients are on
other machines; the server and the gateway, which `deploy` puts beside it, share the others, at the peak as
above it. Without, what sending takes is missing where it is answered. Writes `overload.csv`.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from cores import ClientCores, share_out
from gateways import behind_gateway
from references import Logits, is_right, reference_answers

from sparse_serve.data import read_data
from sparse_serve.deploy.limits import full_batches
from sparse_serve.profiling.subjects import on_cores
from sparse_serve.repository.entries import read_entry

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm
from entries import export
from environment import environment
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results, Rows
from percentiles import percentile_ms
from servers import OUTPUT, served, server_version

NAME = "reviews"
TEXTS = 64
OVER = 4
READINESS_PAUSE_S = 0.2
LOST_S = 60.0
"""Far more than the gateway lets anything wait."""
RECOVERY_S = 30.0
IDLE_S = 30.0
"""Half of what the gateway keeps a connection for: one that is sent on as it is closed loses its request."""


@dataclass
class Seen:
    """What came back, by what it was: when, and how many seconds after it was sent."""

    begun: int = 0
    ends: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def rate(self, seconds: float, start: float) -> float:
        """Answers per second, of those that came in so many seconds from the start."""
        return sum(end <= start + seconds for end in self.ends) / seconds


class Senders:
    """HTTP requests over connections that are kept alive, as many as it takes."""

    def __init__(self, url: str, texts: Sequence[str], right: Sequence[Logits]) -> None:
        host, port = url.split(":")
        self._place = host, int(port)
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []
        made = [(_request(text), logits) for text, logits in zip(texts, right, strict=True)]
        self._requests = cycle(made)

    async def send(self, seen: Seen) -> None:
        """Send one request, and note what came back."""
        seen.begun += 1
        request, right = next(self._requests)
        start = time.monotonic()
        try:
            status, body = await asyncio.wait_for(self._exchange(request), LOST_S)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            seen.faults[type(error).__name__] += 1
            return
        took = time.monotonic() - start
        if status == 503:
            seen.refused.append(took)
        elif status != 200:
            seen.faults[f"status {status}"] += 1
        elif not is_right(np.array(json.loads(body)["outputs"][0]["data"], np.float32), right):
            seen.faults["another answer"] += 1
        else:
            seen.answered.append(took)
            seen.ends.append(time.monotonic())

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        reader, writer = await self._connection()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        body = await reader.readexactly(int(fields[b"content-length"]))
        if fields.get(b"connection") == b"close":
            writer.close()
        else:
            self._idle.append((time.monotonic(), reader, writer))
        return int(head.split(b" ", 2)[1]), body

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the connection that was used last, or a new one where all have been idle for long."""
        if self._idle and self._idle[-1][0] > time.monotonic() - IDLE_S:
            return self._idle.pop()[1:]
        while self._idle:
            self._idle.pop()[2].close()
        return await asyncio.open_connection(*self._place)

    async def is_ready(self) -> bool:
        return (await self._exchange(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200

    async def keep_in_flight(self, count: int, seconds: float) -> tuple[Seen, float]:
        """Keep so many requests in flight for so long; return what came back, and the answers per second."""
        seen, start = Seen(), time.monotonic()

        async def repeat() -> None:
            while time.monotonic() < start + seconds:
                await self.send(seen)

        await asyncio.gather(*(repeat() for _ in range(count)))
        return seen, seen.rate(seconds, start)

    async def begin(self, rate: float, seconds: float) -> tuple[Seen, float]:
        """Begin so many requests a second for so long, and wait for none before the next."""
        seen, start = Seen(), time.monotonic()
        running: set[asyncio.Task[None]] = set()
        begun = 0
        while (now := time.monotonic()) < start + seconds:
            for _ in range(int((now - start) * rate) - begun):
                begun += 1
                task = asyncio.create_task(self.send(seen))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(0.005)
        return seen, seen.rate(seconds, start)

    async def recover(self, normal_s: float) -> float:
        """Return the seconds until a text is answered within `normal_s`."""
        start = time.monotonic()
        while time.monotonic() < start + RECOVERY_S:
            seen = Seen()
            await self.send(seen)
            if seen.answered and seen.answered[0] <= normal_s:
                return time.monotonic() - start
        return RECOVERY_S


def _request(text: str) -> bytes:
    tensor = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": OUTPUT}]}).encode()
    head = f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def measure(senders: Senders, in_flight: int, seconds: float) -> list[Line]:
    """Return what came out, one line a phase."""
    alone, _ = await senders.keep_in_flight(1, min(5.0, seconds))
    normal_s = 2 * percentile_ms(alone.answered, 99) / 1000
    at_peak, peak = await senders.keep_in_flight(in_flight, seconds)
    readiness: list[bool] = []

    async def watch() -> None:
        while True:
            readiness.append(await senders.is_ready())
            await asyncio.sleep(READINESS_PAUSE_S)

    watching = asyncio.create_task(watch())
    over, answers = await senders.begin(OVER * peak, seconds)
    recovered = await senders.recover(normal_s)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    while len(over.answered) + len(over.refused) + over.faults.total() < over.begun:
        await asyncio.sleep(0.05)
    return [
        line("one in flight", alone, min(5.0, seconds)),
        line(f"{in_flight} in flight", at_peak, seconds) | {"answers_per_s": f"{peak:.1f}"},
        line(f"{OVER} times the peak", over, seconds)
        | {
            "answers_per_s": f"{answers:.1f}",
            "of_peak": f"{answers / peak:.3f}",
            "ready": f"{sum(readiness)} of {len(readiness)}",
            "recovered_s": f"{recovered:.2f}",
        },
    ]


def line(phase: str, seen: Seen, seconds: float) -> Line:
    told = {
        "phase": phase,
        "begun": str(seen.begun),
        "begun_per_s": f"{seen.begun / seconds:.1f}",
        "right": str(len(seen.answered)),
        "refused": str(len(seen.refused)),
        "faults": "; ".join(f"{count} {what}" for what, count in seen.faults.items()),
    }
    for name, took in (("answered", seen.answered), ("refused", seen.refused)):
        if took:
            told[f"{name}_p50_ms"] = f"{percentile_ms(took, 50):.1f}"
            told[f"{name}_p99_ms"] = f"{percentile_ms(took, 99):.1f}"
            told[f"{name}_max_ms"] = f"{max(took) * 1000:.1f}"
    return told


def main(
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    seconds: Annotated[float, typer.Option(help="Of the peak, and of what is above.")] = 60,
    client_cores: ClientCores = 0,
) -> None:
    """Export what is missing, measure, and write what came out; status 1 where anything was lost or wrong."""
    exit_on_sigterm()
    export(checkpoint, repository, NAME)
    entry = read_entry(repository / NAME)
    texts = [row.text for row in read_data(rows).rows][:TEXTS]
    right = reference_answers(checkpoint, entry.path, texts)
    cores = share_out(client_cores)
    with ExitStack() as stack:
        with on_cores(cores.server):
            server = stack.enter_context(served(repository, [NAME], cores.edit()))
            urls = stack.enter_context(behind_gateway(server, entry))
        about = environment(server_version(server.grpc_url)) | cores.line()
        with on_cores(cores.clients):
            lines = asyncio.run(measure(Senders(urls["http"], texts, right), full_batches(entry), seconds))
        server.check()
    write_lines(results / "overload.csv", [about | each for each in lines])
    for each in lines:
        typer.echo("  ".join(f"{name} {value}" for name, value in each.items()))
    if any(each["faults"] for each in lines):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
