"""What benchmarks that take the demo's checkpoint are told alike."""

from pathlib import Path
from typing import Annotated

import typer

Checkpoint = Annotated[Path, typer.Argument(help="Folder of the demo's checkpoint, checkpoints/reviews.")]
Rows = Annotated[Path, typer.Option(help="Labelled texts that are asked, such as SST-2's dev set.")]
Repository = Annotated[
    Path,
    typer.Option(help="Where the entries are; what is not there, or made of something else, is exported."),
]
Results = Annotated[Path, typer.Option(help="Folder for the file.")]
Add = Annotated[bool, typer.Option("--add", help="Keep the lines that the file has, and write behind them.")]

REPOSITORY = Path("benchmark_repository")
