"""The gate in front of a graph that takes text: its tokenizer, and its answers.

Its core, the graph of tokens, has passed the other gate (`gate`). What is left is that the tokenizer in front
of it gives the tokens that the checkpoint's own gives, and that what is behind it says what the server says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from sparse_export.graph.export import GraphTarget
from sparse_export.graph.text import TextReading
from sparse_export.graph.tokenizer.node import tokenizer_model
from sparse_export.parity.examples import batches, reading_examples, several_runs
from sparse_export.parity.executions import open_session, run_graph
from sparse_export.parity.hostile import hostile_texts
from sparse_export.tasks import model_head
from sparse_serve.cuda import CPU_PROVIDER
from sparse_serve.errors import GateError
from sparse_serve.repository.signature import TASK_INPUT, TEXT_INPUT, TEXT_PAIR_INPUT
from sparse_serve.tasks.encoding import encode_cut

Array = npt.NDArray[Any]

_HOSTILE_TEXTS = 2600
# The library makes a row of every two parts that it cuts off a pair: gigabytes, where both are long.
_PAIRED_CHARACTERS = 50
_BATCH = 32


@dataclass(frozen=True)
class TextParity:
    """What the gate saw.

    Attributes:
        tokenized: how many texts were tokenized, random ones of many kinds among them: all as by the library.
        answered: how many were answered.
        max_abs_diff: the largest difference of a number of the answer from that of the graph of tokens.
    """

    tokenized: int
    answered: int
    max_abs_diff: float

    def to_json(self) -> dict[str, Any]:
        """Return the figures."""
        return asdict(self)


@dataclass(frozen=True)
class TextGate:
    """What graphs that take text are judged by.

    Attributes:
        library: path of `libsparse_ops.so`.
        tokenizer: of the entry; what it says of padding and truncation is changed.
        reading: how the graphs read texts.
        target: what the files are written for.
        texts: friendly ones.
        provider: ONNX Runtime's name of what computes them.
    """

    library: Path
    tokenizer: Tokenizer
    reading: TextReading
    target: GraphTarget
    texts: Sequence[str]
    provider: str = CPU_PROVIDER

    def check(self, model: PreTrainedModel, graph: Path, core: Path, accepted: float) -> TextParity:
        """Hold a graph against the tokenizer, and against its core on the tokenizer's tokens.

        Args:
            model: that both are of.
            graph: takes text.
            core: the graph of tokens behind its tokenizer.
            accepted: how far a number of its answers may lie from the core's.

        Raises:
            GateError: they differ.
        """
        singles = [*self.texts, *hostile_texts(self.tokenizer, self.texts, _HOSTILE_TEXTS)]
        self._require_same_tokens(singles)
        if model_head(model).task.reads_pairs:
            short = [text[:_PAIRED_CHARACTERS] for text in singles]
            self._require_same_tokens(short, [*short[1:], short[0]])
        answered, difference = self._difference(model, graph, core)
        if not difference <= accepted:
            raise GateError(
                f"parity not met: from text to answer the graph differs by up to {difference:.3g} from "
                f"itself on the tokens of the same texts, accepted is {accepted:g} (--atol); nothing was "
                "written"
            )
        return TextParity(len(singles), answered, difference)

    def _require_same_tokens(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> None:
        session = self._tokenizer_alone(has_pairs=pairs is not None)
        reading = self.reading
        encoded = encode_cut(self.tokenizer, texts, pairs, reading.max_length, reading.truncation)
        columns: dict[str, Sequence[str]] = {TEXT_INPUT: texts}
        if pairs is not None:
            columns[TEXT_PAIR_INPUT] = pairs
        for text, wanted, found in zip(texts, encoded, _rows(session, columns), strict=True):
            (window,) = wanted.windows
            if found != (window.ids, window.type_ids, wanted.truncated):
                raise GateError(
                    f"parity not met: the tokenizer in the graph reads {text!a:.200} otherwise than the "
                    "checkpoint's own: export it with --tokenizer server; nothing was written"
                )

    def _tokenizer_alone(self, *, has_pairs: bool) -> onnxruntime.InferenceSession:
        """Return a session of the tokenizer's node alone, which is faster than the whole graph."""
        model = tokenizer_model(
            self.reading.tables,
            self.reading.max_length,
            self.target.opset,
            self.target.ir_version,
            truncation=self.reading.truncation,
            pairs=has_pairs,
        )
        return open_session(model.SerializeToString(), Path(), self.library)

    def _difference(self, model: PreTrainedModel, graph: Path, core: Path) -> tuple[int, float]:
        """Return how many texts were asked, and the largest difference of a number; refuse other words.

        They are asked twice: in batches of one run, and in such as the graph divides.
        """
        head = model_head(model)
        task, output = head.task, head.task.graph_output
        asked, examples = reading_examples(
            task, self.tokenizer, self.reading.max_length, self.reading.truncation, self.texts
        )
        numbers, divided = several_runs(examples.rows, model.config)
        run = [*batches(examples.rows, model.config), *divided]
        ran = [*range(len(asked)), *numbers]
        texts = [examples.texts[number] for number in ran]
        columns: dict[str, Sequence[str]] = {TEXT_INPUT: [asked[number][0] for number in ran]}
        if task.reads_pairs:
            columns[TEXT_PAIR_INPUT] = [asked[number][1] or "" for number in ran]
        if examples.tasks:
            columns[TASK_INPUT] = [text.task or "" for text in texts]
        theirs = np.concatenate([each.output for each in run_graph(core, self.library, run, self.provider)])
        # In equal batches every number is rounded alike, and no row or column of attention flips.
        session = open_session(str(graph), graph.parent, self.library, self.provider)
        ours = _answers(session, columns, [len(batch["input_ids"]) for batch in run])
        said = task.answer(texts, ours[output])
        is_refused = np.array([text.truncated and self.reading.truncation == "error" for text in texts])
        theirs[is_refused] = np.nan
        for name in said.keys() & {"label"}:
            said[name][is_refused] = b""
        counts = np.array([[text.token_count, text.truncated] for text in texts])
        same = np.all(np.hstack([ours["token_count"], ours["truncated"]]) == counts, axis=1)
        answers = head.same_words(texts, {name: ours[name] for name in said}, said)
        if not (same.all() and (answers is None or answers.all())):
            raise GateError(
                "parity not met: the graph that takes text says otherwise what its numbers say than the "
                "server would; export it with --tokenizer server; nothing was written"
            )
        pairs = [(ours[output], theirs)]
        if "scores" in said:
            pairs.append((ours["scores"], said["scores"]))
        with np.errstate(invalid="ignore"):
            differences = [
                np.where(
                    (one == other) | (is_refused[:, None] & np.isnan(one) & np.isnan(other)),
                    0,
                    np.abs(one - other),
                ).max()
                for one, other in pairs
            ]
        return len(asked), float(np.max(differences))


