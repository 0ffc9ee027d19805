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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from sparse_export.encoders.checkpoint import task_of
from sparse_export.parity.examples import Batch, Examples, batches
from sparse_export.parity.executions import Answer, TorchAnswer, run_graph, run_torch
from sparse_serve.errors import GateError
from sparse_serve.metrics import answers, headline, task_metrics
from sparse_serve.repository.config import AXES
from sparse_serve.repository.manifest import Dtype
from sparse_serve.tasks import ProblemType

Logits = npt.NDArray[np.float32]

# Float16 rounds every tensor between two operators to 11 bits: measured up to 0.003 on fine-tuned encoders.
DEFAULT_ATOL: Mapping[Dtype, float] = {"fp32": 1e-4, "fp16": 1e-2}
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
        max_abs_diff: the largest |Δlogit| of the answers if each goes by its own masks.
    """

    count: int
    indicators: int
    farthest: float
    max_abs_diff: float


@dataclass(frozen=True)
class Agreement:
    """One runtime held against torch, at equal masks where masks are learned.

    Attributes:
        max_abs_diff: the largest |Δlogit|.
        label_agreement: share of rows with the same label, or labels; None for regression, which has none.
        metrics: the task metrics of this runtime by name, where labels were given.
        flips: learned rows and columns on which they disagree; None where none are learned.
    """

    max_abs_diff: float
    label_agreement: float | None
    metrics: dict[str, float] | None
    flips: MaskFlips | None = None


@dataclass(frozen=True)
class ParityReport:
    """What the gate saw.

    Attributes:
        rows: number of texts.
        longest: tokens of the longest text.
        atol: the accepted |Δlogit|.
        metric: name of the metric that the task is known by, one of `metrics`.
        torch_metrics: the task metrics of the torch model by name, where labels were given.
        library: ONNX Runtime with the op library.
        portable: stock ONNX Runtime.
        rho_torch: share of exactly zero attention weights per layer in torch, mean over rows.
        rho: the same as the graph answers it with the op library.
        axes_torch: with a pattern `rows_on` and `columns_on`, the shares of tokens whose rows and columns are
            on per layer in torch, mean over rows.
        axes: the same as the graph answers it with the op library.
    """

    rows: int
    longest: int
    atol: float
    metric: str
    torch_metrics: dict[str, float] | None
    library: Agreement
    portable: Agreement
    rho_torch: list[float]
    rho: list[float]
    axes_torch: dict[str, list[float]]
    axes: dict[str, list[float]]

    def require(self) -> None:
        """Raise `GateError` unless both runtimes are within the threshold, and the masks are torch's.

        Within it a label can differ only where torch's two best logits are closer than twice the threshold.
        """
        for name, side in (("with the op library", self.library), ("without it", self.portable)):
            self._require_agreement(name, side)
        compared = [("zero attention weights", self.rho, self.rho_torch, _RHO_ATOL)]
        compared += [
            (f"{name.removesuffix('_on')} that are on", self.axes[name], shares, _AXES_ATOL)
            for name, shares in self.axes_torch.items()
        ]
        for what, shares, shares_torch, atol in compared:
            for layer, (served, expected) in enumerate(zip(shares, shares_torch, strict=True), start=1):
                if not abs(served - expected) <= atol:
                    raise GateError(
                        f"parity not met: layer {layer} of the graph has a share of {served:.4f} {what}, "
                        f"torch of {expected:.4f}; accepted is a difference of {atol:g}; nothing was written"
                    )

    def _require_agreement(self, name: str, side: Agreement) -> None:
        if not math.isfinite(side.max_abs_diff):
            raise GateError(
                f"parity not met: a logit of torch or of ONNX Runtime {name} is not finite (in fp16 "
                "numbers above 65504 overflow, --dtype fp32 has room for them); nothing was written"
            )
        if side.flips is not None and not side.flips.farthest <= self.atol:
            raise GateError(
                f"parity not met: {side.flips.count} of {side.flips.indicators} rows and columns are on in "
                f"ONNX Runtime {name} and off in torch or the other way round, one with a logit of "
                f"{side.flips.farthest:.3g} in torch; accepted is {self.atol:g} (--atol); nothing was written"
            )
        if not side.max_abs_diff <= self.atol:
            raise GateError(
                f"parity not met: ONNX Runtime {name} differs from torch by up to "
                f"{side.max_abs_diff:.3g} in a logit over {self.rows} texts, accepted is {self.atol:g} "
                "(--atol); nothing was written"
            )


def check_parity(
    model: PreTrainedModel,
    graph: Path,
    op_library: Path,
    examples: Examples,
    atol: float = DEFAULT_ATOL["fp32"],
) -> ParityReport:
    """Run torch, ONNX Runtime with the op library and stock ONNX Runtime on the same examples.

    Args:
        model: the classifier, as `checkpoint.load_classifier` gives it.
        graph: its packed ONNX graph.
        op_library: path of `libsparse_ops.so`.
        examples: tokenised texts.
        atol: accepted |Δlogit|, recorded in the report.
    """
    rows = list(batches(examples.encodings, model.config))
    own = [run_torch(model, batch) for batch in rows]
    library = _Comparison.of(model, rows, own, run_graph(graph, op_library, rows))
    portable = _Comparison.of(model, rows, own, run_graph(graph, None, rows))
    task = task_of(model.config)

    def metrics(answered: Sequence[Answer]) -> dict[str, float] | None:
        if examples.targets is None:
            return None
        return task_metrics(task.problem_type, _logits(answered), examples.targets)

    def agreement(compared: _Comparison) -> Agreement:
        return Agreement(
            max_abs_diff=_difference(compared.served, compared.expected),
            label_agreement=compared.label_agreement(task.problem_type),
            metrics=metrics(compared.served),
            flips=compared.flips(),
        )

    axes = [name for name in AXES if name in own[0].measures]
    return ParityReport(
        rows=len(examples.encodings),
        longest=max(len(encoding["input_ids"]) for encoding in examples.encodings),
        atol=atol,
        metric=headline(task.problem_type),
        torch_metrics=metrics(own),
        library=agreement(library),
        portable=agreement(portable),
        rho_torch=_mean(library.expected, "rho"),
        rho=_mean(library.served, "rho"),
        axes_torch={name: _mean(library.expected, name) for name in axes},
        axes={name: _mean(library.served, name) for name in axes},
    )


def twin_difference(model: PreTrainedModel, graph: Path, op_library: Path, examples: Examples) -> float:
    """Return the largest |Δlogit| between a softmax twin's graph and the softmax torch model."""
    rows = list(batches(examples.encodings, model.config))
    return _difference(run_graph(graph, op_library, rows), [run_torch(model, batch) for batch in rows])


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

    def label_agreement(self, problem_type: ProblemType) -> float | None:
        if problem_type == "regression":
            return None
        served, expected = (answers(problem_type, _logits(each)) for each in (self.served, self.expected))
        same = served == expected
        return float(same.reshape(len(same), -1).all(1).mean())

    def flips(self) -> MaskFlips | None:
        if not self.own[0].axis_logits:
            return None
        pairs = list(zip(self.served, self.expected, strict=True))
        return MaskFlips(
            count=sum(_flipped(answer, expected) for answer, expected in pairs),
            indicators=sum(int(layer.isfinite().sum()) for each in self.own for layer in each.axis_logits),
            farthest=float(np.max([_farthest_flip(answer, expected) for answer, expected in pairs])),
            max_abs_diff=_difference(self.served, self.own),
        )


def _flipped(answer: Answer, expected: TorchAnswer) -> int:
    layers = zip(answer.indicators, expected.indicators, strict=True)
    return sum(int((ours != torchs).sum()) for ours, torchs in layers)


def _farthest_flip(answer: Answer, expected: TorchAnswer) -> float:
    layers = zip(answer.indicators, expected.indicators, expected.axis_logits, strict=True)
    return max(
        float(
            logits.abs().where(ours != torchs, 0).max() / logits[logits.isfinite()].abs().max().clamp_min(1)
        )
        for ours, torchs, logits in layers
    )


def _logits(answered: Sequence[Answer]) -> Logits:
    return np.concatenate([answer.logits for answer in answered])


def _difference(ours: Sequence[Answer], torchs: Sequence[Answer]) -> float:
    return float(np.abs(_logits(ours) - _logits(torchs)).max())


def _mean(answered: Sequence[Answer], measure: str) -> list[float]:
    means: list[float] = np.concatenate([answer.measures[measure] for answer in answered]).mean(0).tolist()
    return means
