"""What attention takes on a GPU by arithmetic alone, beside what was published and, after a run, measured.

    python benchmarks/gpu/roofline.py                     # prints the tables of benchmarks/gpu/README.md
    python benchmarks/gpu/roofline.py --write             # puts them into benchmarks/gpu/README.md
    python benchmarks/gpu/roofline.py --measured OUT/op_speed.csv --write

32 sequences of one length, 12 heads of 64, bfloat16, forward. Of each kernel the script counts bytes,
products on tensor cores, instructions of all lanes and reads of shared memory, and divides each by what
an H200 does of it in a second. The largest quotient is the `bound`: nothing can be faster. The sum of what an
SM does is what it takes where nothing overlaps. `expected` lies between, as far on as FlashAttention-2 was
measured to be, which has the same products.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

PAGE = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- begin {} -->", "<!-- end {} -->"

KEPT_BACK = 1 << 10  # bytes of shared memory of each block
BATCH, HEADS, HEAD_SIZE, ELEMENT_BYTES = 32, 12, 64, 2
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
TILE = 64  # queries of a block of ours, keys of a tile
LARGE_TILE = (
    128  # queries of a block of FlashAttention's, and of SparsegenAttention's that has no scores resident
)


@dataclass(frozen=True)
class Gpu:
    """What a GPU does in a second, and has."""

    sms: int
    clock: float  # Hz, boost
    tensor: float  # FLOP/s, 16 bits, dense
    mma_share: float  # of it that mma.sync reaches: the rest needs wgmma
    memory: float  # bytes/s
    l2: float  # bytes/s
    shared_per_sm: int  # bytes
    registers_per_sm: int
    lanes: int = 128  # float32 instructions of an SM at a clock
    specials: int = 16  # exponentials of an SM at a clock
    shared_bytes: int = 128  # of an SM at a clock


# NVIDIA H200 SXM, data sheet; H100 architecture white paper. What mma.sync reaches of the peak is measured in
# arXiv:2402.13499. NVIDIA publishes no bandwidth of L2: this is about what others measured on an H100
# (chipsandcheese.com, "Nvidia's H100: Funny L2, and Tons of Bandwidth").
H200 = Gpu(
    sms=132,
    clock=1.83e9,
    tensor=989e12,
    mma_share=0.62,
    memory=4.8e12,
    l2=5.5e12,
    shared_per_sm=228 << 10,
    registers_per_sm=65536,
)

# TFLOPs/s forward without a causal mask, head size 64, on an H100 SXM: FlashAttention-3 (arXiv:2407.08608),
# figure 5a. 16,384 tokens in a batch, hidden size 2,048. An H200 has the same cores.
PUBLISHED: Mapping[str, Mapping[int, float]] = {
    "FlashAttention-2": {512: 282, 1024: 306, 2048: 318, 4096: 321, 8192: 322},
    "cuDNN": {512: 335, 1024: 373, 2048: 395, 4096: 408, 8192: 412},
    "FlashAttention-3": {512: 333, 1024: 392, 2048: 460, 4096: 476, 8192: 496},
}


@dataclass(frozen=True)
class Work:
    """What a kernel does for all heads of a batch."""

    memory: float  # bytes of device memory
    l2: float  # bytes
    tensor: float  # FLOP
    instructions: float  # of lanes
    registers: int  # of a thread, as ptxas gives them for compute capability 9.0
    exponentials: float = 0.0
    shared: float = 0.0  # bytes
    shared_per_block: int = 0
    threads: int = 128  # of a block

    def seconds(self, gpu: Gpu = H200) -> dict[str, float]:
        """Return what each part takes by itself."""
        return {
            "memory": self.memory / gpu.memory,
            "L2": self.l2 / gpu.l2,
            "tensor": self.tensor / (gpu.tensor * gpu.mma_share),
            "lanes": self.instructions / (gpu.sms * gpu.lanes * gpu.clock),
            "exp": self.exponentials / (gpu.sms * gpu.specials * gpu.clock),
            "shared": self.shared / (gpu.sms * gpu.shared_bytes * gpu.clock),
        }

    def bound(self, gpu: Gpu = H200) -> float:
        """Return the least seconds."""
        return max(self.seconds(gpu).values())

    def serial(self, gpu: Gpu = H200) -> float:
        """Return the seconds if nothing overlaps but device memory and L2 with what is computed."""
        parts = self.seconds(gpu)
        computed = sum(seconds for name, seconds in parts.items() if name not in ("memory", "L2"))
        return max(computed, parts["memory"], parts["L2"])

    def limited_by(self, gpu: Gpu = H200) -> str:
        """Return the name of the part that takes longest."""
        parts = self.seconds(gpu)
        return max(parts, key=lambda name: parts[name])

    def blocks_per_sm(self, gpu: Gpu = H200) -> int:
        """Return how many blocks an SM holds, by shared memory and registers."""
        allotted = -(-self.registers // 8) * 8
        by_registers = gpu.registers_per_sm // (allotted * self.threads)
        return (
            min(by_registers, gpu.shared_per_sm // (self.shared_per_block + KEPT_BACK))
            if self.shared_per_block
            else by_registers
        )


def tensors(length: int) -> float:
    """Return the bytes of queries, keys, values and outputs."""
    return 4.0 * BATCH * length * HEADS * HEAD_SIZE * ELEMENT_BYTES


def reread(length: int, keys: float, tile: int = TILE) -> float:
    """Return the bytes of keys and values that all tiles of queries read."""
    return BATCH * HEADS * -(-length // tile) * 2.0 * keys * HEAD_SIZE * ELEMENT_BYTES + tensors(length)


def scores(length: int) -> float:
    """Return how many there are."""
    return float(BATCH * HEADS) * length * length


STAGES = 2 * TILE * (HEAD_SIZE + 8) * ELEMENT_BYTES  # of keys and values, padded against bank conflicts
SUPPORT = 12.0  # keys of a row of trained models, which grows by little with the length
RESIDENT = (128, 256)  # keys whose scores a block keeps, of two launches
STEPS = 2.5  # of Newton's method over all of them, from the bound that the classes' maxima give
FIRST_KEYS = 512  # which give a bound before keys are listed
SLOTS = 22  # of a list of candidates
# Instructions of a score, all that ptxas makes in bfloat16 with heads of 64, copies and products included.
# SoftmaxAttention; of SparsegenAttention scores with class maxima, a step of Newton's method, weights and
# their product with values, scores held against a cut and listed.
DENSE, SCORE, STEP, WEIGH, LIST = 24.0, 8.0, 5.3, 11.0, 9.8
# And of a query: the root over the classes, that over its candidates, one candidate's values.
CLASSES, CANDIDATES, VALUES = 1900.0, 1300.0, 350.0
# AxisAttention: queries of a warp and slots of keys that it multiplies them with; up to how many full rows of
# a sequence a block has so few, in the place of TILE; what its four warps tell each other.
CHUNK, SHARED_ROWS = 16, 64
PARTS = 4 * (CHUNK * HEAD_SIZE + 4 * 32) * 4


def fragments(tile: int = TILE) -> float:
    """Return bytes of a score: keys and values that each of four warps takes from shared memory."""
    return 2.0 * HEAD_SIZE * ELEMENT_BYTES / (tile / 4)


def dense(length: int) -> Work:
    """SoftmaxAttention: softmax attention in one pass."""
    all_scores = scores(length)
    return Work(
        memory=tensors(length),
        l2=reread(length, length),
        tensor=4.0 * HEAD_SIZE * all_scores,
        instructions=DENSE * all_scores,
        registers=128,
        exponentials=all_scores,
        shared=fragments() * all_scores,
        shared_per_block=STAGES,
    )


def flash(length: int) -> Work:
    """FlashAttention-2: 128 queries a block, 32 a warp; about 10 instructions of a score.

    Two products and 1.5 for what they read; scale, maximum, difference, exp, sum, rounding.
    """
    return replace(
        dense(length),
        l2=reread(length, length, LARGE_TILE),
        instructions=10 * scores(length),
        shared=fragments(LARGE_TILE) * scores(length),
    )


def sparsegen(length: int) -> Work:
    """SparsegenAttention: scores that stay in shared memory up to 256 keys, lists of candidates above."""
    all_scores = scores(length)
    rows = all_scores / length
    if length <= RESIDENT[-1]:
        keys = next(keys for keys in RESIDENT if length <= keys)
        return Work(
            memory=tensors(length),
            l2=reread(length, length),
            tensor=4.0 * HEAD_SIZE * all_scores,
            instructions=(SCORE + STEPS * STEP + WEIGH) * all_scores + CLASSES * rows,
            registers=128,
            # Written once, read by each step and by the product with values.
            shared=(fragments() + 4.0 * (2 + STEPS)) * all_scores,
            shared_per_block=STAGES + TILE * keys * 4,
        )
    first = FIRST_KEYS / length
    # At the end, and whenever there are twice as many keys as before.
    solved = 1 + max(0, math.ceil(math.log2(length / FIRST_KEYS)) - 1)
    return Work(
        memory=tensors(length),
        # Keys by every tile of queries, the first of them twice, and of the values those of the support.
        l2=reread(length, length, LARGE_TILE) / 2 * (1 + first) + rows * SUPPORT * HEAD_SIZE * ELEMENT_BYTES,
        tensor=2.0 * HEAD_SIZE * all_scores * (1 + first),
        instructions=(LIST + SCORE * first) * all_scores
        + (CLASSES + CANDIDATES * solved + VALUES * SUPPORT) * rows,
        registers=128,
        shared=fragments() / 2 * all_scores * (1 + first),
        shared_per_block=STAGES + 2 * 256 * (4 + 8 * SLOTS),
        threads=256,
    )


def axis(length: int, rows: float = 0.01, columns: float = 0.02, reach: int = 2) -> Work:
    """AxisAttention as its paper's models have it: 1 % of rows, 2 % of columns, a local pattern of 2.

    Keys on columns are read once for the four warps of a block, by the others from the first cache; those of
    the band by each for its own queries. A block of full rows reads all keys of its sequence.
    """
    heads, on, full = float(BATCH * HEADS), columns * length, math.ceil(rows * length)
    band = CHUNK + 2 * reach
    full_tile = CHUNK if full <= SHARED_ROWS else TILE
    read = -(-length // TILE) * on + -(-length // CHUNK) * band + -(-full // full_tile) * length
    products = heads * length * (chunked(on) + chunked(band) + chunked(full))
    return Work(
        memory=tensors(length),
        l2=tensors(length) + heads * read * 2.0 * HEAD_SIZE * ELEMENT_BYTES,
        tensor=4.0 * HEAD_SIZE * products,
        instructions=5 * products + BATCH * length,
        registers=153,
        exponentials=products,
        # From the first cache, which is the memory that blocks share.
        shared=fragments() * products,
        shared_per_block=PARTS,
    )


def chunked(keys: float) -> float:
    """Return the slots of so many keys: a warp multiplies its queries with a chunk of them at a time."""
    return -(-keys // CHUNK) * CHUNK


KERNELS: Mapping[str, Callable[[int], Work]] = {
    "SoftmaxAttention": dense,
    "SparsegenAttention": sparsegen,
    "AxisAttention": axis,
}


def published_seconds(peer: str, length: int) -> float | None:
    """Return what a dense kernel takes by its published speed; None without a figure for the length."""
    speed = PUBLISHED[peer].get(length)
    return None if speed is None else 4.0 * HEAD_SIZE * scores(length) / (speed * 1e12)


def share_of_the_way(length: int) -> float:
    """Return where FlashAttention-2 lies between a dense kernel's bound (0) and nothing overlapping (1)."""
    nearest = min(PUBLISHED["FlashAttention-2"], key=lambda known: abs(known - length))
    seconds = published_seconds("FlashAttention-2", nearest)
    assert seconds is not None
    work = flash(nearest)
    return (seconds - work.bound()) / (work.serial() - work.bound())


