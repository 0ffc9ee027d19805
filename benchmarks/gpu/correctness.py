"""Every op, element type and length on a GPU, held against float64.

    python benchmarks/gpu/correctness.py --output OUT/correctness.csv
    compute-sanitizer --tool memcheck python benchmarks/gpu/correctness.py --short …

The problems are the case tables of the op tests, with long ones besides, and the reference is theirs. A
kernel may be off by the budget that the reference computes for float32; of 16 bits by what rounding
weights, values and results to them adds. Supports lie between those of scores that are within rounding of
the threshold. Where a kernel is off, its line says by how much, and the status is 1.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from sessions import Session, environment, op_model, op_outputs, synchronize, write_csv
from torch import Tensor

from sparse_serve.op_library import Device

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ops"))

import reference  # type: ignore[import-not-found]  # of the op tests
from one_op import (  # type: ignore[import-not-found]
    attention_attributes,
    attention_inputs,
    axis_attributes,
    axis_inputs,
    cross_inputs,
)

from axis_cases import AXIS_CASES, AxisCase
from cases import ATTENTION_CASES, AttentionCase, Element
from cross_cases import AskedQueries, asked_queries

Array = npt.NDArray[Any]

ELEMENTS: dict[Element, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Around the keys that a block keeps, and far above them.
LONG = tuple(
    AttentionCase(f"long_{length}", (length, length // 3, 1), 2, 64, scores="trained", seed=length)
    for length in (255, 256, 257, 448, 511, 512, 513, 1024, 2048, 4096, 8192)
)
MOST_SHORT_TOKENS = 600
TOYS = ("two_tokens", "aaa")
# Cross-attention asks for rows of self-attention's answer.
CROSS = {
    "SparsegenCrossAttention": "SparsegenAttention",
    "SoftmaxCrossAttention": "SoftmaxAttention",
    "AxisCrossAttention": "AxisAttention",
}
# Of the op's tests, for values of ordinary size.
_AXIS_TOLERANCE = 1e-5
_EPSILON_16 = 1e-4
_LAMBD = -4.0


@dataclass(frozen=True)
class Question:
    """One op on one problem."""

    op: str
    case: AttentionCase | AxisCase
    element: Element

    @property
    def attention(self) -> AttentionCase:
        return self.case.attention if isinstance(self.case, AxisCase) else self.case

    @property
    def tokens(self) -> int:
        return sum(self.attention.lengths)

    @property
    def queries(self) -> AskedQueries:
        return asked_queries("some", self.attention.cu_seqlens, seed=self.tokens)

    @property
    def of(self) -> str:
        """The op of self-attention."""
        return CROSS.get(self.op, self.op)


def questions(short: bool) -> Iterator[Question]:
    """Yield what is asked, the short ones alone where every access is watched."""
    cases = ATTENTION_CASES if short else (*ATTENTION_CASES, *LONG)
    for element in ELEMENTS:
        for case in cases:
            for op in ("SparsegenAttention", "SoftmaxAttention"):
                for own in (op, op.replace("Attention", "CrossAttention")):
                    yield Question(own, replace(case, element=element), element)
        for axis in AXIS_CASES:
            typed = replace(axis, attention=replace(axis.attention, element=element))
            for own in ("AxisAttention", "AxisCrossAttention"):
                yield Question(own, typed, element)


def main(
    output: Annotated[Path, typer.Option(help="CSV file to write.")],
    device: Annotated[str, typer.Option(help="cuda, or cpu to try it.")] = "cuda",
    short: Annotated[bool, typer.Option("--short", help="Short problems, for compute-sanitizer.")] = False,
    toy: Annotated[bool, typer.Option("--toy", help="One problem of each op and type.")] = False,
) -> None:
    """Ask every question, write a line for each, and end with 1 where an answer is off."""
    own: Device = "cuda" if device == "cuda" else "cpu"
    here = environment(own)
    lines = []
    asked = [each for each in questions(short) if not short or each.tokens <= MOST_SHORT_TOKENS]
    if toy:
        asked = [each for each in asked if each.attention.name in TOYS]
    for question in asked:
        line = {"op": question.op, "case": question.attention.name, "dtype": question.element}
        lines.append(line | judged(question, own) | here)
        if lines[-1]["passed"] != "yes":
            print(f"{question.op} {question.attention.name} {question.element}: {lines[-1]}", file=sys.stderr)
    for element in ELEMENTS:
        for length in (37, 513) if short or toy else (37, 513, 4096):
            for judge in (judged_lin, judged_mask):
                lines.append(judge(length, element, own) | here)
    write_csv(output, lines)
    failed = sum(line["passed"] != "yes" for line in lines)
    print(f"{len(lines) - failed} of {len(lines)} within their budgets")
    sys.exit(1 if failed else 0)


def judged(question: Question, device: Device) -> dict[str, Any]:
    """Return the error of an answer beside its budget, and whether its support is one that may be."""
    try:
        outputs = answered(question, device)
    except Exception as error:
        return refusal(error)
    expected, least, most, budget = wanted(question)
    if question.op in CROSS:
        expected, least, most = (each[question.queries.tokens] for each in (expected, least, most))
    ours = outputs["output"].float().cpu().numpy().astype(np.float64)
    is_finite = bool(np.isfinite(ours).all()) or not np.isfinite(expected).all()
    off = float(np.abs(ours - expected).max(initial=0))
    is_support = True
    if "support" in outputs:
        support = outputs["support"].cpu().numpy()
        is_support = bool(((support >= least) & (support <= most)).all())
    return verdict(off if is_finite else float("inf"), budget, is_support)


def judged_lin(length: int, element: Element, device: Device) -> dict[str, Any]:
    """Return what SparsegenLin makes of scores of trained size, as `judged` does."""
    generator = torch.Generator().manual_seed(length)
    scores = (torch.randn((2, 3, length), generator=generator) * 8).to(ELEMENTS[element])
    line = {"op": "SparsegenLin", "case": f"length_{length}", "dtype": element}
    expected = reference.sparsegen_lin(scores.double().numpy(), _LAMBD)
    epsilon = float(torch.finfo(ELEMENTS[element]).eps)
    budget = _AXIS_TOLERANCE + (epsilon if epsilon > _EPSILON_16 else 0.0)
    try:
        feeds = {"scores": scores.to(device)}
        outputs = run_op("SparsegenLin", feeds, 1, device, lambd=_LAMBD)
    except Exception as error:
        return line | refusal(error)
    off = np.abs(outputs["weights"].double().cpu().numpy() - expected).max()
    return line | verdict(float(off), budget, True)


def judged_mask(length: int, element: Element, device: Device) -> dict[str, Any]:
    """Return how many indicators of AxisMask are off whose logit is not within rounding of 0."""
    generator = torch.Generator().manual_seed(length)
    shapes = {"hidden": (length, 96), "weight": (2, 96), "bias": (2,)}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    own = {name: each.to(ELEMENTS[element]) for name, each in drawn.items()}
    line = {"op": "AxisMask", "case": f"tokens_{length}", "dtype": element}
    logits = own["hidden"].double() @ own["weight"].double().T + own["bias"].double()
    try:
        feeds = {name: each.to(device) for name, each in own.items()}
        outputs = run_op("AxisMask", feeds, 1, device)
    except Exception as error:
        return line | refusal(error)
    found = torch.stack([outputs["rows"], outputs["columns"]], 1).cpu()
    off = ((found != (logits > 0)) & (logits.abs() > _AXIS_TOLERANCE * 10)).sum().item()
    return line | verdict(float(off), 0.0, True)


def verdict(error: float, budget: float, is_support: bool) -> dict[str, Any]:
    return {
        "max_error": f"{error:.3g}",
        "budget": f"{budget:.3g}",
        "support": "yes" if is_support else "no",
        "passed": "yes" if is_support and error <= budget else "no",
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
    Session(op_model(op, feeds, **attributes), device).bound(feeds, outputs)()
    synchronize(device)
    return outputs


def answered(question: Question, device: Device) -> dict[str, Tensor]:
    case = question.case
    if isinstance(case, AxisCase):
        arrays, attributes = axis_inputs(case), axis_attributes(case)
    else:
        arrays, attributes = attention_inputs(case), attention_attributes(question.of, case)
    if question.op in CROSS:
        arrays = cross_inputs(arrays, question.queries)
    feeds = {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in arrays.items()}
    for name in ("query", "key", "value"):
        feeds[name] = feeds[name].to(ELEMENTS[question.element])
    return run_op(question.op, feeds, question.attention.num_heads, device, **attributes)


def wanted(question: Question) -> tuple[Array, Array, Array, float]:
    """Return the output in float64, the least and the most support, and how far an output may be off."""
    case = question.case
    epsilon = float(torch.finfo(ELEMENTS[question.element]).eps)
    if isinstance(case, AxisCase):
        axis = reference.axis_attention(case)
        return axis.output, axis.least_support, axis.most_support, axis_budget(axis.output, case, epsilon)
    normalizer = "sparsegen" if question.of == "SparsegenAttention" else "softmax"
    expected = reference.packed_attention(case, normalizer)
    rounding = 0.0 if question.element == "float32" else _rounding(case, expected.output, epsilon)
    return (
        expected.output,
        expected.least_support,
        expected.most_support,
        expected.budget() + rounding,
    )


def _rounding(case: AttentionCase, output: Array, epsilon: float) -> float:
    """Return what weights and results in so many bits add: half a unit of the last place of each."""
    value = float(np.abs(case.inputs()[2]).max(initial=0))
    return epsilon * (value + float(np.abs(output).max(initial=0)))


def axis_budget(output: Array, case: AxisCase, epsilon: float) -> float:
    """Return how far axis attention may be off: as its tests have it for float32, and rounding."""
    attention = case.attention
    steepness = 1 - attention.lambd if case.normalizer == "sparsegen" else 1
    size = max(1.0, attention.scale * math.sqrt(attention.head_size))
    rounding = 0.0 if epsilon < _EPSILON_16 else _rounding(attention, output, epsilon)
    return _AXIS_TOLERANCE * size / min(1, steepness) + rounding


if __name__ == "__main__":
    typer.run(main)
