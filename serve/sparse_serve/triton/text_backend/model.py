"""Triton's backend `sparse_serve_text`: the public model of every entry, text in and answers out.

A python-based backend: it ships once with the package and the image, and takes all that is an entry's own
from the entry: tokenizer.json and the parameters of config.pbtxt. It turns a whole dynamic batch into rows of
NAME_model, asks that about a thousand tokens at a time, or as many as fill a GPU, and answers per request. A
long request is answered by a thread, so that short ones do not wait for it. What the answers are is said in
`sparse_serve.tasks`; here is what is Triton's.

Runs in Triton's Python stub, where the package need not be installed: of its modules, those that this backend
needs lie beside this file.
"""

import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

# Before any other version of the package that may be installed where Triton runs.
sys.path.insert(0, str(Path(__file__).parent))

from sparse_serve.errors import TaskError
from sparse_serve.repository.measures import MEASURES, RHO
from sparse_serve.repository.tunable import RUN_TOKENS_PARAMETER, read_limit
from sparse_serve.runs import RUN_TOKENS, TOKEN_BYTES, run_borders
from sparse_serve.tasks import TASK_IDS, answered, read_tasks
from sparse_serve.tasks.encoding import graph_inputs, load_tokenizer, of_tasks, pad_id
from sparse_serve.text_backend import meter
from sparse_serve.text_backend.clock import no_stale_answer
from sparse_serve.text_backend.later import give_way, in_one_line, send
from sparse_serve.text_backend.limits import OversizeError, TextLimits
from sparse_serve.text_backend.meter import Meter, each_value

WAIT = "wait"
STAGES = (WAIT, "tokenize", "graph", "answer")

# Of a request that does not keep others waiting: to be read by a processor, whatever computes the graph.
SHORT_BYTES = TOKEN_BYTES * RUN_TOKENS
# That answer what takes long, beside each other, and each with a tokenizer of its own: how it cuts is a
# tokenizer's state.
LONG_THREADS = 2


class RefusedError(Exception):
    """A request cannot be answered: what its client is told, and under which reason it counts."""

    def __init__(self, message, reason, code=None):
        super().__init__(message)
        self.reason = reason
        self.code = pb_utils.TritonError.INVALID_ARG if code is None else code


class Asked(NamedTuple):
    """What a request asks: texts, second texts and names of tasks (None where there are none), outputs."""

    texts: list
    pairs: list
    tasks: list
    outputs: list
    bytes: int


