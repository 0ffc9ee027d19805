"""Attention maps: what is in them, and that their zeros are the projection's own."""

from dataclasses import replace
from pathlib import Path

import entmax
import numpy as np
import onnxruntime
import pytest
import torch
from inspecting import make_checkpoint

from sparse_export.attention.masks import LayerMask
from sparse_export.attention.measures import zero_share
from sparse_export.attention.patterns import LayerPattern
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import Exported
from sparse_export.inspection.allowed import allowed_pairs
from sparse_export.inspection.inspecting import InspectedText, InspectOptions, Inspector
from sparse_export.inspection.maps import attention_maps, received, select_attention
from sparse_export.inspection.summary import TokenAt, ranges, summarize
from sparse_export.inspection.tokens import tokenize
from sparse_serve.errors import CheckpointError, OptionError
from sparse_serve.tasks import Classification, MultiLabel, Regression, Task
from tiny_models import FAMILIES, HEADS, LABELS, LAMBD, LAYERS, POSITIONS

TEXT = "a warm film, isn't it?"
LAMBDAS = (0.0, -4.0)
AXIS = AttentionSpec.parse("axis", None)


@pytest.fixture(scope="module")
def inspector(checkpoint: Path) -> Inspector:
    return Inspector(InspectOptions(str(checkpoint), LAMBDAS))


@pytest.fixture(scope="module")
def inspected(inspector: Inspector) -> InspectedText:
    return inspector.inspect(TEXT)


@pytest.fixture(scope="module", params=FAMILIES)
def family_checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("families") / request.param
    return make_checkpoint(folder, AttentionSpec(LAMBD), request.param)


@pytest.mark.parametrize("pair", ["", "not at all."])
def test_every_family_hands_out_the_weights_it_attends_with(family_checkpoint: str, pair: str) -> None:
    inspector = Inspector(InspectOptions(family_checkpoint, LAMBDAS))
    inspected = inspector.inspect(TEXT, pair)
    length = len(inspected.text.tokens)
    for variant, maps in zip(inspector.variants, inspected.maps, strict=True):
        # The same attention in a model that was loaded with it, and never switched.
        fresh = load_checkpoint(family_checkpoint, variant.attention)
        if variant.attention.is_dense:
            fresh.set_attn_implementation("eager")
        with torch.no_grad():
            outputs = fresh(**inspected.text.inputs, output_attentions=True)
        expected = torch.stack([layer[0] for layer in outputs.attentions]).numpy()
        assert maps.weights.shape == (LAYERS, HEADS, length, length)
        np.testing.assert_allclose(maps.weights, expected, atol=1e-6)
        np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(
            list(maps.prediction.scores.values()), outputs.logits[0].softmax(0).numpy(), atol=1e-5
        )


def test_zeros_are_those_of_the_projection(inspector: Inspector, inspected: InspectedText) -> None:
    """All variants see the same scores in the first layer: log softmax, up to a constant per query."""
    softmax, *sparse = inspected.maps
    scores = torch.from_numpy(softmax.weights[0]).double().log()
    for variant, maps in zip(inspector.variants[1:], sparse, strict=True):
        assert variant.attention.lambd is not None
        expected = entmax.sparsemax(scores / (1 - variant.attention.lambd), dim=-1).numpy()
        np.testing.assert_allclose(maps.weights[0], expected, atol=1e-5)
        differing = (maps.weights[0] == 0) != (expected == 0)
        assert (expected[differing] < 1e-5).all()
        assert (maps.weights[0] == 0).any()


def test_softmax_has_no_zeros_even_where_it_underflows(checkpoint: Path) -> None:
    model = load_checkpoint(checkpoint)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query.weight" in name:
                parameter.mul_(1000)
    text = tokenize(model, load_tokenizer(checkpoint), TEXT, "", 64)
    select_attention(model, AttentionSpec())
    with torch.no_grad():
        raw = model(**text.inputs, output_attentions=True).attentions[0]
    maps = attention_maps(model, text)
    assert (raw == 0).any()
    assert (maps.weights > 0).all()
    assert maps.rho == (0.0,) * LAYERS


