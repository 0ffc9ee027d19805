"""The tables of a tokenizer node say what the tokenizer does; what no table says is refused by name."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from sparse_export.graph.tokenizer.code_points import code_points, ranges
from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_export.graph.tokenizer.marks import marks
from sparse_export.graph.tokenizer.node import OUTPUTS, tokenizer_node
from sparse_export.graph.tokenizer.offsets import offset_attributes
from sparse_export.graph.tokenizer.tables import TokenizerTables
from sparse_export.graph.tokenizer.template import templates
from sparse_export.graph.tokenizer.wordpiece import normalized_points
from sparse_serve.errors import CheckpointError, OptionError
from tokenizing import Array, byte_level_bpe, shaped_model, word_piece

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b ##a é 中 ! ##!"
TEXTS = ("a film", "the films") * 3
# Every one of the first, among which most is done, and some of all others.
SAMPLE = [*range(0x500), *range(0x500, 0xD800, 13), *range(0xE000, 0x110000, 499)]

WORD_END, UNKNOWN = 0xF8, 0xF9


def bert() -> Tokenizer:
    return word_piece(WORDS, normalizers.BertNormalizer())


def roberta() -> Tokenizer:
    return byte_level_bpe(TEXTS, 280)


@cache
def derived(make: Callable[[], Tokenizer]) -> TokenizerTables:
    return derive_tables(make())


def number(table: Any, point: int) -> int:
    row = np.searchsorted(table[:, 0], point, side="right") - 1
    return int(table[row, 1])


def meaning(tables: TokenizerTables, point: int) -> list[int]:
    """Return what the tables make of a code point: code points, and the two signs of the pool."""
    action = number(tables.tables["char_actions"], point)
    if action < 0:
        return [point] if action == -1 else [WORD_END, point, WORD_END]
    pool: Array = np.asarray(tables.tables["char_pool"])
    text = pool[action + 1 : action + 1 + int(pool[action])].tobytes()
    pieces = text.replace(b"\xf8", b"\xff\xf8\xff").replace(b"\xf9", b"\xff\xf9\xff").split(b"\xff")
    return [each[0] if each in (b"\xf8", b"\xf9") else ord(each.decode()) for each in pieces if each]


@pytest.mark.parametrize("options", [(True, True, None, True), (False, False, False, False)])
def test_actions_of_word_piece(options: tuple[Any, ...]) -> None:
    tokenizer = word_piece(WORDS, normalizers.BertNormalizer(*options))
    tables = derive_tables(tokenizer)
    known = set("".join(WORDS.split()))
    for point in SAMPLE:
        expected: list[int] = []
        for character in tokenizer.normalizer.normalize_str(chr(point)):
            symbol = ord(character) if character in known else UNKNOWN
            words = len(tokenizer.pre_tokenizer.pre_tokenize_str(f"a{character}a"))
            expected += {1: [symbol], 2: [WORD_END], 3: [WORD_END, symbol, WORD_END]}[words]
        assert meaning(tables, point) == expected, hex(point)


def test_code_points_asked_together_are_those_asked_alone() -> None:
    tokenizer = bert()
    points, together = code_points(), normalized_points(tokenizer)
    assert len(points) == len(together) == 0x110000 - 0x800
    for index in range(0, len(points), 7):
        assert together[index] == tokenizer.normalizer.normalize_str(points[index])


def test_classes_of_byte_level_bpe() -> None:
    tokenizer = roberta()
    table = derived(roberta).tables["char_classes"]

    def is_together(text: str) -> bool:
        return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1

    for point in SAMPLE:
        character = chr(point)
        joined = [is_together(f"{neighbour}{character}") for neighbour in ("\n", "a", "1", "!")]
        assert joined.count(True) == 1
        assert number(table, point) == joined.index(True), hex(point)


def test_ranges_leave_no_gap_at_the_surrogates() -> None:
    values = np.zeros(0x110000 - 0x800, np.int32)
    values[0xD800:] = 5
    values[0xD801] = 6
    assert ranges(values).tolist() == [[0, 0], [0xE000, 5], [0xE001, 6], [0xE002, 5]]


def test_tokens_merges_and_added_tokens() -> None:
    tokenizer = roberta()
    tokenizer.add_special_tokens([AddedToken("<x>", lstrip=True, rstrip=True)])
    tables = derive_tables(tokenizer).tables
    vocabulary = list(tables["vocabulary"])
    assert {token: vocabulary.index(token) for token in vocabulary} == tokenizer.get_vocab(False)
    model = json.loads(tokenizer.to_str())["model"]
    expected = [(left, right, left + right) for left, right in model["merges"]]
    assert [tuple(vocabulary[each] for each in row) for row in np.asarray(tables["merges"])] == expected
    assert tables["added"] == ["<s>", "</s>", "<mask>", "<x>"]
    assert np.asarray(tables["added_info"]).tolist() == [[0, 0], [1, 0], [2, 0], [len(vocabulary), 3]]


def test_an_id_without_a_token() -> None:
    tokenizer = bert()
    spec = json.loads(tokenizer.to_str())
    spec["model"]["vocab"]["a"] = 40
    vocabulary = derive_tables(Tokenizer.from_str(json.dumps(spec))).tables["vocabulary"]
    assert (len(vocabulary), vocabulary[5], vocabulary[40]) == (41, "", "a")


@pytest.mark.parametrize(
    ("processor", "single", "pair"),
    [
        (
            processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
            [2, 0, -1, 0, 3, 0],
            [2, 0, -1, 0, 3, 0, -2, 1, 3, 1],
        ),
        (
            processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
            [2, 0, -1, 0, 3, 0],
            [2, 0, -1, 0, 3, 0, 3, 0, -2, 0, 3, 0],
        ),
        (
            processors.TemplateProcessing(
                single="$A:1 [SEP]:2", pair="$B:1 [SEP] $A", special_tokens=[("[SEP]", 3)]
            ),
            [-1, 1, 3, 2],
            [-2, 1, 3, 0, -1, 0],
        ),
    ],
)
def test_templates(processor: Any, single: list[int], pair: list[int]) -> None:
    tokenizer = bert()
    tokenizer.post_processor = processor
    assert templates(tokenizer, "a") == (single, pair)


def test_a_tokenizer_is_not_changed() -> None:
    tokenizer = bert()
    tokenizer.enable_padding()
    tokenizer.enable_truncation(3)
    before = tokenizer.to_str()
    derive_tables(tokenizer)
    assert tokenizer.to_str() == before


@pytest.mark.parametrize("make", [bert, roberta])
@pytest.mark.parametrize("pairs", [False, True])
def test_the_node_is_onnx(make: Callable[[], Tokenizer], pairs: bool) -> None:
    tables = derived(make)
    onnx.checker.check_model(shaped_model(tables, 16, pairs=pairs), full_check=True)
    node, constants = tokenizer_node(tables, 16, "TEXT", "TEXT_PAIR" if pairs else None, prefix="text/")
    names = [f"text/{name}" for name in tables.tables]
    assert node.input == ["TEXT", *names, *["TEXT_PAIR"][: int(pairs)]]
    assert node.output == [f"text/{name}" for name in OUTPUTS]
    assert [constant.name for constant in constants] == names
    onnx.checker.check_model(shaped_model(tables, 16, pairs=pairs, offsets=True), full_check=True)
    with_offsets, _ = tokenizer_node(tables, 16, "TEXT", offsets=True)
    assert with_offsets.output == [*OUTPUTS, "offsets"]
    with pytest.raises(
        OptionError, match=f"max_length 1 is out of range: a pair has {tables.special_tokens}"
    ):
        tokenizer_node(tables, 1, "TEXT")


def with_model(**options: Any) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        spec = json.loads(roberta().to_str())
        spec["model"] |= options
        return Tokenizer.from_str(json.dumps(spec))

    return make


def with_added(make: Callable[[], Tokenizer], *tokens: AddedToken) -> Callable[[], Tokenizer]:
    def added() -> Tokenizer:
        tokenizer = make()
        tokenizer.add_tokens(list(tokens))
        return tokenizer

    return added


def changed(make: Callable[[], Tokenizer], part: str, value: Any) -> Callable[[], Tokenizer]:
    def other() -> Tokenizer:
        tokenizer = make()
        setattr(tokenizer, part, value)
        return tokenizer

    return other


REFUSED: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "normalizer": (
        changed(bert, "normalizer", normalizers.NFC()),
        "normalizer, pre-tokenizer and model are NFC, BertPreTokenizer, WordPiece; accepted: BertNormalizer,",
    ),
    "no normalizer": (changed(bert, "normalizer", None), "are None, BertPreTokenizer, WordPiece; accepted"),
    "pre-tokenizer": (
        changed(roberta, "pre_tokenizer", pre_tokenizers.Split(Regex(" "), "removed")),
        "are None, Split, BPE; accepted",
    ),
    "model": (changed(bert, "model", models.Unigram([("a", 0.0)], 0)), "BertPreTokenizer, Unigram; accepted"),
    "unknown": (
        changed(bert, "model", models.WordPiece({"a": 0}, unk_token="[UNK]")),
        "its token for unknown words, '[UNK]', is not in the vocabulary; accepted: one that is",
    ),
    "one id for two": (
        changed(bert, "model", models.WordPiece({"[UNK]": 1, "a": 9, "b": 9}, unk_token="[UNK]")),
        "its tokens 'a' and 'b' have the same id 9; accepted: an id for each",
    ),
    "marks": (
        lambda: word_piece(WORDS + " \u1b44", normalizers.BertNormalizer()),
        "whose order depends on their neighbours (U+1B44)",
    ),
    "regex": (
        changed(roberta, "pre_tokenizer", pre_tokenizers.ByteLevel(use_regex=False)),
        "its ByteLevel pre-tokenizer has use_regex false; accepted: true",
    ),
    "dropout": (with_model(dropout=0.1), "its BPE model has dropout 0.1; accepted: a model without"),
    "unk": (with_model(unk_token="<s>"), "its BPE model has unk_token '<s>'; accepted"),
    "fallback": (with_model(byte_fallback=True), "its BPE model has byte_fallback True; accepted"),
    "whole": (with_model(ignore_merges=True), "its BPE model has ignore_merges True; accepted"),
    "prefix": (
        with_model(continuing_subword_prefix="#", merges=[]),
        "continuing_subword_prefix '#'; accepted",
    ),
    "word": (
        with_added(bert, AddedToken("[X]", single_word=True, normalized=False)),
        "the added token '[X]' matches whole words only; accepted: single_word false",
    ),
    "normalized": (
        with_added(bert, AddedToken("covid")),
        "the added token 'covid' matches normalized text; accepted: normalized false",
    ),
    "space": (
        with_added(roberta, AddedToken(" x", normalized=False)),
        "the added token ' x' has white space at an end; accepted: tokens without",
    ),
    "overlap": (
        with_added(roberta, AddedToken("a<", normalized=True)),
        "the added tokens 'a<' (normalized) and '<s>' (not) overlap; accepted: the same of both",
    ),
    "special as text": (
        changed(bert, "encode_special_tokens", True),
        "it reads special tokens in a text as text; accepted: encode_special_tokens false",
    ),
    "text twice": (
        changed(
            bert,
            "post_processor",
            processors.TemplateProcessing(single="$A [SEP] $A", pair="$A $B", special_tokens=[("[SEP]", 3)]),
        ),
        "(-1 a text, -2 a second one); accepted: each text once, among special tokens",
    ),
    "no special tokens": (
        changed(bert, "post_processor", None),
        "texts have no special token, and empty ones no token at all; accepted: one or more",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_table_says_is_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(CheckpointError) as error:
        derive_tables(make())
    assert message in str(error.value)
    assert str(error.value).startswith("the graph cannot tokenize as this tokenizer does: ")
    assert str(error.value).endswith("; leave it to the server-side tokenizer")
    assert "\n" not in str(error.value)


def processed(make: Callable[[], Tokenizer], *steps: Any) -> Tokenizer:
    return changed(make, "post_processor", processors.Sequence(list(steps)))()


def offsets_of(tokenizer: Tokenizer) -> dict[str, Any]:
    return offset_attributes(tokenizer, json.loads(tokenizer.to_str()))


def test_attributes_of_offsets() -> None:
    template = processors.TemplateProcessing(single="$A", pair="$A $B:1")
    trims, keeps = (processors.ByteLevel(add_prefix_space=prefix) for prefix in (False, True))
    assert offsets_of(processed(roberta, template)) == {}
    assert offsets_of(processed(roberta, trims, template)) == {"trim_offsets": 1}
    assert offsets_of(processed(roberta, keeps, template)) == {"trim_offsets": 2}
    assert set(offsets_of(bert())) == {"marks"}
    accents = changed(bert, "normalizer", normalizers.BertNormalizer(strip_accents=False))
    stripping = with_added(accents, AddedToken("<x>", rstrip=True, normalized=False))
    spaces = [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F]
    assert offsets_of(stripping()) == {"white_space": [*spaces, 0x3000]}


def test_offsets_that_no_node_answers_are_refused_where_they_are_asked_for() -> None:
    trims = processors.ByteLevel()
    twice = "its post-processors trim offsets more than once, or after another one"
    letters = "its post-processor trims offsets, by {!r} too, which begins or ends as a space does"
    bert_like = word_piece(WORDS + " Ġa", normalizers.BertNormalizer())
    bert_like.post_processor = trims
    refused = {
        twice: processed(roberta, trims, trims),
        letters.format("xĠ"): with_added(roberta, AddedToken("xĠ", normalized=False))(),
        letters.format("Ġa"): bert_like,
    }
    for message, tokenizer in refused.items():
        with pytest.raises(CheckpointError, match=re.escape(message)):
            offsets_of(tokenizer)
    tables = derive_tables(refused[letters.format("xĠ")])
    tokenizer_node(tables, 16, "TEXT")
    with pytest.raises(CheckpointError, match="leave it to the server-side tokenizer"):
        tokenizer_node(tables, 16, "TEXT", offsets=True)


def test_marks_move_as_the_library_moves_them() -> None:
    """Two code points change places where the second is a mark of a lower class, and both are marks."""
    table = np.array(marks()).reshape(-1, 2)
    decompose = normalizers.NFD().normalize_str
    for point in (*range(0x2F0, 0x380), *range(0x5B0, 0x600), 0xFB0, 0xF73, 0x1D15E, 0x1B44, 0xFE0F):
        for other in (0x301, 0x316, 0x334, 0x345, 0x1D165):
            first, second = abs(number(table, point)), number(table, other)
            moved = decompose(chr(point) + chr(other)) != decompose(chr(point)) + chr(other)
            assert moved == (0 < second < first < 255), (hex(point), hex(other))


def test_added_tokens_of_both_kinds_that_do_not_overlap() -> None:
    """As in RoBERTa, whose `<mask>` alone does not match normalized text."""
    tokenizer = with_added(roberta, AddedToken("<extra>", normalized=True))()
    assert "<extra>" in derive_tables(tokenizer).tables["added"]
