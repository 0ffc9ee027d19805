"""Checkpoints remember their attention and are refused when they cannot be right."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    PreTrainedModel,
)

from sparse_export.attention.resolve import resolve_attention
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, load_config, new_model, save_checkpoint
from sparse_export.encoders.families import max_tokens
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import load_padding_tokenizer, load_tokenizer, require_embedded
from sparse_export.tasks import task_by_architecture
from sparse_serve.errors import CheckpointError, OptionError
from sparse_serve.tasks import Classification, MultiLabel, Regression, Task
from tiny_models import FAMILIES, LABELS, LAMBD, POSITIONS, TASKS, make_model, make_tokenizer

TWO = Classification(("a", "b"))


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    weights = {name: tensor for name, tensor in (load_file(path) | changes).items() if tensor is not None}
    save_file(weights, path, {"format": "pt"})


def test_remembers_its_attention(model: PreTrainedModel, checkpoint: Path) -> None:
    stored = json.loads((checkpoint / "config.json").read_text())
    assert stored["sparse_serve"]["attention"] == {
        "normalizer": "sparsegen",
        "lambd": LAMBD,
        "pattern": None,
    }
    assert "AutoModel" in stored["sparse_serve"]["note"]
    assert ModelSpec.of(model.config).attention == AttentionSpec(LAMBD)
    assert model.config._attn_implementation == "sparsegen"
    assert not model.training


@torch.no_grad()
def test_attention_can_be_swapped_on_the_same_weights(model: PreTrainedModel, checkpoint: Path) -> None:
    ids = torch.randint(5, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    dense = load_checkpoint(checkpoint, AttentionSpec())
    again = load_checkpoint(checkpoint, AttentionSpec(LAMBD))
    assert ModelSpec.of(dense.config).attention == AttentionSpec()
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    assert (dense(ids).logits - model(ids).logits).abs().max() > 1e-3


def test_fresh_head_is_seeded_and_of_its_own_size(checkpoint: Path) -> None:
    spec = AttentionSpec(-4)
    first, same, other = (new_model(checkpoint, spec, TWO, seed=seed) for seed in (1, 1, 2))
    assert first.training
    assert first.config.id2label == {0: "a", 1: "b"}
    assert torch.equal(first.classifier.weight, same.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)


def test_a_head_is_trained_further_for_its_own_labels_alone(
    model: PreTrainedModel, checkpoint: Path, copy: Path
) -> None:
    """A head of as many labels that are others, or in another order, would begin with wrong answers."""
    attention, weight, bias = AttentionSpec(LAMBD), model.classifier.weight, model.classifier.bias
    same = new_model(checkpoint, attention, Classification(LABELS)).classifier
    assert torch.equal(same.weight, weight)
    turned = new_model(checkpoint, attention, Classification(LABELS[::-1])).classifier
    assert torch.equal(turned.weight, weight.flip(0))
    assert torch.equal(turned.bias, bias.flip(0))
    names = tuple(f"other {label}" for label in LABELS)
    others = [new_model(checkpoint, attention, Classification(names), seed=seed) for seed in (1, 1, 2)]
    first, again, third = (each.classifier.weight for each in others)
    assert torch.equal(first, again)
    assert not torch.equal(first, third)
    assert not torch.equal(first, weight)
    encoder = model.bert.embeddings.word_embeddings.weight
    assert torch.equal(others[0].bert.embeddings.word_embeddings.weight, encoder)
    numbers = tuple(str(number) for number in range(len(LABELS)))
    edit_config(copy, sparse_serve=None, id2label={number: f"LABEL_{number}" for number in numbers})
    assert torch.equal(new_model(copy, AttentionSpec(), Classification(numbers)).classifier.weight, weight)


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_layers_of_a_head_before_its_last_stay_as_they_are(family: str, tmp_path: Path) -> None:
    """Which may have as many rows as there are labels."""
    labels = tuple(f"label {number}" for number in range(64))
    model = make_model(AttentionSpec(), family, Classification(labels))
    save_checkpoint(model, make_tokenizer(tmp_path, family), tmp_path)
    turned = new_model(tmp_path, AttentionSpec(), Classification(labels[::-1])).state_dict()
    head = {name: weight for name, weight in model.state_dict().items() if "classifier" in name}
    assert len(head) == 4
    for name, weight in head.items():
        is_last = name.startswith(("classifier.out_proj", "classifier.weight", "classifier.bias"))
        assert torch.equal(turned[name], weight.flip(0) if is_last else weight), name


def test_the_head_of_each_of_several_tasks_is_trained_further_for_its_own_labels(
    several_tasks: Path,
) -> None:
    before = load_checkpoint(several_tasks).state_dict()
    tasks = {
        "sentiment": Classification(TASKS["sentiment"].labels[::-1]),
        "paraphrase": Classification(("no", "yes")),
        "similarity": TASKS["similarity"],
        "added": TWO,
    }
    spec = ModelSpec.of(load_config(several_tasks))
    after = new_model(several_tasks, spec.attention, tasks, extensions=spec.extensions, seed=1).state_dict()
    for part in ("weight", "bias"):
        name = f"tasks.{{}}.classifier.{part}"
        sentiment, similarity, paraphrase = map(name.format, ("sentiment", "similarity", "paraphrase"))
        assert torch.equal(after[sentiment], before[sentiment].flip(0))
        assert torch.equal(after[similarity], before[similarity])
        assert not torch.equal(after[paraphrase], before[paraphrase])
    adapters = {name for name in before if "projected_attention" in name}
    assert adapters
    assert all(torch.equal(after[name], before[name]) for name in adapters)


def test_from_scratch_nothing_of_the_encoder_but_its_shape_is_left(
    model: PreTrainedModel, checkpoint: Path
) -> None:
    spec = AttentionSpec(-4)
    first, same, other = (
        new_model(checkpoint, spec, TWO, seed=seed, from_scratch=True) for seed in (1, 1, 2)
    )
    assert first.training
    assert ModelSpec.of(first.config).attention == spec
    assert first.config._attn_implementation == "sparsegen"
    for name, weight in first.named_parameters():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, same.get_parameter(name))
        if weight.ndim == 2:  # biases and norms start as constants
            assert not torch.equal(weight, other.get_parameter(name))
        if weight.ndim == 2 and weight.shape == model.get_parameter(name).shape:
            assert not torch.equal(weight, model.get_parameter(name))


@pytest.mark.parametrize(
    "task",
    [
        Classification(("a", "b", "c")),
        MultiLabel(("a",)),
        MultiLabel(("a", "b", "c")),
        Regression(("score",)),
    ],
)
def test_a_checkpoint_says_what_it_answers(checkpoint: Path, tmp_path: Path, task: Task) -> None:
    model = new_model(checkpoint, AttentionSpec(), task)
    save_checkpoint(model, load_tokenizer(checkpoint), tmp_path / "new")
    again = load_checkpoint(tmp_path / "new")
    assert ModelSpec.of(again.config).task == task
    assert again(torch.tensor([[2, 3]])).logits.shape == (1, task.width)


@pytest.mark.parametrize(("labels", "problem_type"), [(1, "regression"), (2, "single_label_classification")])
def test_without_a_problem_type_it_is_read_as_transformers_does(labels: int, problem_type: str) -> None:
    config = BertConfig(num_labels=labels, architectures=["BertForSequenceClassification"])
    assert config.problem_type is None
    task = task_by_architecture(config)
    assert task is not None
    assert (task.type, task.width) == (problem_type, labels)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            BertConfig(problem_type="ranking"),
            "problem_type is 'ranking'; known are single_label_classification, ",
        ),
        (BertConfig(id2label={0: "a", 1: "a"}), "are not all different"),
        (BertConfig(id2label={0: "a", 2: "b"}), "id2label has no label 1"),
    ],
)
def test_labels_that_cannot_be_served(config: BertConfig, message: str) -> None:
    config.architectures = ["BertForSequenceClassification"]
    with pytest.raises(CheckpointError, match=message):
        task_by_architecture(config)


@pytest.mark.parametrize(
    ("kind", "lambd", "message"),
    [
        ("sparsegen", 1.0, "below 1, got 1.0"),
        ("sparsegen", float("nan"), "below 1, got nan"),
        ("sparsegen", 1 - 1e-9, "below 1, got 1.0"),  # 1 in the graph's float32
        ("sparsegen", -1e39, "below 1, got -inf"),
        ("sparsegen", None, "needs a lambda"),
        ("softmax", -4.0, "takes no lambda"),
        ("entmax", None, "'entmax'; accepted: softmax, sparsegen, or"),
        (None, -4.0, "needs --attention sparsegen"),
    ],
)
def test_attention_out_of_range(kind: str | None, lambd: float | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        resolve_attention(AttentionSpec(), kind, lambd)


def test_what_is_not_asked_for_stays_as_the_checkpoint_has_it() -> None:
    own = AttentionSpec.parse("local2+random1", None, seed=7)
    assert resolve_attention(own, None, None) == own
    assert resolve_attention(own, None, -4.0) == replace(own, lambd=-4.0)
    assert resolve_attention(own, "local2+random1", None) == own
    other = resolve_attention(own, "random2+global1", None)
    assert other == AttentionSpec.parse("random2+global1", None, seed=7)
    assert resolve_attention(own, "local3", -1.0) == AttentionSpec.parse("local3", -1.0)
    assert resolve_attention(own, "random2", None, seed=3) == AttentionSpec.parse("random2", None, seed=3)
    assert resolve_attention(own, "sparsegen", -4.0) == AttentionSpec(-4.0)
    with_lambd = AttentionSpec.parse("local2", -4.0)
    assert resolve_attention(with_lambd, "local2", None) == with_lambd
    assert resolve_attention(with_lambd, "local2+global1", None) == AttentionSpec.parse(
        "local2+global1", -4.0
    )
    assert resolve_attention(with_lambd, "random2", None) == AttentionSpec.parse("random2", -4.0)
    assert resolve_attention(with_lambd, "local3", -1.0) == AttentionSpec.parse("local3", -1.0)
    assert resolve_attention(with_lambd, "softmax", None) == AttentionSpec()
    assert resolve_attention(AttentionSpec(-4.0), "local2", None) == AttentionSpec.parse("local2", None)


def test_a_default_takes_the_place_of_softmax_that_nobody_asked_for() -> None:
    default = AttentionSpec(-4.0)
    assert resolve_attention(AttentionSpec(), None, None, default=default) == default
    assert resolve_attention(AttentionSpec(), None, -1.0, default=default) == AttentionSpec(-1.0)
    assert resolve_attention(AttentionSpec(), "sparsegen", None, default=default) == default
    assert resolve_attention(AttentionSpec(), "softmax", None, default=default) == AttentionSpec()
    own = AttentionSpec.parse("local2", None)
    assert resolve_attention(own, None, None, default=default) == own


@pytest.mark.parametrize("stored", [{"local": 10**10}, {"offsets": [[0, 10**12]]}, {"global_size": 10**9}])
def test_patterns_larger_than_the_encoder(copy: Path, stored: dict[str, Any]) -> None:
    edit_config(copy, sparse_serve=None, sparse_attention={"kind": "axis", "lambd": None, "pattern": stored})
    with pytest.raises(CheckpointError, match=r"config\.json: the (local|offset|global) size .* larger than"):
        load_checkpoint(copy)
    with pytest.raises(OptionError, match="the local size 600 of attention local600 is larger"):
        load_checkpoint(copy, AttentionSpec.parse("local600", None))


def test_nan_weights(copy: Path) -> None:
    edit_weights(copy, **{"classifier.weight": torch.full((3, 64), torch.nan)})
    with pytest.raises(CheckpointError, match=r"classifier\.weight \(3, 64\) holds NaN"):
        load_checkpoint(copy)


def test_no_head(tmp_path: Path) -> None:
    BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(
        tmp_path
    )
    with pytest.raises(CheckpointError, match="no head"):
        load_checkpoint(tmp_path)


def test_missing_encoder_weight(copy: Path) -> None:
    edit_weights(copy, **{"bert.encoder.layer.0.attention.self.query.weight": None})
    with pytest.raises(CheckpointError, match="1 weights of the encoder are missing"):
        load_checkpoint(copy)


def test_encoder_that_is_not_what_its_config_says(copy: Path) -> None:
    edit_config(copy, intermediate_size=100)
    for load in (load_checkpoint, lambda path: new_model(path, AttentionSpec(), TWO)):
        with pytest.raises(CheckpointError):
            load(copy)


def test_damaged_weights(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="the weights cannot be loaded"):
        load_checkpoint(copy)


@pytest.mark.parametrize("is_sharded", [False, True])
def test_what_is_quantized_already_is_refused(copy: Path, is_sharded: bool) -> None:
    path = copy / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("query.weight"))
    quantized = {name: weights.pop(name).to(torch.int8)}
    if is_sharded:
        parts = {"model-1.safetensors": quantized, "model-2.safetensors": weights}
        path.unlink()
        for part, tensors in parts.items():
            save_file(tensors, copy / part, {"format": "pt"})
        where = {each: part for part, tensors in parts.items() for each in tensors}
        index = {"metadata": {}, "weight_map": where}
        (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        save_file(weights | quantized, path, {"format": "pt"})
    with pytest.raises(
        CheckpointError, match=f"is quantized already, {name} is of type I8: take the checkpoint"
    ):
        load_checkpoint(copy)
    config = json.loads((copy / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=r"is quantized already, its config\.json has a quantization_config"
    ):
        load_checkpoint(copy)


def test_pickled_weights_are_not_read(copy: Path) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="the weights cannot be loaded"):
        load_checkpoint(copy)


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert", "albert", "gpt2"])
def test_other_family(copy: Path, family: str) -> None:
    AutoConfig.for_model(family).save_pretrained(copy)
    supported = "bert, roberta, distilbert, electra, xlm-roberta, camembert, mobilebert"
    with pytest.raises(CheckpointError, match=f"is a {family} model; supported families: {supported}$"):
        load_checkpoint(copy)


@pytest.fixture(params=FAMILIES)
def of_family(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A family, and a folder with a checkpoint of it."""
    family = request.param
    model = make_model(AttentionSpec(LAMBD), family)
    save_checkpoint(model, make_tokenizer(tmp_path, family), tmp_path)
    return family, tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key_query"}, "position_embedding_type 'relative_key_query'"),
        ({"is_decoder": True}, "has is_decoder in its config.json"),
    ],
)
def test_an_encoder_that_attends_in_another_way(copy: Path, changes: dict[str, object], message: str) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(copy)


