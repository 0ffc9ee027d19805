"""The gate in front of the repository: the exported graph against the torch model.

Three executions see the same texts: torch (padded, the specification), ONNX Runtime with the op library, and
stock ONNX Runtime, which inlines the model-local functions.

Learned rows and columns are on where a logit is above 0. Hidden states differ in their last bits between the
executions, so a logit that is as good as 0 may fall on either side, and its token's attention is then another
one altogether. Such flips are counted, not smoothed over. Layer by layer, behind layers with equal rows and
columns, the graph's are held against torch's logits: a flip is accepted where that logit is within `atol` of
0, or of as large a share of the layer's largest logit where that is above 1, as rounding grows with what it
rounds. Logits, and what is measured of the attention, are then compared at equal masks: torch attends by the
graph's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from sparse_export.graph.precision import FP32
from sparse_export.parity.answers import (
    accepted_difference,
    answers_of,
    largest_difference,
    largest_number,
    metrics_of,
)
from sparse_export.parity.examples import Batch, Examples, batches, several_runs
from sparse_export.parity.executions import EXECUTIONS, Answer, TorchAnswer, run_graph, run_torch
from sparse_export.tasks import model_head
from sparse_serve.cuda import CPU_PROVIDER
from sparse_serve.errors import GateError
from sparse_serve.repository.measures import AXES

# Rounding may move single keys across sparsegen's threshold; the share of zeros moves by far less than this.
_RHO_ATOL = 0.005
# At equal masks these are counts over lengths.
_AXES_ATOL = 1e-5


@dataclass(frozen=True)
class MaskFlips:
    """Learned rows and columns on which one runtime and torch disagree.

    Attributes:
        count: how many disagree.
        indicators: of how many: a row and a column of every token in every layer.
        farthest: the largest |logit| that torch has of one that disagrees, as a share of its layer's largest
            where that is above 1; 0 if none does.
        max_abs_diff: the largest difference of the answers if each goes by its own masks.
    """

    count: int
    indicators: int
    farthest: float
    max_abs_diff: float


@dataclass(frozen=True)
class Agreement:
    """One runtime held against torch, at equal masks where masks are learned.

    Attributes:
        max_abs_diff: the largest difference of a number of the graph's output: a logit, by token those of all
            tokens, or a number of an embedding.
        label_agreement: share of texts with the same answer: label or labels, span, entities; None where the
            numbers are the answer.
        metrics: the task metrics of this runtime by name, where labels were given.
        flips: learned rows and columns on which they disagree; None where none are learned.
        rho_diff: the largest difference, among layers, of the mean share of zero attention weights.
        axes_diff: likewise of the shares of rows and of columns that are on; 0 without a pattern.
    """

    max_abs_diff: float
    label_agreement: float | None
    metrics: dict[str, float] | None
    flips: MaskFlips | None = None
    rho_diff: float = 0.0
    axes_diff: float = 0.0


@dataclass(frozen=True)
class ParityReport:
    """What the gate saw.

    Attributes:
        rows: number of texts.
        longest: tokens of the longest row of the graph.
        atol: the accepted difference of numbers of up to 10.
        output: what the graph answers: "logits" or "embedding".
        metric: name of the metric that the task is known by, one of `metrics`; None where it has none.
        torch_metrics: the task metrics of the torch model by name, where labels were given.
        executions: by name (`executions.EXECUTIONS`), each way of ONNX Runtime held against torch.
        rho_torch: share of exactly zero attention weights per layer in torch, mean over rows.
        rho: the same as the graph answers it by the first execution.
        axes_torch: with a pattern `rows_on` and `columns_on`, the shares of tokens whose rows and columns are
            on per layer in torch, mean over rows.
        axes: the same as the graph answers it by the first execution.
        provider: ONNX Runtime's name of what computed the graph.
        largest: the largest finite number of torch's output.
    """

    rows: int
    longest: int
    atol: float
    output: str
    metric: str | None
    torch_metrics: dict[str, float] | None
    executions: Mapping[str, Agreement]
    rho_torch: list[float]
    rho: list[float]
    axes_torch: dict[str, list[float]]
    axes: dict[str, list[float]]
    provider: str = CPU_PROVIDER
    largest: float = 0.0

    @property
    def accepted(self) -> float:
        """The accepted difference of an output: `atol`, or more of large numbers."""
        return accepted_difference(self.atol, self.largest)

    @property
    def library(self) -> Agreement:
        """ONNX Runtime with the op library."""
        return self.executions["library"]

    @property
    def portable(self) -> Agreement:
        """Stock ONNX Runtime."""
        return self.executions["portable"]

    def to_json(self) -> dict[str, Any]:
        """Return the figures, those of each execution under its name."""
        figures = asdict(self)
        by_execution: dict[str, Any] = figures.pop("executions")
        return figures | by_execution

    def require(self) -> None:
        """Raise `GateError` unless all executions are within what is accepted, and the masks are torch's.

        Within it a label can differ only where torch's two best logits are closer than twice that.
        """
        for execution in EXECUTIONS:
            self._require_agreement(execution.words, self.executions[execution.name])

    def _require_agreement(self, name: str, side: Agreement) -> None:
        if not math.isfinite(side.max_abs_diff):
            raise GateError(
                f"parity not met: the {self.output} of torch or of ONNX Runtime {name} are not finite (in "
                "fp16 numbers above 65504 overflow, --dtype fp32 has room for them); nothing was written"
            )
        if side.flips is not None and not side.flips.farthest <= self.atol:
            raise GateError(
                f"parity not met: {side.flips.count} of {side.flips.indicators} rows and columns are on in "
                f"ONNX Runtime {name} and off in torch or the other way round, one with a logit of "
                f"{side.flips.farthest:.3g} in torch; accepted is {self.atol:g} (--atol); nothing was written"
            )
        if not side.max_abs_diff <= self.accepted:
            raise GateError(
                f"parity not met: ONNX Runtime {name} differs from torch by up to {side.max_abs_diff:.3g} in "
                f"its {self.output} over {self.rows} texts, accepted is {self.accepted:g} (--atol); nothing "
                "was written"
            )
        for what, difference, accepted in (
            ("zero attention weights", side.rho_diff, _RHO_ATOL),
            ("rows or columns that are on", side.axes_diff, _AXES_ATOL),
        ):
            if not difference <= accepted:
                raise GateError(
                    f"parity not met: a layer's share of {what} by ONNX Runtime {name} differs by "
                    f"{difference:.4f} from torch's, accepted is {accepted:g}; nothing was written"
                )


def check_parity(
    model: PreTrainedModel,
    graph: Path,
    op_library: Path,
    examples: Examples,
    atol: float = FP32.atol,
    provider: str = CPU_PROVIDER,
) -> ParityReport:
    """Run torch, and ONNX Runtime in every way of `executions.EXECUTIONS`, on the same examples.

    Args:
        model: as `checkpoint.load_checkpoint` gives it.
        graph: its packed ONNX graph.
        op_library: path of `libsparse_ops.so`.
        examples: tokenised texts.
        atol: accepted difference of numbers of up to 10 (`answers.accepted_difference`), recorded in the
            report.
        provider: ONNX Runtime's name of what computes the graph, recorded in the report; torch is on the CPU.
    """
    head = model_head(model)
    rows, order = examples.rows, examples.order
    run = list(batches([rows[number] for number in order], model.config))
    own = [run_torch(model, batch) for batch in run]
    compared = {
        each.name: _Comparison.of(
            model,
            run,
            own,
            run_graph(graph, op_library if each.has_library else None, run, provider),
        )
        for each in EXECUTIONS
    }
    expected_answers = answers_of(head, examples, own)
    axes = [name for name in AXES if name in own[0].measures]

    def agreement(comparison: _Comparison) -> Agreement:
        served, torchs = (
            answers_of(head, examples, each) for each in (comparison.served, comparison.expected)
        )
        same = head.same_answers(examples.texts, served, torchs)
        return Agreement(
            max_abs_diff=largest_difference(comparison.served, comparison.expected),
            label_agreement=None if same is None else float(same.mean()),
            metrics=metrics_of(head, examples, served),
            rho_diff=comparison.apart(["rho"]),
            axes_diff=comparison.apart(axes),
            flips=comparison.flips(),
        )

    first = next(iter(compared.values()))
    return ParityReport(
        rows=len(examples.texts),
        longest=max(len(row["input_ids"]) for row in rows),
        atol=atol,
        output=head.task.graph_output,
        metric=next(iter(head.task.metrics), None),
        torch_metrics=metrics_of(head, examples, expected_answers),
        executions={name: agreement(comparison) for name, comparison in compared.items()},
        rho_torch=_mean(first.expected, "rho"),
        rho=_mean(first.served, "rho"),
        axes_torch={name: _mean(first.expected, name) for name in axes},
        axes={name: _mean(first.served, name) for name in axes},
        provider=provider,
        largest=largest_number(own),
    )


def twin_difference(
    model: PreTrainedModel,
    graph: Path,
    op_library: Path,
    examples: Examples,
    provider: str = CPU_PROVIDER,
) -> float:
    """Return the largest difference between the output of a twin's graph and of the model that it is of."""
    run = list(batches(examples.rows, model.config))
    return largest_difference(
        run_graph(graph, op_library, run, provider), [run_torch(model, batch) for batch in run]
    )


