"""The options of `finetune` that choose an attention and train its pattern."""

from typing import Annotated, Literal

import typer

_PANEL = "Attention"
_LEARNED_PANEL = "Learned attention patterns"


# How the weight of the sparsity loss goes.
AlphaSchedule = Literal["constant", "linear"]

Attention = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME…]",
        help="What each token attends to, by the names above. Several, or sizes as in local2/16+global0/1 (0 "
        "leaves it out), make a checkpoint each, OUTPUT/NAME, and a table, also as sweep.json and sweep.png.",
        show_default="the encoder's own, else sparsegen",
        rich_help_panel=_PANEL,
    ),
]
Lambd = Annotated[
    str | None,
    typer.Option(
        "--lambda",
        envvar="SPARSE_SERVE_LAMBDA",
        metavar="NUMBER[,NUMBER…]",
        help="Sparsegen's λ, below 1: the larger, the sparser. The paper uses -3 to -7. With a pattern, "
        "sparsegen weighs what that allows, in softmax's place. Several make one checkpoint each, "
        "OUTPUT/lambda_-4 and so on, and a table.",
        show_default="-4 with sparsegen",
        rich_help_panel=_PANEL,
    ),
]
PatternFrom = Annotated[
    str | None,
    typer.Option(
        metavar="CHECKPOINT",
        help="Take the distances that a checkpoint learned with diagonal or layer-diagonal, and keep them. "
        "--attention names what joins them.",
        show_default="none; without --attention, its own λ and what joined them there",
        rich_help_panel=_PANEL,
    ),
]
DenseEpochs = Annotated[
    int | None,
    typer.Option(
        help="First epochs, of all --epochs, that attend to everything: a pattern starts from a model that "
        "knows the task. The best epoch is none of them.",
        show_default="half of them where the pattern learns, else 0",
        rich_help_panel=_PANEL,
    ),
]
RhoTarget = Annotated[
    float | None,
    typer.Option(
        help="Share of query-key pairs, at least 0 and below 1, that the pattern is to leave out on the "
        "evaluation rows. It is set on a few training rows, which are not trained on.",
        show_default="nine tenths of what its fixed part leaves out there",
        rich_help_panel=_LEARNED_PANEL,
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        help="Weight of what is lacking to --rho-target, in the loss.",
        show_default="1",
        rich_help_panel=_LEARNED_PANEL,
    ),
]
AlphaScheduleOption = Annotated[
    AlphaSchedule | None,
    typer.Option(
        "--alpha-schedule",
        help="linear: rising from 0 until half of the epochs that are not dense.",
        show_default="constant",
        rich_help_panel=_LEARNED_PANEL,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="How softly on and off go over into each other for the gradient (Gumbel-sigmoid).",
        show_default="0.3",
        rich_help_panel=_LEARNED_PANEL,
    ),
]
FinalTemperature = Annotated[
    float | None,
    typer.Option(
        help="Temperature at the end, reached by equal factors.",
        show_default="--temperature",
        rich_help_panel=_LEARNED_PANEL,
    ),
]
PatternLearningRate = Annotated[
    float | None,
    typer.Option(
        help="Peak learning rate of what the pattern learns.",
        show_default="0.003",
        rich_help_panel=_LEARNED_PANEL,
    ),
]
