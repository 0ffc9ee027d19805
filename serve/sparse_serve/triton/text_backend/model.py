"""Triton's backend `sparse_serve_text`: the public model of every entry, text in and answers out.

A python-based backend: it ships once with the package and the image, and takes all that is an entry's own
from the entry: tokenizer.json and the parameters of config.pbtxt. It turns a whole dynamic batch into rows of
NAME_model, asks that in batches of at most its size, and answers per request. What the answers are is said in
`sparse_serve.tasks`; here is what is Triton's.

Runs in Triton's Python stub, where the package need not be installed: of its modules, those that this backend
needs lie beside this file.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

# Before any other version of the package that may be installed where Triton runs.
sys.path.insert(0, str(Path(__file__).parent))

from sparse_serve.errors import TaskError
from sparse_serve.repository.measures import MEASURES, RHO
from sparse_serve.tasks import TASK_IDS, answered, read_tasks
from sparse_serve.tasks.encoding import graph_inputs, load_tokenizer, of_tasks, pad_id


class RefusedError(Exception):
    """A request, or the graph's answer to it, is an error; carries it as Triton's clients get it."""

    def __init__(self, error):
        super().__init__(error.message())
        self.error = error


class Asked(NamedTuple):
    """What a request asks: texts, second texts and names of tasks (None where there are none), outputs."""

    texts: list
    pairs: list
    tasks: list
    outputs: list


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
        self.meter = None
        if "metrics" in parameters:
            (rho,) = (tensor for tensor in config["output"] if tensor["name"] == RHO)
            self.meter = Meter(
                {"model": args["model_name"], "version": args["model_version"]},
                list(tasks) if len(tasks) > 1 else [None],
                parameters["metrics"].split(","),
                int(rho["dims"][0]),
            )

    def execute(self, requests):
        """Answer each request; one that cannot be read gets its own error and stays out of the batch."""
        responses = [None] * len(requests)
        readable = {}
        for index, request in enumerate(requests):
            try:
                asked = read_texts(request)
                for name, pair in zip(asked.tasks, asked.pairs, strict=True):
                    self.task.member(name).check_pairs([pair])
                readable[index] = asked
            except Exception as failure:
                responses[index] = pb_utils.InferenceResponse(error=error_of(failure))
        for index, response in self._answer(readable).items():
            responses[index] = response
        return responses

    def _answer(self, asked):
        """Return the responses to what requests asked, by their index."""
        if not asked:
            return {}
        measures = {RHO} if any(RHO in each.outputs for each in asked.values()) else set()
        if self.meter is not None:
            measures.update(self.meter.measures)
        try:
            columns = self._columns(asked.values(), measures)
            responses = split(columns, asked)
            if self.meter is not None:
                self.meter.count(columns, [name for each in asked.values() for name in each.tasks])
            return responses
        except Exception as failure:
            error = error_of(failure)
            # One of several may be at fault: ask one by one. An overloaded graph is not asked again.
            if len(asked) > 1 and error.code() != pb_utils.TritonError.UNAVAILABLE:
                return {
                    index: response
                    for index, each in asked.items()
                    for response in self._answer({index: each}).values()
                }
            return {index: pb_utils.InferenceResponse(error=error) for index in asked}

    def _columns(self, asked, measures):
        """Return every output of the model for all rows, and of the graph's measures those named, by name."""
        texts = [text for each in asked for text in each.texts]
        pairs = [pair for each in asked for pair in each.pairs]
        tasks = [name for each in asked for name in each.tasks]
        encoded = of_tasks(self.task.encode(self.tokenizer, texts, pairs, self.max_length), tasks)
        outputs = self._run_graph(encoded, [self.task.graph_output, *sorted(measures)])
        if np.isnan(outputs[self.task.graph_output]).any():
            message = f"{self.graph} answers NaN: the tokenizer has tokens that it does not know"
            raise RefusedError(pb_utils.TritonError(message, pb_utils.TritonError.INTERNAL))
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
        parts = [slice(start, start + self.max_rows) for start in range(0, len(windows), self.max_rows)]
        batches = [self._run_batch(windows[part], task_ids[part], names) for part in parts]
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
            raise RefusedError(response.error())
        return {name: pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in names}


