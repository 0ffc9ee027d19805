"""What a row of a data file is, for each kind of task: how a record becomes texts and a label.

    kind            columns, by default                          a row's label
    TextRows        text_a, text_b, label                        what the task reads in it (`ParseLabel`)
    QuestionRows    question, context, answer_start, answer      the accepted answers, none too
    TaggedRows      tokens, tags                                 the tag of each word

Which kind a task has, its class says (`sparse_serve.tasks`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from reprlib import repr as short
from typing import ClassVar, NamedTuple

from sparse_serve.errors import DataError
from sparse_serve.records import CONLL, SQUAD, TABLES, Format, Record, place, text_of
from sparse_serve.tags import split_tag

TEXT_PAIR = "text_b"
ANSWERS = "answers"


class Span(NamedTuple):
    """An answer in its context: the code point it begins at, and its text."""

    start: int
    text: str


class Tag(NamedTuple):
    """The tag of a word, which is the code points `start` to `end` of its row's text."""

    start: int
    end: int
    name: str


Label = str | float | tuple[str, ...] | tuple[Span, ...] | tuple[Tag, ...]
"""A row's label: a name, a number (regression), names (multi-label), accepted answers (none: ()), or tags."""

ParseLabel = Callable[[object], Label]
"""Reads a label from what a column holds; raises ValueError on what is none."""


class Row(NamedTuple):
    """One text; `line` is where it starts in its file, `text_pair` is empty for a single text.

    The text of a question is the question and its second text the context; the text of tagged words is
    the words, joined by blanks. `label` is empty where no labels were asked for.
    """

    line: int
    text: str
    text_pair: str
    label: Label


@dataclass(frozen=True)
class TextData:
    """Rows of one source, a file's path or a data set's name, in its order.

    `labels` and `total_rows` speak of the whole source, also where `rows` is a sample of it. `labels` is in
    the order of a data set that numbers them, else sorted: by value where all are whole numbers, else by
    name; of tagged words they are the tags. Regression has none, nor have questions and plain text. With
    `whole_contexts`, rows of one second text stay together when some are held out.
    """

    source: str
    rows: tuple[Row, ...]
    labels: tuple[str, ...]
    total_rows: int
    whole_contexts: bool = False

    @property
    def has_pairs(self) -> bool:
        """Whether the rows have a second text: questions have one even where it is empty."""
        return self.whole_contexts or any(row.text_pair for row in self.rows)


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read.

    `text_pair=None` takes `text_b` where the file has it and reads single texts where it has not; a name
    that is given must exist. `answer_start` is of questions alone.
    """

    text: str = "text_a"
    text_pair: str | None = None
    label: str = "label"
    answer_start: str = "answer_start"

    @property
    def required(self) -> tuple[str, ...]:
        """The columns of texts that every record must have."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)


class RowFormat(ABC):
    """A kind of rows.

    Attributes:
        columns: the names that are read by default.
        formats: the formats of files that hold such rows, by suffix.
        whole_contexts: whether rows of one second text are held out together.
    """

    columns: ClassVar[Columns]
    formats: ClassVar[dict[str, Format]] = TABLES
    whole_contexts: ClassVar[bool] = False

    def named(
        self, text: str | None = None, text_pair: str | None = None, label: str | None = None
    ) -> Columns:
        """Return the columns, those that are given by name in the place of the kind's own."""
        own = self.columns
        return Columns(text or own.text, text_pair or own.text_pair, label or own.label, own.answer_start)

    def has_label(self, record: Record, columns: Columns) -> bool:
        """Tell whether a record has the columns of a label, whatever is in them."""
        return columns.label in record

    @abstractmethod
    def row(self, source: str, line: int, record: Record, columns: Columns, *, labelled: bool = True) -> Row:
        """Return the row of a record, where it is `labelled` with its label.

        Raises:
            DataError: a text or the label is not what it should be.
        """


@dataclass(frozen=True)
class TextRows(RowFormat):
    """Texts, or pairs of texts, and a label in one column, which `parse` reads."""

    parse: ParseLabel

    columns: ClassVar[Columns] = Columns()

    def row(self, source: str, line: int, record: Record, columns: Columns, *, labelled: bool = True) -> Row:
        """Return a text, its second text where it has one, and its label."""
        text = text_of(source, line, record, columns.text)
        pair_column = columns.text_pair or TEXT_PAIR
        has_pair = record.get(pair_column) not in (None, "")
        text_pair = text_of(source, line, record, pair_column) if has_pair else ""
        if not labelled:
            return Row(line, text, text_pair, "")
        if not self.has_label(record, columns):
            raise missing_label(source, line, record, columns)
        try:
            return Row(line, text, text_pair, self.parse(record[columns.label]))
        except ValueError as error:
            raise DataError(f"{place(source, line)}: {error}") from None