def test_rho_and_support_are_counts_of_zeros(inspected: InspectedText) -> None:
    for maps in inspected.maps:
        length = maps.weights.shape[-1]
        for layer, weights in enumerate(maps.weights):
            zeros = sum(weight == 0 for weight in weights.ravel().tolist())
            assert maps.rho[layer] == pytest.approx(zeros / (HEADS * length**2), abs=1e-6)
            assert maps.support[layer].mean() == pytest.approx((1 - maps.rho[layer]) * length, abs=1e-4)
    dense, *sparse = inspected.maps
    assert (dense.support == len(inspected.text.tokens)).all()
    assert all(rho > 0 for maps in sparse for rho in maps.rho)


def test_padding_changes_nothing(checkpoint: Path) -> None:
    model = load_checkpoint(checkpoint)
    text = tokenize(model, load_tokenizer(checkpoint), TEXT, "", 64)
    maps = attention_maps(model, text)
    inputs = {name: torch.nn.functional.pad(ids, (0, 5)) for name, ids in text.inputs.items()}
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    length = len(text.tokens)
    padded = torch.stack([layer[0] for layer in attentions])
    np.testing.assert_allclose(maps.weights, padded[..., :length, :length].numpy(), atol=1e-5)
    shares = [zero_share(layer, inputs["attention_mask"]).item() for layer in attentions]
    assert maps.rho == pytest.approx(shares, abs=1e-3)


def test_rho_is_what_the_exported_graph_answers(exported: Exported, checkpoint: Path) -> None:
    inspected = Inspector(InspectOptions(str(checkpoint))).inspect(TEXT)
    graph = exported.path.with_name("tiny_model") / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (rho,) = session.run(["rho"], {name: ids.numpy() for name, ids in inspected.text.inputs.items()})
    (maps,) = inspected.maps
    # A weight at the threshold may round to the other side in another runtime.
    length = len(inspected.text.tokens)
    *before_last, _ = maps.rho
    np.testing.assert_allclose(before_last, rho[0, :-1], atol=1.5 / (HEADS * length**2))
    # Of the last layer the graph computes the first token's query.
    np.testing.assert_allclose(np.mean(maps.weights[-1][:, 0] == 0), rho[0, -1], atol=1.5 / (HEADS * length))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_never_allowed_is_exactly_zero(tmp_path: Path, family: str) -> None:
    folder = make_checkpoint(tmp_path / family, AXIS, family)
    inspector = Inspector(InspectOptions(folder, (0.0,)))
    inspected = inspector.inspect(TEXT, "not at all.")
    softmax, sparse = inspected.maps
    fresh = load_checkpoint(folder)
    with torch.no_grad():
        outputs = fresh(**inspected.text.inputs, output_attentions=True)
    expected = torch.stack([layer[0] for layer in outputs.attentions]).numpy()
    np.testing.assert_allclose(softmax.weights, expected, atol=1e-6)
    for maps in inspected.maps:
        assert maps.allowed is not None
        assert ((maps.weights == 0) | maps.allowed.pairs[:, None]).all()
        np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-5)
        assert 0 < maps.allowed.pairs[0].mean() < 1
    # Softmax has a weight for whatever is allowed; sparsegen-lin leaves out some of it.
    assert softmax.allowed is not None
    assert ((softmax.weights > 0) == softmax.allowed.pairs[:, None]).all()
    assert softmax.rho == pytest.approx(softmax.allowed.rho, abs=1e-6)
    assert sparse.allowed is not None
    assert sparse.rho[0] > sparse.allowed.rho[0] == softmax.allowed.rho[0]
    scores = torch.from_numpy(softmax.weights[0]).double().log()
    expected = entmax.sparsemax(scores.clamp_min(-1e9), dim=-1).numpy()
    np.testing.assert_allclose(sparse.weights[0], expected, atol=1e-5)


