"""Patterns against their mathematics, written once more as sets in pure Python."""

import json
from collections.abc import Collection
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertConfig

from sparse_export.attention.measures import zero_shares
from sparse_export.attention.patterns import LayerPattern, Pattern, random_keys
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.patterned import forced
from sparse_export.encoders.spec import ModelSpec, store_attention
from sparse_serve.errors import CheckpointError, OptionError
from tiny_models import LAYERS, make_model

PRIME = 2**31 - 1

LAYER_PATTERNS = st.builds(
    LayerPattern,
    diagonals=st.lists(st.integers(0, 30), max_size=5).map(tuple),
    global_size=st.integers(0, 4),
    random_keys=st.integers(0, 6),
    seed=st.integers(0, 2**40),
)
FLAGS = st.lists(st.booleans(), min_size=24, max_size=24)


def mix(x: int) -> int:
    return pow((x + 1580030168) % PRIME, 5, PRIME)


def key_of(seed: int, row: int, draw: int, length: int) -> int:
    of_row = mix((mix(seed % PRIME) + row + 1) % PRIME)
    return mix((of_row + draw + 1) % PRIME) % length


def brute_force(
    pattern: LayerPattern, length: int, rows: Collection[int] = (), columns: Collection[int] = ()
) -> set[tuple[int, int]]:
    """The allowed pairs of a sequence, asked one by one."""
    first = set(range(pattern.global_size))
    pairs = set()
    for i in range(length):
        drawn = {key_of(pattern.seed, i, draw, length) for draw in range(pattern.random_keys)}
        for j in range(length):
            on_axis = i in first.union(rows) or j in first.union(columns)
            if on_axis or abs(i - j) in pattern.diagonals or j in drawn:
                pairs.add((i, j))
    return pairs


def as_set(pairs: Tensor) -> set[tuple[int, int]]:
    return {(i, j) for i, j in pairs.nonzero().tolist()}


@given(LAYER_PATTERNS, st.lists(st.integers(0, 24), min_size=1, max_size=3), FLAGS, FLAGS)
def test_allowed_pairs_are_those_of_the_mathematics(
    pattern: LayerPattern, lengths: list[int], rows: list[bool], columns: list[bool]
) -> None:
    """Several sequences in one padded batch, whose rows and columns differ by sequence."""
    flags = [torch.tensor([each[n:] + each[:n] for n in range(len(lengths))]) for each in (rows, columns)]
    ranks = torch.arange(24).expand(len(lengths), -1)
    pairs = pattern.allowed(ranks, torch.tensor(lengths), *flags)
    fixed = pattern.allowed(ranks, torch.tensor(lengths))
    for index, length in enumerate(lengths):
        on_rows, on_columns = (each[index, :length] for each in flags)
        places = [set(on.nonzero().flatten().tolist()) for on in (on_rows, on_columns)]
        expected = brute_force(pattern, length, *places)
        assert as_set(pairs[index, :length, :length]) == expected
        assert pattern.size(length, on_rows, on_columns) == len(expected)
        expected = brute_force(pattern, length)
        assert as_set(fixed[index, :length, :length]) == expected
        assert pattern.size(length) == len(expected)


@pytest.mark.parametrize("length", [1, 2, 511, 4096])
def test_sizes_of_long_texts(length: int) -> None:
    """In closed form: a band of local w has N + 2(N − 1) + … pairs; axes cross once."""
    for w in (0, 2, length - 1, 5000):
        band = sum((1 if k == 0 else 2) * max(length - k, 0) for k in range(w + 1))
        assert LayerPattern(diagonals=tuple(range(w + 1))).size(length) == band
    for g in (1, length):
        assert LayerPattern(global_size=g).size(length) == length**2 - (length - g) ** 2
    everything = torch.ones(length, dtype=torch.bool)
    assert LayerPattern().size(length, everything, ~everything) == length**2
    assert LayerPattern().size(length, ~everything, everything) == length**2
    assert LayerPattern().size(length) == 0


def test_a_hidden_first_token_reads_from_rank_minus_one() -> None:
    """It is before the first of its sequence: distances count from −1, and global rows hold for it."""
    ranks, lengths = torch.tensor([[-1, 0, 1, 2, 3]]), torch.tensor([4])
    local = LayerPattern(diagonals=(0, 1, 2)).allowed(ranks, lengths)[0, 0, 1:]
    assert local.tolist() == [True, True, False, False]
    assert LayerPattern(global_size=1).allowed(ranks, lengths)[0, 0, 1:].all()
    assert not LayerPattern().allowed(ranks, lengths).any()
    drawn = LayerPattern(random_keys=2, seed=9).allowed(ranks, lengths)[0, 0, 1:]
    assert set(drawn.nonzero().flatten().tolist()) == {key_of(9, -1, draw, 4) for draw in (0, 1)}


