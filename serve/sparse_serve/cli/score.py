"""The command `score`: a corpus through an entry's graph, on Ray Data."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sparse_serve.cli.options import DEFAULT_REPOSITORY, ModelRepository, Task, Verbose
from sparse_serve.cli.signals import handled
from sparse_serve.errors import OptionError
from sparse_serve.extras import needing
from sparse_serve.rows import TEXT_PAIR
from sparse_serve.scoring import EXTRAS, PART_ROWS
from sparse_serve.tasks import Classification

if TYPE_CHECKING:
    from sparse_serve.scoring.job import Progress as Done
    from sparse_serve.scoring.record import Summary


def score(  # noqa: PLR0913  one parameter per option
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model: an entry's name.")],
    *,
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            envvar="SPARSE_SERVE_INPUT",
            help="Parquet, JSONL, CSV or TSV: a file, a folder, a quoted pattern or a URL. May be repeated.",
        ),
    ],
    output: Annotated[
        str, typer.Option(help="Folder of the answers, in Parquet: new, empty, or of the same job.")
    ],
    model_repository: ModelRepository = DEFAULT_REPOSITORY,
    model_version: Annotated[
        int | None, typer.Option(min=1, help="Version of the entry.", show_default="the highest")
    ] = None,
    text_column: Annotated[str, typer.Option(help="The column of texts.")] = Classification.rows.columns.text,
    text_pair_column: Annotated[
        str | None,
        typer.Option(
            help="The column of second texts, for a model that was trained on pairs.", show_default=TEXT_PAIR
        ),
    ] = None,
    task: Task = None,
    task_column: Annotated[
        str | None, typer.Option(help="The column that names each text's task, where it has several.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN[=NAME]",
            help="A further column to have in the output, under NAME. May be repeated.",
        ),
    ] = None,
    part_rows: Annotated[
        int,
        typer.Option(
            min=1,
            help="Most rows of a file of the output.",
        ),
    ] = PART_ROWS,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Actors that compute.", show_default="cores / threads")
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="Cores of each actor. Every actor has the model in its memory.")
    ] = 1,
    address: Annotated[
        str | None,
        typer.Option(help="host:port of a Ray cluster, or auto.", show_default="a Ray of this machine"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SPARSE_SERVE_JSON", help="The summary as JSON.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Answer a corpus without a server, on all cores, with Ray Data.

    The output has a row for each of the input, in its order: `file` and `row`, the answers, and in `error`
    why a row has none. A job that was interrupted goes on when it is started again with the same options.
    """
    with needing("score", EXTRAS):
        from sparse_serve.scoring.job import Job, run_job  # noqa: PLC0415  Arrow and all that takes a second
    job = Job(
        entry=model_repository / name,
        inputs=inputs,
        output=output,
        version=model_version,
        text_column=text_column,
        text_pair_column=text_pair_column,
        task=task,
        task_column=task_column,
        keep=_kept(keep or ()),
        part_rows=part_rows,
        workers=workers,
        threads=threads,
        address=address,
    )
    with handled(signal.default_int_handler), _shown() as show:
        try:
            # Ray tells on stdout of workers that died, which it starts again.
            with redirect_stdout(sys.stderr) if verbose else redirect_stdout(StringIO()):
                summary = run_job(job, show)
        except KeyboardInterrupt:
            print("interrupted; what is finished is kept: the same command goes on", file=sys.stderr)
            raise
    print(summary.model_dump_json(indent=2) if as_json else _told(summary, output))


def _kept(given: Sequence[str]) -> dict[str, str]:
    """Return the columns of `--keep` by their names in the output."""
    kept: dict[str, str] = {}
    for each in given:
        column, _, name = each.partition("=")
        if not column:
            raise OptionError(f"--keep {each} names no column: give COLUMN, or COLUMN=NAME")
        name = name or column
        if name in kept:
            raise OptionError(
                f"--keep {each}: a column '{name}' is kept already; give COLUMN=NAME, another NAME"
            )
        kept[name] = column
    return kept


@contextmanager
def _shown() -> Iterator[Callable[["Done"], None]]:
    """Show on a terminal how far a job is."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.fields[rows]} texts, {task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=None, rows="0", rate="starting Ray")

        def show(done: "Done") -> None:
            total = "" if done.total is None else f" of {done.total:,}"
            seconds = bar.tasks[task].elapsed or 0
            scored = done.rows - done.kept
            rate = f"{scored / seconds:,.0f} texts/s" if seconds and scored else "starting"
            bar.update(task, completed=done.rows, total=done.total, rows=f"{done.rows:,}{total}", rate=rate)

        yield show


def _told(summary: "Summary", output: str) -> str:
    """Return what a summary says, for reading."""
    before = f", {summary.kept:,} of them from before" if summary.kept else ""
    parts = "1 part" if summary.parts == 1 else f"{summary.parts:,} parts"
    lines = [f"{summary.rows:,} rows in {output}, {parts}{before}"]
    if summary.texts_per_second is not None:
        texts, tokens = summary.texts_per_second, summary.tokens_per_second
        lines.append(f"{summary.seconds:.1f} s: {texts:,.0f} texts/s, {tokens:,.0f} tokens/s")
    if summary.truncated:
        lines.append(f"truncated: {summary.truncated:,}")
    lines += [f"not answered, {reason}: {count:,}" for reason, count in sorted(summary.refused.items())]
    return "\n".join(lines)
