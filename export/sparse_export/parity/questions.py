"""What the graphs of an entry are asked before it is written, and how exactly they must answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from sparse_export.graph.export import GraphTarget
from sparse_export.graph.text import TextReading
from sparse_export.parity.examples import Examples, builtin_examples, text_examples
from sparse_export.parity.texts import TextGate
from sparse_serve.cuda import CPU_PROVIDER, CUDA_PROVIDER, probe
from sparse_serve.errors import DeviceError, OpLibraryError
from sparse_serve.op_library import verify_library
from sparse_serve.tasks import Task


@dataclass(frozen=True)
class Questions:
    """What graphs are judged by.

    Attributes:
        library: path of the op library.
        provider: ONNX Runtime's name of what computes the graphs.
        texts: the rows that the graph that answers is asked.
        padded: those that one of token ids is asked, padded: some with masked tokens among others.
        labelled: rows with what they should be answered.
        calibration: rows by which weights are rounded to integers; None: they are rounded to the nearest.
        atol: accepted difference of a number.
        output: what the graph answers.
        reader: what a graph that takes text is judged by; None where it takes token ids.
    """

    library: Path
    provider: str
    texts: Examples
    padded: Examples
    labelled: Examples | None
    calibration: Examples | None
    atol: float
    output: str
    reader: TextGate | None

    @classmethod
    def of(  # noqa: PLR0913  each is of another source
        cls,
        texts: Sequence[str],
        task: Task,
        tokenizer: Tokenizer,
        max_length: int,
        target: GraphTarget,
        *,
        are_built_in: bool,
        atol: float | None,
        labelled: Examples | None,
        calibration: Examples | None = None,
        reading: TextReading | None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Ask texts, and labelled rows.

        Args:
            texts: the user's, or the built-in ones.
            task: that is answered.
            tokenizer: of the entry.
            max_length: tokens at which texts are cut.
            target: what the graphs are written for.
            are_built_in: whether nobody gave `texts`: they are joined to texts of many lengths.
            atol: accepted difference of a number; None for the precision's own.
            labelled: rows with what they should be answered.
            calibration: rows by which weights are rounded to integers.
            reading: how the graph reads texts, where it does.
            warn: called where graphs for a GPU are judged without one.

        Raises:
            OpLibraryError: the op library is missing or is not the installed one.
            DeviceError: what is for GPUs alone cannot be judged, as there is none here.
        """
        library, provider = _judging(target, warn)
        make = builtin_examples if are_built_in else text_examples
        examples = make(task, tokenizer, max_length, texts)
        reader = None
        if reading is not None:
            reader = TextGate(library, tokenizer, reading, target, texts, provider)
        return cls(
            library=library,
            provider=provider,
            texts=examples if reading is None else replace(examples, others=()),
            padded=examples,
            labelled=labelled,
            calibration=calibration,
            atol=atol or target.precision.atol,
            output=task.graph_output,
            reader=reader,
        )


def _judging(target: GraphTarget, warn: Callable[[str], None]) -> tuple[Path, str]:
    """Return the op library and the provider that graphs are judged by: the device's, where that is here.

    What is for a GPU is judged on the CPU where there is none, if that computes it.
    """
    if target.device == "cpu":
        return verify_library(), CPU_PROVIDER
    obstacle = probe().runtime_obstacle
    try:
        library = verify_library("cuda")
        if obstacle is None:
            return library, CUDA_PROVIDER
    except OpLibraryError as error:
        library, obstacle = verify_library(), obstacle or str(error)
    if "cpu" not in target.precision.devices:
        raise DeviceError(f"--dtype {target.precision.name} is judged on a GPU, but {obstacle}")
    warn(
        f"what is exported for a GPU is judged on the CPU alone: {obstacle}; export it where one is to "
        "have it judged there"
    )
    return library, CPU_PROVIDER
