"""Two processes of one run, forked by PyTorch's launcher from a parent that has imported what they need.

As `torchrun --standalone --nproc-per-node 2` starts them, but for seconds of importing in each.

    python forked_processes.py FOLDER                  the runs of `distributed_runs`
    python forked_processes.py sparse-serve ARGUMENTS  the command
"""

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import distributed_runs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sparse_export.cli import main as sparse_serve

COMMAND = "sparse-serve"


def launch(run: Callable[..., None], *arguments: object) -> None:
    """Have two processes do the same, and end as torchrun does."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="tests",
        max_restarts=0,
        start_method="fork",
    )
    gc.collect()
    gc.freeze()  # of what both share: their trainings would look through it again and again
    elastic_launch(config, run)(*arguments)


if __name__ == "__main__":
    if sys.argv[1] == COMMAND:
        del sys.argv[0]
        launch(sparse_serve)
    else:
        launch(distributed_runs.main, Path(sys.argv[1]))
