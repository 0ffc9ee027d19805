"""The options of `profile`, as its help has them together: load, texts, measurement, budgets."""

from pathlib import Path
from typing import Annotated

import typer

from sparse_serve.cli.texts import DEFAULT_LABEL_COLUMN, DEFAULT_TEXT_COLUMN, DEFAULT_TEXT_PAIR_COLUMN
from sparse_serve.profiling.measure import STABLE_WINDOWS
from sparse_serve.profiling.windows import Distribution
from sparse_serve.profiling.workload import TOKEN_COUNT

_LOAD = "Load"
_TEXTS = "Texts"
_MEASUREMENT = "Measurement"
_WHERE = "Where it runs"
_QUALITY = "Quality and budgets"
_OUTPUT = "Output"

BatchSize = Annotated[
    int, typer.Option("-b", "--batch-size", min=1, help="Texts per request.", rich_help_panel=_LOAD)
]
ConcurrencyRange = Annotated[
    str | None,
    typer.Option(
        metavar="START[:END[:STEP]]",
        help="Requests in flight.",
        show_default="1, without --request-rate-range",
        rich_help_panel=_LOAD,
    ),
]
RequestRateRange = Annotated[
    str | None,
    typer.Option(
        metavar="START[:END[:STEP]]",
        help="Requests that arrive in a second, whatever is in flight: an open loop, beside the "
        "closed one or in its place.",
        rich_help_panel=_LOAD,
    ),
]
RequestDistribution = Annotated[
    Distribution, typer.Option(help="When requests arrive: at random, or evenly.", rich_help_panel=_LOAD)
]

Lengths = Annotated[
    str, typer.Option(metavar="N,...", help="Longest text of a request, in tokens.", rich_help_panel=_TEXTS)
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        help="Texts, one a line, that are cut to the lengths.",
        show_default="built-in texts",
        rich_help_panel=_TEXTS,
    ),
]
InputData = Annotated[
    Path | None,
    typer.Option(
        help="Texts that are sent as they are, in the place of --lengths: TSV, CSV, JSONL, lines.",
        rich_help_panel=_TEXTS,
    ),
]
InputLengths = Annotated[
    Path | None,
    typer.Option(
        help="Token counts of recorded traffic that texts are cut to, in the place of --lengths: one a "
        f"line, or a table's column {TOKEN_COUNT}.",
        rich_help_panel=_TEXTS,
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        help="The task of all texts, where the model has several.",
        show_default="all tasks in turn",
        rich_help_panel=_TEXTS,
    ),
]
TaskMix = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=N,...",
        help="Shares of the tasks, as whole numbers, where the model has several.",
        show_default="all alike",
        rich_help_panel=_TEXTS,
    ),
]

Variants = Annotated[
    str, typer.Option(metavar="NAME,...", help="What is measured.", rich_help_panel=_MEASUREMENT)
]
Rounds = Annotated[
    int,
    typer.Option(
        min=1,
        max=100,
        help="Fresh servers of each variant, which the intervals are over.",
        rich_help_panel=_MEASUREMENT,
    ),
]
MeasurementInterval = Annotated[
    int,
    typer.Option(
        "-p", "--measurement-interval", min=1, help="Length of a window in ms.", rich_help_panel=_MEASUREMENT
    ),
]
StabilityPercentage = Annotated[
    float,
    typer.Option(
        "-s",
        "--stability-percentage",
        min=0.1,
        help="How far the last three windows may lie apart.",
        rich_help_panel=_MEASUREMENT,
    ),
]
Percentile = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=99,
        help="Latency that must be stable.",
        show_default="the mean",
        rich_help_panel=_MEASUREMENT,
    ),
]
MaxTrials = Annotated[
    int,
    typer.Option(
        "-r",
        "--max-trials",
        min=STABLE_WINDOWS,
        help="Most windows of a measurement.",
        rich_help_panel=_MEASUREMENT,
    ),
]

Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads of every session.",
        show_default="one per core that may be used",
        rich_help_panel=_WHERE,
    ),
]
ClientCores = Annotated[
    int, typer.Option(min=0, help="Cores that the measuring client has to itself.", rich_help_panel=_WHERE)
]
Url = Annotated[
    str | None,
    typer.Option(
        "-u",
        "--url",
        help="host:port of a running server's gRPC, for TLS grpcs://host:port: measure that, as far as "
        "it is seen from outside.",
        rich_help_panel=_WHERE,
    ),
]
CaCertificates = Annotated[
    Path | None,
    typer.Option(
        "--ca-certificates",
        metavar="FILE",
        help="PEM file of the authorities that the certificate of --url may be of.",
        show_default="gRPC's",
        rich_help_panel=_WHERE,
    ),
]
Docker = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGE",
        help="Measure containers of this image, as serve --mode docker runs.",
        rich_help_panel=_WHERE,
    ),
]

Evaluation = Annotated[
    Path | None,
    typer.Option(
        "--eval",
        envvar="SPARSE_SERVE_EVAL",
        help="Labelled rows: measure the task metrics of every variant.",
        rich_help_panel=_QUALITY,
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the text in --eval and --input-data.",
        show_default=DEFAULT_TEXT_COLUMN,
        rich_help_panel=_QUALITY,
    ),
]
TextPairColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the second text in --eval and --input-data.",
        show_default=DEFAULT_TEXT_PAIR_COLUMN,
        rich_help_panel=_QUALITY,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the label in --eval.",
        show_default=DEFAULT_LABEL_COLUMN,
        rich_help_panel=_QUALITY,
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Find the longest text and largest batch within it, such as 512m of the machine's memory.",
        rich_help_panel=_QUALITY,
    ),
]
MemoryBudget = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Pick the best model whose peak in total is within it, in the machine's memory.",
        rich_help_panel=_QUALITY,
    ),
]
LatencyBudget = Annotated[
    float | None,
    typer.Option(
        min=0.001, help="Pick the best model with a p50 within so many ms.", rich_help_panel=_QUALITY
    ),
]
MinThroughput = Annotated[
    float | None,
    typer.Option(
        min=0.001, help="Pick the best model with so many texts a second.", rich_help_panel=_QUALITY
    ),
]

OutputDir = Annotated[
    Path,
    typer.Option(help="Where report.json, report.csv and report.html are written.", rich_help_panel=_OUTPUT),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", envvar="SPARSE_SERVE_JSON", help="Print the report to stdout, too.", rich_help_panel=_OUTPUT
    ),
]
