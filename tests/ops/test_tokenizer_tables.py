"""Tables come from a file: whatever they hold, the op refuses them in one line or answers."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_op import library_under_test, open_session
from onnx import TensorProto, helper

from sparse_export.graph.tokenizer.tables import TokenizerTables
from tokenizing import Array, GraphTokenizer, feeds, rows_of, shaped_model

ITSELF, WORD = -1, -2
WORD_END, UNKNOWN = 0xF8, 0xF9

# Spaces end words, "!" is one, capitals become small, no token has what lies beyond ASCII.
WORD_PIECE = TokenizerTables(
    "WordPieceTokenize",
    {
        "char_actions": np.array(
            [[0, ITSELF], [32, 0], [33, WORD], [34, ITSELF], [65, 2], [66, ITSELF], [128, 4]], np.int32
        ),
        "char_pool": np.array([1, WORD_END, 1, ord("a"), 1, UNKNOWN], np.uint8),
        "vocabulary": ["[UNK]", "[CLS]", "[SEP]", "a", "##b", "!", ""],
        "added": ["[SEP]", "[MASK]"],
        "added_info": np.array([[2, 0], [9, 3]], np.int32),
    },
    {"unk_id": 0, "single_template": [1, 0, -1, 0, 2, 0], "pair_template": [1, 0, -1, 0, 2, 0, -2, 1, 2, 1]},
    3,
    # Acute and dot below are marks, and "½" has one.
    {
        "trim_offsets": 1,
        "white_space": [32],
        "marks": [0, 0, 0xBD, -2, 0xBE, 0, 0x301, 2, 0x302, 0, 0x323, 1, 0x324, 0],
    },
)

# Letters but for "1" and what is no letter; "ab" and "Ġab" are merged.
BPE = TokenizerTables(
    "ByteLevelBpeTokenize",
    {
        "char_classes": np.array([[0, 3], [32, 0], [33, 3], [49, 2], [50, 3], [97, 1], [123, 3]], np.int32),
        "vocabulary": ["<s>", "</s>", "a", "b", "Ġ", "ab", "Ġab", "1"],
        "merges": np.array([[2, 3, 5], [4, 5, 6]], np.int32),
        "added": ["</s>", "<mask>"],
        "added_info": np.array([[1, 0], [9, 1]], np.int32),
    },
    {"single_template": [0, 0, -1, 0, 1, 0], "pair_template": [0, 0, -1, 0, 1, 0, 1, 0, -2, 0, 1, 0]},
    4,
    {"trim_offsets": 2},
)


def ids(tables: TokenizerTables, text: str) -> list[int]:
    return next(rows_of(GraphTokenizer(tables, 16, library_under_test())([text])))["input_ids"]


def offsets(tables: TokenizerTables, text: str) -> list[tuple[int, int]]:
    graph = GraphTokenizer(tables, 16, library_under_test(), offsets=True)
    return list(map(tuple, graph([text])["offsets"].tolist()))


def test_what_the_tables_say() -> None:
    assert ids(WORD_PIECE, "A! ab  aa[MASK]bé[SEP]") == [1, 3, 5, 3, 4, 0, 9, 0, 2, 2]
    assert ids(BPE, "ab ab1 b é<mask>ba") == [0, 5, 6, 7, 4, 3, 4, 9, 3, 2, 1]


def test_what_the_tables_say_of_offsets() -> None:
    words = [(0, 1), (1, 2), (3, 4), (4, 5), (7, 9), (10, 16), (18, 19)]
    assert offsets(WORD_PIECE, "A! ab  aa [MASK]  b") == [(0, 0), *words, (0, 0)]
    words = [(0, 3), (4, 6), (6, 7), (9, 15), (15, 16)]
    assert offsets(BPE, " ab ab1  <mask>a") == [(0, 0), *words, (0, 0)]
    # The library takes the mark that it orders first for the first of the text.
    assert offsets(WORD_PIECE, "a\u0301\u0323 a ½\u0323") == [(0, 0), (0, 3), (4, 5), (6, 8), (0, 0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trim_offsets": 3}, "attribute trim_offsets is 3; accepted: an integer from 0 to 2"),
        ({"white_space": 32}, "attribute white_space has the wrong type; accepted: code points"),
        ({"marks": [0]}, "attribute marks has 1 integers; accepted: first code point and number of each"),
        ({"marks": [0, 256]}, "marks[0] is 256; accepted: -254 to 255"),
        ({"marks": [0, -(2**40)]}, "marks[0] is -2147483648; accepted: -254 to 255"),
        ({"marks": [1, 0]}, "marks does not begin with code point 0; accepted"),
    ],
)
def test_attributes_of_offsets_are_refused(changes: dict[str, Any], message: str) -> None:
    assert f"WordPieceTokenize: {message}" in refusal(changed(WORD_PIECE, **changes))


def changed(tables: TokenizerTables, **changes: Any) -> TokenizerTables:
    """Return tables with other inputs or attributes; an attribute of None is left out."""
    inputs = {name: changes.get(name, table) for name, table in tables.tables.items()}
    attributes = tables.attributes | {name: value for name, value in changes.items() if name not in inputs}
    kept = {name: value for name, value in attributes.items() if value is not None}
    return replace(tables, tables=inputs, attributes=kept)


def refusal(tables: TokenizerTables, max_length: int = 16) -> str:
    with pytest.raises(Exception, match=tables.op) as error:
        GraphTokenizer(tables, max_length, library_under_test())
    message = str(error.value).strip()
    assert "\n" not in message
    return message


def actions(*rows: tuple[int, int]) -> Array:
    return np.array(rows, np.int32).reshape(-1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unk_id": None}, "attribute unk_id is missing; accepted: an integer from 0 to 6"),
        ({"unk_id": 7}, "attribute unk_id is 7; accepted: an integer from 0 to 6"),
        ({"unk_id": -1}, "attribute unk_id is -1; accepted"),
        ({"unk_id": 1.0}, "attribute unk_id has the wrong type; accepted"),
        ({"max_input_chars_per_word": -1}, "attribute max_input_chars_per_word is -1; accepted"),
        ({"continuing_prefix": 2}, "attribute continuing_prefix has the wrong type; accepted: a string"),
        (
            {"truncation_side": "end"},
            'attribute truncation_side is "end"; accepted: "right" or "left"',
        ),
        ({"stop_early": 2}, "attribute stop_early is 2; accepted: an integer from 0 to 1"),
        ({"single_template": None}, "attribute single_template is (); accepted: (id, type id) of each piece"),
        ({"single_template": [1, 0, 2, 0]}, "attribute single_template is (1, 0, 2, 0); accepted"),
        ({"single_template": [-1, 0, -1, 0]}, "attribute single_template is (-1, 0, -1, 0); accepted"),
        ({"single_template": [-1, 0, 2]}, "attribute single_template is (-1, 0, 2); accepted"),
        ({"single_template": [-1, -1]}, "attribute single_template is (-1, -1); accepted"),
        ({"single_template": [-1, 0, -3, 0]}, "attribute single_template is (-1, 0, -3, 0); accepted"),
        ({"single_template": [-1, 0, 2**31, 0]}, "attribute single_template is (-1, 0, 2147483648, 0); acc"),
        ({"pair_template": [-1, 0]}, "attribute pair_template is (-1, 0); accepted: (id, type id)"),
        ({"single_template": [-1, 0, -2, 0]}, "attribute single_template is (-1, 0, -2, 0); accepted"),
        ({"char_actions": actions()}, "char_actions does not begin with code point 0; accepted"),
        ({"char_actions": actions((1, -1))}, "char_actions does not begin with code point 0; accepted"),
        ({"char_actions": actions((0, -1), (9, -1), (9, -1))}, "char_actions[2] begins with 9; accepted"),
        ({"char_actions": actions((0, -1), (0x110000, -1))}, "char_actions[1] begins with 1114112; accepted"),
        ({"char_actions": actions((0, -3))}, "char_actions[0] is -3; accepted: -2 to 5"),
        ({"char_actions": actions((0, 6))}, "char_actions[0] is 6; accepted: -2 to 5"),
        ({"char_actions": actions((0, 5))}, "char_pool has no string at 5, where char_actions[0] points"),
        ({"char_actions": np.zeros((3, 3), np.int32)}, "char_actions has shape (3, 3); accepted: (rows, 2)"),
        ({"char_actions": np.zeros(4, np.int32)}, "char_actions has shape (4,); accepted: (rows, 2)"),
        ({"char_pool": np.array([[1, 97]], np.uint8)}, "char_pool has shape (1, 2); accepted: rank 1"),
        ({"char_pool": np.array([2, 0xC3, WORD_END, 0, 0], np.uint8)}, "char_pool has no string at 0, where"),
        ({"char_pool": np.array([], np.uint8)}, "char_actions[1] is 0; accepted: -2 to -1"),
        ({"vocabulary": []}, "vocabulary has 0 tokens; accepted: 1 to 2147483647"),
        ({"vocabulary": ["[UNK]", "a", "b", "a"]}, "vocabulary[3] is the same token as vocabulary[1]; acc"),
        ({"added": ["[SEP]", ""]}, "added[1] is empty; accepted: a token"),
        ({"added": ["[SEP]", "[SEP]"]}, "added[1] is the same token as added[0]; accepted: each once"),
        ({"added": ["[SEP]"]}, "added_info has 2 rows; accepted: 1, as many as added"),
        (
            {"added_info": actions((2, 0), (-9, 3))},
            "added_info[1] is (-9, 3); accepted: an id >= 0, and 0 to",
        ),
        (
            {"added_info": actions((2, 4), (9, 3))},
            "added_info[0] is (2, 4); accepted: an id >= 0, and 0 to 3",
        ),
    ],
)
def test_word_piece_refuses(changes: dict[str, Any], message: str) -> None:
    assert f"WordPieceTokenize: {message}" in refusal(changed(WORD_PIECE, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_prefix_space": 2}, "attribute add_prefix_space is 2; accepted: an integer from 0 to 1"),
        ({"char_classes": actions((0, 4))}, "char_classes[0] is 4; accepted: 0 to 3"),
        ({"char_classes": actions((0, -1))}, "char_classes[0] is -1; accepted: 0 to 3"),
        ({"merges": np.array([[2, 3, 8]], np.int32)}, "merges[0] is (2, 3, 8); accepted: ids from 0 to 7"),
        ({"merges": np.array([[2, -1, 5]], np.int32)}, "merges[0] is (2, -1, 5); accepted: ids from 0 to 7"),
        ({"merges": np.zeros((2, 2), np.int32)}, "merges has shape (2, 2); accepted: (rows, 3)"),
        ({"vocabulary": ["a", "b", "a"]}, "vocabulary[2] is the same token as vocabulary[0]; accepted"),
    ],
)
def test_bpe_refuses(changes: dict[str, Any], message: str) -> None:
    assert f"ByteLevelBpeTokenize: {message}" in refusal(changed(BPE, **changes))


@pytest.mark.parametrize("tables", [WORD_PIECE, BPE])
def test_no_room_for_special_tokens(tables: TokenizerTables) -> None:
    least = tables.special_tokens
    message = refusal(replace(tables, special_tokens=0), least - 1)
    assert f"attribute max_length is {least - 1}; accepted: an integer from {least} to 2147483647" in message
    empty = GraphTokenizer(tables, least, library_under_test(), pairs=True)([("a", "a")])
    assert empty["token_count"].tolist() == [[least]]


def test_strings_that_are_no_utf8() -> None:
    model = shaped_model(WORD_PIECE, 16)
    vocabulary = next(each for each in model.graph.initializer if each.name == "vocabulary")
    vocabulary.string_data[3] = b"a\xff"
    with pytest.raises(Exception, match=r"vocabulary\[3\] is no UTF-8 from byte 1 on; accepted: UTF-8"):
        open_session(model.SerializeToString(), library_under_test())


def test_tables_that_are_fed() -> None:
    model = shaped_model(WORD_PIECE, 16)
    fed = next(each for each in model.graph.initializer if each.name == "vocabulary")
    model.graph.initializer.remove(fed)
    model.graph.input.append(helper.make_tensor_value_info("vocabulary", TensorProto.STRING, [None]))
    with pytest.raises(Exception, match="vocabulary is computed or fed; accepted: an initializer"):
        open_session(model.SerializeToString(), library_under_test())


@pytest.mark.parametrize(
    ("text", "pair", "message"),
    [
        ((2, 2), (2, 1), r"text has shape \(2, 2\); accepted: \(rows,\) or \(rows, 1\)"),
        ((), (1,), r"text has shape \(\); accepted"),
        ((2, 1), (1, 2), r"pair has shape \(1, 2\); accepted"),
        ((2, 1), (3, 1), "pair has 3 rows; accepted: 2, as many as text"),
    ],
)
def test_shapes_are_refused(text: tuple[int, ...], pair: tuple[int, ...], message: str) -> None:
    graph = GraphTokenizer(WORD_PIECE, 16, library_under_test(), pairs=True, text_shape=None)
    columns = {"TEXT": np.full(text, "a", dtype=object), "TEXT_PAIR": np.full(pair, "a", dtype=object)}
    with pytest.raises(Exception, match=f"WordPieceTokenize: {message}"):
        graph.run(columns)
    assert graph([("a", "a")])["token_count"].tolist() == [[5]]


def test_a_token_of_a_million_bytes() -> None:
    """Nothing recurses over the bytes of a token."""
    long = "a" * 1_000_000
    vocabulary, added = ["[UNK]", "a", long], ["[SEP]", f"[{long}"]
    tables = changed(WORD_PIECE, vocabulary=vocabulary, added=added, max_input_chars_per_word=2_000_000)
    assert ids(tables, f"{long} a [{long}b") == [1, 2, 1, 9, 0, 2]
    assert ids(changed(BPE, vocabulary=["a", "b", "c", "d", "e", "f", "g", long]), "bb") == [0, 1, 1, 1]


TEXTS = ("", "A! ab  aa[MASK]bé[SEP]", "ab ab1 b é<mask>ba", "  \n\n中\u0301😀 aaab" * 5, "</s>[SE<mas")

small = st.integers(-3, 12) | st.sampled_from([0x10FFFF, 0x110000, 2**31 - 1, -(2**31)])


@st.composite
def hostile(draw: st.DrawFn) -> TokenizerTables:
    """Tables of which a few values are others."""
    tables = draw(st.sampled_from([WORD_PIECE, BPE]))
    seed = random.Random(draw(st.integers(0, 2**32 - 1)))
    changes: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(tables.tables)), max_size=3)):
        table = tables.tables[name]
        if isinstance(table, np.ndarray):
            table = table[: draw(st.integers(0, len(table)))].copy()
            for _ in range(draw(st.integers(0, 3)) if table.size else 0):
                value = draw(st.integers(0, 255) if table.dtype == np.uint8 else small)
                table.flat[seed.randrange(table.size)] = value
        else:
            letters = st.text(st.sampled_from("ab! #Ġ1é中"), max_size=4)
            table = [draw(letters) if seed.random() < 0.3 else token for token in table]
        changes[name] = table
    for name in draw(st.lists(st.sampled_from(sorted(tables.attributes)), max_size=1)):
        value = tables.attributes[name]
        changes[name] = draw(small if isinstance(value, int) else st.lists(small, min_size=1, max_size=8))
    offsets = tables.offsets
    if isinstance(offsets, dict) and draw(st.booleans()):
        points = sorted(draw(st.sets(st.integers(1, 0x400), max_size=5)))
        numbers = st.integers(-254, 255)
        offsets = offsets | {"marks": [each for point in [0, *points] for each in (point, draw(numbers))]}
    return replace(changed(tables, **changes), offsets=offsets)


@settings(deadline=None, max_examples=80)
@given(hostile(), st.sampled_from([4, 7, 2**31 - 1]), st.booleans())
def test_hostile_tables(tables: TokenizerTables, max_length: int, offsets: bool) -> None:
    try:
        graph = GraphTokenizer(tables, max_length, library_under_test(), offsets=offsets)
    except Exception as error:
        refused = str(error).strip()
    else:
        refused = ""
    if refused:
        assert f"{tables.op}: " in refused
        assert "\n" not in refused
        return
    for row in rows_of(graph.run(feeds(TEXTS))):
        assert row["invalid_at"] == [-1]
        assert row["token_count"][0] <= max_length
