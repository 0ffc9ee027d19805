"""The tokenizer ops answer as the `tokenizers` library does, whatever a text holds."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from one_op import library_under_test, open_session
from tokenizers import AddedToken, Tokenizer, normalizers, processors

from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_export.graph.tokenizer.offsets import offset_attributes
from sparse_export.graph.tokenizer.tables import TokenizerTables
from sparse_serve.tasks.encoding import encode_cut
from tokenizing import (
    GraphTokenizer,
    Texts,
    byte_level_bpe,
    cutting,
    differing,
    feeds,
    rows_of,
    shaped_model,
    word_piece,
)

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a ab abc b c the film is good bad un ##a ##b ##ab ##c ##bc ##s ##able "
    "# ##d e é ##é 中 文 ' ! . , - ½ ß ss i ##i ı ̇ 1 ##2 ##3 가 ᄀ ##ᅡ"
)

TRAINED_ON = (
    "The film is good, isn't it? It's a film that we've seen 1,234 times.",
    "naïve café, 中文 and русский; emoji 😀 and  two  spaces\n\nand lines\n",
    "aaaa aaab abab 2024 they'll we'd I'm",
) * 4


STRIPPING = (AddedToken("<left>", lstrip=True), AddedToken("<both>", lstrip=True, rstrip=True))


def cased() -> Tokenizer:
    """A vocabulary of capitals and accents, CJK left alone, short words only, offsets trimmed as MPNet's."""
    tokenizer = word_piece(WORDS + " A B ##É The", normalizers.BertNormalizer(False, False, False, False))
    tokenizer.model.max_input_chars_per_word = 5
    tokenizer.add_special_tokens(list(STRIPPING))
    ids = tokenizer.get_vocab()
    tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    return tokenizer


def stripping() -> Tokenizer:
    """BPE behind a space, with tokens that take white space with them."""
    tokenizer = byte_level_bpe(TRAINED_ON, 300, add_prefix_space=True)
    tokenizer.add_special_tokens(list(STRIPPING))
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "uncased": lambda: word_piece(WORDS, normalizers.BertNormalizer()),
    "cased": cased,
    "bpe": lambda: byte_level_bpe(TRAINED_ON, 320),
    "stripping": stripping,
}

TEXTS = (
    "",
    " ",
    "\t\r\n \u3000\u2028",
    "\x00",
    "a\x00b \ufffd\u200b\u00adc",
    "The film is good, isn't it? They'll see: WE'VE seen it 1234 times!",
    "unable abc abcab xyz ab-c #a ##a",
    "caf\u00e9 cafe\u0301 É ½ ß ẞ İ ı ﬁ Ⅷ",
    "中文没有空格, 가각 \u1100\u1161 and עברית",
    "\U0001d16d\u1b44 a\u1b44\U0001d16db \u0301 \u0301a",
    "emoji 😀 and 👩‍👩‍👧, flags 🇩🇪",
    "[CLS] a [MASK][MASK]b[SEP][sep] [UNK",
    "<mask>  <mask> a <left>\n\n <both>  b<both> <s></s> <s",
    "'s 't 're 'RE 've 'm 'll 'd 'x ' ''s !'s  's",
    "two  spaces   three\n\n \nlines \u00a0\u00a0x 12 ½½ ٣٤",
    "a" * 5,
    "a" * 6,
    "ab" * 50 + " a",
    "ab" * 51,
)
# Of so many tokens and the special ones.
LENGTHS = tuple("a " * n for n in (1, 2, 3, 8, 9, 10, 40))


