"""Attention ops on a GPU beside dense kernels and AdaSplash: time, and memory beyond inputs and outputs.

    python benchmarks/gpu/op_speed.py --output OUT/op_speed.csv

32 sequences of one length, 12 heads of 64. Ours are run by ONNX Runtime on packed rows:
"SparsegenAttention" at λ = -4 on scores as trained models have them and, "full_support", on equal ones, its
worst case; "AxisAttention" with 1 % of the rows, 2 % of the columns and a local pattern of 2; "decomposed"
is the function of standard operators that stands for SparsegenAttention without the op library. The peers
are PyTorch's `scaled_dot_product_attention` by flash, cuDNN and its plain mathematics (N² scores),
FlexAttention dense and with the mask of "AxisAttention", and AdaSplash at alpha = 2, which is sparsemax.
What does not run here says why in its line. Times are of CUDA events, best and median over runs that keep
the GPU busy, with what the host takes to hand one over beside them. `extra_bytes` is what the first runs
have of memory at once, to the byte but for "decomposed"; `taken_bytes` what the GPU has less of, in steps
of 2 MiB.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from sessions import (
    SECONDS,
    Run,
    Session,
    environment,
    extra_memory,
    free_memory,
    op_model,
    op_outputs,
    time_runs,
    write_csv,
)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparse_serve.op_library import Device

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
BATCH, HEADS, HEAD_SIZE = 32, 12, 64
LAMBD = -4.0
SPREAD = 1.5  # of queries, which gives supports as fine-tuned models have them
ROWS, COLUMNS, LOCAL = 0.01, 0.02, 2
LOADING_LENGTH = 600  # every kernel of a call is launched for it
MOST_SCORE_BYTES = 60 << 30  # of kernels that keep N² scores
MOST_SORTED = 2048  # tokens of what sorts them: at 2,048 it takes a second
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Problem:
    """`batch` sequences of `length` tokens; tensors `(B, H, L, D)` for the peers, `(B·L, H·D)` for ours."""

    length: int
    batch: int
    dtype: torch.dtype
    device: Device

    def tensors(self, spread: float = SPREAD) -> tuple[Tensor, Tensor, Tensor]:
        """Return packed queries, keys and values."""
        generator = torch.Generator().manual_seed(self.length)
        shape = (self.batch * self.length, HEADS * HEAD_SIZE)
        query, key, value = (torch.randn(shape, generator=generator) for _ in range(3))
        query, key, value = (each.to(self.device, self.dtype) for each in (query * spread, key, value))
        return query, key, value

    def padded(self) -> tuple[Tensor, ...]:
        shape = (self.batch, self.length, HEADS, HEAD_SIZE)
        return tuple(each.view(shape).transpose(1, 2).contiguous() for each in self.tensors())

    @property
    def borders(self) -> Tensor:
        return torch.arange(0, (self.batch + 1) * self.length, self.length, dtype=torch.int32).to(self.device)

    def indicators(self) -> tuple[Tensor, Tensor]:
        """Return the rows and columns that are on, `(B·L,)` bool each."""
        generator = torch.Generator().manual_seed(1)
        drawn = torch.rand(2, self.batch * self.length, generator=generator)
        return (drawn[0] < ROWS).to(self.device), (drawn[1] < COLUMNS).to(self.device)

    @property
    def output_bytes(self) -> int:
        return self.batch * self.length * HEADS * HEAD_SIZE * self.dtype.itemsize

    @property
    def score_bytes(self) -> int:
        return self.batch * HEADS * self.length**2 * max(2, self.dtype.itemsize)


def sparsegen(problem: Problem, *, spread: float = SPREAD, has_library: bool = True) -> Run:
    attributes = {"num_heads": HEADS, "lambd": LAMBD}
    return own_op(problem, "SparsegenAttention", {}, attributes, spread=spread, has_library=has_library)


def softmax(problem: Problem) -> Run:
    return own_op(problem, "SoftmaxAttention", {}, {"num_heads": HEADS})


def axis(problem: Problem) -> Run:
    rows, columns = problem.indicators()
    attributes = {"num_heads": HEADS, "diagonals": list(range(LOCAL + 1))}
    return own_op(problem, "AxisAttention", {"rows": rows, "columns": columns}, attributes)


def own_op(
    problem: Problem,
    op: str,
    more: dict[str, Tensor],
    attributes: dict[str, Any],
    *,
    spread: float = SPREAD,
    has_library: bool = True,
) -> Run:
    query, key, value = problem.tensors(spread)
    feeds = {"query": query, "key": key, "value": value, **more, "cu_seqlens": problem.borders}
    model = op_model(op, feeds, has_function=not has_library, **attributes)
    ours = [op] if has_library else []
    session = Session(model, problem.device, has_library=has_library, ours=ours, wholly=has_library)
    return session.bound(feeds, op_outputs(op, feeds, HEADS))


def sdpa(problem: Problem, backend: SDPBackend) -> Run:
    query, key, value = problem.padded()

    @torch.inference_mode()
    def run() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value)

    return run


def flex(problem: Problem, *, masked: bool) -> Run:
    """FlexAttention, compiled as it is meant to be; on a processor, where that takes long, as it is."""
    from torch.nn.attention.flex_attention import (  # noqa: PLC0415  not on every build
        create_block_mask,
        flex_attention,
    )

    query, key, value = problem.padded()
    mask = None
    if masked:
        shape = (problem.batch, problem.length)
        rows, columns = (each.view(shape) for each in problem.indicators())

        def allowed(b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return rows[b, i] | columns[b, j] | ((i - j).abs() <= LOCAL)

        mask = create_block_mask(
            allowed, problem.batch, None, problem.length, problem.length, device=problem.device
        )
    compiled = torch.compile(flex_attention) if problem.device == "cuda" else flex_attention

    @torch.inference_mode()
    def run() -> Tensor:
        answer: Tensor = compiled(query, key, value, block_mask=mask)
        return answer

    return run


def adasplash(problem: Problem) -> Run:
    from adasplash import (  # type: ignore[import-not-found]  # noqa: PLC0415  for GPUs alone
        adasplash as attend,
    )

    query, key, value = problem.padded()
    query = query / (1 - LAMBD)  # sparsegen-lin is sparsemax of scores over 1 - λ

    @torch.inference_mode()
    def run() -> Tensor:
        answer: Tensor = attend(query, key, value, alpha=2.0)
        return answer

    return run


OURS: dict[str, Callable[[Problem], Run]] = {
    "SparsegenAttention": sparsegen,
    "SparsegenAttention_full_support": partial(sparsegen, spread=0.0),
    "SoftmaxAttention": softmax,
    "AxisAttention": axis,
}
PEERS: dict[str, Callable[[Problem], Run]] = {
    "decomposed": partial(sparsegen, has_library=False),
    "sdpa_flash": partial(sdpa, backend=SDPBackend.FLASH_ATTENTION),
    "sdpa_cudnn": partial(sdpa, backend=SDPBackend.CUDNN_ATTENTION),
    "sdpa_eager": partial(sdpa, backend=SDPBackend.MATH),
    "flex_dense": partial(flex, masked=False),
    "flex_axis": partial(flex, masked=True),
    "adasplash_alpha2": adasplash,
}
KEEPS_SCORES = ("decomposed", "sdpa_eager")
SORTS_SCORES = ("decomposed",)
IN_ARENA = ("decomposed",)  # of ONNX Runtime, which says nothing of it
MAKES_OUTPUT = frozenset(PEERS) - {"decomposed"}


def measured(problem: Problem, name: str, make: Callable[[Problem], Run], seconds: float) -> dict[str, Any]:
    """Return the figures of a variant, or why there are none."""
    empty: dict[str, Any] = dict.fromkeys(
        ("best_ms", "median_ms", "host_ms", "runs", "extra_bytes", "taken_bytes", "error"), ""
    )
    if name in KEEPS_SCORES and problem.score_bytes > MOST_SCORE_BYTES:
        return empty | {"error": f"left out: its scores take {problem.score_bytes >> 30} GiB"}
    if name in SORTS_SCORES and problem.length > MOST_SORTED:
        return empty | {"error": "left out: it sorts all scores, for seconds"}
    try:
        if name in OURS:  # its code is loaded with the first run
            make(replace(problem, length=LOADING_LENGTH, batch=1))()
        run = make(problem)
        memory = extra_memory(run, problem.device)
        found = time_runs(run, problem.device, seconds)
    except Exception as error:  # a peer that is not installed or does not take the problem says so
        return empty | {"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    finally:
        free_memory(problem.device)
    if memory is not None:
        extra = memory.taken if name in IN_ARENA else memory.held
        empty["extra_bytes"] = extra - (problem.output_bytes if name in MAKES_OUTPUT else 0)
        empty["taken_bytes"] = memory.taken
    return empty | found.columns()


def lines(problems: list[Problem], chosen: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    for problem in problems:
        for name, make in {**OURS, **PEERS}.items():
            if chosen and name not in chosen:
                continue
            line = {
                "variant": name,
                "length": problem.length,
                "batch": problem.batch,
                "num_heads": HEADS,
                "head_size": HEAD_SIZE,
                "dtype": str(problem.dtype).removeprefix("torch."),
                "eager_score_bytes": problem.score_bytes,
            } | measured(problem, name, make, seconds)
            told = line["error"] or f"{line['best_ms']:10.4f} ms  {line['extra_bytes']} bytes"
            print(f"{problem.length:6} {line['dtype']:9} {name:32} {told}", flush=True)
            yield line


def main(
    output: Annotated[Path, typer.Option(help="CSV file to write.")],
    device: Annotated[str, typer.Option(help="cuda, or cpu to try it.")] = "cuda",
    dtype: Annotated[list[str] | None, typer.Option(help="Element types.")] = None,
    length: Annotated[list[int] | None, typer.Option(help="Lengths.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Variants.")] = None,
    seconds: Annotated[float, typer.Option(help="Time of each variant.")] = SECONDS,
    toy: Annotated[bool, typer.Option("--toy", help="One short length.")] = False,
) -> None:
    """Measure every variant on every problem, and write a line for each."""
    own: Device = "cuda" if device == "cuda" else "cpu"
    here = environment(own)
    problems = [
        Problem(each, 2 if toy else BATCH, DTYPES[name], own)
        for name in (dtype or (["float32"] if toy else ["bfloat16", "float16"]))
        for each in (length or ([16] if toy else LENGTHS))
    ]
    found = write_csv(output, (line | here for line in lines(problems, only or [], 0.01 if toy else seconds)))
    failed = [line["variant"] for line in found if line["variant"] in OURS and line["error"]]
    if failed:
        raise SystemExit(f"these of ours did not run: {', '.join(sorted(set(failed)))}")


if __name__ == "__main__":
    typer.run(main)
