"""Triton's `onnxruntime` backend as a python-based backend, for servers that come without the C++ one.

It serves `backend: "onnxruntime"` repositories on CPU and gives the configuration the meaning that
triton-inference-server/onnxruntime_backend gives it (src/onnxruntime.cc): model_operations, the parameters
read below, optimization.graph.level and default_model_filename. What it cannot do it refuses at load.

Requests that arrive together are computed together, some hundred tokens at a time. While short ones come,
those that take long are answered by a thread of their own, so that the short ones do not wait for them; where
many of them wait, they take turns with the short ones. A short one that comes after a pause may wait for a
batch of long ones, which are computed at once where no short ones are expected.
Runs in Triton's Python stub, where the package need not be installed: of its modules, those that this backend
needs lie beside this file.
"""

import json
import math
import sys
import threading
import time
from itertools import accumulate, chain, pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

# Before any other version of the package that may be installed where Triton runs.
sys.path.insert(0, str(Path(__file__).parent))

from sparse_serve.stub.asked import Asked, Part, Pending, split, without_frames
from sparse_serve.stub.clock import no_stale_answer
from sparse_serve.stub.cores import physical_cores
from sparse_serve.stub.later import give_way, send
from sparse_serve.stub.limits import OversizeError, TextLimits
from sparse_serve.stub.runs import TOKEN_BYTES, run_borders
from sparse_serve.stub.strings import decoded, encoded, is_utf8, spelled
from sparse_serve.stub.text_meter import READ, TextMeter
from sparse_serve.stub.turns import Turns

ONNX_TYPES = {
    "TYPE_BOOL": "tensor(bool)",
    "TYPE_UINT8": "tensor(uint8)",
    "TYPE_UINT16": "tensor(uint16)",
    "TYPE_UINT32": "tensor(uint32)",
    "TYPE_UINT64": "tensor(uint64)",
    "TYPE_INT8": "tensor(int8)",
    "TYPE_INT16": "tensor(int16)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_FP16": "tensor(float16)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
    "TYPE_STRING": "tensor(string)",
}
GRAPH_LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
DEVICE_INITIALIZERS = "session.use_device_allocator_for_initializers"

# So long after a short one, others are expected.
SHORT_SECONDS = 0.25
# Texts up to this size are handed over in one array of their widest, where any of them is no UTF-8.
SPELLED_BYTES = 1 << 14
MASK = "attention_mask"
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class NoRowsError(ValueError):
    """An input of a request has no rows."""


class UnequalAxesError(ValueError):
    """Two inputs of a request differ in an axis that the graph has as one."""