def _rows(
    session: onnxruntime.InferenceSession, columns: Mapping[str, Sequence[str]]
) -> Iterator[tuple[list[int], list[int], bool]]:
    """Yield ids, types and whether it was cut of each row."""
    count = len(columns[TEXT_INPUT])
    for answer in _batched(session, columns, [min(_BATCH, count - at) for at in range(0, count, _BATCH)]):
        ids, types, borders, truncated = (
            answer[name].tolist() for name in ("input_ids", "token_type_ids", "cu_seqlens", "truncated")
        )
        for row, (begin, end) in enumerate(pairwise(borders)):
            yield ids[begin:end], types[begin:end], truncated[row][0]


def _answers(
    session: onnxruntime.InferenceSession, columns: Mapping[str, Sequence[str]], sizes: Sequence[int]
) -> dict[str, Array]:
    """Return all outputs, strings as bytes."""
    batches = list(_batched(session, columns, sizes))
    answers = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    return {
        name: np.vectorize(str.encode, otypes=[object])(values) if values.dtype == np.object_ else values
        for name, values in answers.items()
    }


def _batched(
    session: onnxruntime.InferenceSession, columns: Mapping[str, Sequence[str]], sizes: Sequence[int]
) -> Iterator[dict[str, Array]]:
    """Yield the outputs of batches of so many rows."""
    names = [output.name for output in session.get_outputs()]
    for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
        rows = slice(start, start + size)
        feeds = {name: np.array(values[rows], np.object_)[:, None] for name, values in columns.items()}
        yield dict(zip(names, session.run(names, feeds), strict=True))
