"""What of a configuration is the operator's, and what of that Triton would take a file or an address from.

Standard library only: `serve` and the image's entry point hold entries against the same.
"""

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
        "enable_mem_arena",
        "enable_mem_pattern",
        "execution_mode",
        "inter_op_thread_count",
        THREADS_PARAMETER,
        "memory.enable_memory_arena_shrinkage",
        "session.use_device_allocator_for_initializers",
    }
)
"""The parameters of Triton's onnxruntime backend that are the operator's: none of them names a file."""

ACCELERATOR = "cuda"
"""The accelerator that may be asked for: what others open is theirs to say."""

ACCELERATOR_PARAMETERS = frozenset(
    {
        "arena_extend_strategy",
        "cudnn_conv1d_pad_to_nc1d",
        "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace",
        "do_copy_in_default_stream",
        "enable_cuda_graph",
        "enable_skip_layer_norm_strict_mode",
        "gpu_mem_limit",
        "prefer_nhwc",
        "sdpa_kernel",
        "use_ep_level_unified_stream",
        "use_tf32",
    }
)
"""The accelerator's parameters that are numbers and names; others, as gpu_external_alloc, are addresses."""

WARMUP_FILE = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""What names a file of `model_warmup` inside the model's folder `warmup`, where Triton looks for it."""
