"""The tokenizer of a checkpoint, and how many of its tokens are read."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast

from sparse_export.encoders.families import max_tokens
from sparse_serve.errors import CheckpointError, OptionError

# Where none of these is whole, Transformers makes up a tokenizer that knows no word.
_FILES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))


def load_tokenizer(checkpoint: str | Path, revision: str | None = None) -> PreTrainedTokenizerFast:
    """Load a checkpoint's tokenizer; it must be one the Rust library can run.

    Raises:
        CheckpointError: there is none, or it has no fast version.
    """
    folder = Path(checkpoint)
    if folder.is_dir() and not any(all((folder / name).is_file() for name in names) for names in _FILES):
        expected = ", ".join(" with ".join(names) for names in _FILES)
        raise CheckpointError(
            f"{checkpoint} has no tokenizer: expected one of {expected}; copy it from the encoder it was "
            "trained from"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{checkpoint}: the tokenizer cannot be loaded: {reason}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise CheckpointError(
            f"{checkpoint}: {type(tokenizer).__name__} has no tokenizer.json; a fast tokenizer is needed"
        )
    # Served texts are cut and padded on the right, whatever the tokenizer was stored with.
    tokenizer.truncation_side = tokenizer.padding_side = "right"
    return tokenizer


def cut_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, wanted: int | None) -> int:
    """Return the tokens at which texts are cut: `wanted`, or what the encoder has positions for.

    Raises:
        OptionError: more than those, or so few that the tokenizer would not cut a pair at all.
    """
    positions = max_tokens(config)
    special = tokenizer.num_special_tokens_to_add(pair=True)
    if wanted is not None and not special <= wanted <= positions:
        raise OptionError(
            f"--max-length {wanted} is out of range: a pair has {special} special tokens and the encoder has "
            f"positions for {positions}; give {special} to {positions} tokens"
        )
    return wanted or positions
