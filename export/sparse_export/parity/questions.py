"""What the graphs of an entry are asked before it is written, and how exactly they must answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from sparse_export.graph.export import GraphTarget
from sparse_export.graph.text import TextReading
from sparse_export.parity.examples import Examples, builtin_examples, text_examples
from sparse_export.parity.texts import TextGate
from sparse_serve.op_library import verify_library
from sparse_serve.tasks import Task


@dataclass(frozen=True)
class Questions:
    """What graphs are judged by.

    Attributes:
        library: path of the op library.
        texts: the rows that the graph that answers is asked.
        padded: those that one of token ids is asked, padded: some with masked tokens among others.
        labelled: rows with what they should be answered.
        atol: accepted difference of a number.
        output: what the graph answers.
        reader: what a graph that takes text is judged by; None where it takes token ids.
    """

    library: Path
    texts: Examples
    padded: Examples
    labelled: Examples | None
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
        reading: TextReading | None,
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
            reading: how the graph reads texts, where it does.

        Raises:
            OpLibraryError: the op library is missing or is not the installed one.
        """
        library, accepted = verify_library(), atol or target.precision.atol
        make = builtin_examples if are_built_in else text_examples
        examples = make(task, tokenizer, max_length, texts)
        reader = None
        if reading is not None:
            reader = TextGate(library, tokenizer, reading, target, texts, accepted)
        return cls(
            library=library,
            texts=examples if reading is None else replace(examples, others=()),
            padded=examples,
            labelled=labelled,
            atol=accepted,
            output=task.graph_output,
            reader=reader,
        )
