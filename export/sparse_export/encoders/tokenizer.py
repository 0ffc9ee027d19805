"""The tokenizer of a checkpoint, and how many of its tokens are read."""

from collections.abc import Mapping
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast

from sparse_export.encoders.families import max_tokens
from sparse_serve.errors import CheckpointError, OptionError, first_line

# Where none of these is whole, Transformers makes up a tokenizer that knows no word.
_FILES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))

# A letter each of Ugaritic, Lycian and Deseret: a word that no vocabulary has.
_UNKNOWN_WORD = "\U00010380\U00010280\U00010400"


def load_tokenizer(checkpoint: str | Path, revision: str | None = None) -> PreTrainedTokenizerFast:
    """Load a checkpoint's tokenizer; it must be one the Rust library can run.

    Raises:
        CheckpointError: there is none, it has no fast version, no token for an unknown word, or two tokens
            of one id.
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
    except Exception as error:  # what Transformers raises of a malformed file has no base of its own
        raise CheckpointError(f"{checkpoint}: the tokenizer cannot be loaded: {first_line(error)}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise CheckpointError(
            f"{checkpoint}: {type(tokenizer).__name__} has no tokenizer.json; a fast tokenizer is needed"
        )
    try:
        tokenizer.backend_tokenizer.encode(_UNKNOWN_WORD)
    except Exception as error:  # the library has no other
        raise CheckpointError(
            f"{checkpoint}: the tokenizer does not read every text: {error}; copy that of the encoder it "
            "was trained from"
        ) from None
    shared = shared_id(tokenizer.get_vocab())
    if shared is not None:
        raise CheckpointError(
            f"{checkpoint}: the tokenizer's tokens {shared}, of which a tokenizer.json keeps one: a special "
            "token is missing from its vocabulary, or a token is there twice"
        )
    # Rows are cut and padded by who encodes them, whatever the tokenizer was stored with.
    tokenizer.truncation_side = tokenizer.padding_side = "right"
    return tokenizer


def load_padding_tokenizer(
    checkpoint: str | Path, config: PreTrainedConfig, revision: str | None = None
) -> PreTrainedTokenizerFast:
    """Load the tokenizer that fills up the rows of an encoder of this config, which embeds all of its tokens.

    Where it names no token for padding, it takes the one that the encoder takes for that.

    Raises:
        CheckpointError: as `load_tokenizer` and `require_embedded` do, or neither of them has any.
    """
    tokenizer = load_tokenizer(checkpoint, revision)
    require_embedded(checkpoint, tokenizer, config)
    if tokenizer.pad_token is None:
        number = config.pad_token_id
        token = None if number is None else tokenizer.convert_ids_to_tokens(number)
        if token is None:
            raise CheckpointError(
                f"{checkpoint}: the tokenizer names no token for padding, and has none of the pad_token_id "
                f"in config.json, {number}: name one as pad_token in tokenizer_config.json"
            )
        tokenizer.pad_token = token
    return tokenizer


def stored_truncation_side(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return from which side a tokenizer cuts as it was stored."""
    return str(tokenizer.init_kwargs.get("truncation_side", "right"))


def shared_id(vocabulary: Mapping[str, int]) -> str | None:
    """Return in words which two tokens have one id; None where each has its own."""
    tokens: dict[int, str] = {}
    for token, number in sorted(vocabulary.items()):
        other = tokens.setdefault(number, token)
        if other != token:
            return f"{other!r} and {token!r} have the same id {number}"
    return None


def require_embedded(
    checkpoint: str | Path, tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig
) -> None:
    """See that an encoder has an embedding for whatever its tokenizer gives it.

    Raises:
        CheckpointError: the tokenizer has more tokens.
    """
    token, last = max(tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", -1))
    if last >= config.vocab_size:
        raise CheckpointError(
            f"{checkpoint}: the tokenizer's token {token!r} has id {last}, the encoder embeds ids below "
            f"{config.vocab_size}; give the encoder the tokenizer that it was trained with"
        )


def cut_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, wanted: int | None) -> int:
    """Return the tokens at which texts are cut: `wanted`, or what the encoder has positions for.

    Raises:
        OptionError: more than those, or so few that a pair has room for special tokens alone.
    """
    positions = max_tokens(config)
    special = tokenizer.num_special_tokens_to_add(pair=True)
    if wanted is not None and not special < wanted <= positions:
        raise OptionError(
            f"--max-length {wanted} is out of range: a pair has {special} special tokens and the encoder has "
            f"positions for {positions}; give {special + 1} to {positions} tokens"
        )
    return wanted or positions
