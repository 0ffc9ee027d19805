"""Every op, element type and length on a GPU, held against float64.

    python benchmarks/gpu/correctness.py --output OUT/correctness.csv
    compute-sanitizer --tool memcheck python benchmarks/gpu/correctness.py --short …

The problems are in questions.py, and the reference is that of the op tests, its budgets too: what it
computes for float32; of 16 bits what rounding weights and results to them adds. Supports lie between those
of scores that are within rounding of the threshold. What of borders a CPU refuses must answer NaN. Where a
kernel is off, its line says by how much, and the status is 1.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product, repeat
from operator import call
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from questions import CROSS, ELEMENTS, PACKED, SHORT_TOKENS, Question, questions
from sessions import Session, environment, op_model, op_outputs, synchronize, write_csv
from torch import Tensor

from sparse_serve.op_library import Device

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ops"))

import reference  # type: ignore[import-not-found]  # of the op tests
from one_op import (  # type: ignore[import-not-found]
    attention_attributes,
    attention_inputs,
    axis_attributes,
    axis_inputs,
    cross_inputs,
)

from axis_cases import AxisCase
from cases import AttentionCase, Element

Array = npt.NDArray[Any]
Problem = Callable[[Device], dict[str, Any]]

TOYS = ("two_tokens", "aaa", "hostile_100")
LIN_LENGTHS = (37, 513, 4096)
BORDERS = ([1, 40, 70], [0, 40, 69], [0, 50, 40, 70], [0, -1, 70], [0, 2**31 - 1, 70], [0, 0])
_LAMBD = -4.0


def main(
    output: Annotated[Path, typer.Option(help="CSV file to write.")],
    device: Annotated[str, typer.Option(help="cuda, or cpu to try it.")] = "cuda",
    short: Annotated[bool, typer.Option("--short", help="Short problems, for compute-sanitizer.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="No problem of more tokens.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes: float64 is computed on processors.")] = 1,
    toy: Annotated[bool, typer.Option("--toy", help="One problem of each op and type.")] = False,
) -> None:
    """Ask every question, write a line for each, and end with 1 where an answer is off."""
    own: Device = "cuda" if device == "cuda" else "cpu"
    here = environment(own)
    most = SHORT_TOKENS if short else max_tokens
    asked = [each for each in questions() if most is None or each.tokens <= most]
    if toy:
        asked = [each for each in asked if each.attention.name in TOYS]
        most = 0
    lines = write_csv(output, (_told(line) | here for line in judged_lines(asked, own, most, workers)))
    failed = sum(line["passed"] != "yes" for line in lines)
    print(f"{len(lines) - failed} of {len(lines)} within their budgets")
    sys.exit(1 if failed else 0)


def _told(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line, printed where it is not as it should be."""
    if line["passed"] != "yes":
        print(f"{line['op']} {line['case']} {line['dtype']}: {line}", file=sys.stderr, flush=True)
    return line


def judged_lines(
    asked: list[Question], device: Device, most: int | None, workers: int
) -> Iterator[dict[str, Any]]:
    """Yield a line for each problem, in order."""
    if workers == 1:
        yield from map(call, problems(asked, most), repeat(device))
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=environment, initargs=(device,)) as pool:
        yield from pool.map(call, problems(asked, most), repeat(device))


def problems(asked: Iterable[Question], most: int | None) -> Iterator[Problem]:
    """Yield what makes a line of each problem: of those asked, and of the other ops up to so many tokens."""
    for question in asked:
        yield partial(judged, question)
    lengths = [each for each in LIN_LENGTHS if most is None or each <= most] or LIN_LENGTHS[:1]
    for element, length in product(ELEMENTS, lengths):
        yield partial(judged_lin, length, element)
        yield partial(judged_mask, length, element)
    for element, op in product(ELEMENTS, (*PACKED, "AxisAttention")):
        yield partial(judged_empty, op, element)
        for borders in BORDERS:
            yield partial(judged_borders, op, borders, element)