class QuestionRows(RowFormat):
    """Questions on a context and where their answers are in it, in code points; several are alternatives."""

    columns = Columns("question", "context", "answer")
    formats: ClassVar[dict[str, Format]] = {**TABLES, **SQUAD}
    whole_contexts = True

    def has_label(self, record: Record, columns: Columns) -> bool:
        """Tell whether there are answers: in columns of their own, or as the hub's SQuAD has them."""
        return bool({columns.label, columns.answer_start, ANSWERS} & set(record))

    def row(self, source: str, line: int, record: Record, columns: Columns, *, labelled: bool = True) -> Row:
        """Return a question, its context and its answers, none where there is nothing in their columns."""
        question = text_of(source, line, record, columns.text)
        context = text_of(source, line, record, columns.text_pair or "context")
        if not labelled:
            return Row(line, question, context, "")
        where = place(source, line)
        if "id" in record:
            where = f"{where} (id {short(record['id'])})"
        try:
            answers = _answers(record, columns)
            for answer in answers:
                _check_answer(answer, context)
        except ValueError as error:
            raise DataError(f"{where}: {error}") from None
        return Row(line, question, context, answers)


class TaggedRows(RowFormat):
    """Words and a tag for each."""

    columns = Columns("tokens", None, "tags")
    formats: ClassVar[dict[str, Format]] = {".jsonl": TABLES[".jsonl"], **CONLL}

    def row(self, source: str, line: int, record: Record, columns: Columns, *, labelled: bool = True) -> Row:
        """Return the words, joined by blanks, and their tags."""
        where = place(source, line)
        words = _texts(where, record, columns.text)
        for number, word in enumerate(words, start=1):
            if not word.strip():
                raise DataError(f"{where}: token {number} is {word!r}; a token is a word, not a blank")
        text = " ".join(words)
        if not labelled:
            return Row(line, text, "", "")
        if not self.has_label(record, columns):
            raise missing_label(source, line, record, columns)
        tags = _texts(where, record, columns.label)
        if len(tags) != len(words):
            raise DataError(f"{where}: {len(words)} tokens but {len(tags)} tags; give each token one")
        for number, tag in enumerate(tags, start=1):
            try:
                split_tag(tag)
            except ValueError as error:
                raise DataError(
                    f"{where}: tag {tag!r:.80} of token {number} ({short(words[number - 1])}) {error}"
                ) from None
        starts = accumulate((len(word) + 1 for word in words), initial=0)
        placed = zip(starts, words, tags, strict=False)
        return Row(line, text, "", tuple(Tag(start, start + len(word), tag) for start, word, tag in placed))


def missing_label(source: str, line: int, record: Record, columns: Columns) -> DataError:
    """Return the error of a record that has no column of labels."""
    return DataError(
        f"{place(source, line)}: there is no column '{columns.label}'; the columns are {', '.join(record)}: "
        "name yours with --label-column"
    )


def names_of(label: Label) -> tuple[str, ...]:
    """Return the names in a label: a label's own, the tags of words; none in numbers and answers."""
    if isinstance(label, tuple):
        names = (each.name if isinstance(each, Tag) else each for each in label)
        return tuple(name for name in names if isinstance(name, str))
    return (label,) if isinstance(label, str) else ()


def _answers(record: Record, columns: Columns) -> tuple[Span, ...]:
    """Read the answers of a record: one, a list of several, or none.

    Raises:
        ValueError: answers and their starts are not such.
    """
    texts, starts = record.get(columns.label), record.get(columns.answer_start)
    nested = record.get(ANSWERS)
    if texts is None and starts is None and isinstance(nested, dict):
        texts, starts = nested.get("text"), nested.get("answer_start")
    if texts in (None, "", []):
        return ()
    if isinstance(texts, list) != isinstance(starts, list):
        have = f"{len(texts)} answers" if isinstance(texts, list) else f"the answer {short(texts)}"
        their = "a list of starts" if isinstance(starts, list) else f"the start {short(starts)}"
        raise ValueError(f"{have} but {their}; give two lists, or one of each")
    text_list, start_list = (each if isinstance(each, list) else [each] for each in (texts, starts))
    if len(text_list) != len(start_list):
        raise ValueError(f"{len(text_list)} answers but {len(start_list)} starts; give each answer one")
    return tuple(_answer(text, start) for text, start in zip(text_list, start_list, strict=True))


def _answer(text: object, start: object) -> Span:
    if not isinstance(text, str) or not text:
        raise ValueError(
            f"the answer is {short(text)}; a text is needed, or none at all where there is no answer"
        )
    number = start
    if isinstance(start, str) and start.strip().isdecimal():
        number = int(start) if len(start) < 19 else None
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(
            f"the start of answer {short(text)} is {short(start)}; a whole number is needed: the characters "
            "of the context before it"
        )
    return Span(number, text)


def _check_answer(answer: Span, context: str) -> None:
    start, end = answer.start, answer.start + len(answer.text)
    if start < 0 or end > len(context):
        raise ValueError(
            f"answer {answer.text!r:.80} at {start} to {end} is outside of its context of {len(context)} "
            "characters"
        )
    if context[start:end] != answer.text:
        raise ValueError(
            f"the answer is {answer.text!r:.80}, but at {start} the context has {context[start:end]!r:.80}; "
            "starts count characters (code points) from 0"
        )


def _texts(where: str, record: Record, column: str) -> tuple[str, ...]:
    values = record[column]
    if not isinstance(values, list) or not values:
        raise DataError(f"{where}: column '{column}' holds {short(values)}; a list of texts is needed")
    for value in values:
        if not isinstance(value, str):
            raise DataError(f"{where}: column '{column}' holds {short(value)} in its list; texts are needed")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DataError(f"{where}: column '{column}' holds half a surrogate pair") from None
    return tuple(values)
