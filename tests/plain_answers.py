"""What plain Transformers models answer: spans window by window, entities word by word, never batched."""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sparse_serve.tasks import QuestionAnswering


@dataclass(frozen=True)
class Plain:
    """A checkpoint as Transformers loads it, with SSAF's attention where it is exported with that."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


@dataclass(frozen=True)
class Found:
    """An answer, and by how much it is better than the second best."""

    text: str
    start: int
    end: int
    score: float
    margin: float


@torch.no_grad()
def ask(
    plain: Plain, question: str, context: str, task: QuestionAnswering, max_length: int
) -> tuple[Found, int]:
    """Read the windows of a context one by one, and all spans of each; the answer, and how many windows."""
    windows = plain.tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=max_length,
        stride=task.stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    candidates = []
    nulls: list[tuple[float, float]] = []
    for number in range(len(windows["input_ids"])):
        names = set(plain.tokenizer.model_input_names) & set(windows)
        outputs = plain.model(**{name: torch.tensor([windows[name][number]]) for name in names})
        starts, ends = outputs.start_logits[0].double(), outputs.end_logits[0].double()
        sequences = windows.encodings[number].sequence_ids
        own = [token for token, sequence in enumerate(sequences) if sequence == 1]
        with_first = [0, *own]
        nulls.append(
            (
                float(starts[0] + ends[0]),
                float(starts[with_first].softmax(0)[0] * ends[with_first].softmax(0)[0]),
            )
        )
        offsets = torch.tensor(windows["offset_mapping"][number], dtype=torch.float64)[own].reshape(-1, 2)
        shares = starts[own].softmax(0)[:, None] * ends[own].softmax(0)
        spans = torch.ones_like(shares).triu().tril(task.max_answer_tokens - 1).bool()
        first, last = spans.nonzero(as_tuple=True)
        totals = starts[own][first] + ends[own][last]
        candidates.append(torch.stack([totals, offsets[first, 0], offsets[last, 1], shares[spans]], 1))
    answers = torch.cat(candidates)
    if not len(answers):
        return Found("", -1, -1, 0.0, np.inf), len(nulls)
    best, start, end, score = answers[answers[:, 0].argmax()].tolist()
    is_other = (answers[:, 1:3] != torch.tensor([start, end])).any(1)
    margin = best - float(answers[is_other, 0].max()) if is_other.any() else np.inf
    if task.no_answer:
        null = min(nulls)
        margin = min(margin, abs(null[0] - best))
        if null[0] > best:
            return Found("", -1, -1, null[1], margin), len(nulls)
    begin, finish = int(start), int(end)
    return Found(context[begin:finish], begin, finish, score, margin), len(nulls)


@torch.no_grad()
def tag_margin(plain: Plain, text: str, max_length: int) -> float:
    """Return by how much the best tag of a text's tokens is above the second, where that is least."""
    encoded = plain.tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
    best = plain.model(**encoded).logits[0].topk(2, -1).values
    return float((best[:, 0] - best[:, 1]).min())


def entities(plain: Plain, text: str, max_length: int) -> list[tuple[str, int, int, float]]:
    """Tag each word by its first piece, and join what belongs together as conlleval does."""
    encoded = plain.tokenizer(
        text, truncation=True, max_length=max_length, return_offsets_mapping=True, return_tensors="pt"
    )
    words = encoded.word_ids(0)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    shares = plain.model(**encoded).logits[0].double().softmax(-1)
    found: list[tuple[str, int, int, list[float]]] = []
    former = "O"
    for word in dict.fromkeys(each for each in words if each is not None):
        pieces = [token for token, each in enumerate(words) if each == word]
        best = int(shares[pieces[0]].argmax())
        tag, start, end = plain.model.config.id2label[best], offsets[pieces[0]][0], offsets[pieces[-1]][1]
        share = float(shares[pieces[0], best])
        if tag.startswith("I-") and former[1:] == tag[1:]:
            label, begin, _, own = found[-1]
            found[-1] = (label, begin, end, [*own, share])
        elif tag != "O":
            found.append((tag[2:], start, end, [share]))
        former = tag
    return [(label, start, end, sum(own) / len(own)) for label, start, end, own in found]