def judged(question: Question, device: Device) -> dict[str, Any]:
    """Return the error of an answer beside its budget, and whether its support is one that may be."""
    line = {"op": question.op, "case": question.name, "dtype": question.element}
    try:
        outputs = answered(question, device)
    except Exception as error:
        return line | refusal(error)
    expected, least, most, budget = wanted(question)
    if question.op in CROSS:
        expected, least, most, budget = (
            each[question.queries.tokens] for each in (expected, least, most, budget)
        )
    ours = outputs["output"].float().cpu().numpy().astype(np.float64)
    off = np.where(np.isnan(ours) & np.isnan(expected), 0, np.abs(ours - expected))
    is_support = True
    if "support" in outputs:
        support = outputs["support"].cpu().numpy()
        is_support = bool(((support >= least) & (support <= most)).all())
    return line | verdict(off, budget, is_support)


def judged_lin(length: int, element: Element, device: Device) -> dict[str, Any]:
    """Return what SparsegenLin makes of scores of trained size, as `judged` does."""
    generator = torch.Generator().manual_seed(length)
    scores = (torch.randn((2, 3, length), generator=generator) * 8).to(ELEMENTS[element])
    line = {"op": "SparsegenLin", "case": f"length_{length}", "dtype": element}
    expected = reference.sparsegen_lin(scores.double().numpy(), _LAMBD)
    rounding = 0.0 if element == "float32" else float(torch.finfo(ELEMENTS[element]).eps) / 2
    try:
        outputs = run_op("SparsegenLin", {"scores": scores.to(device)}, 1, device, lambd=_LAMBD)
    except Exception as error:
        return line | refusal(error)
    off = np.abs(outputs["weights"].double().cpu().numpy() - expected)
    return line | verdict(off, np.full_like(off, reference.AXIS_TOLERANCE + rounding))


def judged_mask(length: int, element: Element, device: Device) -> dict[str, Any]:
    """Return how many indicators of AxisMask are off whose logit is not within rounding of 0."""
    generator = torch.Generator().manual_seed(length)
    shapes = {"hidden": (length, 96), "weight": (2, 96), "bias": (2,)}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    own = {name: each.to(ELEMENTS[element]) for name, each in drawn.items()}
    line = {"op": "AxisMask", "case": f"tokens_{length}", "dtype": element}
    logits = own["hidden"].double() @ own["weight"].double().T + own["bias"].double()
    try:
        outputs = run_op("AxisMask", {name: each.to(device) for name, each in own.items()}, 1, device)
    except Exception as error:
        return line | refusal(error)
    found = torch.stack([outputs["rows"], outputs["columns"]], 1).cpu()
    off = ((found != (logits > 0)) & (logits.abs() > 10 * reference.AXIS_TOLERANCE)).numpy()
    return line | verdict(off.sum(keepdims=True).astype(np.float64), np.zeros((1, 1)))


def judged_empty(op: str, element: Element, device: Device) -> dict[str, Any]:
    """Return whether sequences without tokens are answered, by nothing."""
    line = {"op": op, "case": "no_tokens", "dtype": element}
    case = AttentionCase("no_tokens", (0, 0), 2, 64, element=element)
    try:
        answered(Question(op, _of_op(op, case), element), device)
    except Exception as error:
        return line | refusal(error)
    return line | verdict(np.zeros(0), np.zeros(0))


def judged_borders(op: str, borders: list[int], element: Element, device: Device) -> dict[str, Any]:
    """Return whether bad borders answer NaN and support 0; a CPU refuses them."""
    line = {"op": op, "case": f"borders_{'_'.join(map(str, borders))}", "dtype": element}
    case = AttentionCase("borders", (70,), 2, 64, element=element)
    question = Question(op, _of_op(op, case), element)
    try:
        outputs = answered(question, device, cu_seqlens=np.array(borders, np.int32))
    except Exception as error:
        is_refused = device == "cpu" and "cu_seqlens" in str(error)
        return line | (verdict(np.zeros(0), np.zeros(0)) if is_refused else refusal(error))
    ours = outputs["output"].isnan().cpu().numpy()
    has_support = "support" in outputs and bool(outputs["support"].any())
    return line | verdict((~ours).astype(np.float64), np.zeros(ours.shape), not has_support)


