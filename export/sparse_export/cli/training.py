"""The options of `finetune` that are not the attention's: rows, task, optimisation, evaluation, hardware."""

from typing import Annotated, Literal

import typer

from sparse_serve.cli.texts import DEFAULT_LABEL_COLUMN, DEFAULT_TEXT_COLUMN, DEFAULT_TEXT_PAIR_COLUMN
from sparse_serve.tasks import TASKS

_DATA, _TASK, _OPTIMISATION = "Rows", "Task", "Optimisation"
_EVALUATION, _DEVICE, _RUN = "Evaluation", "Device and memory", "Run"

MLM = "mlm"

# Those of `TASKS`, and the one that reads no labels.
TaskName = Literal[
    "classification",
    "multi-label",
    "regression",
    "question-answering",
    "token-classification",
    "embedding",
    "mlm",
]
DEFAULT_TASK_NAME: TaskName = "classification"


# How the learning rate goes, by Transformers' names.
Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
]

Positions = Literal["learned", "sinusoidal"]

Encoder = Annotated[
    str,
    typer.Argument(metavar="ENCODER", help="Pretrained encoder: a hub id, or a folder.", show_default=False),
]
Train = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|DATASET",
        help="Training rows: a .tsv, .csv or .jsonl file with named columns, SQuAD's .json for questions, "
        "CoNLL's columns (.conll) for words, or a data set of the `datasets` library: a hub id, or a folder "
        "of data files. With --task mlm also plain text, .txt, a text on each line.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
Evaluation = Annotated[
    str | None,
    typer.Option(
        "--eval",
        envvar="SPARSE_SERVE_EVAL",
        metavar="FILE|DATASET",
        help="Rows that choose the best epoch. Without it a data set's split 'validation' does, or a tenth "
        "of the training rows is held out.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
Test = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|DATASET",
        help="Rows that the checkpoint is tried on at last, labelled or not: its answers go to "
        "predictions.jsonl in it, its figures to test.json.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the text.",
        show_default=DEFAULT_TEXT_COLUMN,
        rich_help_panel=_DATA,
    ),
]
TextPairColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the second text.",
        show_default=DEFAULT_TEXT_PAIR_COLUMN,
        rich_help_panel=_DATA,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(help="Column of the label.", show_default=DEFAULT_LABEL_COLUMN, rich_help_panel=_DATA),
]
DatasetConfig = Annotated[
    str | None,
    typer.Option(help="Configuration of a data set.", show_default="its only one", rich_help_panel=_DATA),
]
TrainSplit = Annotated[
    str | None,
    typer.Option(help="Split of a data set to train on.", show_default="train", rich_help_panel=_DATA),
]
EvalSplit = Annotated[
    str | None,
    typer.Option(
        help="Split of a data set to evaluate on.", show_default="validation", rich_help_panel=_DATA
    ),
]
MaxTrainRows = Annotated[
    int | None,
    typer.Option(
        help="Use a random sample of so many training rows.", show_default="all", rich_help_panel=_DATA
    ),
]
MaxEvalRows = Annotated[
    int | None,
    typer.Option(
        help="Use a random sample of so many evaluation rows.", show_default="all", rich_help_panel=_DATA
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        help="Tokens per row; longer rows are cut from the right, long contexts of questions into windows.",
        show_default="the encoder's positions",
        rich_help_panel=_DATA,
    ),
]

Task = Annotated[
    TaskName | None,
    typer.Option(
        envvar="SPARSE_SERVE_FINETUNE_TASK",
        help="What is answered. Labels are one name, a JSON array of names (multi-label), a number "
        "(regression), answers in a context, or a tag for each word. mlm reads none: it pre-trains an "
        "encoder on texts, to tell masked tokens.",
        show_default=DEFAULT_TASK_NAME,
        rich_help_panel=_TASK,
    ),
]
MaxAnswerTokens = Annotated[
    int | None,
    typer.Option(help="question-answering: the longest answer.", show_default="30", rich_help_panel=_TASK),
]
Stride = Annotated[
    int | None,
    typer.Option(
        help="question-answering: by how many tokens the windows of a context overlap.",
        show_default="128",
        rich_help_panel=_TASK,
    ),
]
Nsp = Annotated[
    bool,
    typer.Option(
        "--nsp",
        help="mlm: also tell which segment follows which. Rows are sentences, blank ones stand between "
        "documents.",
        rich_help_panel=_TASK,
    ),
]
PositionsOption = Annotated[
    Positions | None,
    typer.Option(
        "--positions",
        help="mlm: learned position embeddings, or fixed sines and cosines, which need --from-scratch.",
        show_default="the encoder's",
        rich_help_panel=_TASK,
    ),
]
FromScratch = Annotated[
    bool,
    typer.Option(
        "--from-scratch",
        help="Random weights: only the encoder's architecture and tokenizer.",
        rich_help_panel=_TASK,
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        help="Of an encoder on the hub: a branch, a tag or a commit.",
        show_default="main",
        rich_help_panel=_TASK,
    ),
]

