"""A part's file: written whole, named by its place in the corpus, and saying of itself what it holds."""

import re
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from sparse_serve.scoring.storage import Location

_NAME = re.compile(r"part-(\d{6,})-(\d{6,})\.parquet")
_KEY = b"sparse_serve"
_AT_A_TIME = 16


class PartRecord(BaseModel):
    """What a part is, and what a summary says of it.

    Attributes:
        group: of files that are read one after the other.
        number: of the part in the group.
        is_last: whether the group has no further parts.
        rows: that it has.
        tokens: that the model saw.
        truncated: rows whose text the model did not see whole.
        refused: rows that were not answered, by reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: int
    number: int
    is_last: bool
    rows: int
    tokens: int
    truncated: int
    refused: dict[str, int]

    @property
    def name(self) -> str:
        """The file's name: parts by name are in the order of the corpus."""
        return f"part-{self.group:06}-{self.number:06}.parquet"


def write_part(folder: Location, record: PartRecord, rows: pa.Table) -> None:
    """Write a part, or the same part again.

    Raises:
        OSError: it cannot be written.
    """
    content = pa.BufferOutputStream()
    metadata = {_KEY: record.model_dump_json().encode()}
    pq.write_table(rows.replace_schema_metadata(metadata), content, compression="zstd")
    folder.child(record.name).write(content.getvalue())


def kept_parts(folder: Location) -> list[PartRecord]:
    """Return the parts that a folder has, in order; a file that is not whole is none.

    Raises:
        DataError: the folder cannot be read.
    """
    places = [folder.at(info.path) for info in folder.files() if _NAME.fullmatch(info.base_name)]
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        records = threads.map(_read, places)
    return [record for record in records if record is not None]


def _read(place: Location) -> PartRecord | None:
    try:
        with place.filesystem.open_input_file(place.path) as file:
            metadata = pq.read_schema(file).metadata or {}
        record = PartRecord.model_validate_json(metadata.get(_KEY, b""))
    except (OSError, pa.ArrowException, ValidationError):
        return None
    return record if place.path.endswith(f"/{record.name}") else None
