"""An entry in this process: texts in, answers out, by the graph that a server would run.

    from sparse_serve import Classifier

    classifier = Classifier("model_repository/sst2")
    for prediction in classifier(["a fine film", "a waste of time"]):
        print(prediction.label, prediction.score)

It needs an ONNX Runtime (`pip install sparse-serve[cpu]`), and an entry with the tokenizer in its graph.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sparse_serve.cuda import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    require_provider,
    require_runtime,
    session_providers,
    telling_memory,
)
from sparse_serve.errors import (
    DeviceError,
    OptionError,
    RefusedTextError,
    RepositoryError,
    RequestError,
    first_line,
)
from sparse_serve.extras import needing
from sparse_serve.op_library import Device, library_version, verify_library
from sparse_serve.processor import usable_cores
from sparse_serve.replies import Embedding, Prediction, Reply, of_tasks, reply_of
from sparse_serve.repository.check import require_library_version
from sparse_serve.repository.config import GRAPH_NAME
from sparse_serve.repository.entries import Entry, read_entry
from sparse_serve.repository.signature import TASK_INPUT, TEXT_INPUT, TEXT_PAIR_INPUT
from sparse_serve.runs import RUN_TOKENS_ON
from sparse_serve.tasks import Several
from sparse_serve.texts import require_many, require_pairs_of_tasks, require_whole

_MOST_ROWS = 256
# Characters that are taken for a token until texts have shown how many are.
_CHARACTERS_A_TOKEN = 4.0

Texts = Sequence[str]
Progress = Callable[[int], object]
Kind = TypeVar("Kind", bound=Reply)


class Classifier:
    """Answers texts as the served entry does.

    Attributes:
        entry: what is answered with, as its version describes it.
        version: of the entry.
        kind: of its replies: `Prediction`, or `Embedding`.
        device: what computes.
    """

    def __init__(
        self,
        entry: str | Path,
        *,
        version: int | None = None,
        threads: int | None = None,
        run_tokens: int | None = None,
        device: Device | None = None,
    ) -> None:
        """Load an entry's graph.

        Args:
            entry: the public folder, such as `model_repository/NAME`.
            version: of the entry; None for the highest.
            threads: that compute; None for one on each available core.
            run_tokens: the graph is given texts of about so many tokens at a time; None for what suits the
                device.
            device: "cpu", or "cuda" for the first NVIDIA GPU; None for what the entry was exported for.

        Raises:
            RepositoryError: there is no such entry or version, or its graph takes token ids.
            OpLibraryError: the op library is missing, is not the installed one, or is of another version than
                the entry was made for.
            DeviceError: a GPU is to compute, and there is none, or something in front of it is missing.
            OptionError: a number is below 1.
            MissingPackageError: there is no ONNX Runtime.
        """
        for name, number in (("threads", threads), ("run_tokens", run_tokens)):
            if number is not None and number < 1:
                raise OptionError(f"{name} is {number}, at least 1 is needed")
        found = read_entry(Path(entry))
        self.version = found.highest if version is None else version
        self.entry = found.of_version(self.version)
        self.device: Device = device or self.entry.manifest.device
        self._session = _session(self.entry, self.version, threads or usable_cores(), self.device)
        outputs = [output.name for output in self._session.get_outputs()]
        kind = reply_of(outputs)
        if kind is None:
            raise RepositoryError(f"entry {entry} answers with {', '.join(outputs)}: upgrade sparse-serve")
        self.kind = kind
        self._run_tokens = run_tokens or RUN_TOKENS_ON[self.device]
        self._characters_a_token = _CHARACTERS_A_TOKEN

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a model of one task, in the order of its scores."""
        return self.entry.manifest.task.labels

    def __call__(
        self,
        texts: Texts,
        text_pairs: Texts | None = None,
        task: str | Texts | None = None,
        progress: Progress | None = None,
    ) -> list[Prediction]:
        """Classify texts, or tell their values.

        Args:
            texts: any number.
            text_pairs: the second text of each, for a model that was trained on pairs.
            task: of a model of several tasks: that of all texts, or of each.
            progress: called with the number of texts that each run has answered.

        Raises:
            RequestError: a text is none in Unicode, second texts or tasks are missing or not for this model,
                or it is no classifier.
            RefusedTextError: a text has more tokens than are read, and the entry refuses those.
            DeviceError: a GPU has no memory left.
            ValueError: there are not as many second texts or tasks as texts.
            TypeError: one text is given in the place of texts.
        """
        return self._ask(Prediction, self._columns(texts, text_pairs, task), progress)

    def embed(
        self, texts: Texts, text_pairs: Texts | None = None, progress: Progress | None = None
    ) -> list[Embedding]:
        """Embed texts; arguments and errors as of a call."""
        return self._ask(Embedding, self._columns(texts, text_pairs, None), progress)

    def replies(
        self, texts: Texts, text_pairs: Texts | None = None, task: str | Texts | None = None
    ) -> list[Reply | None]:
        """Return what the entry answers, of its `kind`; None to a text that it refuses as too long.

        Arguments and other errors as of a call.
        """
        columns = self._columns(texts, text_pairs, task)
        return [
            None if self._refuses(reply) else reply
            for replies in self._runs(self.kind, columns, None)
            for reply in replies
        ]

    def _ask(
        self, kind: type[Kind], columns: Mapping[str, Sequence[str]], progress: Progress | None
    ) -> list[Kind]:
        if kind is not self.kind:
            raise RequestError(f"{self.entry.path} {self.kind.does}: it is no model that {kind.does}")
        found: list[Kind] = []
        for replies in self._runs(kind, columns, progress):
            for row, reply in enumerate(replies, start=len(found)):
                if self._refuses(reply):
                    reason = f"{self.entry.path} refuses a text of {self.too_long}"
                    raise RefusedTextError(reason, row, columns[TEXT_INPUT][row])
            found += replies
        return found

    def _refuses(self, reply: Reply) -> bool:
        return reply.truncated and self.entry.manifest.truncation == "error"

    @property
    def too_long(self) -> str:
        """What is wrong with a text that is refused because of its length."""
        return f"more than {self.entry.manifest.max_length} tokens"

    def _columns(
        self, texts: Texts, pairs: Texts | None, task: str | Texts | None
    ) -> dict[str, Sequence[str]]:
        """Return the texts by the graph's inputs."""
        require_many(texts, pairs)
        own = self.entry.manifest.task
        tasks = [task] * len(texts) if isinstance(task, str) else task
        for what, values in (("text_pairs", pairs), ("task", tasks)):
            if values is not None and len(values) != len(texts):
                raise ValueError(f"{what} has {len(values)} for {len(texts)} texts: one for each is needed")
        columns: dict[str, Sequence[str]] = {TEXT_INPUT: texts}
        if isinstance(own, Several):
            if tasks is None:
                raise RequestError(
                    f"the model has several tasks: say with task which of {', '.join(own.tasks)}"
                )
            for name in dict.fromkeys(tasks):
                if name not in own.tasks:
                    raise RequestError(f"there is no task {name!r}; this model's are {', '.join(own.tasks)}")
            columns[TASK_INPUT] = tasks
        elif tasks is not None:
            raise RequestError("the model has one task: leave out task")
        if own.reads_pairs:
            if isinstance(own, Several):
                paired = {name: each.reads_pairs for name, each in own.tasks.items()}
                require_pairs_of_tasks(tasks or (), pairs, paired, "the model")
            elif pairs is None:
                raise RequestError(
                    "the model was trained on pairs: give each text its second one, text_pairs"
                )
            columns[TEXT_PAIR_INPUT] = [""] * len(texts) if pairs is None else pairs
        elif pairs is not None:
            raise RequestError("the model was trained on single texts: leave out text_pairs")
        return columns

    def _runs(
        self, kind: type[Kind], columns: Mapping[str, Sequence[str]], progress: Progress | None
    ) -> Iterator[Sequence[Kind]]:
        """Yield the replies of run after run."""
        names = [*kind.outputs, "token_count", "truncated"]
        count, start = len(columns[TEXT_INPUT]), 0
        while start < count:
            rows = slice(start, start + self._rows(columns, start))
            batch = {name: values[rows] for name, values in columns.items()}
            feeds = {name: _strings(values, start) for name, values in batch.items()}
            with telling_memory(self.device, f"a run of {len(batch[TEXT_INPUT])} texts"):
                answer = dict(zip(names, self._session.run(names, feeds), strict=True))
            self._learn(batch, answer)
            sent = {name: _as_sent(values) for name, values in answer.items()}
            tasks = batch.get(TASK_INPUT)
            replies = kind.read(sent if tasks is None else of_tasks(sent, tasks))
            if progress is not None:
                progress(len(replies))
            yield replies
            start += len(replies)

    def _rows(self, columns: Mapping[str, Sequence[str]], start: int) -> int:
        """Return how many rows from `start` on have about `run_tokens` tokens, one at least."""
        tokens, rows = 0.0, 0
        texts = [columns[name] for name in (TEXT_INPUT, TEXT_PAIR_INPUT) if name in columns]
        for row in range(start, min(start + _MOST_ROWS, len(columns[TEXT_INPUT]))):
            characters = sum(len(values[row]) for values in texts)
            tokens += min(self.entry.manifest.max_length, 2 + characters / self._characters_a_token)
            if rows and tokens > self._run_tokens:
                break
            rows += 1
        return rows

    def _learn(self, batch: Mapping[str, Sequence[str]], answer: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take note of how many characters a token has, of texts that were read whole."""
        whole = ~answer["truncated"][:, 0]
        tokens = int(answer["token_count"][whole].sum())
        texts = [batch[name] for name in (TEXT_INPUT, TEXT_PAIR_INPUT) if name in batch]
        characters = sum(
            len(text) for each in texts for text, is_whole in zip(each, whole, strict=True) if is_whole
        )
        if characters and tokens:
            self._characters_a_token += (characters / tokens - self._characters_a_token) / 4


def _session(entry: Entry, version: int, threads: int, device: Device) -> Any:
    """Open the graph of an entry's version."""
    provider = {"cpu": CPU_PROVIDER, "cuda": CUDA_PROVIDER}.get(device)
    if provider is None:
        raise OptionError(f"device is {device!r}: cpu and cuda are known")
    if not entry.takes_text:
        raise RepositoryError(
            f"entry {entry.path} has its tokenizer in the server: export it with --tokenizer graph, or ask a "
            "server"
        )
    with needing("Classifier", "cpu"):
        import onnxruntime  # noqa: PLC0415  not needed by who looks at entries
    if device == "cuda":
        require_runtime(f"entry {entry.path}")
    elif entry.manifest.dtype == "bf16":
        raise DeviceError(
            f"entry {entry.path} is in bf16, which ONNX Runtime does not compute on processors: leave out "
            "device='cpu', or export it with --dtype fp32"
        )
    library = verify_library(device)
    require_library_version([entry], library_version(library), "installed is", "export it again")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(library))
    path = entry.path / str(version) / GRAPH_NAME
    try:
        with telling_memory(device, f"entry {entry.path}"):
            session = onnxruntime.InferenceSession(str(path), options, providers=session_providers(provider))
    except DeviceError:
        raise
    except Exception as error:  # its exceptions share no base
        raise RepositoryError(f"ONNX Runtime does not load {path}: {first_line(error)}") from error
    require_provider(session, provider)
    return session


def _strings(values: Sequence[str], first: int) -> npt.NDArray[np.object_]:
    """Return strings as ONNX Runtime takes them, `(N, 1)`."""
    column = np.empty((len(values), 1), np.object_)
    column[:, 0] = values
    require_whole(values, first)
    return column


def _as_sent(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an output as a server sends it: strings as bytes."""
    return np.vectorize(str.encode, otypes=[object])(values) if values.dtype == np.object_ else values