def runs_difference(
    model: PreTrainedModel,
    whole: Path,
    divided: Path,
    op_library: Path,
    examples: Examples,
    provider: str = CPU_PROVIDER,
) -> float:
    """Return the largest difference between the outputs of a graph and of itself in runs.

    It is asked batches of several runs each.
    """
    _, run = several_runs(examples.rows, model.config)
    return largest_difference(
        run_graph(divided, op_library, run, provider), run_graph(whole, op_library, run, provider)
    )


@dataclass(frozen=True)
class _Comparison:
    """What one runtime answers, batch by batch, beside torch by its own masks and torch by the runtime's."""

    served: Sequence[Answer]
    own: Sequence[TorchAnswer]
    expected: Sequence[TorchAnswer]

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        rows: Sequence[Batch],
        own: Sequence[TorchAnswer],
        served: Sequence[Answer],
    ) -> "_Comparison":
        """Have torch answer by the masks of what was served, where they are not its own."""
        expected = [
            first if _flipped(answer, first) == 0 else run_torch(model, batch, answer.indicators)
            for batch, answer, first in zip(rows, served, own, strict=True)
        ]
        return cls(served, own, expected)

    def apart(self, measures: Sequence[str]) -> float:
        """Return the largest difference, among layers and measures, of their means over rows."""
        pairs = [(_mean(self.served, name), _mean(self.expected, name)) for name in measures]
        return max((float(np.abs(np.subtract(*pair)).max()) for pair in pairs), default=0.0)

    def flips(self) -> MaskFlips | None:
        if not self.own[0].axis_logits:
            return None
        pairs = list(zip(self.served, self.expected, strict=True))
        return MaskFlips(
            count=sum(_flipped(answer, expected) for answer, expected in pairs),
            indicators=sum(int(layer.isfinite().sum()) for each in self.own for layer in each.axis_logits),
            farthest=float(np.max([_farthest_flip(answer, expected) for answer, expected in pairs])),
            max_abs_diff=largest_difference(self.served, self.own),
        )


def _flipped(answer: Answer, expected: TorchAnswer) -> int:
    layers = zip(answer.indicators, expected.indicators, strict=True)
    return sum(int((ours != torchs).sum()) for ours, torchs in layers)


def _farthest_flip(answer: Answer, expected: TorchAnswer) -> float:
    layers = zip(answer.indicators, expected.indicators, expected.axis_logits, strict=True)
    return max(
        float(
            logits.abs().where(ours != torchs, 0).max()
            / logits.nan_to_num(0.0, 0.0, 0.0).abs().max().clamp_min(1)
        )
        for ours, torchs, logits in layers
    )


def _mean(answered: Sequence[Answer], measure: str) -> list[float]:
    means: list[float] = np.concatenate([answer.measures[measure] for answer in answered]).mean(0).tolist()
    return means