def test_every_family_loads(of_family: tuple[str, Path]) -> None:
    family, folder = of_family
    model, expected = load_checkpoint(folder), make_model(AttentionSpec(LAMBD), family)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, expected.state_dict()[name])
    assert max_tokens(model.config) == POSITIONS
    assert load_tokenizer(folder)("ab a")["input_ids"] == make_tokenizer(folder, family)("ab a")["input_ids"]


def test_every_familys_damage_is_seen(of_family: tuple[str, Path]) -> None:
    _, folder = of_family
    weights = load_file(folder / "model.safetensors")
    base = make_model(AttentionSpec(), of_family[0]).base_model_prefix
    first_layer = next(name for name in weights if name.startswith(base) and ".layer.0." in name)
    edit_weights(folder, **{first_layer: None})
    with pytest.raises(CheckpointError, match="1 weights of the encoder are missing"):
        load_checkpoint(folder)


def test_every_familys_encoder_gets_a_head(
    of_family: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    encoder = tmp_path_factory.mktemp("encoder")
    load_checkpoint(of_family[1]).base_model.save_pretrained(encoder)
    with pytest.raises(CheckpointError, match="no head"):
        load_checkpoint(encoder)
    first, same, other = (new_model(encoder, AttentionSpec(), TWO, seed=seed) for seed in (1, 1, 2))
    ids = torch.arange(5, 17)[None]
    logits, *others = (model.eval()(ids).logits for model in (first, same, other))
    assert logits.shape == (1, 2)
    assert torch.equal(logits, others[0])
    assert not torch.equal(logits, others[1])


@pytest.mark.parametrize("family", ["roberta", "mobilebert"])
def test_no_padding_id(tmp_path: Path, family: str) -> None:
    make_model(AttentionSpec(), family).save_pretrained(tmp_path)
    edit_config(tmp_path, pad_token_id=None)
    with pytest.raises(CheckpointError, match="has no pad_token_id"):
        load_checkpoint(tmp_path)


@torch.no_grad()
def test_padding_beside_a_text_does_not_change_its_answer(tmp_path: Path) -> None:
    """MobileBERT's embeddings mix neighbours; in converted checkpoints that of padding is not zero."""
    original = make_model(AttentionSpec(), "mobilebert").eval()
    original.get_input_embeddings().weight[0] = 1
    original.save_pretrained(tmp_path)
    loaded, ids = load_checkpoint(tmp_path), torch.arange(5, 12)[None]
    padded = torch.nn.functional.pad(ids, (0, 3))
    torch.testing.assert_close(loaded(padded, padded > 0).logits, original(ids).logits)
    assert (original(padded, padded > 0).logits - original(ids).logits).abs().max() > 1e-3


@pytest.mark.parametrize(
    "stored", [{"kind": "sparsegen", "lambd": 2}, {"lambd": -(10**400)}, {"kind": "entmax"}, {"window": 3}, 7]
)
def test_malformed_attention(copy: Path, stored: object) -> None:
    edit_config(copy, sparse_serve=None, sparse_attention=stored)
    with pytest.raises(CheckpointError, match="sparse_attention is"):
        load_checkpoint(copy)
    edit_config(copy, sparse_serve={"version": 1, "attention": stored})
    with pytest.raises(CheckpointError, match=r"sparse_serve\.attention is"):
        load_checkpoint(copy)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (7, "has version 7, this package reads version 1"),
        ({"version": 2}, "has version 2, this package reads version 1"),
        ({"version": 1, "adapters": {}}, "unknown entries adapters"),
        ({"version": 1, "positions": "rotary"}, "positions is 'rotary'; known are learned, sinusoidal"),
        (
            {"version": 1, "tasks": {"default": {"type": "translation"}}},
            "tasks: task 'translation' is not known",
        ),
        (
            {"version": 1, "tasks": {"default": {"type": "regression", "labels": []}}},
            "tasks: regression needs",
        ),
        ({"version": 1, "tasks": ["regression"]}, "is malformed"),
        ({"version": 1, "extensions": {"narrow": 3}}, "is malformed"),
    ],
)
def test_malformed_spec(copy: Path, stored: object, message: str) -> None:
    edit_config(copy, sparse_serve=stored)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(copy)


