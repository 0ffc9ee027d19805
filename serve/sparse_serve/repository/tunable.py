"""What of a configuration is the operator's, and what of that Triton would take a file or an address from.

Standard library only: `serve` and the image's entry point hold entries against the same, and the text
backend, in Triton's Python stub, reads the limits of texts by it. `onnxruntime_backend/configuration.cc` has
their defaults again.
"""

from collections.abc import Mapping

TUNABLE = frozenset(
    {
        "dynamic_batching",
        "instance_group",
        "max_batch_size",
        "model_warmup",
        "name",
        "optimization",
        "response_cache",
        "version_policy",
    }
)
"""The parts of a configuration that are the operator's; the name is held against the folder."""

THREADS_PARAMETER = "intra_op_thread_count"

SESSION_PARAMETERS = frozenset(
    {
        "arena_extend_strategy",
        "cudnn_conv_algo_search",
        "do_copy_in_default_stream",
        "enable_mem_arena",
        "enable_mem_pattern",
        "execution_mode",
        "gpu_mem_limit",
        "inter_op_thread_count",
        THREADS_PARAMETER,
        "memory.enable_memory_arena_shrinkage",
        "session.use_device_allocator_for_initializers",
    }
)
"""The parameters of Triton's onnxruntime backend that are the operator's: none of them names a file."""

TEXT_BYTES_PARAMETER, REQUEST_BYTES_PARAMETER = "max_text_bytes", "max_request_bytes"

TEXT_PARAMETERS = frozenset({TEXT_BYTES_PARAMETER, REQUEST_BYTES_PARAMETER})
"""The parameters of public models that are the operator's: how many bytes of text are read."""

RUN_TOKENS_PARAMETER = "run_tokens"
FRONT_PARAMETERS = TEXT_PARAMETERS | {RUN_TOKENS_PARAMETER}
"""Those where the tokenizer is in the server: how many tokens the graph is asked for at a time, too."""

DEFAULT_TEXT_BYTES = 1 << 20
"""Of one text that is cut: the `tokenizers` library reads 1 to 4 MB/s, and no model that many tokens."""
DEFAULT_WINDOWED_BYTES = 1 << 18
"""Of one text that is read in windows, all of which are computed: about 250 of 384 tokens."""
DEFAULT_REQUEST_BYTES = 4 << 20
"""Of all texts of a request: what a gateway lets through as a body unless it is told otherwise."""
MOST = 1 << 30
"""Of bytes, and of tokens."""

ACCELERATOR = "cuda"
"""The accelerator that may be asked for: what others open is theirs to say."""

ACCELERATOR_PARAMETERS = frozenset(
    {
        "arena_extend_strategy",
        "cudnn_conv1d_pad_to_nc1d",
        "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace",
        "do_copy_in_default_stream",
        "enable_skip_layer_norm_strict_mode",
        "gpu_mem_limit",
        "prefer_nhwc",
        "sdpa_kernel",
        "use_ep_level_unified_stream",
        "use_tf32",
    }
)
"""The accelerator's parameters that are numbers and names; others, as gpu_external_alloc, are addresses. No
enable_cuda_graph: the shapes within our graphs hang on the tokens of a batch, and their runs are a loop,
neither of which can be captured."""

WARMUP_FILE = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""What names a file of `model_warmup` inside the model's folder `warmup`, where Triton looks for it."""


def read_limit(parameters: Mapping[str, str], name: str, default: int) -> int:
    """Return one of `FRONT_PARAMETERS`, or what it is where a configuration lacks it.

    Raises:
        ValueError: it is no number from 1 to `MOST`.
    """
    text = parameters.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= MOST):
        unit = "tokens" if name == RUN_TOKENS_PARAMETER else "bytes"
        raise ValueError(f"{name} is {text!r:.80}: give a number of {unit} from 1 to {MOST}")
    return int(text)
