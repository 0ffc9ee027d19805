"""Texts as pre-training reads them: a row for each text, or for next-sentence prediction each document."""

from collections.abc import Iterator
from functools import partial

from sparse_export.pretraining.options import PretrainOptions
from sparse_export.training.sources import Reading
from sparse_serve.data import TEXT_PAIR, Columns, Records
from sparse_serve.errors import DataError
from sparse_serve.records import text_of

# A second segment that does not follow comes from another document.
LEAST_DOCUMENTS = 2


def reading_of(options: PretrainOptions) -> Reading:
    """Return how rows are read: texts that are not blank, or documents whose lines are sentences."""
    columns = options.columns or Columns()
    if options.nsp:
        return Reading(labelled=False, arrange=partial(_documents, columns), least=LEAST_DOCUMENTS)
    return Reading(labelled=False, arrange=partial(_texts, columns))


def _texts(columns: Columns, source: str, records: Records) -> Records:
    """Leave out what is blank."""
    for line, record in records:
        if text_of(source, line, record, columns.text).strip():
            yield line, record


def _documents(columns: Columns, source: str, records: Records) -> Records:
    """Join the texts between blank ones into one record each, as lines, at the place of the first."""
    document: list[str] = []
    start = 0
    for line, text in _sentences(columns, source, records):
        if text:
            start = start if document else line
            document.append(text)
        elif document:
            yield start, {columns.text: "\n".join(document)}
            document = []
    if document:
        yield start, {columns.text: "\n".join(document)}


def _sentences(columns: Columns, source: str, records: Records) -> Iterator[tuple[int, str]]:
    for line, record in records:
        if record.get(TEXT_PAIR) not in (None, ""):
            raise DataError(
                f"{source}, line {line}: there is a second text ('{TEXT_PAIR}'), but --nsp pairs rows that "
                "follow each other itself; leave out that column, or --nsp"
            )
        yield line, " ".join(text_of(source, line, record, columns.text).split())