def test_random_keys_are_these_numbers() -> None:
    """Graphs that were exported keep the keys they were trained with: the hash must never change."""
    keys = random_keys(0, torch.tensor([-1, 0, 1]), 3, torch.tensor([1000]))
    assert keys.tolist() == [[key_of(0, row, draw, 1000) for draw in range(3)] for row in (-1, 0, 1)]
    assert keys.tolist() == [[232, 297, 242], [490, 356, 965], [67, 932, 959]]


@given(st.integers(0, 2**62), st.lists(st.integers(-1, 2**20), min_size=1, max_size=9), st.integers(1, 2**20))
def test_random_keys_are_the_hash(seed: int, rows: list[int], length: int) -> None:
    keys = random_keys(seed, torch.tensor(rows), 4, torch.tensor([length]))
    assert keys.tolist() == [[key_of(seed, row, draw, length) for draw in range(4)] for row in rows]


def test_random_keys_spread_over_the_sequence() -> None:
    keys = random_keys(1, torch.arange(4096), 2, torch.tensor([64]))
    counts = torch.bincount(keys.flatten(), minlength=64)
    # 8192 draws among 64 keys: 128 each, with a deviation of 11.
    assert (counts - 128).abs().max() < 5 * 11.3
    assert (random_keys(2, torch.arange(4096), 2, torch.tensor([64])) != keys).float().mean() > 0.9
    assert (keys[:, 0] != keys[:, 1]).float().mean() > 0.9


# Three texts of 5, 3 and 1 tokens. Local1+Global1 of 5: a band of 13, 3 more in the first row, 3 in the first
# column. Rows {1}, columns {3} with local 0 of 5: 5 on the diagonal, 4 more in the row, 4 in the column, of
# which the one where they cross is in the row already.
@pytest.mark.parametrize(
    ("name", "rows", "columns", "allowed"),
    [
        ("local1+global1", (), (), (19, 9, 1)),
        ("local0", (), (), (5, 3, 1)),
        ("global1", (), (), (9, 5, 1)),
        ("axis+local0", (1,), (3,), (12, 5, 1)),
        ("axis+local0", (0, 1, 2, 3, 4), (), (25, 9, 1)),
    ],
)
def test_rho_is_equation_9_by_hand(
    name: str, rows: tuple[int, ...], columns: tuple[int, ...], allowed: tuple[int, ...]
) -> None:
    model = make_model(AttentionSpec.parse(name, None)).eval()
    model.set_attn_implementation("axis")
    lengths = torch.tensor([5, 3, 1])
    mask = (torch.arange(5) < lengths[:, None]).long()
    ids = torch.arange(5, 20).view(3, 5)
    on = [torch.isin(torch.arange(5), torch.tensor(each)).expand(3, 5) for each in (rows, columns)]
    with torch.no_grad(), forced(model, [(on[0], on[1])] * LAYERS):
        attentions = model(ids, attention_mask=mask, output_attentions=True).attentions
    expected = [
        float(1 - Fraction(pairs, length**2)) for pairs, length in zip(allowed, (5, 3, 1), strict=True)
    ]
    torch.testing.assert_close(zero_shares(attentions, mask), torch.tensor([expected] * LAYERS).T)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("local2+global2", LayerPattern((0, 1, 2), 2, 0, 1)),
        ("local2+global1+random1", LayerPattern((0, 1, 2), 1, 2, 1)),
        ("local3+global1", LayerPattern((0, 1, 2, 3), 1, 0, 1)),
        ("local1+global1+random2", LayerPattern((0, 1), 1, 4, 1)),
        ("diagonal+global1", LayerPattern((0,), 1, 0, 1)),
        ("layer-diagonal", LayerPattern((0,), 0, 0, 1)),
        ("axis", LayerPattern((0, 1, 2), 0, 0, 1)),
        ("axis+local2", LayerPattern((0, 1, 2), 0, 0, 1)),
        ("axis+global1", LayerPattern((), 1, 0, 1)),
        ("local0", LayerPattern((0,), 0, 0, 1)),
    ],
)
def test_names_of_the_paper(name: str, layer: LayerPattern) -> None:
    pattern = Pattern.parse(name)
    assert pattern.layer(1) == layer
    assert Pattern.parse(name.title()) == pattern
    assert pattern.learns == ("axis" in name or "diagonal" in name)


