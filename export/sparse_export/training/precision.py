"""Which numbers training computes in, where the device has them."""

import torch
from transformers.utils import is_torch_bf16_gpu_available, is_torch_tf32_available

from sparse_export.training.distributed import on_cpu
from sparse_export.training.options import TrainingOptions
from sparse_serve.errors import OptionError


def require_precision(options: TrainingOptions) -> None:
    """Refuse numbers that this device has not.

    Raises:
        OptionError: there are some among the options.
    """
    device = "the CPU" if on_cpu() else str(torch.accelerator.current_accelerator())
    if options.bf16 and not on_cpu() and not is_torch_bf16_gpu_available():
        raise OptionError(f"--bf16: {device} does not compute in bfloat16; leave it out")
    if options.tf32 and (on_cpu() or not is_torch_tf32_available()):
        raise OptionError(
            f"--tf32: {device} does not compute in TF32, which NVIDIA GPUs since Ampere do; leave it out"
        )