class TritonPythonModel:
    """Text to answers, through BLS calls for all windows of a dynamic batch."""

    def initialize(self, args):
        """Load the tokenizer and what the entry answers."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.graph_version = int(args["model_version"])
        # The graph takes as many: an entry with fewer is refused before it is served.
        self.max_rows = max(1, config["max_batch_size"])
        try:
            self.graph = parameters["model"]
            self.graph_inputs = parameters["inputs"].split(",")
            self.max_length = int(parameters["max_length"])
            self.truncation = parameters.get("truncation", "right")
            self.limits = TextLimits.of(parameters)
            self.run_tokens = read_limit(parameters, RUN_TOKENS_PARAMETER, RUN_TOKENS)
            tasks = read_tasks(json.loads(parameters["tasks"]))
            self.task = answered(tasks)
            if (len(tasks) > 1) != (TASK_IDS in self.graph_inputs):
                raise ValueError(f"{len(tasks)} tasks for the inputs {parameters['inputs']}")
            self.tokenizer = load_tokenizer(Path(args["model_repository"]) / "tokenizer.json")
        except TaskError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        except (KeyError, ValueError) as error:
            raise pb_utils.TritonModelException(
                f"a parameter of config.pbtxt is missing or malformed ({error}): export the entry again"
            ) from None
        self.pad_id = pad_id(self.tokenizer)
        pb_utils.deserialize_bytes_tensor = self.limits.strings_of
        (rho,) = (tensor for tensor in config["output"] if tensor["name"] == RHO)
        self.measures = measures_of(parameters.get("metrics", ""))
        self.meter = Meter(
            pb_utils.MetricFamily,
            {"model": args["model_name"], "version": args["model_version"]},
            counters(list(tasks) if len(tasks) > 1 else [], self.measures.values(), int(rho["dims"][0])),
        )
        self.long = ThreadPoolExecutor(LONG_THREADS, "long", give_way)
        self.of_thread = threading.local()
        self.tokenizer_json = self.tokenizer.to_str()

    @no_stale_answer()
    def execute(self, requests):
        """Answer short requests together; leave long ones to other threads.

        One that cannot be read gets its own error and stays out of the batch.
        """
        asked, responses = {}, {}
        for index, request in enumerate(requests):
            try:
                asked[index] = self._read(request)
            except Exception as failure:
                responses[index] = self._refuse(failure)
        long = [index for index, each in asked.items() if each.bytes > SHORT_BYTES]
        if not long:
            responses |= self._answer(asked, self.tokenizer)
            return [responses[index] for index in range(len(requests))]
        senders = [request.get_response_sender() for request in requests]
        for index in long:
            self.long.submit(self._answer_long, asked.pop(index), senders[index], time.perf_counter())
        responses |= self._answer(asked, self.tokenizer)
        for index, response in responses.items():
            self._send(senders[index], response, len(asked[index].texts) if index in asked else 1)
        return None

    def finalize(self):
        """Answer what is still waiting."""
        self.long.shutdown()

    def _answer_long(self, asked, sender, begun):
        """Answer a request on a thread of its own, whatever happens: its client waits, or has given it up.

        It waits for that thread since `begun`.
        """
        try:
            self.meter.add(meter.SECONDS, time.perf_counter() - begun, stage=WAIT)
            if sender.is_cancelled():
                message = "the request was cancelled by its client"
                raise RefusedError(message, "cancelled", pb_utils.TritonError.CANCELLED)
            if not hasattr(self.of_thread, "tokenizer"):
                self.of_thread.tokenizer = type(self.tokenizer).from_str(self.tokenizer_json)
            (response,) = self._answer({0: asked}, self.of_thread.tokenizer).values()
        except Exception as failure:
            response = self._refuse(failure, len(asked.texts))
        self._send(sender, response, len(asked.texts))

    def _send(self, sender, response, texts):
        """Answer a request of so many texts by its sender."""
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        send(sender, response, final, lambda failure: self._refuse(failure, texts))

    def _read(self, request):
        """Return what a request asks.

        Raises:
            RefusedError: it lacks texts, has too much of them, or such as are none.
        """
        columns = {}
        for name in ("TEXT", "TEXT_PAIR", "TASK"):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                columns[name] = tensor.as_numpy().reshape(-1)
        try:
            size = self.limits.check(columns)
        except OversizeError as error:
            raise RefusedError(str(error), "too_large") from None
        if "TEXT" not in columns:
            # Triton counts inputs: with an optional one among them, it lets a request without TEXT pass.
            raise RefusedError("input TEXT is missing", "malformed")
        texts = decoded(columns, "TEXT")
        pairs, tasks = (beside(columns, name, len(texts)) for name in ("TEXT_PAIR", "TASK"))
        for name, pair in zip(tasks, pairs, strict=True):
            try:
                own = self.task.member(name)
            except TaskError as error:
                raise RefusedError(str(error), "no_task") from None
            own.check_pairs([pair])
        return Asked(texts, pairs, tasks, request.requested_output_names(), size)

    def _refuse(self, failure, texts=1):
        """Return the response to a request that is not answered."""
        refused = refusal_of(failure)
        self.meter.add(meter.REFUSED, texts, reason=refused.reason)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(refused), refused.code))

    def _answer(self, asked, tokenizer):
        """Return the responses to what requests asked, by their index."""
        encoded, responses = self._encode(asked, tokenizer)
        if self.truncation == "error":
            for index, texts in list(encoded.items()):
                if message := too_long(texts):
                    responses[index] = self._refuse(RefusedError(message, "too_long"), len(texts))
                    del encoded[index]
        return responses | self._answer_encoded(asked, encoded)

    def _encode(self, asked, tokenizer):
        """Return the texts of requests as tokens, by index, and responses to those that cannot be encoded."""
        if not asked:
            return {}, {}
        try:
            with self._stage("tokenize"):
                texts = [text for each in asked.values() for text in each.texts]
                pairs = [pair for each in asked.values() for pair in each.pairs]
                tasks = [name for each in asked.values() for name in each.tasks]
                rows = self.task.encode(tokenizer, texts, pairs, self.max_length, self.truncation)
                return dict(rows_of(asked, of_tasks(rows, tasks))), {}
        except Exception as failure:
            if len(asked) == 1:
                return {}, {index: self._refuse(failure, len(each.texts)) for index, each in asked.items()}
        encoded, responses = {}, {}
        for index, each in asked.items():  # one of several is at fault
            own = self._encode({index: each}, tokenizer)
            encoded |= own[0]
            responses |= own[1]
        return encoded, responses

    def _answer_encoded(self, asked, encoded):
        """Return the responses to requests whose texts have been encoded, by their index."""
        if not encoded:
            return {}
        try:
            wanted = {index: asked[index] for index in encoded}
            columns = self._columns(
                [text for texts in encoded.values() for text in texts],
                {RHO} if any(RHO in each.outputs for each in wanted.values()) else set(),
            )
            responses = {
                index: pb_utils.InferenceResponse(
                    [pb_utils.Tensor(name, columns[name][rows]) for name in asked[index].outputs]
                )
                for index, rows in rows_of(wanted)
            }
        except Exception as failure:
            # One of several may be at fault: ask one by one. An overloaded graph is not asked again.
            if len(encoded) > 1 and refusal_of(failure).code != pb_utils.TritonError.UNAVAILABLE:
                return {
                    index: response
                    for index, texts in encoded.items()
                    for response in self._answer_encoded(asked, {index: texts}).values()
                }
            return {index: self._refuse(failure, len(texts)) for index, texts in encoded.items()}
        self._count(columns, [text.task for texts in encoded.values() for text in texts])
        return responses

    def _columns(self, encoded, measures):
        """Return every output of the model for texts, by name, and those measures of the graph."""
        measures = measures | self.measures.keys()
        with self._stage("graph"):
            outputs = self._run_graph(encoded, [self.task.graph_output, *sorted(measures)])
        with self._stage("answer"):
            return self._read_answer(encoded, outputs, measures)

    def _read_answer(self, encoded, outputs, measures):
        if np.isnan(outputs[self.task.graph_output]).any():
            message = f"{self.graph} answers NaN: the tokenizer has tokens that it does not know"
            raise RefusedError(message, "fault", pb_utils.TritonError.INTERNAL)
        columns = self.task.answer(encoded, outputs[self.task.graph_output])
        columns["token_count"] = np.array([[text.token_count] for text in encoded], dtype=np.int32)
        columns["truncated"] = np.array([[text.truncated] for text in encoded])
        counts = np.array([len(text.windows) for text in encoded])
        for name in measures:
            sums = np.add.reduceat(outputs[name], np.cumsum(counts) - counts, axis=0)
            columns[name] = (sums / counts[:, None]).astype(np.float32)
        return columns

    def _run_graph(self, encoded, names):
        """Return the graph's outputs of these names for all windows of the texts, float32."""
        windows = [window for text in encoded for window in text.windows]
        task_ids = self.task.task_ids(encoded)
        borders = run_borders(list(map(len, windows)), self.max_rows, self.run_tokens)
        borders = [0, *borders, len(windows)]
        runs = [slice(begin, end) for begin, end in pairwise(borders)]
        batches = [self._run_batch(windows[run], task_ids[run], names) for run in runs]
        return {name: stack([batch[name] for batch in batches]) for name in names}

    def _run_batch(self, windows, task_ids, names):
        arrays = graph_inputs(windows, self.pad_id) | {TASK_IDS: task_ids}
        response = pb_utils.InferenceRequest(
            model_name=self.graph,
            model_version=self.graph_version,
            requested_output_names=names,
            inputs=[pb_utils.Tensor(name, arrays[name]) for name in self.graph_inputs],
        ).exec()
        if response.has_error():
            code = code_of(response.error())
            # Of tokens that a tokenizer gave, no client is at fault.
            reason = "graph" if code == pb_utils.TritonError.UNAVAILABLE else "fault"
            raise RefusedError(response.error().message(), reason, code)
        mask = arrays["attention_mask"]
        self.meter.add(meter.PADDING, mask.size - int(mask.sum()))
        return {name: pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in names}

    @contextmanager
    def _stage(self, name):
        begun = time.perf_counter()
        yield
        self.meter.add(meter.SECONDS, time.perf_counter() - begun, stage=name)

    def _count(self, columns, tasks):
        """Count the rows of an answer, each of the task of that name, None for an only one."""
        for name, texts in Counter(tasks).items():
            self.meter.add(meter.TEXTS, texts, **({} if name is None else {"task": name}))
        self.meter.add(meter.TOKENS, int(columns["token_count"].sum()))
        self.meter.add(meter.TRUNCATED, int(columns["truncated"].sum()))
        for name, counter in self.measures.items():
            for layer, total in enumerate(columns[name].sum(axis=0, dtype=np.float64).tolist(), start=1):
                self.meter.add(counter, total, layer=str(layer))