class Meter:
    """Counters on Triton's metrics port: of texts answered and, by layer, the sums of the graph's measures.

    Texts are counted by task where there are several: all are the sum over `task`. The mean of a measure is
    its sum over the number of texts. Instances of a model share their counters.
    """

    def __init__(self, labels, tasks, measures, layers):
        """Begin to publish `measures` of so many `layers`, for the names of `tasks`, None for an only one."""
        meanings = {measure.name: measure.meaning for measure in MEASURES}
        # A family must outlive its metrics.
        self.families = {
            "texts": counter("texts", "Texts answered"),
            "tokens": counter("tokens", "Tokens of the texts answered, special ones included"),
            "truncated": counter("truncated", "Texts answered that were cut"),
        } | {name: counter(name, f"Sum over texts of {meanings[name]}") for name in measures}
        self.texts = {
            name: self.families["texts"].Metric(labels=labels if name is None else {**labels, "task": name})
            for name in tasks
        }
        self.tokens, self.truncated = (
            self.families[name].Metric(labels=labels) for name in ("tokens", "truncated")
        )
        by_layer = [{**labels, "layer": str(layer)} for layer in range(1, layers + 1)]
        self.measures = {
            name: [self.families[name].Metric(labels=each) for each in by_layer] for name in measures
        }

    def count(self, columns, tasks):
        """Add the rows of an answer, each of the task of that name."""
        for name, texts in Counter(tasks).items():
            self.texts[name].increment(texts)
        self.tokens.increment(int(columns["token_count"].sum()))
        self.truncated.increment(int(columns["truncated"].sum()))
        for name, layers in self.measures.items():
            for layer, total in zip(layers, columns[name].sum(axis=0, dtype=np.float64), strict=True):
                layer.increment(total)


def counter(name, description):
    """Return the counter family `sparse_serve_NAME_total`."""
    return pb_utils.MetricFamily(
        name=f"sparse_serve_{name}_total", description=description, kind=pb_utils.MetricFamily.COUNTER
    )


def read_texts(request):
    """Return what a request asks; RefusedError without texts."""
    texts = decoded(request, "TEXT")
    if texts is None:
        # Triton counts inputs: with an optional one among them, it lets a request without TEXT pass.
        raise RefusedError(pb_utils.TritonError("input TEXT is missing", pb_utils.TritonError.INVALID_ARG))
    pairs, tasks = (beside(request, name, len(texts)) for name in ("TEXT_PAIR", "TASK"))
    return Asked(texts, pairs, tasks, request.requested_output_names())


def beside(request, name, texts):
    """Return the rows of an input beside TEXT, one for each of so many texts, None where there is none."""
    rows = decoded(request, name)
    if rows is None:
        return [None] * texts
    if len(rows) != texts:
        message = f"TEXT has {texts} rows, {name} has {len(rows)}: give each text one"
        raise RefusedError(pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))
    return rows


def decoded(request, name):
    """Return an input's rows as strings, None where the request does not have it."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    try:
        return [text.decode("utf-8") for text in tensor.as_numpy().reshape(-1)]
    except UnicodeDecodeError as error:
        message = f"{name} must be UTF-8, got {error.reason} at byte {error.start}"
        raise RefusedError(pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG)) from None


def split(columns, asked):
    """Return the response to each request, by index: of the columns it asked for, the rows of its texts."""
    responses = {}
    start = 0
    for index, each in asked.items():
        rows = slice(start, start + len(each.texts))
        start = rows.stop
        responses[index] = pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, columns[name][rows]) for name in each.outputs]
        )
    return responses


def stack(batches):
    """Return rows of several batches, those by token filled up to one length with zeros."""
    if batches[0].ndim == 3:
        length = max(batch.shape[1] for batch in batches)
        batches = [np.pad(batch, ((0, 0), (0, length - batch.shape[1]), (0, 0))) for batch in batches]
    return batches[0] if len(batches) == 1 else np.concatenate(batches)


def error_of(failure):
    """Return what a request is answered with after an exception, an unforeseen one as a line of its own."""
    if isinstance(failure, RefusedError):
        return failure.error
    if isinstance(failure, TaskError):
        return pb_utils.TritonError(str(failure), pb_utils.TritonError.INVALID_ARG)
    message = " ".join(f"{type(failure).__name__}: {failure}".split())
    return pb_utils.TritonError(message, pb_utils.TritonError.INTERNAL)
