"""What a graph is computed with: instances, threads and devices."""

from dataclasses import dataclass

from sparse_serve.errors import OptionError
from sparse_serve.op_library import Device


@dataclass(frozen=True, kw_only=True)
class Computing:
    """What a graph is computed with; how the defaults were found is in `docs/serving_defaults.md`.

    Attributes:
        instances: copies of the model that compute at the same time, each with weights of its own; on GPUs
            those of each.
        threads: of each instance; None for one on each core that the server sees.
        queue_delay_us: microseconds that a request may wait for others to share its run.
        device: what computes.
        gpu_mem_limit: bytes of device memory that the arena of each instance may take; None for all.
    """

    instances: int = 1
    threads: int | None = None
    queue_delay_us: int = 0
    device: Device = "cpu"
    gpu_mem_limit: int | None = None

    @classmethod
    def on(
        cls,
        cores: int | None,
        instances: int = 1,
        queue_delay_us: int = 0,
        *,
        device: Device = "cpu",
        gpu_mem_limit: int | None = None,
    ) -> "Computing":
        """Return what makes use of so many cores; of those that the server sees, where they are None.

        Raises:
            OptionError: there are fewer cores than instances, a number is out of range, or memory of a GPU is
                limited where none computes.
        """
        if gpu_mem_limit is not None and device != "cuda":
            raise OptionError("--gpu-mem-limit is for --device cuda: leave it out")
        if instances < 1 or queue_delay_us < 0 or (cores is not None and cores < instances):
            raise OptionError(
                f"{instances} instances on {cores or 'all'} cores, waiting {queue_delay_us} µs: at least one "
                "instance is needed, a core for each, and no wait below 0"
            )
        if cores is None and instances > 1 and device == "cpu":
            raise OptionError(f"{instances} instances share the cores: say with --cores how many there are")
        threads = None if cores is None else cores // instances
        return cls(
            instances=instances,
            threads=threads,
            queue_delay_us=queue_delay_us,
            device=device,
            gpu_mem_limit=gpu_mem_limit,
        )


ALL_CORES = Computing()
"""One instance with all cores that the server sees, which waits for nothing."""
FRONT = Computing(instances=2)
"""What a server-side tokenizer is served with: one tokenizes while the other waits for the graph."""