def code_of(error):
    """Return the code of the graph's error as clients get it: of a server that ends they may ask again."""
    return pb_utils.TritonError.UNAVAILABLE if "not ready" in error.message() else error.code()


def measures_of(names):
    """Return the counters of the graph's measures, by the names that a parameter has of them."""
    meanings = {measure.name: measure.meaning for measure in MEASURES}
    return {
        name: meter.Counter(name, f"Sum over texts of {meanings[name]}", "layer")
        for name in names.split(",")
        if name
    }


def counters(tasks, measures, layers):
    """Return all counters of a model of these tasks, none for an only one, each with labels of its own."""
    numbers = tuple(str(layer) for layer in range(1, layers + 1))
    texts = meter.TEXTS._replace(label="task", values=tuple(tasks)) if tasks else meter.TEXTS
    kinds = [texts, meter.TOKENS, meter.TRUNCATED, meter.REFUSED, meter.PADDING]
    kinds += [meter.SECONDS._replace(values=STAGES)]
    kinds += [measure._replace(values=numbers) for measure in measures]
    return [each for counter in kinds for each in each_value(counter)]


def beside(columns, name, texts):
    """Return the rows of an input beside TEXT, one for each of so many texts, None where there is none."""
    if name not in columns:
        return [None] * texts
    rows = decoded(columns, name)
    if len(rows) != texts:
        raise RefusedError(f"TEXT has {texts} rows, {name} has {len(rows)}: give each text one", "malformed")
    return rows