Epochs = Annotated[int, typer.Option(help="Passes over the training rows.", rich_help_panel=_OPTIMISATION)]
MaxSteps = Annotated[
    int | None,
    typer.Option(
        help="End after so many steps, whatever --epochs says.",
        show_default="never",
        rich_help_panel=_OPTIMISATION,
    ),
]
LearningRate = Annotated[
    float, typer.Option(help="Peak learning rate of AdamW.", rich_help_panel=_OPTIMISATION)
]
LrSchedulerType = Annotated[
    Schedule,
    typer.Option(help="How the learning rate goes after its warm-up.", rich_help_panel=_OPTIMISATION),
]
WarmupRatio = Annotated[
    float,
    typer.Option(
        help="Share of the steps over which the learning rate rises.", rich_help_panel=_OPTIMISATION
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(
        "--batch-size",
        "-b",
        envvar="SPARSE_SERVE_FINETUNE_BATCH_SIZE",
        help="Rows per training step, over all processes.",
        rich_help_panel=_OPTIMISATION,
    ),
]
WeightDecay = Annotated[float, typer.Option(help="AdamW's weight decay.", rich_help_panel=_OPTIMISATION)]
MaxGradNorm = Annotated[
    float,
    typer.Option(
        help="Gradients longer than this are shortened to it; 0 never does.", rich_help_panel=_OPTIMISATION
    ),
]
LabelSmoothing = Annotated[
    float | None,
    typer.Option(
        help="Share of each label that is spread over all.", show_default="0", rich_help_panel=_OPTIMISATION
    ),
]
Dropout = Annotated[
    float | None,
    typer.Option(
        help="Share that is dropped of hidden states, attention weights and the head's input.",
        show_default="the encoder's",
        rich_help_panel=_OPTIMISATION,
    ),
]
FreezeLayers = Annotated[
    int | None,
    typer.Option(
        help="Leave the embeddings and so many first layers as they are.",
        show_default="none",
        rich_help_panel=_OPTIMISATION,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        help="Seed of the samples, new weights, shuffling and dropout.", rich_help_panel=_OPTIMISATION
    ),
]

Metric = Annotated[
    str | None,
    typer.Option(
        help="Figure that chooses the best epoch: loss, or one of the task's: "
        + "; ".join(f"{kind.option}: {', '.join(kind.metrics)}" for kind in TASKS.values() if kind.metrics)
        + "; mlm: accuracy, perplexity, nsp_accuracy.",
        show_default="the task's first; mlm: loss",
        rich_help_panel=_EVALUATION,
    ),
]
EvalSteps = Annotated[
    int | None,
    typer.Option(
        help="Steps after which the model is evaluated, and may be the best, besides each epoch.",
        show_default="epochs only",
        rich_help_panel=_EVALUATION,
    ),
]
EarlyStoppingPatience = Annotated[
    int | None,
    typer.Option(
        help="End after so many evaluations without a better one.",
        show_default="never",
        rich_help_panel=_EVALUATION,
    ),
]
ReportTo = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Log figures there too, by the name of one of Transformers' integrations: tensorboard, wandb, …",
        show_default="nowhere",
        rich_help_panel=_EVALUATION,
    ),
]

Bf16 = Annotated[
    bool, typer.Option("--bf16", help="Compute in bfloat16 where it is safe.", rich_help_panel=_DEVICE)
]
Tf32 = Annotated[
    bool, typer.Option("--tf32", help="Compute matrix products in TF32.", rich_help_panel=_DEVICE)
]
GradientAccumulationSteps = Annotated[
    int,
    typer.Option(
        help="Parts in which each process computes its share of a batch: less memory.",
        rich_help_panel=_DEVICE,
    ),
]
GradientCheckpointing = Annotated[
    bool,
    typer.Option(
        "--gradient-checkpointing",
        help="Compute activations twice in the place of keeping them: less memory.",
        rich_help_panel=_DEVICE,
    ),
]

Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue this run where it was interrupted; without such a run, start it.",
        rich_help_panel=_RUN,
    ),
]
SaveSteps = Annotated[
    int | None,
    typer.Option(
        help="Steps after which a run can be resumed, besides each epoch.",
        show_default="epochs only",
        rich_help_panel=_RUN,
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        envvar="SPARSE_SERVE_FINETUNE_FORCE",
        help="Replace a checkpoint that is already there, or an interrupted run.",
        rich_help_panel=_RUN,
    ),
]
