"""Which special tokens a tokenizer puts where, as it shows when asked."""

from tokenizers import Encoding, Tokenizer

from sparse_export.graph.tokenizer.tables import unsupported

_TEXT, _PAIR = -1, -2


def templates(tokenizer: Tokenizer, word: str) -> tuple[list[int], list[int]]:
    """Return the templates of one text and of a pair: (id, type id) of each piece, flat.

    The id of a text is -1, of a second one -2. `word` is a text that has a token.

    Raises:
        UnsupportedTokenizerError: a text is there more than once or not at all, or nothing stands beside it.
    """
    single = _template(tokenizer.encode(word))
    pair = _template(tokenizer.encode(word, word))
    for form, texts, rows in ((single, [_TEXT], "texts"), (pair, [_TEXT, _PAIR], "pairs")):
        ids = form[::2]
        special = len(ids) - len(texts)
        is_plain = sorted((each for each in ids if each < 0), reverse=True) == texts
        if not is_plain or special != tokenizer.num_special_tokens_to_add(form is pair):
            raise unsupported(
                f"rows of {rows} are of the pieces {ids} (-1 a text, -2 a second one)",
                "each text once, among special tokens",
            )
        if not special:
            raise unsupported(f"{rows} have no special token, and empty ones no token at all", "one or more")
    return single, pair


def _template(encoding: Encoding) -> list[int]:
    form: list[int] = []
    rows = zip(encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True)
    for token_id, sequence, type_id in rows:
        piece = [token_id if sequence is None else (_TEXT, _PAIR)[sequence], type_id]
        if sequence is None or form[-2:] != piece:
            form += piece
    return form