def decoded(columns, name):
    """Return the rows of an input as strings."""
    rows = []
    for number, text in enumerate(columns[name], start=1):
        try:
            rows.append(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            message = (
                f"{name} {number} of the request must be UTF-8, got {error.reason} at byte {error.start}"
            )
            raise RefusedError(message, "not_utf8") from None
    return rows


def rows_of(asked, rows=None):
    """Yield the index of each request and which of all rows are its own, or those of `rows` that are."""
    borders = pairwise(accumulate((len(each.texts) for each in asked.values()), initial=0))
    for index, (begin, end) in zip(asked, borders, strict=True):
        yield index, slice(begin, end) if rows is None else rows[begin:end]


def too_long(encoded):
    """Return what the client is told of the first text that has more tokens than are read; None without."""
    for number, text in enumerate(encoded, start=1):
        if text.truncated:
            return (
                f"text {number} of the request has {text.length} tokens, at most {text.limit} are read: "
                "shorten it, or leave it out"
            )
    return None


def stack(batches):
    """Return rows of several batches, those by token filled up to one length with zeros."""
    if batches[0].ndim == 3:
        length = max(batch.shape[1] for batch in batches)
        batches = [np.pad(batch, ((0, 0), (0, length - batch.shape[1]), (0, 0))) for batch in batches]
    return batches[0] if len(batches) == 1 else np.concatenate(batches)


def refusal_of(failure):
    """Return what a request is answered with after an exception, an unforeseen one as a line of its own."""
    if isinstance(failure, RefusedError):
        return failure
    if isinstance(failure, TaskError):
        return RefusedError(str(failure), "malformed")
    return RefusedError(in_one_line(failure), "fault", pb_utils.TritonError.INTERNAL)