def _of_op(op: str, case: AttentionCase) -> AttentionCase | AxisCase:
    return AxisCase(case, 0.1, 0.1, (0, 1, 2), 1) if op == "AxisAttention" else case


def verdict(off: Array, budget: Array, is_support: bool = True) -> dict[str, Any]:
    """Return the error that is the greatest part of its budget, with that; NaN is beyond any."""
    over = np.where(np.isnan(off), np.inf, off) - budget
    worst = np.unravel_index(np.argmax(over), over.shape) if over.size else None
    is_within = bool((over <= 0).all())
    return {
        "max_error": "0" if worst is None else f"{off[worst]:.3g}",
        "budget": "0" if worst is None else f"{budget[worst]:.3g}",
        "support": "yes" if is_support else "no",
        "passed": "yes" if is_support and is_within else "no",
        "error": "",
    }


def refusal(error: Exception) -> dict[str, Any]:
    """Return the line of a run that failed: the others are made all the same."""
    told = " ".join(str(error).split())[:300]
    return {"max_error": "", "budget": "", "support": "", "passed": "no", "error": told}


def run_op(
    op: str, feeds: dict[str, Tensor], heads: int, device: Device, **attributes: Any
) -> dict[str, Tensor]:
    outputs = op_outputs(op, feeds, heads)
    session = Session(op_model(op, feeds, **attributes), device, ours=[op], wholly=True)
    session.bound(feeds, outputs)()
    synchronize(device)
    return outputs


def answered(question: Question, device: Device, **others: Array) -> dict[str, Tensor]:
    """Return an op's outputs, of the problem's inputs but for some others."""
    case = question.case
    if isinstance(case, AxisCase):
        arrays, attributes = axis_inputs(case), axis_attributes(case)
    else:
        arrays, attributes = attention_inputs(case), attention_attributes(question.of, case)
    if question.is_hostile:
        for row, number in enumerate((np.nan, -np.inf, np.inf)):
            arrays["query"][row] = number
    if question.op in CROSS:
        arrays = cross_inputs(arrays, question.queries)
    arrays |= others
    feeds = {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in arrays.items()}
    for name in ("query", "key", "value"):
        feeds[name] = feeds[name].to(ELEMENTS[question.element])
    return run_op(question.op, feeds, question.attention.num_heads, device, **attributes)


def wanted(question: Question) -> tuple[Array, Array, Array, Array]:
    """Return the output in float64, the least and the most support, and how far each output may be off."""
    case = question.case
    if isinstance(case, AxisCase):
        axis = reference.axis_attention(case)
        found = (axis.output, axis.least_support, axis.most_support, reference.axis_gpu_budget(case, axis))
        keys = axis.allowed[:, None]
        counts_all = case.normalizer == "softmax"
    else:
        normalizer = "sparsegen" if question.of == "SparsegenAttention" else "softmax"
        own = reference.packed_attention(case, normalizer)
        found = (own.output, own.least_support, own.most_support, reference.gpu_budget(case, own))
        keys = np.full((question.tokens, 1), case.lengths[0] if case.lengths else 0)
        counts_all = False
    return _hostile(*found, keys, counts_all=counts_all) if question.is_hostile else found


def _hostile(
    output: Array, least: Array, most: Array, budget: Array, keys: Array, *, counts_all: bool
) -> tuple[Array, Array, Array, Array]:
    """Return what is wanted where the first queries score NaN, +inf and −inf."""
    output, least, most = output.copy(), least.copy(), most.copy()
    output[:2], output[2] = np.nan, 0
    for support in (least, most):
        support[:2] = keys[:2]
        support[2] = keys[2] if counts_all else 0
    return output, least, most, budget


if __name__ == "__main__":
    typer.run(main)