def expected(work: Work, length: int) -> float:
    """Return the seconds that a kernel is expected to take."""
    return work.bound() + share_of_the_way(length) * (work.serial() - work.bound())


def best_dense(length: int) -> float | None:
    """Return what the fastest published dense kernel takes."""
    found = [seconds for peer in PUBLISHED if (seconds := published_seconds(peer, length)) is not None]
    return min(found, default=None)


def budgets() -> Iterator[list[str]]:
    """Yield what kernels move, compute and hold, by length."""
    yield [
        "L",
        "kernel",
        "GB memory",
        "GB L2",
        "TFLOP",
        "G exp",
        "KiB shared a block",
        "registers a thread",
        "blocks an SM",
        "bound by",
    ]
    for length in LENGTHS:
        for name, count in KERNELS.items():
            work = count(length)
            yield [
                f"{length:,}",
                name,
                f"{work.memory / 1e9:.3f}",
                f"{work.l2 / 1e9:.2f}",
                f"{work.tensor / 1e12:.4f}",
                f"{work.exponentials / 1e9:.2f}",
                f"{work.shared_per_block / 1024:.0f}",
                str(work.registers),
                str(work.blocks_per_sm()),
                work.limited_by(),
            ]


def times(measured: Mapping[tuple[str, int], float]) -> Iterator[list[str]]:
    """Yield milliseconds: bound, expected and measured of ours, published of dense kernels."""
    yield ["L", "kernel", "bound", "expected", "measured", *PUBLISHED, "expected: best dense over it"]
    for length in LENGTHS:
        for name, count in KERNELS.items():
            work = count(length)
            best = best_dense(length)
            own = measured.get((name, length))
            yield [
                f"{length:,}",
                name,
                _ms(work.bound()),
                _ms(expected(work, length)),
                _ms(own),
                *(_ms(published_seconds(peer, length)) for peer in PUBLISHED),
                "–" if best is None else f"{best / expected(work, length):.1f}x",
            ]


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.3f}"


