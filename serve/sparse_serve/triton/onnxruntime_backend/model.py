"""Triton's `onnxruntime` backend as a python-based backend, for servers that come without the C++ one.

It serves `backend: "onnxruntime"` repositories on CPU and gives the configuration the meaning that
triton-inference-server/onnxruntime_backend gives it (src/onnxruntime.cc): model_operations, the parameters
read below, optimization.graph.level and default_model_filename. What it cannot do it refuses at load.
Runs in Triton's Python stub: no package of this project is importable here.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

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
        self.axes = {tensor.name: tensor.shape for tensor in self.session.get_inputs()}
        self.run_options = onnxruntime.RunOptions()
        if ARENA_SHRINKAGE in self.parameters:
            self.run_options.add_run_config_entry(ARENA_SHRINKAGE, self.parameters[ARENA_SHRINKAGE])

    def execute(self, requests):
        """Answer all requests from one run; only a request that is itself at fault gets an error."""
        feeds = [
            {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
            for request in requests
        ]
        wanted = [request.requested_output_names() for request in requests]
        return self._answer(feeds, wanted)

    def _answer(self, feeds, wanted):
        """Answer requests whose inputs are `feeds`, and which want outputs of these names."""
        try:
            return self._run(feeds, wanted)
        except Exception as error:
            if len(feeds) == 1:
                is_clients = isinstance(error, (InvalidArgument, UnequalAxesError))
                code = pb_utils.TritonError.INVALID_ARG if is_clients else pb_utils.TritonError.INTERNAL
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError(one_line(error), code))]
        return [
            response
            for feed, names in zip(feeds, wanted, strict=True)
            for response in self._answer([feed], [names])
        ]

    def _run(self, feeds, wanted):
        names = [name for name in self.outputs if any(name in each for each in wanted)]
        for each in feeds:
            self._check_axes(each)
        if len(feeds) == 1:
            feed = feeds[0]
        else:
            feed = {name: np.concatenate([each[name] for each in feeds]) for name in self.inputs}
        results = self._run_rows(names, feed)
        if not self.batched:
            return [respond(dict(zip(names, results, strict=True)))]
        rows = [len(each[self.inputs[0]]) for each in feeds]
        for name, result in zip(names, results, strict=True):
            if len(result) != sum(rows):
                raise ValueError(f"output '{name}' has {len(result)} rows for {sum(rows)} rows of input")
        borders = np.cumsum(rows)[:-1]
        parts = [np.split(result, borders) for result in results]
        return [respond(dict(zip(names, part, strict=True))) for part in zip(*parts, strict=True)]

    def _run_rows(self, names, feed):
        """Run the graph; rows with bytes that are not UTF-8 one by one, as they take another array."""
        texts = {name: array for name, array in feed.items() if array.dtype == np.object_}
        try:
            strings = {name: decoded(array) for name, array in texts.items()}
        except UnicodeDecodeError:
            return self._run_some_invalid(names, feed, texts)
        return self.session.run(names, feed | strings, self.run_options)

    def _run_some_invalid(self, names, feed, texts):
        rows = len(feed[self.inputs[0]])
        is_valid = np.array([all(is_utf8(array[row]) for array in texts.values()) for row in range(rows)])
        runs = [([row], spelled) for row in np.flatnonzero(~is_valid)]
        if is_valid.any():
            runs.append((np.flatnonzero(is_valid), decoded))
        order = np.argsort(np.concatenate([of for of, _ in runs]), kind="stable")
        answers = [
            self.session.run(
                names,
                {name: read(array[of]) if name in texts else array[of] for name, array in feed.items()},
                self.run_options,
            )
            for of, read in runs
        ]
        return [np.concatenate(results)[order] for results in zip(*answers, strict=True)]

    def _check_axes(self, feed):
        """Hold a request's shapes against each other: broadcasting would hide some that differ."""
        sizes = {}
        for name, symbols in self.axes.items():
            for symbol, size in zip(symbols, feed[name].shape, strict=True):
                if not isinstance(symbol, str):
                    continue
                first, expected = sizes.setdefault(symbol, (name, size))
                if size != expected:
                    raise UnequalAxesError(
                        f"input '{name}' has {symbol} {size}, input '{first}' has {expected}: "
                        "they must be equal"
                    )

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
        options.intra_op_num_threads = max(0, self._integer("intra_op_thread_count"))
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


def is_utf8(texts):
    """Tell whether all of an array's bytes are text."""
    try:
        for text in texts.reshape(-1):
            text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def decoded(texts):
    """Return bytes, all of them text, as ONNX Runtime's binding takes text."""
    strings = [text.decode("utf-8") for text in texts.reshape(-1)]
    return np.array(strings, dtype=np.object_).reshape(texts.shape)


def spelled(texts):
    """Return bytes that may be no text as the binding takes bytes: of one width, and read up to a NUL.

    A NUL becomes a space, and what follows the first byte that is no text is left out: neither changes where
    that is. Behind the widest there is room, or the binding reads on.
    """
    cut = []
    for text in texts.reshape(-1):
        read = len(text)
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            read = error.start + 1
        cut.append(text[:read].replace(b"\0", b" "))
    return np.array(cut, dtype=f"S{max(map(len, cut)) + 1}").reshape(texts.shape)


def respond(tensors):
    """Wrap arrays as one response."""
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, sent(array)) for name, array in tensors.items()])


def sent(array):
    """Return an answer as Triton takes it: text as bytes."""
    if array.dtype != np.object_:
        return np.ascontiguousarray(array)
    return np.array([text.encode("utf-8") for text in array.reshape(-1)], dtype=np.object_).reshape(
        array.shape
    )


def one_line(error):
    """Return an error's message without line breaks."""
    return " ".join(str(error).split())