def load_all(folder: Path) -> None:
    load_checkpoint(folder)
    load_tokenizer(folder)


def malformed(file: str, text: str) -> Callable[[Path], object]:
    """Return what writes a file of a checkpoint."""
    return lambda folder: (folder / file).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: edit_config(folder, hidden_act="foo"),
            r"config\.json makes no model: KeyError: 'foo'",
        ),
        (
            lambda folder: edit_config(folder, pad_token_id=1000),
            r"config\.json makes no model: .*Padding_idx",
        ),
        (lambda folder: edit_config(folder, num_attention_heads=0), r"config\.json makes no model: Zero"),
        (lambda folder: edit_config(folder, id2label=["a"]), r"config\.json cannot be read: 'list' object"),
        (
            lambda folder: edit_config(folder, dtype="foo"),
            r"config\.json cannot be read: .*no attribute 'foo'",
        ),
        (malformed("config.json", "null"), r"config\.json cannot be read: .*'NoneType'"),
        (malformed("config.json", "5"), r"config\.json cannot be read: .*'int'"),
        *(
            (malformed(f"{name}.json", text), "the tokenizer cannot be loaded: ")
            for name, text in (
                ("tokenizer", "{}"),
                ("tokenizer", "[]"),
                ("tokenizer_config", "[]"),
                ("special_tokens_map", "[]"),
                ("added_tokens", "[]"),
            )
        ),
    ],
)
def test_a_malformed_file_is_named(copy: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copy)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(copy))}: {message}") as error:
        load_all(copy)
    assert "\n" not in str(error.value)


