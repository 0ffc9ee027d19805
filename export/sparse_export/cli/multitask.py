"""The options of `finetune` that are of several tasks: what they share, and how the steps are shared out."""

from pathlib import Path
from typing import Annotated, Literal

import typer

_PANEL = "Several tasks"


# How the task of each step is chosen.
Sampling = Literal["annealed", "round-robin", "sequential"]
# The forms of SimCSE.
Simcse = Literal["infonce", "cross-entropy"]

Tasks = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A YAML file of tasks that are trained together on one encoder, in the place of --train, "
        "--eval, --test, --task and the names of columns.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
AddTask = Annotated[
    bool,
    typer.Option(
        "--add-task",
        help="Add the tasks to those of ENCODER, a checkpoint of several, whose answers stay as they are.",
        rich_help_panel=_PANEL,
    ),
]
Adapters = Annotated[
    bool,
    typer.Option(
        "--adapters/--no-adapters",
        help="Projected attention layers (PAL) for each task, or heads alone.",
        rich_help_panel=_PANEL,
    ),
]
AdapterSize = Annotated[
    int | None,
    typer.Option(
        help="Width of the adapters' attention.",
        show_default="204 beside 768, in proportion",
        rich_help_panel=_PANEL,
    ),
]
AdapterHeads = Annotated[
    int | None,
    typer.Option(
        help="Its heads, which divide --adapter-size.",
        show_default="12 beside 768, in proportion",
        rich_help_panel=_PANEL,
    ),
]
ShareProjections = Annotated[
    bool,
    typer.Option(
        "--share-projections",
        help="One pair of projections for all layers of a task, as Stickland and Murray have them: a third "
        "of the adapters' weights.",
        rich_help_panel=_PANEL,
    ),
]
AdapterLearningRate = Annotated[
    float | None,
    typer.Option(help="Peak learning rate of the adapters.", show_default="0.0008", rich_help_panel=_PANEL),
]
SamplingOption = Annotated[
    Sampling | None,
    typer.Option(
        "--sampling",
        help="How the task of each step is chosen: drawn with probabilities from the sizes of the data sets "
        "at first to nearly equal ones at last; in turn, until the smallest is through; or one after the "
        "other.",
        show_default="annealed",
        rich_help_panel=_PANEL,
    ),
]
StepsPerEpoch = Annotated[
    int | None,
    typer.Option(
        help="Steps of an epoch, with --sampling annealed.",
        show_default="as one pass over all rows",
        rich_help_panel=_PANEL,
    ),
]
SimcseOption = Annotated[
    Simcse | None,
    typer.Option(
        "--simcse",
        help="Encode each text twice, under two dropouts, and have the model tell which belong together: by "
        "cosine (infonce), or by dot products (cross-entropy, our reading of the PAL paper).",
        show_default="not",
        rich_help_panel=_PANEL,
    ),
]
SimcseTasks = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME…]",
        help="Tasks whose texts that is done with.",
        show_default="all",
        rich_help_panel=_PANEL,
    ),
]
SimcseWeight = Annotated[
    float | None,
    typer.Option(help="Weight of its loss.", show_default="1", rich_help_panel=_PANEL),
]
SimcseTemperature = Annotated[
    float | None,
    typer.Option(help="Temperature of infonce.", show_default="0.05", rich_help_panel=_PANEL),
]
FreezeEncoder = Annotated[
    bool,
    typer.Option(
        "--freeze-encoder",
        help="Train heads, with BERT's pooler, and adapters alone.",
        rich_help_panel=_PANEL,
    ),
]
