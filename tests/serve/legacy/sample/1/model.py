"""The public model of an entry: tokenizes a whole dynamic batch, asks NAME_model once, answers per request.

Runs in Triton's Python stub: no package of this project is importable here. Everything it needs lies in the
entry: tokenizer.json, labels.txt and the parameters of config.pbtxt.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class RefusedError(Exception):
    """A request, or the graph's answer to it, is an error; carries it as Triton's clients get it."""

    def __init__(self, error):
        super().__init__(error.message())
        self.error = error


class TritonPythonModel:
    """Text to labels, through one BLS call per dynamic batch."""

    def initialize(self, args):
        """Load the tokenizer and the labels."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        folder = Path(args["model_repository"])
        self.graph = parameters["model"]
        self.graph_version = int(args["model_version"])
        self.graph_inputs = parameters["inputs"].split(",")
        self.labels = (folder / "labels.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        self.answer = ANSWERS[parameters["problem_type"]]
        self.meter = None
        if "metrics" in parameters:
            (rho,) = (tensor for tensor in config["output"] if tensor["name"] == "rho")
            self.meter = Meter(
                {"model": args["model_name"], "version": args["model_version"]},
                parameters["metrics"].split(","),
                int(rho["dims"][0]),
            )
        try:
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise pb_utils.TritonModelException(f"tokenizer.json cannot be read: {error}") from None
        self.pad_id = pad_id(self.tokenizer)
        # What the file says of padding and truncation belongs to training; here the entry decides.
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(
            int(parameters["max_length"]), strategy="longest_first", direction="right"
        )

    def execute(self, requests):
        """Answer each request; one that cannot be read gets its own error and stays out of the batch."""
        responses = [None] * len(requests)
        readable = {}
        for index, request in enumerate(requests):
            try:
                readable[index] = (read_texts(request), request.requested_output_names())
            except Exception as failure:
                responses[index] = pb_utils.InferenceResponse(error=error_of(failure))
        for index, response in self._answer(readable).items():
            responses[index] = response
        return responses

    def _answer(self, asked):
        """Return the responses to `asked`: by index of their request, its texts and output names."""
        if not asked:
            return {}
        measures = {"rho"} if any("rho" in names for _, names in asked.values()) else set()
        if self.meter is not None:
            measures.update(self.meter.measures)
        try:
            columns = self._columns([text for texts, _ in asked.values() for text in texts], measures)
            responses = split(columns, asked)
            if self.meter is not None:
                self.meter.count(columns)
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

    def _columns(self, texts, measures):
        """Return every output of the model for all rows, and of the graph's measures those named, by name."""
        encodings = self.tokenizer.encode_batch_fast(texts)
        columns = self._run_graph(encodings, ["logits", *sorted(measures)])
        columns["scores"], labels = self.answer(columns["logits"], self.labels)
        columns["label"] = np.array([label.encode() for label in labels], dtype=np.object_)[:, None]
        columns["token_count"] = np.array([[len(encoding)] for encoding in encodings], dtype=np.int32)
        columns["truncated"] = np.array([[bool(encoding.overflowing)] for encoding in encodings])
        return columns

    def _run_graph(self, encodings, names):
        """Return the graph's outputs of these names for all rows, float32."""
        shape = (len(encodings), max(map(len, encodings)))
        arrays = {
            "input_ids": np.full(shape, self.pad_id, dtype=np.int64),
            "attention_mask": np.zeros(shape, dtype=np.int64),
            "token_type_ids": np.zeros(shape, dtype=np.int64),
        }
        for row, encoding in enumerate(encodings):
            arrays["input_ids"][row, : len(encoding)] = encoding.ids
            arrays["attention_mask"][row, : len(encoding)] = 1
            arrays["token_type_ids"][row, : len(encoding)] = encoding.type_ids
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
    """Counters on Triton's metrics port: texts answered and, by layer, the sums of the graph's measures.

    The mean of a measure is its sum over the number of texts. Instances of a model share their counters.
    """

    def __init__(self, labels, measures, layers):
        """Begin to publish `measures`, outputs of the graph with so many `layers`."""
        self.families = {name: counter(name) for name in ("texts", *measures)}
        self.texts = self.families["texts"].Metric(labels=labels)
        by_layer = [{**labels, "layer": str(layer)} for layer in range(1, layers + 1)]
        self.measures = {
            name: [self.families[name].Metric(labels=each) for each in by_layer] for name in measures
        }

    def count(self, columns):
        """Add the rows of an answer."""
        self.texts.increment(len(columns["logits"]))
        for name, layers in self.measures.items():
            for layer, total in zip(layers, columns[name].sum(axis=0, dtype=np.float64), strict=True):
                layer.increment(total)


def counter(name):
    """Return the counter family `sparse_serve_NAME_total`."""
    return pb_utils.MetricFamily(
        name=f"sparse_serve_{name}_total", description=COUNTERS[name], kind=pb_utils.MetricFamily.COUNTER
    )


def read_texts(request):
    """Return a request's rows as `text` or `(text, pair)`; RefusedError where that is not possible."""
    texts, pairs = (decoded(request, name) for name in ("TEXT", "TEXT_PAIR"))
    if texts is None:
        # Triton counts inputs: with an optional one among them, it lets a request without TEXT pass.
        raise RefusedError(pb_utils.TritonError("input TEXT is missing", pb_utils.TritonError.INVALID_ARG))
    return texts if pairs is None else list(zip(texts, pairs, strict=True))


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
    """Return the response to each request: of the columns it asked for, the rows of its texts."""
    responses = {}
    start = 0
    for index, (texts, names) in asked.items():
        rows = slice(start, start + len(texts))
        start = rows.stop
        responses[index] = pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, columns[name][rows]) for name in names]
        )
    return responses


def error_of(failure):
    """Return what a request is answered with after an exception, an unforeseen one as a line of its own."""
    if isinstance(failure, RefusedError):
        return failure.error
    message = " ".join(f"{type(failure).__name__}: {failure}".split())
    return pb_utils.TritonError(message, pb_utils.TritonError.INTERNAL)


def pad_id(tokenizer):
    """Return the id that fills rows up; the mask hides it, so any id of the vocabulary will do."""
    if tokenizer.padding is not None:
        return tokenizer.padding["pad_id"]
    known = (tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>"))
    return next((token_id for token_id in known if token_id is not None), 0)


def single_label(logits, labels):
    """Return softmax scores and the best label of each row."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = exponentials / exponentials.sum(axis=1, keepdims=True)
    return scores, [labels[best] for best in scores.argmax(axis=1)]


def multi_label(logits, labels):
    """Return sigmoid scores and, as a JSON array, each row's labels with a score of at least 0.5."""
    scores = 0.5 * (1.0 + np.tanh(0.5 * logits))
    return scores, [
        json.dumps(
            [label for label, score in zip(labels, row, strict=True) if score >= 0.5], ensure_ascii=False
        )
        for row in scores
    ]


def regression(logits, labels):
    """Return the values themselves, as scores and as text: one number, or a JSON array of several."""
    return logits, [str(row[0]) if len(labels) == 1 else json.dumps(row.tolist()) for row in logits]


COUNTERS = {
    "texts": "Texts answered",
    "rho": "Sum over texts of the share of attention weights that were exactly zero",
    "rows_on": "Sum over texts of the share of tokens whose row of attention was on",
    "columns_on": "Sum over texts of the share of tokens whose column of attention was on",
}

ANSWERS = {
    "single_label_classification": single_label,
    "multi_label_classification": multi_label,
    "regression": regression,
}
