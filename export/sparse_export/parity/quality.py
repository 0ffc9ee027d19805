"""The gate of a quantized graph: what it is for, not its numbers, is held against the torch model.

The same graph in float32 has passed the gate of parity before, so that what differs is what integers lose.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from sparse_export.parity.answers import answers_of, largest_difference, metrics_of
from sparse_export.parity.examples import Batch, Examples, batches
from sparse_export.parity.executions import EXECUTIONS, Answer, run_graph, run_torch
from sparse_export.tasks import model_head
from sparse_export.tasks.several import SeveralHeads
from sparse_serve.errors import GateError
from sparse_serve.tasks import TASK_IDS, Columns

Numbers = npt.NDArray[np.float64]

# Of the metric on labelled rows; of the answers to texts without labels, which are fewer and odder.
ACCEPTED_LOSS, ACCEPTED_DISAGREEMENT = 0.005, 0.1
# Where agreement says nothing: a graph that reads no text explains none of the numbers, one of a
# model that is trained well 0.85 and more, of odd texts too.
_LEAST_EXPLAINED = 0.5
# A spread of numbers, as a share of them squared, that is rounding.
_SAME = 1e-9


@dataclass(frozen=True)
class Fidelity:
    """What one runtime keeps of torch's answers.

    Attributes:
        max_abs_diff: the largest difference of a number of the graph's output.
        label_agreement: share of texts with the same answer; None where the numbers are the answer.
        explained: share of the variance of torch's numbers over texts that this runtime's explain.
        metrics: the task metrics by name, where labels were given.
        tasks: of a model of several, what each has of its own: the share of its texts with the same answer,
            or where its numbers are the answer, or torch gives nearly all of its texts one and less than
            half is explained, `explained` of them.
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
        has_one_answer: whether torch gives nearly all texts the same one, as a graph that reads none would:
            agreement alone says nothing then, and `explained` is judged where it is less than half.
    """

    rows: int
    output: str
    metric: str | None
    accepted_loss: float
    torch_metrics: dict[str, float] | None
    executions: Mapping[str, Fidelity]
    has_one_answer: bool = False

    @property
    def judged(self) -> str:
        """What is judged, in words."""
        if self.metric is not None:
            return self.metric
        if any(each.tasks is not None for each in self.executions.values()):
            return "what its worst task keeps"
        explained = f"explained variance of its {self.output}"
        if all(each.label_agreement is None for each in self.executions.values()):
            return explained
        return f"agreement, or if less than half {explained}," if self.has_one_answer else "agreement"

    def kept(self, fidelity: Fidelity) -> float:
        """Return what a runtime has of what is judged."""
        if self.metric is not None:
            assert fidelity.metrics is not None
            return fidelity.metrics[self.metric]
        if fidelity.tasks is not None:
            return fidelity.tasks[fidelity.worst_task]
        return _kept(fidelity.label_agreement, fidelity.explained, has_one_answer=self.has_one_answer)

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
                alike = ", nearly all of which torch answers alike" if self.has_one_answer else ""
                raise GateError(
                    f"quality not met: in int8 ONNX Runtime {execution.words} has {self.judged}{task} "
                    f"{kept:.4f} over {self.rows} texts{alike}, torch {self.wanted:.4f}; accepted is a loss "
                    f"of {self.accepted_loss:g} (--max-loss); nothing was written"
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
    torch_answers, torchs = answers_of(head, examples, expected), _numbers(expected, run)
    unread_answers = answers_of(head, examples, list(_unread(expected, run))) if metric is None else {}
    has_several = isinstance(head, SeveralHeads) and len(head.heads) > 1

    def fidelity(served: Sequence[Answer]) -> Fidelity:
        answers, ours = answers_of(head, examples, served), _numbers(served, run)
        return Fidelity(
            max_abs_diff=largest_difference(served, expected),
            label_agreement=_share(head.same_answers(examples.texts, answers, torch_answers)),
            explained=_explained(ours, torchs),
            metrics=metrics_of(head, examples, answers),
            tasks=kept_by_task(answers, ours) if has_several else None,
        )

    def kept_by_task(answers: Columns, ours: Numbers) -> dict[str, float]:
        assert isinstance(head, SeveralHeads)
        same, unread = (
            head.same_by_task(examples.texts, each, torch_answers) for each in (answers, unread_answers)
        )
        tasks = np.concatenate([_tasks(batch) for batch in run])
        return {
            name: _kept(
                _share(same[name]),
                _explained(ours[tasks == number], torchs[tasks == number]),
                has_one_answer=_is_nearly_all(unread[name]),
            )
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
        has_one_answer=metric is None
        and not has_several
        and _is_nearly_all(head.same_answers(examples.texts, unread_answers, torch_answers)),
    )


def _kept(agreement: float | None, explained: float, *, has_one_answer: bool) -> float:
    """Return what is kept of the answers; of the numbers where these are the answer, or lost behind it."""
    if agreement is None or (has_one_answer and not explained >= _LEAST_EXPLAINED):
        return explained
    return agreement


def _share(same: npt.NDArray[np.bool_] | None) -> float | None:
    return None if same is None else float(same.mean())


def _is_nearly_all(same: npt.NDArray[np.bool_] | None) -> bool:
    return same is not None and bool(same.mean() >= 1 - ACCEPTED_DISAGREEMENT)


def _unread(expected: Sequence[Answer], run: Sequence[Batch]) -> Iterator[Answer]:
    """Yield what a graph answers that reads no text: to all rows of a task, or all tokens, torch's mean."""
    numbers = _numbers(expected, run)
    tasks = np.concatenate([_tasks(batch) for batch in run])
    by_token = expected[0].output.ndim == 3
    if by_token:
        tasks = np.zeros(len(numbers), np.int64)  # tokens of the only one
    means = np.stack([numbers[tasks == each].mean(0) for each in range(tasks.max() + 1)])
    for batch, answer in zip(run, expected, strict=True):
        own = means[_tasks(batch)]
        own = own[:, None] if by_token else own
        yield replace(answer, output=np.where(np.isneginf(answer.output), answer.output, own))


def _tasks(batch: Batch) -> npt.NDArray[np.int64]:
    """Return the number of each row's task, `(rows,)`: 0 where there is one."""
    tasks = batch.get(TASK_IDS)
    return np.zeros(len(batch["input_ids"]), np.int64) if tasks is None else tasks[:, 0]


def _numbers(answered: Sequence[Answer], run: Sequence[Batch]) -> Numbers:
    """Return the numbers of all rows, or of their tokens, as they ran, `(rows, width)`; 0 where a task has no
    label.
    """
    outputs = (
        answer.output if answer.output.ndim == 2 else answer.output[batch["attention_mask"] != 0]
        for answer, batch in zip(answered, run, strict=True)
    )
    numbers = np.concatenate(list(outputs)).astype(np.float64)
    return np.where(np.isneginf(numbers), 0, numbers)


def _explained(ours: Numbers, torchs: Numbers) -> float:
    """Return 1 − Σ(ŷ − y)² / Σ(y − ȳ)²; NaN where a number is none.

    ȳ is the mean over texts of each number, or 0 where all texts have the same, as one text has.
    """
    error, size = ((ours - torchs) ** 2).sum(), (torchs**2).sum()
    spread = ((torchs - torchs.mean(0)) ** 2).sum()
    spread = size if spread <= _SAME * size else spread
    return float(1 - error / spread) if spread else float(error == 0)
