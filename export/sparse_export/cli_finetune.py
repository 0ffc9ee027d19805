"""`sparse-serve finetune`: an encoder and a labelled file in, a checkpoint out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sparse_export.cli_options import DEFAULT_LAMBD, AttentionKind, Json, ending_cleanly, load_model_side
from sparse_serve.cli_options import Verbose
from sparse_serve.data import TEXT_PAIR, Columns

if TYPE_CHECKING:
    from sparse_export.finetune import FinetuneRecord


def finetune_command(  # noqa: PLR0913  one parameter per option
    encoder: Annotated[
        str, typer.Argument(help="Pretrained encoder: a hub id, or a folder.", show_default=False)
    ],
    *,
    train: Annotated[
        Path,
        typer.Option(
            help="Training rows: a .tsv, .csv or .jsonl file with named columns.", show_default=False
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the checkpoint.", show_default=False)],
    evaluation: Annotated[
        Path | None,
        typer.Option(
            "--eval",
            envvar="SPARSE_SERVE_EVAL",
            help="Rows that choose the best epoch. Without it a tenth of the training rows is held out.",
            show_default=False,
        ),
    ] = None,
    attention: Annotated[
        AttentionKind, typer.Option(help="Normaliser of the attention scores.")
    ] = AttentionKind.SPARSEGEN,
    lambd: Annotated[
        float | None,
        typer.Option(
            "--lambda",
            envvar="SPARSE_SERVE_LAMBDA",
            help="Sparsegen's λ, below 1: the larger, the sparser. The paper uses -3 to -7.",
            show_default=f"{DEFAULT_LAMBD:g} with sparsegen",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 4,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of AdamW.")] = 2e-5,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Rows per training step.")] = 16,
    weight_decay: Annotated[float, typer.Option(help="AdamW's weight decay.")] = 0.01,
    warmup_ratio: Annotated[
        float, typer.Option(help="Share of the steps over which the learning rate rises; then it falls to 0.")
    ] = 0.1,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens per row; longer rows are cut from the right.", show_default="the encoder's positions"
        ),
    ] = None,
    max_train_rows: Annotated[
        int | None, typer.Option(help="Use a random sample of so many training rows.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples, the new head, shuffling and dropout.")] = 0,
    text_column: Annotated[str, typer.Option(help="Column of the text.")] = "text_a",
    text_pair_column: Annotated[
        str | None,
        typer.Option(help="Column of the second text.", show_default=f"{TEXT_PAIR}, where there is one"),
    ] = None,
    label_column: Annotated[
        str, typer.Option(help="Column of the label: a name or a whole number.")
    ] = "label",
    force: Annotated[
        bool, typer.Option("--force", help="Replace a checkpoint that is already there.")
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Fine-tune an encoder into a text classifier with sparse (or softmax) attention.

    The checkpoint is the best epoch's, in Transformers' format, and remembers its attention. It appears whole
    or not at all. Progress goes to stderr.
    """
    with ending_cleanly():
        load_model_side(verbose=verbose)
        from sparse_export.checkpoint import AttentionSpec  # noqa: PLC0415
        from sparse_export.finetune import FinetuneOptions, finetune  # noqa: PLC0415

        if lambd is None and attention is AttentionKind.SPARSEGEN:
            lambd = DEFAULT_LAMBD
        options = FinetuneOptions(
            attention=AttentionSpec(attention.value, lambd),
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            weight_decay=weight_decay,
            warmup_ratio=warmup_ratio,
            max_length=max_length,
            seed=seed,
            max_train_rows=max_train_rows,
        )
        record = finetune(
            encoder,
            train,
            output,
            options,
            evaluation=evaluation,
            columns=Columns(text_column, text_pair_column, label_column),
            force=force,
            console=Console(stderr=True, soft_wrap=True),
        )
    typer.echo(record.to_json() if as_json else _summary(record, output))


def _summary(record: "FinetuneRecord", output: Path) -> str:
    figures = ", ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
    epoch = f"epoch {record.best_epoch} of {len(record.epochs)}"
    return f"{output}: {figures} on {record.evaluation.rows} rows ({epoch})"
