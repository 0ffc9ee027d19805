"""The gate of a quantized graph: what it is for, not its numbers, is held against the torch model.

The same graph in float32 has passed the gate of parity before, so that what differs is what integers lose.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from sparse_export.parity.answers import answers_of, largest_difference, metrics_of
from sparse_export.parity.examples import Examples, batches
from sparse_export.parity.executions import EXECUTIONS, Answer, run_graph, run_torch
from sparse_export.tasks import model_head
from sparse_export.tasks.several import SeveralHeads
from sparse_serve.errors import GateError
from sparse_serve.tasks import TASK_IDS, Columns

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
        tasks: of a model of several, what each has of its own: the share of its texts with the same answer,
            or where its numbers are the answer, `explained` of them.
    """

    max_abs_diff: float
    label_agreement: float | None
    explained: float
    metrics: dict[str, float] | None
    tasks: Mapping[str, float] | None = None

    @property
    def worst_task(self) -> str:
        """The name of the task, of several, that has least of its own."""
        tasks = self.tasks
        assert tasks is not None
        return min(tasks, key=lambda name: np.nan_to_num(tasks[name], nan=-np.inf))


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
        if any(each.tasks is not None for each in self.executions.values()):
            return "what its worst task keeps"
        has_answers = any(each.label_agreement is not None for each in self.executions.values())
        return "agreement" if has_answers else f"explained variance of its {self.output}"

    def kept(self, fidelity: Fidelity) -> float:
        """Return what a runtime has of what is judged."""
        if self.metric is not None:
            assert fidelity.metrics is not None
            return fidelity.metrics[self.metric]
        if fidelity.tasks is not None:
            return fidelity.tasks[fidelity.worst_task]
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
        """Raise `GateError` where more is lost than is accepted, or a number is none."""
        for execution in EXECUTIONS:
            fidelity = self.executions[execution.name]
            kept = self.kept(fidelity)
            if not math.isfinite(fidelity.max_abs_diff):
                raise GateError(
                    f"quality not met: in int8 ONNX Runtime {execution.words} answers NaN or infinity where "
                    f"torch does not, over {self.rows} texts; nothing was written"
                )
            if not self.wanted - kept <= self.accepted_loss:
                task = "" if fidelity.tasks is None else f", {fidelity.worst_task},"
                raise GateError(
                    f"quality not met: in int8 ONNX Runtime {execution.words} has {self.judged}{task} "
                    f"{kept:.4f} over {self.rows} texts, torch {self.wanted:.4f}; accepted is a loss of "
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
    torch_answers, torchs = answers_of(head, examples, expected), _rows(expected)

    def fidelity(served: Sequence[Answer]) -> Fidelity:
        answers, ours = answers_of(head, examples, served), _rows(served)
        same = head.same_answers(examples.texts, answers, torch_answers)
        return Fidelity(
            max_abs_diff=largest_difference(served, expected),
            label_agreement=None if same is None else float(same.mean()),
            explained=_explained(ours, torchs),
            metrics=metrics_of(head, examples, answers),
            tasks=kept_by_task(answers, ours),
        )

    def kept_by_task(answers: Columns, ours: npt.NDArray[np.float64]) -> dict[str, float] | None:
        if not isinstance(head, SeveralHeads) or len(head.heads) == 1:
            return None
        same = head.same_by_task(examples.texts, answers, torch_answers)
        rows = examples.rows
        tasks = np.array([rows[number][TASK_IDS][0] for number in examples.order])
        return {
            name: _explained(ours[tasks == number], torchs[tasks == number])
            if (own := same[name]) is None
            else float(own.mean())
            for name, number in examples.tasks.items()
        }

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


def _rows(answered: Sequence[Answer]) -> npt.NDArray[np.float64]:
    """Return the numbers of all rows as they ran, `(rows, width)`; 0 where a task has no label."""
    width = answered[0].output.shape[-1]
    rows = np.concatenate([each.output.reshape(-1, width) for each in answered]).astype(np.float64)
    return np.where(np.isneginf(rows), 0, rows)


def _explained(ours: npt.NDArray[np.float64], torchs: npt.NDArray[np.float64]) -> float:
    """Return 1 − Σ(ŷ − y)² / Σ(y − ȳ)², ȳ the mean over texts of each number; NaN where one is none."""
    error, spread = ((ours - torchs) ** 2).sum(), ((torchs - torchs.mean(0)) ** 2).sum()
    return float(1 - error / spread) if spread else float(error == 0)
