"""Write the folder of an encoder like BERT-base without its weights, for runs that start from random ones.

    python benchmarks/gpu/bert_base.py FOLDER --tokenizer ENCODER

The architecture is `bert-base-uncased`'s, which is what Transformers' `BertConfig` is without arguments. Its
tokenizer is taken from any encoder with the same vocabulary of 30,522 word pieces, as MiniLM's.
"""

from pathlib import Path
from typing import Annotated

import typer
from transformers import AutoTokenizer, BertConfig


def main(
    folder: Annotated[Path, typer.Argument(help="Folder to write.")],
    *,
    tokenizer: Annotated[Path, typer.Option(help="Folder of an encoder whose tokenizer is used.")],
) -> None:
    """Write `config.json` and the tokenizer."""
    config, pieces = BertConfig(), AutoTokenizer.from_pretrained(tokenizer)
    if len(pieces) != config.vocab_size:
        raise SystemExit(f"{tokenizer} has {len(pieces)} word pieces, BERT-base {config.vocab_size}")
    pieces.model_max_length = config.max_position_embeddings
    config.save_pretrained(folder)
    pieces.save_pretrained(folder)


if __name__ == "__main__":
    typer.run(main)