def table(rows: Iterator[list[str]]) -> str:
    """Return rows, the first of them headings, as a table."""
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(measured: Mapping[tuple[str, int], float]) -> dict[str, str]:
    """Return the page's tables by name."""
    return {"budgets": table(budgets()), "times": table(times(measured))}


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with what lies between its marks of a name replaced."""
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"the page has no {begin} with {end} behind it")
    return f"{before}{begin}\n{text}\n{end}{after}"


def read_measured(path: Path) -> dict[tuple[str, int], float]:
    """Return the best seconds by kernel and length of what `op_speed.py` measured in bfloat16."""
    with path.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["dtype"] == "bfloat16" and not line["error"]]
    return {(line["variant"], int(line["length"])): float(line["best_ms"]) / 1e3 for line in lines}


def main(
    measured: Annotated[Path | None, typer.Option(help="CSV of op_speed.py.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put the tables into benchmarks/gpu/README.md.")
    ] = False,
    page: Annotated[Path, typer.Option(help="The page.")] = PAGE,
) -> None:
    """Print the tables, or put them into the page."""
    found = tables({} if measured is None else read_measured(measured))
    if not write:
        print("\n\n".join(found.values()))
        return
    text = page.read_text(encoding="utf-8")
    for name, each in found.items():
        text = replaced(text, name, each)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