class TritonPythonModel:
    """One ONNX Runtime session behind one Triton model instance."""

    def initialize(self, args):
        """Open the session and hold the configuration against the graph."""
        config = json.loads(args["model_config"])
        self.name = args["model_name"]
        self.parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._refuse_unsupported(config, args["model_instance_kind"])
        self.batched = config["max_batch_size"] > 0
        path = Path(
            args["model_repository"], args["model_version"], config["default_model_filename"] or "model.onnx"
        )
        if path.is_dir():
            path /= "model.onnx"
        if not path.is_file():
            raise pb_utils.TritonModelException(f"unable to find '{path}' for model instance '{self.name}'")
        try:
            self.session = onnxruntime.InferenceSession(
                str(path), self._session_options(config), providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise pb_utils.TritonModelException(f"onnx runtime error: {one_line(error)}") from None
        self._check_tensors("input", config["input"], self.session.get_inputs())
        self._check_tensors("output", config["output"], self.session.get_outputs())
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        shapes = {tensor.name: tensor.shape for tensor in self.session.get_inputs()}
        self.ranks = {name: len(shape) for name, shape in shapes.items()}
        self.symbols = [
            (symbol, name, axis)
            for name, shape in shapes.items()
            for axis, symbol in enumerate(shape)
            if isinstance(symbol, str)
        ]
        self.text_inputs = [each["name"] for each in config["input"] if each["data_type"] == "TYPE_STRING"]
        self.max_length = int(self.parameters.get("max_length", np.iinfo(np.int32).max))
        try:
            self.limits = TextLimits.of(self.parameters)
        except ValueError as error:
            raise pb_utils.TritonModelException(f"model '{self.name}': {error}") from None
        pb_utils.deserialize_bytes_tensor = self.limits.strings_of
        labels = {"model": self.name, "version": args["model_version"]}
        takes_text = READ.issubset(self.outputs)
        self.meter = TextMeter(pb_utils.MetricFamily, labels, self.parameters) if takes_text else None
        self.long = Turns()
        self.thread = None
        self.short_until = 0.0
        self.run_options = onnxruntime.RunOptions()
        if ARENA_SHRINKAGE in self.parameters:
            self.run_options.add_run_config_entry(ARENA_SHRINKAGE, self.parameters[ARENA_SHRINKAGE])

    @no_stale_answer()
    def execute(self, requests):
        """Answer short requests from as few runs as it takes; beside them, leave long ones to a thread.

        Where many of these wait, compute some of them after the short ones.

        Only a request that is itself at fault gets an error.
        """
        asked = [self._read(request) for request in requests]
        has_short = any(each.is_short for each in asked)
        is_short_expected = has_short or time.monotonic() < self.short_until
        is_mixed = is_short_expected and not all(each.is_short for each in asked)
        # Alone, what is long is answered here too: Triton's statistics do not see what a thread computes.
        if not is_mixed and not self.long.is_crowded:
            responses = self._answer(asked)
            self._note(has_short)
            return responses
        senders = [request.get_response_sender() for request in requests]
        short = []
        for each, sender in zip(asked, senders, strict=True):
            if each.is_short:
                short.append((each, sender))
            else:
                self._answer_later(each, sender)
        begun = time.monotonic()
        self._send_all(short)
        self._note(has_short)
        for run in self.long.turn(time.monotonic() - begun if is_short_expected else math.inf):
            self._answer_parts(run)
        return None

    def _note(self, has_short):
        """Take note that short requests were answered: more of them may come."""
        if has_short:
            self.short_until = time.monotonic() + SHORT_SECONDS

    def finalize(self):
        """Answer what is still waiting."""
        self.long.close()
        if self.thread is not None:
            self.thread.join()

    def _read(self, request):
        """Return what a request asks; one that cannot be read must not take those beside it along."""
        wanted = request.requested_output_names()
        try:
            feed = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
            for name, array in feed.items():
                # Of a tensor of no rows that holds a text, Triton makes an array of its own shape.
                if array.ndim != self.ranks[name] or not len(array):
                    raise NoRowsError(f"input '{name}' has no rows: give at least one")
            return Asked(feed, wanted, self._row_tokens(feed), self._fault(feed))
        except Exception as error:
            return Asked({}, wanted, [0], without_frames(error))

    def _row_tokens(self, feed):
        """Return about how many tokens each row has: by its mask, or by the bytes of its texts."""
        if not self.batched:
            return [0]
        if MASK in feed:
            return np.count_nonzero(feed[MASK].reshape(len(feed[MASK]), -1), axis=1).tolist()
        rows = len(feed[self.inputs[0]])
        tokens = [0] * rows
        for name in self.text_inputs:
            if len(feed[name]) == rows:
                for row, strings in enumerate(feed[name].reshape(rows, -1).tolist()):
                    tokens[row] += sum(map(len, strings)) // TOKEN_BYTES
        return [min(each, self.max_length) for each in tokens]

    def _answer_later(self, asked, sender):
        """Let a request wait for its turn, or for the thread, which starts with the first."""
        pending = Pending(asked, sender)
        parts = asked.parts()
        self.long.put([Part(pending, each, each is parts[-1]) for each in parts])
        if self.thread is None:
            thread = threading.Thread(target=self._work, daemon=True)
            thread.start()
            self.thread = thread

    def _work(self):
        """Answer what takes long."""
        give_way()
        for run in self.long.runs():
            self._answer_parts(run)

    def _answer_parts(self, parts):
        """Compute a run of parts, no two of one request, and answer the requests that end with it.

        Nothing is raised: the thread that calls this has others to answer.
        """
        parts = [each for each in parts if not each.pending.is_answered]
        try:
            results = self._results([each.asked for each in parts])
        except Exception as error:
            results = [without_frames(error)] * len(parts)
        for part, result in zip(parts, results, strict=True):
            pending = part.pending
            pending.results.append(result)
            if part.is_last or isinstance(result, Exception):
                pending.is_answered = True
                self._send(pending.sender, pending.asked, pending.joined())

    def _send_all(self, pairs):
        """Answer requests by their senders."""
        if pairs:
            asked, senders = zip(*pairs, strict=True)
            for sender, each, result in zip(senders, asked, self._results(asked), strict=True):
                self._send(sender, each, result)

    def _send(self, sender, asked, result):
        """Answer a request by its sender."""
        send(sender, self._response(asked, result), FINAL, lambda error: self._refuse(error, asked))

    def _answer(self, asked):
        """Return the responses to requests."""
        return [
            self._response(each, result) for each, result in zip(asked, self._results(asked), strict=True)
        ]

    def _results(self, asked):
        """Return the outputs of each request, or its error; one seen to be at fault stays out of the run."""
        sound = [each for each in asked if each.fault is None]
        results = iter(self._sound_results(sound) if sound else ())
        return [each.fault or next(results) for each in asked]

    def _sound_results(self, asked):
        try:
            return self._run(asked)
        except Exception as error:
            if len(asked) == 1:
                return [without_frames(error)]
        return [result for each in asked for result in self._sound_results([each])]

    def _response(self, asked, result):
        """Return the response to a request: its outputs by name, or what is wrong with it."""
        if not isinstance(result, Exception):
            try:
                return respond(result)
            except Exception as error:
                result = error
        return self._refuse(result, asked)

    def _refuse(self, error, asked):
        """Return the response to a request that cannot be answered."""
        is_clients = isinstance(error, (InvalidArgument, NoRowsError, OversizeError, UnequalAxesError))
        if self.meter is not None:
            reason = "malformed" if is_clients else "fault"
            self.meter.refuse(
                "too_large" if isinstance(error, OversizeError) else reason, len(asked.row_tokens)
            )
        code = pb_utils.TritonError.INVALID_ARG if is_clients else pb_utils.TritonError.INTERNAL
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(one_line(error), code))

    def _run(self, asked):
        """Return the outputs of each request."""
        wanted = {name for each in asked for name in each.wanted}
        names = [name for name in self.outputs if name in wanted]
        if len(asked) == 1:
            feed, row_tokens = asked[0].feed, asked[0].row_tokens
        else:
            feed = {name: np.concatenate([each.feed[name] for each in asked]) for name in self.inputs}
            row_tokens = list(chain.from_iterable(each.row_tokens for each in asked))
        if not self.batched:
            return [dict(zip(names, self._run_rows(names, feed), strict=True))]
        results = self._run_parts(names, feed, row_tokens)
        rows = [len(each.row_tokens) for each in asked]
        for name, result in zip(names, results, strict=True):
            if len(result) != sum(rows):
                raise ValueError(f"output '{name}' has {len(result)} rows for {sum(rows)} rows of input")
        return [
            {name: result[begin:end] for name, result in zip(names, results, strict=True)}
            for begin, end in pairwise(accumulate(rows, initial=0))
        ]

    def _run_parts(self, names, feed, row_tokens):
        """Run the graph on so many rows at a time that they have about `RUN_TOKENS` tokens."""
        borders = run_borders(row_tokens)
        if not borders:
            return self._run_rows(names, feed)
        answers = [self._run_rows(names, part) for part in split(feed, borders)]
        return [np.concatenate(results) for results in zip(*answers, strict=True)]

    def _run_rows(self, names, feed):
        """Run the graph, and count what it reads where that is text."""
        if self.meter is None:
            return self._compute(names, feed)
        every = [*names, *(READ - set(names))]
        begun = time.perf_counter()
        results = self._compute(every, feed)
        self.meter.note(dict(zip(every, results, strict=True)), feed, time.perf_counter() - begun)
        return results[: len(names)]

    def _compute(self, names, feed):
        """Run the graph; bytes that are not UTF-8 take another array."""
        try:
            strings = {name: decoded(feed[name]) for name in self.text_inputs}
        except UnicodeDecodeError:
            return self._run_some_invalid(names, feed)
        return self.session.run(names, feed | strings, self.run_options)

    def _run_some_invalid(self, names, feed):
        """Run the graph on all rows that one array can hold as bytes, and on the others by themselves."""
        rows = [
            [text for name in self.text_inputs for text in feed[name][row].reshape(-1)]
            for row in range(len(feed[self.inputs[0]]))
        ]
        is_valid = np.array([all(map(is_utf8, row)) for row in rows])
        is_small = np.array([max(map(len, row)) <= SPELLED_BYTES for row in rows])
        has_nul = np.array([any(b"\0" in text for text in row) for row in rows])
        together = is_small & ~(is_valid & has_nul)
        runs = [(np.flatnonzero(together), spelled), (np.flatnonzero(is_valid & ~together), decoded)]
        runs += [(np.array([row]), spelled) for row in np.flatnonzero(~is_valid & ~together)]
        runs = [(of, read) for of, read in runs if len(of)]
        order = np.argsort(np.concatenate([of for of, _ in runs]), kind="stable")
        answers = [
            self.session.run(
                names,
                {
                    name: read(array[of]) if name in self.text_inputs else array[of]
                    for name, array in feed.items()
                },
                self.run_options,
            )
            for of, read in runs
        ]
        return [np.concatenate(results)[order] for results in zip(*answers, strict=True)]

    def _fault(self, feed):
        """Return what is wrong with a request, as far as its shapes and sizes show it; None else.

        Shapes are held against each other, because broadcasting would hide some that differ.
        """
        sizes = {}
        for symbol, name, axis in self.symbols:
            size = feed[name].shape[axis]
            first, expected = sizes.setdefault(symbol, (name, size))
            if size != expected:
                return UnequalAxesError(
                    f"input '{name}' has {symbol} {size}, input '{first}' has {expected}: they must be equal"
                )
        try:
            self.limits.check({name: feed[name] for name in self.text_inputs})
        except OversizeError as error:
            return without_frames(error)
        return None

    def _session_options(self, config):
        options = onnxruntime.SessionOptions()
        level = config.get("optimization", {}).get("graph", {}).get("level", 0)
        options.graph_optimization_level = GRAPH_LEVELS.get(
            int(level), onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        )
        mode = self._integer("execution_mode")
        if mode not in (0, 1):
            raise pb_utils.TritonModelException(
                "Invalid configuration value provided. "
                f"Expected values for execution_mode are 0 or 1 but got {mode}"
            )
        options.execution_mode = (
            onnxruntime.ExecutionMode.ORT_PARALLEL if mode == 1 else onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        )
        # Left to choose, ONNX Runtime binds threads to cores, where they wait for whatever else runs there.
        options.intra_op_num_threads = max(0, self._integer("intra_op_thread_count")) or physical_cores()
        options.inter_op_num_threads = max(0, self._integer("inter_op_thread_count"))
        options.enable_cpu_mem_arena = self._boolean("enable_mem_arena", options.enable_cpu_mem_arena)
        options.enable_mem_pattern = self._boolean("enable_mem_pattern", options.enable_mem_pattern)
        if DEVICE_INITIALIZERS in self.parameters:
            options.add_session_config_entry(DEVICE_INITIALIZERS, self.parameters[DEVICE_INITIALIZERS])
        for library in config.get("model_operations", {}).get("op_library_filename", []):
            options.register_custom_ops_library(library)
        return options

    def _integer(self, key):
        value = self.parameters.get(key, "0")
        try:
            return int(value)
        except ValueError:
            raise pb_utils.TritonModelException(
                f"failed to convert {key} '{value}' to integral number"
            ) from None

    def _boolean(self, key, default):
        value = self.parameters.get(key)
        if value is None:
            return default
        if value.lower() in ("true", "on", "1"):
            return True
        if value.lower() in ("false", "off", "0"):
            return False
        raise pb_utils.TritonModelException(f"failed to convert {key} '{value}' to boolean value")

    def _refuse_unsupported(self, config, instance_kind):
        unsupported = [key for key in ("batch_input", "batch_output", "sequence_batching") if config.get(key)]
        if any(tensor.get("allow_ragged_batch") for tensor in config["input"]):
            unsupported.append("allow_ragged_batch")
        if any(tensor.get("reshape", {}).get("shape") for tensor in (*config["input"], *config["output"])):
            unsupported.append("reshape")
        if any(config.get("optimization", {}).get("execution_accelerators", {}).values()):
            unsupported.append("execution_accelerators")
        if instance_kind == "GPU":
            unsupported.append("KIND_GPU")
        if unsupported:
            raise pb_utils.TritonModelException(
                f"model '{self.name}' asks for {', '.join(unsupported)}, which the python-based onnxruntime "
                "backend does not have; serve it with the tritonserver container"
            )

    def _check_tensors(self, kind, configured, provided):
        graph = {tensor.name: tensor for tensor in provided}
        prefix = f"unable to load model '{self.name}', "
        if kind == "input" and len(configured) != len(graph):
            raise pb_utils.TritonModelException(
                f"{prefix}configuration expects {len(configured)} inputs, model provides {len(graph)}"
            )
        for tensor in configured:
            name, found = tensor["name"], graph.get(tensor["name"])
            if found is None:
                raise pb_utils.TritonModelException(
                    f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(sorted(graph))}"
                )
            if ONNX_TYPES.get(tensor["data_type"]) != found.type:
                raise pb_utils.TritonModelException(
                    f"{prefix}configuration expects datatype {tensor['data_type']} for {kind} '{name}', "
                    f"model provides {found.type}"
                )
            dims = [-1, *map(int, tensor["dims"])] if self.batched else list(map(int, tensor["dims"]))
            shape = [dim if isinstance(dim, int) else -1 for dim in found.shape]
            fits = len(dims) == len(shape) and all(b in (-1, a) for a, b in zip(dims, shape, strict=True))
            if not fits:
                raise pb_utils.TritonModelException(
                    f"{prefix}tensor '{name}': the model expects shape {shape} "
                    f"but the configuration specifies {dims}"
                )


def respond(tensors):
    """Wrap arrays as one response."""
    return pb_utils.InferenceResponse(
        [
            # Triton takes text as bytes.
            pb_utils.Tensor(
                name, encoded(array) if array.dtype == np.object_ else np.ascontiguousarray(array)
            )
            for name, array in tensors.items()
        ]
    )


def one_line(error):
    """Return an error's message without line breaks."""
    return " ".join(str(error).split())
