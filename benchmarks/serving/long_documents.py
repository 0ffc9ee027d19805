"""What learned axes save on documents of thousands of tokens, served, beside texts of 128 and 512.

    python benchmarks/serving/long_documents.py ENCODER

Makes a classifier of BERT-base's width with adaptive axis attention and 4,096 positions, all weights random
but the biases of the axis layers: those are set so that so many rows and columns are on as in trained models
(AAA paper, Table 6). Cost depends on that and on nothing else that training changes. Of `ENCODER` only the
tokenizer is used. Then the ordinary commands: `export --with-baselines`, and `profile`, which writes the
report.
"""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import new_model, save_checkpoint
from sparse_export.encoders.axis import AxisLayer
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_serve.data import read_texts
from sparse_serve.tasks import Classification

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm, run

POSITIONS = 4096
# Texts that the biases are set on, short enough for quadratic attention in torch.
DOCUMENTS, DOCUMENT_TOKENS = 4, 512
NAME = "documents"


def main(
    encoder: Annotated[str, typer.Argument(help="Folder of an encoder, or a hub id, for its tokenizer.")],
    *,
    output_dir: Annotated[Path, typer.Option(help="Folder for the report.")] = Path(__file__).parent
    / "long_documents",
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder; BERT-base has 12.")] = 4,
    rows_on: Annotated[float, typer.Option(help="Share of tokens whose row is on.")] = 0.01,
    columns_on: Annotated[float, typer.Option(help="Share of tokens whose column is on.")] = 0.02,
    lengths: Annotated[str, typer.Option(help="Lengths in tokens.")] = "128,512,2048,4096",
    batch_size: Annotated[int, typer.Option(help="Texts per request, of mixed lengths.")] = 1,
    variants: Annotated[
        str, typer.Option(help="What is measured.")
    ] = "model,control,packed_dense,padded_fused,text",
) -> None:
    """Make the classifier, export it with its dense twins, and profile them."""
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as work:
        checkpoint, repository = Path(work, NAME), Path(work, "repository")
        tokenizer = load_tokenizer(encoder)
        model = random_classifier(tokenizer, layers, Path(work, "architecture"))
        set_shares(model, documents(tokenizer), rows_on, columns_on)
        save_checkpoint(model, tokenizer, checkpoint)
        place = f"--model-repository={repository}"
        run("export", str(checkpoint), place, "--tokenizer", "server", "--with-baselines")
        run(
            *("profile", NAME, place, f"--output-dir={output_dir}", f"--lengths={lengths}"),
            *(f"--batch-size={batch_size}", f"--variants={variants}"),
            *("--measurement-interval=1000", "--max-trials=6"),
        )


def random_classifier(tokenizer: PreTrainedTokenizerFast, layers: int, folder: Path) -> PreTrainedModel:
    """Return a BERT of the base size's width with adaptive axis attention and random weights."""
    config = BertConfig(
        vocab_size=len(tokenizer), num_hidden_layers=layers, max_position_embeddings=POSITIONS
    )
    config.save_pretrained(folder)
    task = Classification(("negative", "positive"))
    return new_model(folder, AttentionSpec.parse("axis", None), task, from_scratch=True).eval()


def documents(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return real text, `(DOCUMENTS, DOCUMENT_TOKENS)` ids without padding."""
    words = tokenizer(" ".join(read_texts(None)), add_special_tokens=False)["input_ids"]
    size = DOCUMENT_TOKENS - 2
    rows = [
        [words[(document * size + place) % len(words)] for place in range(size)]
        for document in range(DOCUMENTS)
    ]
    return torch.tensor([[tokenizer.cls_token_id, *row, tokenizer.sep_token_id] for row in rows])


def set_shares(model: PreTrainedModel, ids: Tensor, rows_on: float, columns_on: float) -> None:
    """Set the biases of the axis layers so that these shares of the tokens have their row and column on."""
    off = torch.tensor([1 - rows_on, 1 - columns_on])
    for layer in [module for module in model.modules() if isinstance(module, AxisLayer)]:
        # What a layer reads depends on the masks before it, so the first is set first.
        logits = logits_of(layer, model, ids).flatten(0, 1)
        with torch.no_grad():
            layer.bias.sub_(
                torch.stack([column.quantile(share) for column, share in zip(logits.T, off, strict=True)])
            )


def logits_of(layer: nn.Module, model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return what one axis layer answers in a forward pass, `(B, L, 2)`."""
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with torch.inference_mode():
        model(ids)
    handle.remove()
    return seen[0].clone()


if __name__ == "__main__":
    typer.run(main)