def test_weights_that_underflow_are_told_from_those_never_allowed(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "aaa", AXIS)
    model = load_checkpoint(folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query.weight" in name:
                parameter.mul_(1000)
    text = tokenize(model, load_tokenizer(folder), TEXT, "", 64)
    maps = attention_maps(model, text)
    assert maps.allowed is not None
    with torch.no_grad():
        raw = model(**text.inputs, output_attentions=True).attentions[0][0].numpy()
    assert (raw == 0)[:, maps.allowed.pairs[0]].any()
    assert ((maps.weights > 0) == maps.allowed.pairs[:, None]).all()


@pytest.mark.parametrize("name", ["axis+global1", "local2+global2", "layer-diagonal+random1", "diagonal"])
def test_allowed_pairs_are_what_their_parts_allow(tmp_path: Path, name: str) -> None:
    spec = AttentionSpec.parse(name, None)
    inspected = Inspector(InspectOptions(make_checkpoint(tmp_path / "own", spec))).inspect(TEXT)
    (maps,), length = inspected.maps, len(inspected.text.tokens)
    allowed = maps.allowed
    assert allowed is not None
    assert spec.pattern is not None
    global_size = spec.pattern.global_size
    for layer in range(LAYERS):
        rows, columns = allowed.rows[layer], allowed.columns[layer]
        assert rows[:global_size].all()
        assert columns[:global_size].all()
        band = spec.pattern.layer(layer)
        drawn = replace(band, diagonals=(), global_size=0).allowed(
            torch.arange(length)[None], torch.tensor([length])
        )[0]
        for i in range(length):
            for j in range(length):
                near = abs(i - j) in allowed.diagonals[layer]
                expected = bool(rows[i] or columns[j] or near or drawn[i, j])
                assert allowed.pairs[layer, i, j] == expected


def test_rho_with_and_without_the_band_by_hand() -> None:
    """Four tokens, row 1 and column 3: 7 of 16 pairs, to which the diagonal adds those of 0 and 2."""
    row, column = (torch.arange(4)[None] == place for place in (1, 3))
    band = LayerPattern(diagonals=(0,))
    first = allowed_pairs([LayerMask(band, row, column)], 4)
    assert (first.rho, first.rho_without_band) == ([1 - 9 / 16], [1 - 7 / 16])
    # Distance 2 has 4 pairs, of which (1, 3) is allowed by both its row and its column.
    diagonals = torch.tensor([False, False, True, False, False])
    both = allowed_pairs(
        [LayerMask(band, row, column, diagonals), LayerMask(band, row, column, ~diagonals)], 4
    )
    assert both.rho[0] == 1 - 12 / 16
    assert both.rho_without_band is not None
    assert both.rho_without_band[0] == 1 - 10 / 16
    assert both.diagonals == ((0, 2), (0, 1, 3))
    fixed = allowed_pairs([LayerMask(LayerPattern(diagonals=(0,), global_size=1))], 4)
    assert (fixed.rho, fixed.rho_without_band) == ([1 - 10 / 16], None)
    assert fixed.rows.tolist() == fixed.columns.tolist() == [[True, False, False, False]]


def test_summaries_name_the_tokens_that_are_on(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "aaa", AttentionSpec.parse("axis+global1", None))
    inspector = Inspector(InspectOptions(folder, None))
    inspected = inspector.inspect(TEXT)
    full, own = summarize(inspector.variants, inspected).variants
    assert full.pattern is None
    assert own.pattern is not None
    allowed = inspected.maps[1].allowed
    assert allowed is not None
    for shares, tokens, flags in (
        (own.pattern.rows_on, own.pattern.rows, allowed.rows),
        (own.pattern.columns_on, own.pattern.columns, allowed.columns),
    ):
        for share, on, expected in zip(shares, tokens, flags, strict=True):
            assert share == pytest.approx(len(on) / len(inspected.text.tokens))
            assert [each.place for each in on] == expected.nonzero()[0].tolist()
            assert on[0] == TokenAt(0, "[CLS]")
            assert all(inspected.text.tokens[each.place] == each.token for each in on)
    assert own.pattern.rho == allowed.rho
    assert own.pattern.diagonals == [[]] * LAYERS


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((4,), "4"), ((0, 1, 2, 7), "0–2, 7"), ((1, 3, 4, 9, 10), "1, 3–4, 9–10")],
)
def test_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