@given(
    st.booleans(),
    st.sampled_from([None, "task", "layer"]),
    st.none() | st.integers(0, 99),
    st.integers(0, 99),
    st.integers(0, 99),
)
def test_names_come_back(
    axis: bool, diagonal: str | None, local: int | None, global_size: int, random: int
) -> None:
    if (diagonal, local, global_size, random) == (None, None, 0, 0):
        return  # "axis" stands for more, and nothing at all has no name
    pattern = Pattern(axis, diagonal, local, global_size, random)  # type: ignore[arg-type]
    assert Pattern.parse(pattern.name) == pattern
    assert Pattern.parse("+".join(reversed(pattern.name.split("+")))) == pattern


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no meaning at ''"),
        ("local", "no meaning at 'local'"),
        ("local2+", "no meaning at ''"),
        ("local-1", "no meaning at 'local-1'"),
        ("local2 + global1", "no meaning at 'local2 '"),
        ("local2,global1", "no meaning at 'local2,global1'"),
        ("window3", "accepted: .*axis, diagonal, layer-diagonal, localN, globalN and randomN"),
        ("axis2", "no meaning at 'axis2'"),
        ("local99999999", "no meaning at 'local99999999'"),
        ("local²", "no meaning"),
        ("softmax+local2", "softmax is not joined to a pattern"),
        ("local2+local3", "contradicts itself: 'local2' and 'local3'"),
        ("local2+local2", "contradicts itself"),
        ("axis+axis", "contradicts itself"),
        ("diagonal+layer-diagonal", "contradicts itself: 'diagonal' and 'layer-diagonal'"),
        ("local2+global0", "global0 allows nothing"),
        ("random0", "random0 allows nothing"),
    ],
)
def test_names_without_a_meaning(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        AttentionSpec.parse(text, None)
    assert str(raised.value).count("\n") == 0


@pytest.mark.parametrize(
    ("pattern", "tokens", "largest"),
    [
        (Pattern(local=8), 8, "the local size 8 .* at most 7"),
        (Pattern(global_size=9), 8, "the global size 9 .* at most 8"),
        (Pattern(random=9), 8, "the random size 9 .* at most 8"),
        (Pattern(offsets=((0, 2), (8,))), 8, "the offset size 8 .* at most 7"),
        (Pattern(axis=True, local=2), 2, r"of attention axis\+local2 is larger than the length"),
    ],
)
def test_what_no_text_can_use_is_refused(pattern: Pattern, tokens: int, largest: str) -> None:
    with pytest.raises(OptionError, match=largest):
        pattern.require_within(tokens)
    pattern.require_within(tokens + 1)


@pytest.mark.parametrize(
    "pattern",
    [
        Pattern.parse("axis"),
        Pattern.parse("local2+global1+random1", seed=7),
        Pattern.parse("layer-diagonal+global1"),
        Pattern(offsets=((0, 3), (1,)), global_size=1),
    ],
)
@pytest.mark.parametrize("lambd", [None, -4.0])
def test_configs_remember_it(pattern: Pattern, lambd: float | None, tmp_path: Path) -> None:
    spec, config = AttentionSpec(lambd, pattern), BertConfig()
    store_attention(config, spec)
    config.save_pretrained(tmp_path)
    assert ModelSpec.of(BertConfig.from_pretrained(tmp_path)).attention == spec
    stored = json.loads((tmp_path / "config.json").read_text())["sparse_serve"]["attention"]
    assert stored["normalizer"] == ("softmax" if lambd is None else "sparsegen")


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        7,
        {"local": -1},
        {"local": 2.0},
        {"local": "2"},
        {"local": ""},
        {"global_size": True},
        {"random": None},
        {"axis": "yes"},
        {"diagonal": "head"},
        {"offsets": [3]},
        {"offsets": [[-3]]},
        {"offsets": [[]]},
        {"local": 2, "seed": -1},
        {"local": 2, "stride": 4},
    ],
)
def test_configs_that_make_no_sense(stored: object) -> None:
    config = BertConfig()
    config.sparse_attention = {"kind": "axis", "lambd": None, "pattern": stored}
    with pytest.raises(CheckpointError, match="sparse_attention is"):
        ModelSpec.of(config)


def test_offsets_are_one_set_for_all_layers_or_one_for_each() -> None:
    assert {Pattern(offsets=((3, 1, 3),)).layer(k).diagonals for k in range(9)} == {(1, 3)}
    each = Pattern(offsets=((1,), (2, 5)), local=0)
    assert [each.layer(k).diagonals for k in range(2)] == [(0, 1), (0, 2, 5)]
    assert [each.layer(k).seed for k in range(2)] == [0, 1]


def test_an_offset_beyond_the_sequence_costs_nothing() -> None:
    ranks = torch.arange(5)[None]
    near, far = (LayerPattern(diagonals=offsets) for offsets in ((1,), (1, 2**60)))
    lengths = torch.tensor([5])
    assert torch.equal(near.allowed(ranks, lengths), far.allowed(ranks, lengths))
    assert near.size(5) == far.size(5) == 8
