"""The files of a report, all made of it alone."""

from pathlib import Path

from sparse_serve.errors import SparseServeError
from sparse_serve.files import write_whole
from sparse_serve.report.document import Report
from sparse_serve.report.table import to_csv


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write `report.json`, `report.csv` and `report.html` into an existing folder; return their paths.

    Each is whole or as it was. The JSON comes first: the others can be made of it again.

    Raises:
        SparseServeError: one could not be written; the message names what was.
    """
    from sparse_serve.report.page import to_html  # noqa: PLC0415  matplotlib takes its time

    made: list[Path] = []
    for name, make in (("report.json", Report.to_json), ("report.csv", to_csv), ("report.html", to_html)):
        path = folder / name
        try:
            write_whole(path, make(report))
        except OSError as error:
            kept = f"; {', '.join(each.name for each in made)} is there" if made else ""
            raise SparseServeError(
                f"{path} cannot be written: {error.strerror}{kept}: make room, or give another --output-dir"
            ) from error
        made.append(path)
    return made
