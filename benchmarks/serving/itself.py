"""A model against itself: how often a report claims a saving where there is none, and whether reports agree.

    python benchmarks/serving/itself.py checkpoints/reviews

Exports CHECKPOINT with softmax attention and its dense twins. Its packed dense twin then is the same graph
under another name, so that whatever a report says is saved against it, in latency or memory, is false unless
it is called noise. `--reports` times, `profile` makes a report as anyone would; beside what each claims, each
is compared with the one before as `report diff` does.

With `--kept` they stay in a folder and are not made again, so that ten reports can be made a few at a
time, by `--reports 3`, then 6 and so on.

Writes `itself.csv`, a line for each report, length and quantity with the environment, and prints what was
claimed. Ends with 1 where more than one saving was, or two reports differ beyond their noise. It says
something on a machine that does nothing else. Three minutes a report.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from entries import COMMAND, export
from options import REPOSITORY, RESULTS, Checkpoint, Repository, Results
from results import Line, write_lines

from sparse_serve.profiling.comparison import compare
from sparse_serve.profiling.report import QUANTITIES, Report, read_report
from sparse_serve.profiling.titles import change_of

NAME = "reviews_dense"
TWIN = "packed_dense"


def benchmark(
    checkpoint: Checkpoint,
    *,
    repository: Repository = REPOSITORY,
    results: Results = RESULTS,
    reports: Annotated[int, typer.Option(min=2, help="Reports to make.")] = 10,
    rounds: Annotated[int, typer.Option(min=2, help="Fresh servers of each variant in a report.")] = 3,
    lengths: Annotated[str, typer.Option(help="Lengths in tokens.")] = "64,128,256,512",
    milliseconds: Annotated[int, typer.Option(help="Of a window.")] = 1000,
    kept: Annotated[Path | None, typer.Option(help="Folder for the reports, made where missing.")] = None,
) -> None:
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
                ended = subprocess.run([COMMAND, *command], check=False)
                if ended.returncode:
                    raise SystemExit(ended.returncode)
            made.append(read_report(place / "report.json"))
            lines += [about(made[-1]) | {"report": str(number)} | line for line in claims(made[-1])]
            write_lines(results / "itself.csv", lines)  # what there is, should it be ended
    false = [line for line in lines if line["verdict"] == "saving"]
    for line in false:
        print("report {report}, {length} tokens, {quantity}: {saved} is claimed".format_map(line))
    apart = [line for pair in pairwise(made) for line in differences(*pair)]
    for told in apart:
        print(told)
    print(
        f"{len(false)} of {len(lines)} comparisons claim a saving; {len(apart)} figures of two reports differ"
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
    """Yield what a report says is saved against the same graph."""
    for saving in report.savings:
        load = (saving.concurrency, saving.request_rate)
        for quantity in QUANTITIES:
            change = change_of(saving, quantity)
            if saving.baseline == TWIN and change is not None:
                noise = report.noise_of(saving.model, quantity, load)
                yield {
                    "length": str(saving.length),
                    "quantity": quantity,
                    "saved": f"{change.saved:+.2%}",
                    "low": "" if change.low is None else f"{change.low:+.2%}",
                    "high": "" if change.high is None else f"{change.high:+.2%}",
                    "noise": "" if noise is None else f"{noise:.2%}",
                    "verdict": "noise" if change.is_noise else "saving",
                }


def differences(before: Report, after: Report) -> Iterator[str]:
    """Yield what `report diff` finds between two reports."""
    found = compare(before, after, ("model",), tolerance=0, max_loss=0)
    for each in found.differences:
        if each.verdict != "noise":
            yield f"{each.what}, {each.figure}: {each.before} and {each.after}, {each.verdict}"


if __name__ == "__main__":
    typer.run(benchmark)