def test_views(inspected: InspectedText) -> None:
    for maps in inspected.maps:
        mean = maps.view(1, None)
        np.testing.assert_allclose(mean.sum(-1), 1, atol=1e-5)
        assert ((mean == 0) == (maps.weights[1] == 0).all(0)).all()
        assert (maps.view(1, 2) == maps.weights[1, 2]).all()
        assert received(mean).sum() == pytest.approx(1, abs=1e-5)
        assert (maps.read_by_head == maps.weights[-1].mean(0)[0]).all()
        assert (maps.received == maps.weights[-1].mean(0).mean(0)).all()


@pytest.mark.parametrize(
    ("family", "single", "pair"),
    [
        ("bert", "[CLS] o ##h , n ##o [SEP]", "[CLS] o ##h [SEP] n ##o [SEP]"),
        ("roberta", "<s> o h , Ġ n o </s>", "<s> o h </s> </s> n o </s>"),
        ("camembert", "<s> ▁ o h , ▁ n o </s>", "<s> ▁ o h </s> </s> ▁ n o </s>"),
        ("xlm-roberta", "<s> ▁ o h , ▁ n o </s>", "<s> ▁ o h </s> </s> ▁ n o </s>"),
    ],
)
def test_tokens_have_readable_names(tmp_path: Path, family: str, single: str, pair: str) -> None:
    folder = make_checkpoint(tmp_path / family, AttentionSpec(), family)
    model, tokenizer = load_checkpoint(folder), load_tokenizer(folder)
    assert " ".join(tokenize(model, tokenizer, "oh, no", "", 32).tokens) == single
    assert " ".join(tokenize(model, tokenizer, "oh", "no", 32).tokens) == pair


def test_tokens_of_bytes_are_shown_as_their_text(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "roberta", AttentionSpec(), "roberta")
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["é"])
    text = tokenize(load_checkpoint(folder), tokenizer, "café", "", 32)
    assert text.tokens == ("<s>", "c", "a", "f", "é", "</s>")


def test_a_tokenizer_of_more_tokens_than_are_embedded_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "bert", AttentionSpec())
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens([f"more{number}" for number in range(99)])
    tokenizer.save_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"token 'more98' has id \d+, the encoder embeds ids below"):
        Inspector(InspectOptions(folder))


def test_long_texts_are_cut_and_say_so(checkpoint: Path) -> None:
    inspector = Inspector(InspectOptions(str(checkpoint)))
    text = inspector.inspect("x" * 99 + " y" * 999).text
    assert (len(text.tokens), text.truncated) == (POSITIONS, True)
    assert not inspector.inspect("").text.truncated
    short = Inspector(InspectOptions(str(checkpoint), max_length=4)).inspect("a film", "or two").text
    assert (short.tokens, short.truncated) == (("[CLS]", "[SEP]", "o", "[SEP]"), True)


@pytest.mark.parametrize(
    ("task", "label", "scores"),
    [
        (Classification(LABELS), "positive", (0.0049, 0.2676, 0.7275)),
        (MultiLabel(LABELS), '["neutral", "positive"]', (0.0474, 0.7311, 0.8808)),
        (Regression(("score",)), "-3.0", (-3.0,)),
    ],
)
def test_answers_follow_the_task(checkpoint: Path, task: Task, label: str, scores: tuple[float, ...]) -> None:
    model = load_checkpoint(checkpoint)
    ModelSpec.of(model.config).with_tasks(task).store(model.config)
    model.classifier = torch.nn.Linear(64, task.width)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([-3.0, 1.0, 2.0][: task.width]))
    answer = attention_maps(model, tokenize(model, load_tokenizer(checkpoint), TEXT, "", 64)).prediction
    assert answer.label == label
    assert answer.scores == pytest.approx(dict(zip(task.labels, scores, strict=True)), abs=1e-4)


