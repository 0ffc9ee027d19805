"""The baseline of the PAL paper (section 4.2): the two sentences of a pair are encoded apart.

The pooled encodings of a pair stand side by side in front of its task's linear layer; the tasks are trained
one after the other in every epoch. Beside the tasks of `sparse_export` it is a peer, not a part: it needs two
rows of the encoder for an answer, and sees no word of one sentence beside those of the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedTokenizerFast, get_linear_schedule_with_warmup

from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.tasks import head_of
from sparse_export.tasks.trained import TrainedHead
from sparse_serve.data import TextData
from sparse_serve.tasks import Task


@dataclass(frozen=True)
class Apart:
    """What is trained, and how: the names are those of `MultitaskOptions`."""

    epochs: int
    batch_size: int
    learning_rate: float
    head_learning_rate: float
    max_length: int
    seed: int
    bf16: bool


class ApartModel(nn.Module):
    """An encoder, and a linear layer for each task: twice as wide for those of pairs."""

    def __init__(self, encoder: Path, tasks: Mapping[str, Task], pairs: Mapping[str, bool]) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(encoder)
        width = self.encoder.config.hidden_size
        self.heads = nn.ModuleDict(
            {name: nn.Linear(width * (2 if pairs[name] else 1), task.width) for name, task in tasks.items()}
        )

    def forward(self, task: str, texts: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Answer rows, `(B, width)`: of each its text, or its two texts."""
        pooled = [self.encoder(**each).pooler_output for each in texts]
        answer: Tensor = self.heads[task](torch.cat(pooled, 1))
        return answer


def train_apart(
    encoder: Path,
    tasks: Mapping[str, Task],
    train: Mapping[str, TextData],
    dev: Mapping[str, TextData],
    options: Apart,
) -> dict[str, float]:
    """Train on all tasks; return the figures of the last epoch on dev, by task and metric."""
    torch.manual_seed(options.seed)
    tokenizer = load_tokenizer(str(encoder))
    pairs = {name: data.has_pairs for name, data in train.items()}
    model = ApartModel(encoder, tasks, pairs).to(_device())
    heads = {name: head_of(task) for name, task in tasks.items()}
    groups = [
        {"params": model.encoder.parameters(), "lr": options.learning_rate},
        {"params": model.heads.parameters(), "lr": options.head_learning_rate},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    steps = options.epochs * sum(-(-len(data.rows) // options.batch_size) for data in train.values())
    schedule = get_linear_schedule_with_warmup(optimizer, round(0.1 * steps), steps)
    targets = {name: tasks[name].targets(data) for name, data in train.items()}
    order = np.random.default_rng(options.seed)
    for _ in range(options.epochs):
        model.train()
        for name, data in train.items():
            head = heads[name]
            assert isinstance(head, TrainedHead)
            for rows in _batches(order.permutation(len(data.rows)), options.batch_size):
                with _autocast(options):
                    answer = model(name, _encoded(tokenizer, data, rows, options.max_length)).float()
                wanted = {"labels": torch.from_numpy(targets[name][rows]).to(_device())}
                head.loss(answer, wanted).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return _figures(model, tasks, dev, tokenizer, options)


@torch.inference_mode()
def _figures(
    model: ApartModel,
    tasks: Mapping[str, Task],
    dev: Mapping[str, TextData],
    tokenizer: PreTrainedTokenizerFast,
    options: Apart,
) -> dict[str, float]:
    model.eval()
    figures: dict[str, float] = {}
    for name, data in dev.items():
        with _autocast(options):
            answered = [
                model(name, _encoded(tokenizer, data, rows, options.max_length)).float().numpy(force=True)
                for rows in _batches(np.arange(len(data.rows)), 64)
            ]
        task = tasks[name]
        found = task.evaluate(task.answer([], np.concatenate(answered)), task.targets(data))
        figures |= {f"{name}.{metric}": value for metric, value in found.items()}
    return figures


def _device() -> torch.device:
    """Return the device that Transformers' Trainer, with which the other variants are trained, takes."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _autocast(options: Apart) -> torch.autocast:
    return torch.autocast(_device().type, torch.bfloat16, enabled=options.bf16)


def _batches(order: np.ndarray[tuple[int], np.dtype[np.int64]], size: int) -> Iterator[list[int]]:
    for start in range(0, len(order), size):
        yield order[start : start + size].tolist()


def _encoded(
    tokenizer: PreTrainedTokenizerFast, data: TextData, rows: Sequence[int], max_length: int
) -> list[Mapping[str, Tensor]]:
    chosen = [data.rows[row] for row in rows]
    texts = [[row.text for row in chosen]]
    if data.has_pairs:
        texts.append([row.text_pair for row in chosen])
    return [
        tokenizer(each, padding=True, truncation=True, max_length=max_length, return_tensors="pt").to(
            _device()
        )
        for each in texts
    ]
