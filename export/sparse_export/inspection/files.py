"""The files of an inspection: a picture per text, and one page for all."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparse_export.inspection.inspecting import Inspector
from sparse_export.inspection.page import Page
from sparse_export.inspection.picture import write_picture
from sparse_export.inspection.summary import TextSummary, summarize
from sparse_serve.errors import SparseServeError

_PAGE, _PICTURE = "inspection.html", "inspection"
_PICTURES = re.compile(rf"{_PICTURE}(-[1-9][0-9]?)?\.png")


def write_inspection(
    inspector: Inspector,
    texts: Sequence[tuple[str, str]],
    folder: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[list[TextSummary], list[Path]]:
    """Inspect texts and write what is seen into an existing folder, over what an earlier run left there.

    Args:
        inspector: the checkpoints.
        texts: texts and, where not empty, their second texts.
        folder: for `inspection.html` and `inspection.png`, or for several texts `inspection-1.png`, ….
        progress: is told what is being done.

    Returns:
        What is told about each text, and the files.

    Raises:
        CheckpointError: the checkpoints do not read a text as the same tokens.
        SparseServeError: a file cannot be written.
    """
    page = Page(inspector, len(texts))
    summaries = []
    paths = list(_picture_paths(folder, len(texts)))
    try:
        for number, ((text, pair), path) in enumerate(zip(texts, paths, strict=True), start=1):
            progress(f"text {number} of {len(texts)}")
            inspected = inspector.inspect(text, pair)
            write_picture(inspector, inspected, path)
            summary = summarize(inspector.variants, inspected)
            page.add(inspected, summary)
            summaries.append(summary)
        progress("writing the page")
        paths.append(folder / _PAGE)
        paths[-1].write_text(page.to_html(), encoding="utf-8")
        for earlier in {*folder.iterdir()} - {*paths}:
            if _PICTURES.fullmatch(earlier.name):
                earlier.unlink()
    except OSError as error:
        raise SparseServeError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}; "
            "give another --output-dir"
        ) from error
    return summaries, paths


def _picture_paths(folder: Path, number: int) -> Iterator[Path]:
    if number == 1:
        yield folder / f"{_PICTURE}.png"
        return
    for index in range(1, number + 1):
        yield folder / f"{_PICTURE}-{index}.png"