def in_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Every two of `LENGTHS`, and each text in front of a short and a long one, and behind them."""
    others = [(text, other) for text in texts for other in (LENGTHS[1], LENGTHS[-1])]
    return [*product(LENGTHS, LENGTHS), *others, *((second, first) for first, second in others)]


@cache
def known(name: str) -> tuple[Tokenizer, TokenizerTables]:
    tokenizer = TOKENIZERS[name]()
    return tokenizer, derive_tables(tokenizer)


def compare(name: str, max_length: int, texts: Texts, *, offsets: bool = False) -> None:
    compare_with(*known(name), max_length, texts, offsets=offsets)


def compare_with(
    tokenizer: Tokenizer, tables: TokenizerTables, max_length: int, texts: Texts, *, offsets: bool
) -> None:
    pairs = not isinstance(texts[0], str)
    graph = GraphTokenizer(tables, max_length, library_under_test(), pairs=pairs, offsets=offsets)
    assert differing(graph, cutting(tokenizer, max_length), texts) == []


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("max_length", [4, 5, 16, 512])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts(name: str, max_length: int, offsets: bool) -> None:
    compare(name, max_length, TEXTS, offsets=offsets)


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("max_length", [4, 7, 8, 9, 21])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_pairs(name: str, max_length: int, offsets: bool) -> None:
    """Lengths around the cut, and beyond it, on either side."""
    compare(name, max_length, in_pairs([*TEXTS[:2], *TEXTS[5:13]]), offsets=offsets)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_code_point_up_to_u3000(name: str) -> None:
    points = [chr(point) for point in range(0x3001)]
    beside_added = (f"a{point}<both>{point}<left>[MASK]{point}" for point in points)
    compare(name, 16, [*points, *(f"a{point}b" for point in points), *beside_added])


# Some of all; all that BERT's normalizer leaves of musical notes, which have marks in them.
SOME_POINTS = (*range(0, 0x3001, 11), *range(0x3001, 0xD800, 997), *range(0xE000, 0x110000, 997))
NOTES = tuple(range(0x1D15E, 0x1D173))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_offsets_at_some_code_points(name: str) -> None:
    """Alone, in a word, beside added tokens and among marks that move."""
    points = [chr(point) for point in (*SOME_POINTS, *NOTES)]
    inside = (f"a{point}b" for point in points)
    beside_added = (f"a{point}<both>{point}<left>[MASK]{point}" for point in points)
    among_marks = (f"!{point}\u0301\u1b44 \u0323{point}\u1b44\u0331{point}" for point in points)
    compare(name, 24, [*points, *inside, *beside_added, *among_marks], offsets=True)


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("first_too", [False, True])
def test_trimming(trims: bool, first_too: bool) -> None:
    """What the post-processor says, whatever the pre-tokenizer does."""
    tokenizer, tables = known("stripping")
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 1), ("<s>", 0), trim_offsets=trims, add_prefix_space=not first_too
    )
    tables = replace(tables, offsets=offset_attributes(tokenizer, json.loads(tokenizer.to_str())))
    texts = [*TEXTS, *(f"{spaces}{text}" for spaces in (" ", "  ", "\u3000 ") for text in TEXTS)]
    compare_with(tokenizer, tables, 64, texts, offsets=True)
    compare_with(tokenizer, tables, 32, list(zip(texts, texts[::-1], strict=True)), offsets=True)


def test_offsets_where_bytes_have_no_token() -> None:
    """The library counts on as if the bytes that it leaves out were not there."""
    tokenizer, tables = known("bpe")
    spec = json.loads(tokenizer.to_str())
    vocabulary = ["<s>", "</s>", "<mask>", "a", "Ġ", "Ġa", "Ã", "©", "¸"]
    spec["model"]["vocab"] = {token: number for number, token in enumerate(vocabulary)}
    spec["model"]["merges"] = [["Ġ", "a"]]
    tables = replace(
        tables,
        tables=tables.tables | {"vocabulary": vocabulary, "merges": np.array([[4, 3, 5]], np.int32)},
    )
    texts = [*TEXTS, "baéb a", "中a中é b  ba", "ßéa\u0338a 中"]
    compare_with(Tokenizer.from_str(json.dumps(spec)), tables, 64, texts, offsets=True)


@pytest.mark.parametrize("max_length", [4, 7, 8, 21, 64])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_last_tokens_stay_where_the_left_is_cut(name: str, max_length: int) -> None:
    tokenizer, tables = known(name)
    texts = [*TEXTS[:2], *TEXTS[5:13], "good bad " * 40]
    cuts = cutting(tokenizer, max_length, "left")
    for rows in ([*TEXTS, *texts, *LENGTHS], in_pairs(texts)):
        pairs = not isinstance(rows[0], str)
        graph = GraphTokenizer(tables, max_length, library_under_test(), pairs=pairs, truncation="left")
        assert differing(graph, cuts, rows) == []


@pytest.mark.parametrize("name", TOKENIZERS)
def test_offsets_of_the_last_tokens_are_those_of_the_whole_text(name: str) -> None:
    tokenizer, tables = known(name)
    texts = [*TEXTS, " good  bad é " * 9]
    graph = GraphTokenizer(tables, 8, library_under_test(), truncation="left", offsets=True)
    encoded = encode_cut(tokenizer, texts, None, 8, "left", offsets=True)
    for row, text in zip(rows_of(graph(texts)), encoded, strict=True):
        (window,) = text.windows
        assert (row["input_ids"], row["truncated"]) == (window.ids, [text.truncated])
        assert row["offsets"] == list(map(list, window.offsets))


def random_text(rng: random.Random) -> str:
    pieces = [
        "a",
        "b",
        "É",
        "é",
        " ",
        "  ",
        "\n",
        "'s",
        "1",
        "中",
        "가",
        "\u0301",
        "\u1b44",
        "\U0001d16d",
        "!",
        "😀",
    ]
    pieces += ["[MASK]", "<mask>", "<both>", "<", "[", "The", "film", "\x00", "\u00a0", "\u2028", "\u0345"]
    return "".join(rng.choices(pieces, k=rng.randrange(40)))


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_random_texts(name: str, offsets: bool) -> None:
    rng = random.Random(5)
    texts = [random_text(rng) for _ in range(1500)]
    compare(name, 24, texts, offsets=offsets)
    compare(name, 13, list(zip(texts[::2], texts[1::2], strict=True)), offsets=offsets)


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("name", ["uncased", "bpe"])
def test_long_words(name: str, offsets: bool) -> None:
    long = ["a" * 100_000, "ab1" * 33_333, " " * 100_000, "[MASK" * 20_000, "<mask> " * 2_000, "é" * 50_000]
    compare(name, 32, long, offsets=offsets)


def test_the_longer_of_two_long_texts_has_the_odd_token() -> None:
    """The library would take gigabytes for these: it makes a row of every part that it cuts off."""
    graph = GraphTokenizer(known("uncased")[1], 16, library_under_test(), pairs=True)
    texts = [("a " * first, "b " * second) for first, second in ((5001, 5000), (5000, 5001), (5000, 5000))]
    firsts = [row["token_type_ids"].count(0) - 2 for row in rows_of(graph(texts))]
    assert firsts == [7, 6, 6]


@pytest.mark.parametrize("name", ["uncased", "bpe"])
def test_nothing_behind_the_cut_is_tokenized(name: str) -> None:
    """Words by the million, of which 32 tokens are asked for, take a part of the time that all of them do."""
    text = ["a b " * 1_000_000]
    seconds: dict[int, float] = {}
    for max_length in (32, 10_000_000):
        graph = GraphTokenizer(known(name)[1], max_length, library_under_test())
        start = time.process_time()
        answer = graph(text)
        seconds[max_length] = time.process_time() - start
        assert answer["truncated"].tolist() == [[max_length == 32]]
    assert seconds[32] < seconds[10_000_000] / 3


def test_rows_do_not_depend_on_companions_or_threads() -> None:
    rng = random.Random(6)
    texts = [random_text(rng) * rng.randrange(1, 40) for _ in range(700)]
    _, tables = known("bpe")
    one = GraphTokenizer(tables, 64, library_under_test(), offsets=True)
    four = GraphTokenizer(tables, 64, library_under_test(), offsets=True, threads=4)
    together = list(rows_of(one(texts)))
    assert list(rows_of(four(texts))) == together
    assert list(rows_of(four(texts[::-1])))[::-1] == together
    assert [next(rows_of(one([text]))) for text in texts[:50]] == together[:50]


INVALID = (
    b"abc\xff",
    b"\x80",
    b"a\xc0\xafb",
    b"ab\xc3",
    b"ab\xe4\xb8",
    b"\xe4\xb8a",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xe0\x80\x80",
    b"a\xf0\x9f\x98",
    b"long enough for words of eight bytes \xe9 and more",
    b"a" * 7 + b"\xc2",
)


def as_python(text: bytes) -> int:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return -1


def column(texts: list[bytes]) -> np.ndarray:  # type: ignore[type-arg]
    """Return bytes as ONNX Runtime takes them: wider than the longest, or it reads on."""
    return np.array(texts, dtype=f"S{max(map(len, texts)) + 8}").reshape(-1, 1)


@pytest.mark.parametrize("name", ["uncased", "bpe"])
def test_invalid_utf8(name: str) -> None:
    """A row that is none is an empty text that says where; those beside it answer as ever."""
    graph = GraphTokenizer(known(name)[1], 16, library_under_test(), offsets=True)
    good = next(rows_of(graph(["good film"])))
    rows = list(
        rows_of(graph.run({"TEXT": column([each for bad in INVALID for each in (bad, b"good film")])}))
    )
    assert rows[1::2] == [good] * len(INVALID)
    assert [row["invalid_at"] for row in rows[::2]] == [[as_python(text)] for text in INVALID]
    empty = next(rows_of(graph([""])))
    assert all(row | {"invalid_at": [-1]} == empty for row in rows[::2])
    assert empty["offsets"] == [[0, 0]] * 2
    assert next(rows_of(graph.run({"TEXT": column([INVALID[0]])}))) == rows[0]


def test_random_bytes() -> None:
    rng = random.Random(8)
    pieces = [bytes([byte]) for byte in (0x80, 0xBF, 0xC2, 0xE0, 0xED, 0xF0, 0xF4, 0xA0, 0x9F)]
    pieces += [b"a", "é".encode(), "中".encode(), "😀".encode()] * 9
    texts = [b"".join(rng.choices(pieces, k=rng.randrange(1, 9))) + b"." for _ in range(3000)]
    graph = GraphTokenizer(known("uncased")[1], 16, library_under_test())
    found = graph.run({"TEXT": column(texts)})["invalid_at"][:, 0].tolist()
    assert found == [as_python(text) for text in texts]
    assert 0.1 < np.mean([at < 0 for at in found]) < 0.9


def test_invalid_utf8_in_a_pair_counts_on() -> None:
    graph = GraphTokenizer(known("uncased")[1], 16, library_under_test(), pairs=True)
    columns = {"TEXT": column([b"ab", b"a\xff", b"ab\xe4"]), "TEXT_PAIR": column([b"a\xffb", b"\xff", b"a"])}
    assert graph.run(columns)["invalid_at"].tolist() == [[3], [1], [2]]


def test_rows_of_one_text_among_pairs() -> None:
    """What `single` marks is read as if it had no second text, valid or not."""
    tables = known("uncased")[1]
    alone, pairs = (
        GraphTokenizer(tables, 16, library_under_test(), pairs=has, singles=has) for has in (False, True)
    )
    columns = {
        "TEXT": column([b"good film", b"good film", b"a\xff"]),
        "TEXT_PAIR": column([b"\xff", b"a b", b"a"]),
        "SINGLE": np.array([[True], [False], [True]]),
    }
    first, second, third = rows_of(pairs.run(columns))
    assert [first, third] == list(rows_of(alone.run({"TEXT": columns["TEXT"][[0, 2]]})))
    without = {name: values for name, values in columns.items() if name != "SINGLE"}
    both = GraphTokenizer(tables, 16, library_under_test(), pairs=True)
    assert second == list(rows_of(both.run(without)))[1]


@pytest.mark.parametrize("pairs", [False, True])
def test_a_batch_of_nothing(pairs: bool) -> None:
    graph = GraphTokenizer(known("uncased")[1], 16, library_under_test(), pairs=pairs, offsets=True)
    nothing = np.empty((0, 1), dtype=object)
    answer = graph.run({"TEXT": nothing} | ({"TEXT_PAIR": nothing} if pairs else {}))
    shapes = {name: array.shape for name, array in answer.items()}
    assert shapes == {
        "input_ids": (0,),
        "token_type_ids": (0,),
        "positions": (0,),
        "cu_seqlens": (1,),
        "token_count": (0, 1),
        "truncated": (0, 1),
        "invalid_at": (0, 1),
        "offsets": (0, 2),
    }


def test_offsets_that_the_node_names_but_leaves_out() -> None:
    model = shaped_model(known("uncased")[1], 16)
    model.graph.node[0].output.append("")
    session = open_session(model.SerializeToString(), library_under_test())
    assert session.run(["token_count"], feeds(["a b"]))[0].tolist() == [[4]]


def test_texts_of_rank_1() -> None:
    """The other tests' graphs have texts as a served model has them: `(B, 1)`."""
    graph = GraphTokenizer(known("uncased")[1], 16, library_under_test(), text_shape=["batch"])
    columns = {"TEXT": np.array(["a b", "film"], dtype=object)}
    assert [row["token_count"] for row in rows_of(graph.run(columns))] == [[4], [3]]
    assert graph.run(columns)["token_count"].shape == (2, 1)


