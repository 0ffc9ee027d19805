"""The gate of a quantized graph: what it is for, not its numbers, is held against the torch model.

The same graph in float32 has passed the gate of parity before, so that what differs is what integers lose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from sparse_export.parity.answers import answers_of, largest_difference, metrics_of
from sparse_export.parity.examples import Examples, batches
from sparse_export.parity.executions import EXECUTIONS, Answer, run_graph, run_torch
from sparse_export.tasks import model_head
from sparse_serve.errors import GateError

# Of the metric on labelled rows; of the answers to texts without labels, which are fewer and odder.
ACCEPTED_LOSS, ACCEPTED_DISAGREEMENT = 0.005, 0.1


@dataclass(frozen=True)
class Fidelity:
    """What one runtime keeps of torch's answers.

    Attributes:
        max_abs_diff: the largest difference of a number of the graph's output.
        label_agreement: share of texts with the same answer; None where the numbers are the answer.
        explained: share of the variance of torch's numbers over texts that this runtime's explain.
        metrics: the task metrics by name, where labels were given.
    """

    max_abs_diff: float
    label_agreement: float | None
    explained: float
    metrics: dict[str, float] | None


@dataclass(frozen=True)
class QualityReport:
    """What the gate saw.

    Attributes:
        rows: number of texts.
        output: what the graph answers: "logits" or "embedding".
        metric: name of the metric that is judged; None where answers are, or without them the numbers.
        accepted_loss: how much of what is judged may be lost.
        torch_metrics: the task metrics of the torch model by name, where labels were given.
        executions: by name (`executions.EXECUTIONS`), each way of ONNX Runtime held against torch.
    """

    rows: int
    output: str
    metric: str | None
    accepted_loss: float
    torch_metrics: dict[str, float] | None
    executions: Mapping[str, Fidelity]

    @property
    def judged(self) -> str:
        """What is judged, in words."""
        if self.metric is not None:
            return self.metric
        has_answers = any(each.label_agreement is not None for each in self.executions.values())
        return "agreement" if has_answers else f"explained variance of its {self.output}"

    def kept(self, fidelity: Fidelity) -> float:
        """Return what a runtime has of what is judged."""
        if self.metric is not None:
            assert fidelity.metrics is not None
            return fidelity.metrics[self.metric]
        return fidelity.explained if fidelity.label_agreement is None else fidelity.label_agreement

    @property
    def wanted(self) -> float:
        """What torch has of what is judged."""
        if self.metric is None:
            return 1.0
        assert self.torch_metrics is not None
        return self.torch_metrics[self.metric]

    def to_json(self) -> dict[str, Any]:
        """Return the figures, those of each execution under its name."""
        figures = asdict(self)
        by_execution: dict[str, Any] = figures.pop("executions")
        return figures | by_execution

    def require(self) -> None:
        """Raise `GateError` where more is lost than is accepted."""
        for execution in EXECUTIONS:
            kept = self.kept(self.executions[execution.name])
            if not self.wanted - kept <= self.accepted_loss:
                raise GateError(
                    f"quality not met: in int8 ONNX Runtime {execution.words} has {self.judged} {kept:.4f} "
                    f"over {self.rows} texts, torch {self.wanted:.4f}; accepted is a loss of "
                    f"{self.accepted_loss:g} (--max-loss); nothing was written"
                )


def check_quality(
    model: PreTrainedModel,
    graph: Path,
    op_library: Path,
    examples: Examples,
    accepted_loss: float | None = None,
) -> QualityReport:
    """Run torch in float32, and ONNX Runtime in every way of `executions.EXECUTIONS`, on the same examples.

    Each runtime goes by its own rows and columns where a pattern learns them.

    Args:
        model: as `checkpoint.load_checkpoint` gives it.
        graph: its quantized graph, of packed tokens or of a padded batch.
        op_library: path of `libsparse_ops.so`.
        examples: tokenised texts, with labels or without.
        accepted_loss: how much may be lost; None for `ACCEPTED_LOSS` of the metric, `ACCEPTED_DISAGREEMENT`
            without labels.
    """
    head = model_head(model)
    metric = next(iter(head.task.metrics), None) if examples.targets is not None else None
    run = list(batches([examples.rows[number] for number in examples.order], model.config))
    expected: Sequence[Answer] = [run_torch(model, batch) for batch in run]
    torch_answers = answers_of(head, examples, expected)

    def fidelity(served: Sequence[Answer]) -> Fidelity:
        answers = answers_of(head, examples, served)
        same = head.same_answers(examples.texts, answers, torch_answers)
        return Fidelity(
            max_abs_diff=largest_difference(served, expected),
            label_agreement=None if same is None else float(same.mean()),
            explained=_explained(served, expected),
            metrics=metrics_of(head, examples, answers),
        )

    default = ACCEPTED_DISAGREEMENT if metric is None else ACCEPTED_LOSS
    return QualityReport(
        rows=len(examples.texts),
        output=head.task.graph_output,
        metric=metric,
        accepted_loss=default if accepted_loss is None else accepted_loss,
        torch_metrics=metrics_of(head, examples, torch_answers),
        executions={
            each.name: fidelity(run_graph(graph, op_library if each.has_library else None, run))
            for each in EXECUTIONS
        },
    )


def _explained(answered: Sequence[Answer], expected: Sequence[Answer]) -> float:
    """Return 1 − Σ(ŷ − y)² / Σ(y − ȳ)², ȳ the mean over texts of each number; NaN where one is none."""
    width = expected[0].output.shape[-1]
    ours, torchs = (
        np.concatenate([each.output.reshape(-1, width) for each in side]).astype(np.float64)
        for side in (answered, expected)
    )
    # What a task has no label for is −inf in both.
    ours, torchs = (np.where(np.isneginf(side), 0, side) for side in (ours, torchs))
    error, spread = ((ours - torchs) ** 2).sum(), ((torchs - torchs.mean(0)) ** 2).sum()
    return float(1 - error / spread) if spread else float(error == 0)
