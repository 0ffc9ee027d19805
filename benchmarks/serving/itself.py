"""A model against itself: how often a report claims a saving where there is none, and whether reports agree.

    python benchmarks/serving/itself.py checkpoints/reviews

Exports CHECKPOINT with softmax attention and its dense twins. Its packed dense twin then is the same graph
under another name, so that whatever a report says is saved against it, or costs more, in latency or memory,
is false unless it is called noise. `--reports` times, `profile` makes a report as anyone would; beside what
each claims, each is compared with the one before as `report diff` does.

With `--kept` they stay in a folder and are not made again, so that ten reports can be made a few at a
time, by `--reports 3`, then 6 and so on.

Writes `itself.csv` with the environment: of each report a line for each length and quantity against the twin,
and one for each figure against the report before. Prints what was claimed, and ends with 1 where more than
one saving or cost was, or a figure differs beyond the noise of two reports. It says something on a machine
that does nothing else. Three minutes a report.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from sparse_serve.report.comparison import compare
from sparse_serve.report.concluded import QUANTITIES
from sparse_serve.report.document import Report, read_report
from sparse_serve.report.titles import change_of

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm, run
from entries import export
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results

NAME = "reviews_dense"
TWIN = "packed_dense"
BEFORE = "report before"


def benchmark(
    checkpoint: Checkpoint,
    *,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    reports: Annotated[int, typer.Option(min=2, help="Reports to make.")] = 10,
    rounds: Annotated[int, typer.Option(min=2, help="Fresh servers of each variant in a report.")] = 3,
    lengths: Annotated[str, typer.Option(help="Lengths in tokens.")] = "64,128,256,512",
    milliseconds: Annotated[int, typer.Option(help="Of a window.")] = 1000,
    kept: Annotated[Path | None, typer.Option(help="Folder for the reports, made where missing.")] = None,
) -> None:
    exit_on_sigterm()
    export(checkpoint, repository, NAME, "--attention", "softmax", "--with-baselines")
    made: list[Report] = []
    lines: list[Line] = []
    with ExitStack() as stack:
        folder = kept or Path(stack.enter_context(TemporaryDirectory()))
        for number in range(reports):
            place = folder / str(number)
            if not (place / "report.json").exists():
                command = ["profile", NAME, f"--model-repository={repository}", f"--lengths={lengths}"]
                command += [f"--variants=model,control,{TWIN}", f"--rounds={rounds}"]
                command += [f"--measurement-interval={milliseconds}", f"--output-dir={place}"]
                run(*command)
            made.append(read_report(place / "report.json"))
            found = [*claims(made[-1]), *(differences(*made[-2:]) if number else ())]
            lines += [about(made[-1]) | {"report": str(number)} | line for line in found]
            write_lines(results / "itself.csv", lines)  # what there is, should it be ended
    false, apart = (
        [line for line in lines if line["against"] == against and line["verdict"] != "noise"]
        for against in (TWIN, BEFORE)
    )
    for line in (*false, *apart):
        told = "report {report}, {length} tokens, {quantity}: {saved} saved against the {against}, {verdict}"
        print(told.format_map(line))
    compared = sum(line["against"] == TWIN for line in lines)
    print(
        f"{len(false)} of {compared} comparisons claim a saving or a cost; {len(apart)} of "
        f"{len(lines) - compared} figures differ from the report before"
    )
    if len(false) > 1 or apart:
        raise SystemExit(1)


def about(report: Report) -> Line:
    """Return where and with what a report was made."""
    made = report.environment
    return {
        "created": made.created.isoformat(timespec="seconds"),
        "cpu": made.cpu.model,
        "cores": str(made.cpu.cores),
        "system": f"{made.kernel} {made.cpu.architecture}",
        "triton": made.triton,
        "onnxruntime": made.onnxruntime or "",
        "package": made.package,
        "rounds": str(report.settings.rounds),
    }


def claims(report: Report) -> Iterator[Line]:
    """Yield what a report says is saved against the same graph, or costs more."""
    for saving in report.savings:
        load = (saving.concurrency, saving.request_rate)
        for quantity in QUANTITIES:
            change = change_of(saving, quantity)
            if saving.baseline == TWIN and change is not None:
                noise = report.noise_of(saving.model, quantity, load)
                claim = "saving" if change.saved > 0 else "cost"
                yield {
                    "against": TWIN,
                    "length": str(saving.length),
                    "quantity": quantity,
                    "saved": percent(change.saved),
                    "low": percent(change.low),
                    "high": percent(change.high),
                    "noise": "" if noise is None else f"{noise:.2%}",
                    "verdict": "noise" if change.is_noise else claim,
                }


def differences(before: Report, after: Report) -> Iterator[Line]:
    """Yield what `report diff` finds, length by length; what became less of a figure is saved."""
    for length in after.lengths():
        one, other = (
            report.model_copy(
                update={"measurements": tuple(m for m in report.measurements if m.length == length)}
            )
            for report in (before, after)
        )
        for each in compare(one, other, ("model",), tolerance=0, max_loss=0).differences:
            yield {
                "against": BEFORE,
                "length": str(length),
                "quantity": each.figure,
                "saved": percent(each.change, -1),
                "low": percent(each.high, -1),
                "high": percent(each.low, -1),
                "verdict": each.verdict,
            }


def percent(share: float | None, sign: int = 1) -> str:
    return "" if share is None else f"{sign * share:+.2%}"


if __name__ == "__main__":
    typer.run(benchmark)