def test_shapes_are_inferred() -> None:
    graph = GraphTokenizer(known("uncased")[1], 16, library_under_test(), output_shapes=False)
    shapes = {output.name: output.shape for output in graph.session.get_outputs()}
    assert {shapes[name] == ["batch", 1] for name in ("token_count", "truncated", "invalid_at")} == {True}


def test_reading_that_stops_early() -> None:
    """As tokenizers 0.23.1: both texts are of one length behind the cut, and the second has the odd token."""
    _, tables = known("uncased")
    tables = replace(tables, attributes=tables.attributes | {"stop_early": 1})
    texts = [("a " * 50, "b " * 40), ("a " * 40, "b " * 50), ("a " * 50, "b"), ("a " * 9, "b " * 7)]
    graph = GraphTokenizer(tables, 8, library_under_test(), pairs=True)
    firsts = [row["token_type_ids"].count(0) - 2 for row in rows_of(graph(texts))]
    assert firsts == [2, 2, 4, 3]


def minilm() -> Path:
    """Return the tokenizer of the demo's encoder."""
    command = [sys.executable, str(ROOT / "demo" / "encoder_path.py")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(answer.stderr.strip())
    return Path(answer.stdout.strip()) / "tokenizer.json"


def dev_rows(name: str, count: int) -> list[tuple[str, str]]:
    file = DATA / name / "dev.tsv"
    if not file.exists():
        pytest.skip("the data lies beside the project, in shared/data, alone")
    lines = file.read_text(encoding="utf-8").split("\n")[1 : count + 1]
    return [(line.split("\t")[0], line.split("\t")[1]) for line in lines if line]


def test_real_texts_with_a_real_vocabulary() -> None:
    tokenizer = Tokenizer.from_file(str(minilm()))
    tables = derive_tables(tokenizer)
    singles = [row[0] for name in ("sst2", "cola", "cfimdb") for row in dev_rows(name, 250)]
    pairs = [row for name in ("mrpc", "rte") for row in dev_rows(name, 200)]
    for max_length in (16, 17, 128):
        for texts in (singles, pairs):
            compare_with(tokenizer, tables, max_length, texts, offsets=max_length == 17)


def test_real_texts_with_a_trained_bpe() -> None:
    texts = [row[0] for name in ("sst2", "cfimdb") for row in dev_rows(name, 100)]
    tokenizer = byte_level_bpe(texts[:40], 1500)
    tables = derive_tables(tokenizer)
    for max_length in (16, 128):
        compare_with(tokenizer, tables, max_length, texts, offsets=max_length == 128)
