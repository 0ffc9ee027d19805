"""A client of the public models: texts in, answers out, over HTTP or gRPC."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sparse_serve.connection import (
    DEFAULT_RETRIES,
    Connection,
    Protocol,
    is_refusal,
    is_restricted,
    is_too_large,
)
from sparse_serve.errors import RefusedTextError, RequestError
from sparse_serve.replies import Answer, Embedding, Entities, Prediction, Reply, of_tasks, reply_of
from sparse_serve.repository.tunable import DEFAULT_REQUEST_BYTES
from sparse_serve.texts import require_many, require_pairs_of_tasks, require_whole

_FIRST_TEXT, _SECOND_TEXT = "TEXT", "TEXT_PAIR"
_TASK = "TASK"
# Any that has a token.
_SOME_TEXT = "a"
# What says that the tokenizer is in the graph, where a text that it cannot answer is marked in this output.
_INVALID_AT = "invalid_at"
_EVERY_MODEL = ("token_count", "truncated")
# Used where the server keeps its model configurations to itself; a lower limit is read from its refusal.
_ASSUMED_BATCH_SIZE = 64
_BATCH_LIMIT = re.compile(r"batch-size must be <= (\d+)")
# Names and shapes are in a gateway's limit beside the texts; a lower limit shows by a refusal.
_REQUEST_BYTES = DEFAULT_REQUEST_BYTES - (64 << 10)
# Each text lies behind its length in a request.
_LENGTH_BYTES = 4


Kind = TypeVar("Kind", bound=Reply)

TaskNames = str | Sequence[str] | None
"""The task of all texts, or of each; None on a model that has but one."""


class _Described(NamedTuple):
    """What the metadata of a model say: its kind of replies, its inputs, where its tokenizer is."""

    kind: type[Reply]
    inputs: frozenset[str]
    in_graph: bool

    @property
    def needs_pairs(self) -> bool:
        """Whether each text of a request must have a second one beside it."""
        return self.kind.text_pair == "required" or (self.in_graph and _SECOND_TEXT in self.inputs)

    @property
    def takes_pairs(self) -> bool:
        """Whether a text may have a second one beside it."""
        return self.kind.text_pair != "refused" and _SECOND_TEXT in self.inputs


class _TaskSeen(NamedTuple):
    """Of a model of several tasks: whether it has a task, and whether this reads second texts."""

    is_known: bool
    is_paired: bool


class Client:
    """Asks served entries. Not thread-safe over HTTP: use one for each thread.

    What a model answers, its metadata says: `ask` gives the replies of any, the other methods those of one
    kind. Texts are sent in batches of at most the model's size and 4 MiB. A model of several tasks is told
    the task of each text.

    A request that an overloaded server turns away, or whose connection is lost, is sent again: it changes
    nothing on the server. A text that is refused is named, as `RefusedTextError`.
    """

    def __init__(
        self,
        url: str,
        protocol: Protocol = "http",
        retries: int = DEFAULT_RETRIES,
        *,
        ca_certificates: Path | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        Args:
            url: `host:port` of the server; for TLS `https://host:port`, or `grpcs://host:port`.
            protocol: what it is asked over.
            retries: how often a request is sent again, within a minute and with growing pauses.
            ca_certificates: PEM file of the authorities that its certificate may be of; None for those of the
                system, over gRPC for gRPC's own.
            headers: sent with every request, such as `{"Authorization": "Bearer …"}`.

        Raises:
            OptionError: the address, a header or the file of certificates is malformed, or `retries` is
                negative.
        """
        self.url = url
        self.protocol = protocol
        self._connection = Connection(url, protocol, retries, ca_certificates, headers)
        self._described: dict[str, _Described | None] = {}
        self._labels: dict[str, list[str | None]] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        self._batch_sizes: dict[str, int] = {}
        self._request_bytes: dict[str, int] = {}
        self._tasks_seen: dict[tuple[str, str], _TaskSeen] = {}

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def classify(
        self,
        name: str,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        top_k: int | None = None,
        task: TaskNames = None,
    ) -> list[Prediction]:
        """Classify texts, or pairs of texts; `top_k` fills `Prediction.top` with that many classes.

        Raises:
            RequestError: the server cannot be reached or refuses a request, or the model is no classifier,
                has several tasks and `task` is None, or has one and `task` names any.
            ValueError: `text_pairs` or `task` has another length than `texts`, or `top_k` is below 1.
            TypeError: `texts` or `text_pairs` is one text.
        """
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k is {top_k}, at least 1 is needed")
        predictions = self._ask(name, Prediction, texts, text_pairs, task)
        if top_k is None:
            return predictions
        return [replace(each, top=each.best(self._labels_of(name, each), top_k)) for each in predictions]

    def answer(self, name: str, questions: Sequence[str], contexts: Sequence[str]) -> list[Answer]:
        """Answer questions, each about the context of the same number.

        Raises:
            RequestError: the server cannot be reached or refuses a request, or the model answers otherwise.
            ValueError: there are not as many contexts as questions.
            TypeError: `questions` or `contexts` is one text.
        """
        return self._ask(name, Answer, questions, contexts)

    def entities(self, name: str, texts: Sequence[str]) -> list[Entities]:
        """Find the entities of texts.

        Raises:
            RequestError: the server cannot be reached or refuses a request, or the model finds no entities.
            TypeError: `texts` is one text.
        """
        return self._ask(name, Entities, texts, None)

    def embed(
        self, name: str, texts: Sequence[str], text_pairs: Sequence[str] | None = None
    ) -> list[Embedding]:
        """Embed texts, or pairs of texts.

        Raises:
            RequestError: the server cannot be reached or refuses a request, or the model embeds no texts.
            ValueError: `text_pairs` has another length than `texts`.
            TypeError: `texts` or `text_pairs` is one text.
        """
        return self._ask(name, Embedding, texts, text_pairs)

    def ask(
        self,
        name: str,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        task: TaskNames = None,
    ) -> Sequence[Reply]:
        """Return what the model answers to texts, or pairs of texts, of the kind that it gives.

        Raises:
            RequestError: the server cannot be reached or refuses a request, or the model is none of ours, or
                takes no second texts, or needs them; so with names of tasks.
            ValueError: `text_pairs` or `task` has another length than `texts`.
            TypeError: `texts` or `text_pairs` is one text.
        """
        return self._ask(name, self.kind(name), texts, text_pairs, task)

    def _ask(
        self,
        name: str,
        kind: type[Kind],
        texts: Sequence[str],
        text_pairs: Sequence[str] | None,
        task: TaskNames = None,
    ) -> list[Kind]:
        require_many(texts, text_pairs)
        tasks = [task] * len(texts) if isinstance(task, str) else task
        if text_pairs is not None and len(text_pairs) != len(texts):
            raise ValueError(f"{len(texts)} texts but {len(text_pairs)} text pairs")
        if tasks is not None and len(tasks) != len(texts):
            raise ValueError(f"{len(texts)} texts but {len(tasks)} tasks")
        for strings in (texts, text_pairs, tasks):
            if strings is not None:
                require_whole(strings)
        self._require(name, kind)
        self.require_task(name, named=tasks is not None)
        pairs = self._pairs(name, len(texts), text_pairs, tasks)
        given = {_FIRST_TEXT: texts, _SECOND_TEXT: pairs, _TASK: tasks}
        inputs = {tensor: values for tensor, values in given.items() if values is not None}
        replies: list[Kind] = []
        while len(replies) < len(texts):
            start = len(replies)
            rows = slice(start, start + self._rows(name, inputs, start))
            batch = {tensor: values[rows] for tensor, values in inputs.items()}
            try:
                columns = self._infer(name, kind, batch)
            except RefusedTextError as error:
                raise RefusedTextError(error.reason, start + error.row, error.text) from error
            except RequestError as error:
                if self._asks_for_less(name, batch, error):
                    continue
                self._find_refused(name, kind, batch, start, error)
                raise
            replies += kind.read(columns if tasks is None else of_tasks(columns, tasks[rows]))
        return replies

    def _rows(self, name: str, inputs: Mapping[str, Sequence[str]], start: int) -> int:
        """Return how many rows from `start` on go into a request, by their number and bytes; one at least."""
        most, size = self._request_bytes.get(name, _REQUEST_BYTES), 0
        rows = range(start, min(start + self.batch_size(name), len(inputs[_FIRST_TEXT])))
        for row in rows:
            size += _bytes_of({tensor: values[row : row + 1] for tensor, values in inputs.items()})
            if size > most:
                return max(row - start, 1)
        return len(rows)

    def _asks_for_less(self, name: str, batch: Mapping[str, Sequence[str]], refusal: RequestError) -> bool:
        """Tell whether a batch was refused for its size; further ones have at most what the server takes.

        Of bytes the server may not say how many: those have half of the batch's.
        """
        limit = _BATCH_LIMIT.search(str(refusal))
        if limit is not None and int(limit[1]) < self._batch_sizes[name]:
            self._batch_sizes[name] = int(limit[1])
            return True
        if is_too_large(refusal) and len(batch[_FIRST_TEXT]) > 1:
            self._request_bytes[name] = _bytes_of(batch) // 2
            return True
        return False

    def _find_refused(
        self,
        name: str,
        kind: type[Reply],
        batch: Mapping[str, Sequence[str]],
        start: int,
        refusal: RequestError,
    ) -> None:
        """Ask a batch that was refused text by text, and raise for the first that is.

        Raises:
            RefusedTextError: for a text; its row is counted from `start`.
            RequestError: the server cannot be reached.
        """
        if not is_refusal(refusal):
            return
        texts = batch[_FIRST_TEXT]
        for row, text in enumerate(texts):
            reason = refusal
            if len(texts) > 1:
                try:
                    self._infer(name, kind, {key: values[row : row + 1] for key, values in batch.items()})
                    continue
                except RefusedTextError as error:
                    raise RefusedTextError(error.reason, start + row, text) from error
                except RequestError as error:
                    if not is_refusal(error):
                        raise
                    reason = error
            raise RefusedTextError(str(reason), start + row, text) from reason

    def _require(self, name: str, kind: type[Reply]) -> None:
        """See that a model gives replies of a kind, if the server says so."""
        described = self._describe(name)
        if described is not None and described.kind is not kind:
            raise RequestError(f"model '{name}' {described.kind.does}: it is no model that {kind.does}")

    def _pairs(
        self, name: str, count: int, pairs: Sequence[str] | None, tasks: Sequence[str] | None
    ) -> Sequence[str] | None:
        """Return the second texts to be sent: those given, if they are what the model reads.

        A graph with the tokenizer in it takes one with every text, and of tasks that read one text leaves the
        second unread: those are empty.
        """
        described = self._describe(name)
        if described is None:
            return pairs
        does = described.kind.does
        if pairs is not None and not described.takes_pairs:
            raise RequestError(f"model '{name}' {does} and takes no second text: leave out --text-pair")
        if not described.in_graph or tasks is None:
            if described.needs_pairs and pairs is None:
                texts = (
                    "question its context"
                    if described.kind.text_pair == "required"
                    else "text its second one"
                )
                raise RequestError(
                    f"model '{name}' {does}: give each {texts} with --text-pair, or a file of both"
                )
            return pairs
        if not described.needs_pairs:
            return None
        seen = {task: self._task_seen(name, task) for task in dict.fromkeys(tasks)}
        # A task that is not known is refused with its text.
        paired = {task: each.is_paired for task, each in seen.items() if each.is_known}
        require_pairs_of_tasks(tasks, pairs, paired, f"model '{name}'")
        return pairs or [""] * count

    def require_task(self, name: str, *, named: bool) -> None:
        """See that texts come with the names of their tasks where a model has several, and only there.

        Raises:
            RequestError: the server cannot be reached or does not know the model, or they do not.
        """
        described = self._describe(name)
        if described is None or (_TASK in described.inputs) == named:
            return
        if named:
            raise RequestError(f"model '{name}' has one task: leave out --task and --task-column")
        known = ", ".join(self.tasks(name)) or "several, which its server keeps to itself"
        raise RequestError(
            f"model '{name}' has more than one task: say with --task which one texts are of ({known})"
        )

    def tasks(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return the labels of each task by its name; none where the server keeps its configuration back.

        Raises:
            RequestError: the server cannot be reached or does not know the model, or it is none of ours.
        """
        return {task: tuple(described.get("labels", ())) for task, described in self._tasks(name).items()}

    def _tasks(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the description of each task by its name, as `Task.to_json` gives it; none as `tasks`."""
        parameter = self._config(name).get("parameters", {}).get("tasks")
        return {} if parameter is None else json.loads(parameter["string_value"])

    def _task_seen(self, name: str, task: str) -> _TaskSeen:
        """Return what is known of a task of a graph that takes text: its description, or what it answers."""
        described = self._tasks(name)
        if described:
            return _TaskSeen(task in described, bool(described.get(task, {}).get("paired")))
        if (name, task) not in self._tasks_seen:
            self._tasks_seen[name, task] = self._look_at_task(name, task)
        return self._tasks_seen[name, task]

    def _look_at_task(self, name: str, task: str) -> _TaskSeen:
        """Ask a graph whose configuration is kept back: a second text that is read adds to its tokens."""
        model = self._describe(name)
        asked = {_FIRST_TEXT: [""], _TASK: [task]}
        batches = (
            [{**asked, _SECOND_TEXT: [pair]} for pair in ("", _SOME_TEXT)]
            if model is not None and model.needs_pairs
            else [asked]
        )
        names = ("logits", *_EVERY_MODEL)
        answers = [self._connection.infer(name, batch, names) for batch in batches]
        return _TaskSeen(
            is_known=not np.isnan(answers[0]["logits"]).all(),
            is_paired=any(answers[-1][column] != answers[0][column] for column in _EVERY_MODEL),
        )

    def kind(self, name: str) -> type[Reply]:
        """Return what kind of replies the model gives: predictions, where the server keeps that to itself.

        Raises:
            RequestError: the server cannot be reached or does not know the model, or it is none of ours.
        """
        described = self._describe(name)
        return Prediction if described is None else described.kind

    def needs_pairs(self, name: str) -> bool:
        """Return whether each text must have a second one beside it, as far as the server says so.

        Raises:
            RequestError: as `kind`.
        """
        described = self._describe(name)
        return described is not None and described.needs_pairs

    def takes_pairs(self, name: str) -> bool:
        """Return whether a text may have a second one beside it, as far as the server says so.

        Raises:
            RequestError: as `kind`.
        """
        described = self._describe(name)
        return described is None or described.takes_pairs

    def _describe(self, name: str) -> _Described | None:
        """Return what the metadata of a model say, None where the server keeps them back."""
        if name not in self._described:
            try:
                metadata = self._connection.metadata(name)
            except RequestError as error:
                if not is_restricted(error):
                    raise
                self._described[name] = None
                return None
            outputs = [tensor["name"] for tensor in metadata["outputs"]]
            kind = reply_of(outputs)
            if kind is None:
                raise RequestError(
                    f"model '{name}' answers with {', '.join(outputs)}, as no model of ours that takes texts "
                    "does: give the name of an entry"
                )
            inputs = frozenset(tensor["name"] for tensor in metadata["inputs"])
            self._described[name] = _Described(kind, inputs, _INVALID_AT in outputs)
        return self._described[name]

    def batch_size(self, name: str) -> int:
        """Return how many texts the model takes in one request.

        Raises:
            RequestError: the server cannot be reached or does not know the model.
        """
        if name not in self._batch_sizes:
            config = self._config(name)
            self._batch_sizes[name] = (
                max(1, int(config.get("max_batch_size", 1))) if config else _ASSUMED_BATCH_SIZE
            )
        return self._batch_sizes[name]

    def labels(self, name: str) -> list[str | None]:
        """Return the labels of a model of one task in the order of its scores; None where it has none.

        Raises:
            RequestError: the server cannot be reached or does not know the model.
        """
        if name not in self._labels:
            self._require(name, Prediction)
            metadata = self._connection.metadata(name)
            shapes = {tensor["name"]: tensor["shape"] for tensor in metadata["outputs"]}
            count = int(shapes["scores"][-1])
            described = self._describe(name)
            pair = {_SECOND_TEXT: [""]} if described is not None and described.needs_pairs else {}
            answer = self._connection.infer(name, {_FIRST_TEXT: [""], **pair}, ("scores",), count)
            classes = [value.decode().split(":", 2) for value in answer["scores"].reshape(-1)]
            found = {int(parts[1]): parts[2] if len(parts) > 2 else None for parts in classes}
            self._labels[name] = [found.get(index) for index in range(count)]
        return self._labels[name]

    def _labels_of(self, name: str, prediction: Prediction) -> Sequence[str | None]:
        """Return what the scores of a prediction are of, as far as the server says so."""
        if prediction.task is None:
            return self.labels(name)
        return self.tasks(name).get(prediction.task) or [None] * len(prediction.scores)

    def _config(self, name: str) -> dict[str, Any]:
        """Return a model's configuration, empty where the server keeps it to itself."""
        if name not in self._configs:
            try:
                self._configs[name] = self._connection.config(name)
            except RequestError as error:
                if not is_restricted(error):
                    raise
                self._configs[name] = {}
        return self._configs[name]

    def _infer(
        self, name: str, kind: type[Reply], batch: Mapping[str, Sequence[str]]
    ) -> dict[str, npt.NDArray[Any]]:
        described = self._describe(name)
        in_graph = described is not None and described.in_graph
        names = (*kind.outputs, *_EVERY_MODEL, *((_INVALID_AT,) if in_graph else ()))
        columns = self._connection.infer(name, batch, names)
        if in_graph:
            self._require_answered(name, columns, batch)
        return columns

    def _require_answered(
        self,
        name: str,
        columns: Mapping[str, npt.NDArray[Any]],
        batch: Mapping[str, Sequence[str]],
    ) -> None:
        """Refuse for a graph that answers NaN where it cannot."""
        for row, place in enumerate(columns[_INVALID_AT][:, 0]):
            if place >= 0:
                raise RefusedTextError(
                    f"the server at {self.url} refused the request to '{name}': not UTF-8 at byte {place}",
                    row,
                    batch[_FIRST_TEXT][row],
                )
        numbers = columns["logits"] if "logits" in columns else columns["embedding"]
        for row in np.flatnonzero(np.isnan(numbers).all(axis=1)).tolist():
            if _TASK in batch and not self._task_seen(name, batch[_TASK][row]).is_known:
                known = ", ".join(self.tasks(name)) or "known to its server alone"
                reason = f"there is no task '{batch[_TASK][row]}'; this model's are {known}"
            elif columns["truncated"][row, 0]:
                reason = f"more than {columns['token_count'][row, 0]} tokens, which is as many as it reads"
            else:
                continue  # what the model says
            raise RefusedTextError(
                f"the server at {self.url} refused the request to '{name}': {reason}",
                row,
                batch[_FIRST_TEXT][row],
            )


def _bytes_of(batch: Mapping[str, Sequence[str]]) -> int:
    """Return the bytes of a request's texts as they are sent."""
    return sum(_LENGTH_BYTES + len(text.encode()) for texts in batch.values() for text in texts)
