"""Attention maps: what is in them, and that their zeros are the projection's own."""

from pathlib import Path

import entmax
import numpy as np
import onnxruntime
import pytest
import torch
from inspecting import save_checkpoint

from sparse_export.attention import zero_share
from sparse_export.checkpoint import AttentionSpec, load_classifier, load_tokenizer
from sparse_export.exporting import Exported
from sparse_export.inspection.inspecting import InspectedText, InspectOptions, Inspector
from sparse_export.inspection.maps import attention_maps, received, select_attention
from sparse_export.inspection.summary import summarize
from sparse_export.inspection.tokens import tokenize
from sparse_serve.errors import CheckpointError, OptionError
from tiny_models import FAMILIES, HEADS, LABELS, LAMBD, LAYERS, POSITIONS

TEXT = "a warm film, isn't it?"
LAMBDAS = (0.0, -4.0)


@pytest.fixture(scope="module")
def inspector(checkpoint: Path) -> Inspector:
    return Inspector(InspectOptions(str(checkpoint), LAMBDAS))


@pytest.fixture(scope="module")
def inspected(inspector: Inspector) -> InspectedText:
    return inspector.inspect(TEXT)


@pytest.fixture(scope="module", params=FAMILIES)
def family_checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("families") / request.param
    return save_checkpoint(folder, AttentionSpec("sparsegen", LAMBD), request.param)


@pytest.mark.parametrize("pair", ["", "not at all."])
def test_every_family_hands_out_the_weights_it_attends_with(family_checkpoint: str, pair: str) -> None:
    inspector = Inspector(InspectOptions(family_checkpoint, LAMBDAS))
    inspected = inspector.inspect(TEXT, pair)
    length = len(inspected.text.tokens)
    for variant, maps in zip(inspector.variants, inspected.maps, strict=True):
        # The same attention in a model that was loaded with it, and never switched.
        fresh = load_classifier(family_checkpoint, variant.attention)
        if variant.attention.kind == "softmax":
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
    model = load_classifier(checkpoint)
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
    model = load_classifier(checkpoint)
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
    np.testing.assert_allclose(maps.rho, rho[0], atol=1.5 / (HEADS * length**2))


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
    folder = save_checkpoint(tmp_path / family, AttentionSpec(), family)
    model, tokenizer = load_classifier(folder), load_tokenizer(folder)
    assert " ".join(tokenize(model, tokenizer, "oh, no", "", 32).tokens) == single
    assert " ".join(tokenize(model, tokenizer, "oh", "no", 32).tokens) == pair


def test_tokens_of_bytes_are_shown_as_their_text(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "roberta", AttentionSpec(), "roberta")
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["é"])
    text = tokenize(load_classifier(folder), tokenizer, "café", "", 32)
    assert text.tokens == ("<s>", "c", "a", "f", "é", "</s>")


def test_long_texts_are_cut_and_say_so(checkpoint: Path) -> None:
    inspector = Inspector(InspectOptions(str(checkpoint)))
    text = inspector.inspect("x" * 99 + " y" * 999).text
    assert (len(text.tokens), text.truncated) == (POSITIONS, True)
    assert not inspector.inspect("").text.truncated
    short = Inspector(InspectOptions(str(checkpoint), max_length=3)).inspect("a film", "or two").text
    assert (short.tokens, short.truncated) == (("[CLS]", "[SEP]", "[SEP]"), True)


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        ("single_label_classification", LABELS),
        ("multi_label_classification", LABELS),
        ("regression", ("score",)),
        (None, LABELS),
    ],
)
def test_answers_follow_the_problem_type(
    checkpoint: Path, problem_type: str | None, labels: tuple[str, ...]
) -> None:
    model = load_classifier(checkpoint)
    model.config.id2label = dict(enumerate(labels))
    model.config.problem_type = problem_type
    model.classifier = torch.nn.Linear(64, len(labels))
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([-3.0, 1.0, 2.0][: len(labels)]))
    answer = attention_maps(model, tokenize(model, load_tokenizer(checkpoint), TEXT, "", 64)).prediction
    expected = {
        "multi_label_classification": ('["neutral", "positive"]', (0.0474, 0.7311, 0.8808)),
        "regression": ("-3.0", (-3.0,)),
    }.get(problem_type or "", ("positive", (0.0049, 0.2676, 0.7275)))
    assert answer.label == expected[0]
    assert answer.scores == pytest.approx(dict(zip(labels, expected[1], strict=True)), abs=1e-4)


@pytest.mark.parametrize(
    ("own", "lambdas", "names"),
    [
        (AttentionSpec("sparsegen", LAMBD), (0.0, -4.0, -4.0), ["softmax", "λ = −4", "λ = −1*", "λ = 0"]),
        (AttentionSpec("sparsegen", LAMBD), (LAMBD,), ["softmax", "λ = −1*"]),
        (AttentionSpec(), (0.5,), ["softmax*", "λ = 0.5"]),
        (AttentionSpec(), (), ["softmax*"]),
    ],
)
def test_variants_go_from_dense_to_sparse(
    tmp_path: Path, own: AttentionSpec, lambdas: tuple[float, ...], names: list[str]
) -> None:
    variants = Inspector(InspectOptions(save_checkpoint(tmp_path / "own", own), lambdas)).variants
    shown = [variant.name.removeprefix("SSAF, ") + "*" * variant.as_trained for variant in variants]
    assert shown == names


def test_checkpoints_stand_beside_each_other(checkpoint: Path, tmp_path: Path) -> None:
    dense = save_checkpoint(tmp_path / "dense", AttentionSpec())
    inspector = Inspector(InspectOptions(str(checkpoint), beside=(dense, str(checkpoint))))
    assert [variant.name for variant in inspector.variants] == ["checkpoint: SSAF, λ = −1", "dense: softmax"]
    assert all(variant.as_trained for variant in inspector.variants)
    sparse, softmax = summarize(inspector.variants, inspector.inspect(TEXT)).variants
    assert (sparse.checkpoint, softmax.checkpoint) == (str(checkpoint), dense)
    assert min(sparse.rho) > 0 == max(softmax.rho)


def test_checkpoints_of_one_name_are_told_apart(checkpoint: Path, tmp_path: Path) -> None:
    other = save_checkpoint(tmp_path / "checkpoint", AttentionSpec())
    variants = Inspector(InspectOptions(str(checkpoint), beside=(other,))).variants
    assert [variant.name.split(":")[0] for variant in variants] == [str(checkpoint), other]


def test_checkpoints_that_do_not_compare(checkpoint: Path, tmp_path: Path) -> None:
    other = save_checkpoint(tmp_path / "roberta", AttentionSpec(), "roberta")
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