@pytest.mark.parametrize(
    ("own", "lambdas", "names"),
    [
        (AttentionSpec(LAMBD), (0.0, -4.0, -4.0), ["softmax", "λ = −4", "λ = −1*", "λ = 0"]),
        (AttentionSpec(LAMBD), (LAMBD,), ["softmax", "λ = −1*"]),
        (AttentionSpec(), (0.5,), ["softmax*", "λ = 0.5"]),
        (AttentionSpec(), (), ["softmax*"]),
        (AttentionSpec(), None, ["softmax*", "λ = −7", "λ = −4", "λ = 0"]),
        (AXIS, (), ["AAA (axis+local2)*"]),
        (AXIS, None, ["softmax", "AAA (axis+local2)*"]),
        (
            AttentionSpec.parse("local1+global1+random2", -1.0),
            (-4.0, -1.0),
            [
                "local1+global1+random2",
                "local1+global1+random2, λ = −4",
                "local1+global1+random2, λ = −1*",
            ],
        ),
    ],
)
def test_variants_go_from_dense_to_sparse(
    tmp_path: Path, own: AttentionSpec, lambdas: tuple[float, ...] | None, names: list[str]
) -> None:
    variants = Inspector(InspectOptions(make_checkpoint(tmp_path / "own", own), lambdas)).variants
    shown = [variant.name.removeprefix("SSAF, ") + "*" * variant.as_trained for variant in variants]
    assert shown == names


def test_checkpoints_stand_beside_each_other(checkpoint: Path, tmp_path: Path) -> None:
    dense = make_checkpoint(tmp_path / "dense", AttentionSpec())
    inspector = Inspector(InspectOptions(str(checkpoint), beside=(dense, str(checkpoint))))
    assert [variant.name for variant in inspector.variants] == ["checkpoint: SSAF, λ = −1", "dense: softmax"]
    assert all(variant.as_trained for variant in inspector.variants)
    sparse, softmax = summarize(inspector.variants, inspector.inspect(TEXT)).variants
    assert (sparse.checkpoint, softmax.checkpoint) == (str(checkpoint), dense)
    assert min(sparse.rho) > 0 == max(softmax.rho)


def test_patterns_stand_beside_each_other(tmp_path: Path) -> None:
    names = ("axis", "local2+global2", "softmax")
    first, *others = (make_checkpoint(tmp_path / name, AttentionSpec.parse(name, None)) for name in names)
    inspector = Inspector(InspectOptions(first, None, beside=tuple(others)))
    assert [variant.name for variant in inspector.variants] == [
        "axis: AAA (axis+local2)",
        "local2+global2: local2+global2",
        "softmax: softmax",
    ]
    learned, fixed, full = (maps.allowed for maps in inspector.inspect(TEXT).maps)
    assert learned is not None
    assert fixed is not None
    assert full is None
    assert learned.rho_without_band is not None
    assert fixed.rho_without_band is None
    assert fixed.rho[0] == fixed.rho[1]


def test_checkpoints_of_one_name_are_told_apart(checkpoint: Path, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "checkpoint", AttentionSpec())
    variants = Inspector(InspectOptions(str(checkpoint), beside=(other,))).variants
    assert [variant.name.split(":")[0] for variant in variants] == [str(checkpoint), other]


def test_checkpoints_that_do_not_compare(checkpoint: Path, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "roberta", AttentionSpec(), "roberta")
    inspector = Inspector(InspectOptions(str(checkpoint), beside=(other,)))
    with pytest.raises(CheckpointError, match=r"roberta reads the text as other tokens than .*checkpoint"):
        inspector.inspect(TEXT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambdas": (1.0,)}, r"below 1, got 1\.0"),
        ({"layer": 2}, "--layer 3 is out of range: the checkpoint has layers 1 to 2"),
        ({"head": 4}, "--head 5 is out of range: the checkpoint has heads 1 to 4"),
        ({"max_length": 161}, "--max-length 161 is out of range"),
        ({"max_length": 2}, "--max-length 2 is out of range"),
    ],
)
def test_options_out_of_range(checkpoint: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Inspector(InspectOptions(str(checkpoint), **options))  # type: ignore[arg-type]