def test_what_a_config_always_asks_for_is_not_handed_out(copy: Path) -> None:
    edit_config(copy, output_hidden_states=True, output_attentions=True, return_dict=False)
    answered = load_checkpoint(copy)(torch.tensor([[2, 3]]))
    assert set(answered) == {"logits"}
    assert answered.logits.shape == (1, len(LABELS))


@torch.no_grad()
def test_a_stock_model_attends_densely_and_the_config_says_so(copy: Path) -> None:
    ids = torch.randint(5, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    stock = AutoModelForSequenceClassification.from_pretrained(copy).eval()
    dense = load_checkpoint(copy, AttentionSpec())
    torch.testing.assert_close(stock(ids).logits, dense(ids).logits)
    assert "load_checkpoint" in stock.config.sparse_serve["note"]


def test_not_a_checkpoint(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match=r"has no config\.json"):
            load_checkpoint(path)
    for text in ("{", '{"model_type": "bert", "hidden_size": "many"}', '{"model_type": "no such family"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_checkpoint(tmp_path)


def test_an_entry_is_no_checkpoint(tmp_path: Path) -> None:
    graph = tmp_path / "reviews" / "1" / "model.onnx"
    graph.parent.mkdir(parents=True)
    graph.touch()
    (tmp_path / "reviews" / "manifest.json").touch()
    for path in (graph, graph.parent, tmp_path / "reviews"):
        with pytest.raises(
            CheckpointError, match=r"no config\.json; it is of an entry of a model repository"
        ):
            load_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"no config\.json$"):
        load_checkpoint(tmp_path)


def test_no_tokenizer(copy: Path) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        (copy / name).unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        load_tokenizer(copy)


def edit_vocabulary(folder: Path, change: Callable[[dict[str, int]], object]) -> None:
    """Change a tokenizer's tokens and their ids."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content["model"]["vocab"])
    known = content["model"]["vocab"]
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in known]
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vocabulary: vocabulary.update(a=vocabulary["b"]), "'a' and 'b' have the same id"),
        (lambda vocabulary: vocabulary.update({"[CLS]": vocabulary["[SEP]"]}), "have the same id"),
        (lambda vocabulary: vocabulary.pop("[SEP]"), "have the same id .* a special token is missing from"),
        (lambda vocabulary: vocabulary.pop("[UNK]"), "does not read every text: .*Missing .UNK.* copy that"),
    ],
    ids=["a token twice", "a special token twice", "no [SEP]", "no [UNK]"],
)
def test_a_vocabulary_with_duplicate_or_missing_tokens_is_refused(
    copy: Path, change: Callable[[dict[str, int]], object], message: str
) -> None:
    edit_vocabulary(copy, change)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(copy)


def test_a_tokenizer_of_more_tokens_than_are_embedded_is_refused(copy: Path) -> None:
    tokenizer, config = load_tokenizer(copy), AutoConfig.from_pretrained(copy)
    require_embedded(copy, tokenizer, config)
    tokenizer.add_tokens([f"more{number}" for number in range(config.vocab_size)])
    with pytest.raises(CheckpointError, match=r"token 'more\d+' has id \d+, the encoder embeds ids below"):
        require_embedded(copy, tokenizer, config)


@pytest.mark.parametrize(("number", "token"), [(0, "[PAD]"), (7, "c"), (10**6, None), (None, None)])
def test_a_tokenizer_without_a_token_for_padding_takes_the_encoders(
    copy: Path, number: int | None, token: str | None
) -> None:
    file = copy / "tokenizer_config.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(stored | {"pad_token": None}), encoding="utf-8")
    assert load_tokenizer(copy).pad_token is None
    config = AutoConfig.from_pretrained(copy)
    config.pad_token_id = number
    if token is None:
        with pytest.raises(CheckpointError, match=f"names no token for padding, .*json, {number}: name one"):
            load_padding_tokenizer(copy, config)
        return
    tokenizer = load_padding_tokenizer(copy, config)
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == (token, number)
    tokenizer.save_pretrained(copy)
    assert load_tokenizer(copy).pad_token_id == number


def test_texts_are_cut_and_padded_on_the_right(copy: Path) -> None:
    file = copy / "tokenizer_config.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(
        json.dumps({**stored, "truncation_side": "left", "padding_side": "left"}), encoding="utf-8"
    )
    tokenizer = load_tokenizer(copy)
    whole, cut = (tokenizer("good bad good bad", truncation=True, max_length=n)["input_ids"] for n in (20, 4))
    assert cut == [*whole[:3], whole[-1]]
    assert tokenizer.padding_side == "right"
