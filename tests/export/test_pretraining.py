"""Pre-training tiny encoders: what is learned, what is written, and that nothing shows an interruption."""

import json
import math
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    BertConfig,
    DataCollatorForTokenClassification,
)

import tiny_models
from sparse_export.attention.patterns import Pattern
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, load_config, new_model, save_checkpoint
from sparse_export.encoders.positions import sinusoidal_table
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.pretraining import PretrainOptions, PretrainRecord, pretrain
from sparse_export.pretraining.masking import Masking
from sparse_export.pretraining.models import new_language_model
from sparse_export.pretraining.sentences import encode_pairs
from sparse_export.tasks.trained import IGNORED
from sparse_export.training import RECORD_NAME, FinetuneOptions, PatternOptions, choose_attentions, finetune
from sparse_serve.data import Columns, Row, TextData
from sparse_serve.errors import CheckpointError, DataError, OptionError
from sparse_serve.tasks import Classification
from tiny_training import BAD, GOOD, POSITIONS, interrupted_after, make_encoder, weights, write_rows

SOFTMAX = AttentionSpec()
RUN = PretrainOptions(attention=SOFTMAX, epochs=3, learning_rate=5e-3, batch_size=8, warmup_ratio=0, seed=1)
NSP = replace(RUN, nsp=True)
DIAGONAL = AttentionSpec.parse("diagonal+global1", None)

pytestmark = pytest.mark.usefixtures("single_threaded")


@pytest.fixture(scope="module")
def without_dropout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder"), dropout=0)


def write_documents(path: Path, count: int, seed: int = 0) -> Path:
    """Documents of 2 to 4 sentences that all praise, or all blame."""
    rng = random.Random(seed)
    lines = []
    for number in range(count):
        words = (GOOD, BAD)[number % 2]
        lines += [
            f"the film is {'very ' * rng.randint(0, 3)}{rng.choice(words)}" for _ in range(rng.randint(2, 4))
        ]
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("text") / "train.txt", 24)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("text") / "eval.txt", 20, seed=1)


def losses(record: PretrainRecord) -> list[float]:
    return [epoch.eval_loss for epoch in record.epochs]


@pytest.mark.parametrize(
    "options",
    [
        RUN,
        replace(RUN, attention=AttentionSpec.parse("local2+global2", None)),
        replace(RUN, from_scratch=True),
    ],
    ids=["softmax", "pattern", "scratch"],
)
def test_the_language_is_learned(
    encoder: Path, text: Path, held: Path, tmp_path: Path, options: PretrainOptions
) -> None:
    record = pretrain(encoder, text, tmp_path / "out", replace(options, epochs=6), evaluation=held)
    chance = math.log(19)  # words of the vocabulary
    assert losses(record)[0] < 0.9 * chance
    assert losses(record)[-1] < 0.4 * chance
    best = record.epochs[int(record.best_epoch) - 1]
    assert best.eval_loss == min(losses(record))
    assert record.metrics == best.metrics
    assert record.metrics["perplexity"] == pytest.approx(math.exp(best.eval_loss))
    assert record.metrics["accuracy"] > 0.6  # "the film is very" is certain, the last word is not
    assert best.train_loss == pytest.approx(best.eval_loss, abs=0.5)


@pytest.mark.slow
def test_what_follows_is_learned(without_dropout: Path, text: Path, tmp_path: Path) -> None:
    """By heart: the rows that evaluate are those that are trained on, with other masks."""
    options = replace(NSP, epochs=40, learning_rate=2e-3, metric="nsp_accuracy")
    record = pretrain(without_dropout, text, tmp_path / "out", options, evaluation=text)
    assert record.metrics["nsp_accuracy"] > 0.85
    accuracies = [epoch.metrics["nsp_accuracy"] for epoch in record.epochs]
    assert accuracies.index(max(accuracies)) == record.best_epoch - 1


def test_figures_are_those_of_transformers_own_loss(
    encoder: Path, text: Path, held: Path, tmp_path: Path
) -> None:
    record = pretrain(encoder, text, tmp_path / "out", replace(NSP, epochs=1), evaluation=held)
    tokenizer = load_tokenizer(tmp_path / "out")
    documents = [Row(1, each.strip(), "", "") for each in held.read_text(encoding="utf-8").split("\n\n")]
    pairs = encode_pairs(tokenizer, TextData("text", tuple(documents), (), 20), POSITIONS, NSP.seed)
    masking = Masking(tokenizer, NSP.seed)
    rows = [masking.evaluation(row, number) for number, row in enumerate(pairs)]
    batch = DataCollatorForTokenClassification(tokenizer)(rows)
    model = AutoModelForPreTraining.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        answer = model(**batch)
    (epoch,) = record.epochs
    assert epoch.eval_loss == pytest.approx(answer.loss.item(), abs=1e-5)
    told = batch["labels"] != IGNORED
    right = answer.prediction_logits.argmax(-1)[told] == batch["labels"][told]
    follows = answer.seq_relationship_logits.argmax(-1) == batch["next_sentence_label"]
    of_tokens = F.cross_entropy(answer.prediction_logits[told], batch["labels"][told])
    assert epoch.metrics == pytest.approx(
        {
            "accuracy": right.float().mean().item(),
            "perplexity": of_tokens.exp().item(),
            "nsp_accuracy": follows.float().mean().item(),
        },
        abs=1e-4,
    )


@pytest.mark.parametrize("options", [RUN, NSP], ids=["mlm", "nsp"])
def test_parts_of_a_batch_add_up_to_it(
    without_dropout: Path, text: Path, held: Path, tmp_path: Path, options: PretrainOptions
) -> None:
    """However many masked tokens each of them has; single rows often have none."""
    whole = pretrain(without_dropout, text, tmp_path / "whole", options, evaluation=held)
    split = replace(options, gradient_accumulation_steps=8)
    parts = pretrain(without_dropout, text, tmp_path / "parts", split, evaluation=held)
    assert losses(parts) == pytest.approx(losses(whole), abs=1e-4)
    train = [[epoch.train_loss for epoch in record.epochs] for record in (whole, parts)]
    assert train[1] == pytest.approx(train[0], abs=1e-4)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_every_family_makes_a_checkpoint_of_plain_transformers_that_fine_tunes(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, made = tmp_path / "encoder", tmp_path / "made"
    start.mkdir()
    save_checkpoint(tiny_models.make_model(SOFTMAX, family), tiny_models.make_tokenizer(start, family), start)
    (tmp_path / "text.txt").write_text("".join(f"a text, the {n}th\n" for n in range(24)), encoding="utf-8")
    options = replace(RUN, epochs=1, attention=AttentionSpec.parse("local1+global1", None))
    record = pretrain(start, tmp_path / "text.txt", made, options)
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    assert config["sparse_serve"]["attention"]["pattern"]["global_size"] == 1
    stored = json.loads((made / RECORD_NAME).read_text(encoding="utf-8"))
    assert (stored["labels"], stored["options"]["nsp"]) == ([], False)
    assert all(0 < layer.rho < 1 for layer in record.layers)

    plain, report = AutoModelForMaskedLM.from_pretrained(made, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    inputs = load_tokenizer(made)("a text", return_tensors="pt")
    assert plain.eval()(**inputs).logits.shape[-1] == plain.config.vocab_size

    train = write_rows(tmp_path / "train.tsv", 16)
    tuning = FinetuneOptions(attention=options.attention, epochs=1, batch_size=8, learning_rate=1e-9)
    finetune(made, train, tmp_path / "tuned", tuning, evaluation=train)
    tuned = load_checkpoint(tmp_path / "tuned")
    assert ModelSpec.of(tuned.config).attention == options.attention
    mine = tuned.base_model.state_dict()
    theirs = plain.base_model.state_dict()
    same = [torch.allclose(mine[name], weight, atol=1e-6) for name, weight in theirs.items()]
    assert all(same)
    assert len(same) > 20


@pytest.mark.parametrize("family", ["bert", "mobilebert"])
def test_heads_for_sentences_are_kept(family: str, tmp_path: Path) -> None:
    start, made = tmp_path / "encoder", tmp_path / "made"
    start.mkdir()
    save_checkpoint(tiny_models.make_model(SOFTMAX, family), tiny_models.make_tokenizer(start, family), start)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"a text\nthe {n}th\n\n" for n in range(24)), encoding="utf-8")
    first = pretrain(start, text, made, replace(NSP, epochs=1))
    _, report = AutoModelForPreTraining.from_pretrained(made, output_loading_info=True)
    assert not report["missing_keys"]
    for heads in (AutoModelForPreTraining, AutoModelForMaskedLM):
        assert heads.from_pretrained(made).config.model_type == family
    # Trained further they begin where they were.
    again = pretrain(made, text, tmp_path / "again", replace(NSP, epochs=1, learning_rate=1e-9))
    assert losses(again)[0] == pytest.approx(losses(first)[0], abs=1e-4)


def test_the_fixed_positions_are_the_papers() -> None:
    table = sinusoidal_table(50, 6)
    for position, index in ((0, 0), (0, 1), (7, 0), (7, 3), (49, 4), (49, 5)):
        angle = position / 10000 ** (2 * (index // 2) / 6)
        expected = math.cos(angle) if index % 2 else math.sin(angle)
        assert table[position, index].item() == pytest.approx(expected, abs=1e-6)
    assert sinusoidal_table(3, 5).shape == (3, 5)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_fixed_positions_stay_as_they_are_also_where_the_encoder_is_fine_tuned(
    family: str, tmp_path: Path
) -> None:
    start, made = tmp_path / "encoder", tmp_path / "made"
    start.mkdir()
    save_checkpoint(tiny_models.make_model(SOFTMAX, family), tiny_models.make_tokenizer(start, family), start)
    (tmp_path / "text.txt").write_text("".join(f"a text, the {n}th\n" for n in range(24)), encoding="utf-8")
    options = replace(RUN, epochs=1, from_scratch=True, positions="sinusoidal")
    pretrain(start, tmp_path / "text.txt", made, options)
    train = write_rows(tmp_path / "train.tsv", 16)
    tuning = FinetuneOptions(attention=SOFTMAX, epochs=1, batch_size=8, learning_rate=1e-2)
    finetune(made, train, tmp_path / "tuned", tuning, evaluation=train)
    for folder in (made, tmp_path / "tuned"):
        (stored,) = (w for name, w in weights(folder).items() if name.endswith("position_embeddings.weight"))
        # RoBERTa's kind counts from behind the padding id.
        assert torch.equal(stored[-tiny_models.POSITIONS :], sinusoidal_table(160, stored.shape[1]))
        assert len(stored) - tiny_models.POSITIONS in (0, 2)

    # They are also kept without being named, and learned again where that is asked for.
    kept = replace(RUN, epochs=1)
    pretrain(made, tmp_path / "text.txt", tmp_path / "kept", kept)
    name = next(name for name in weights(made) if name.endswith("position_embeddings.weight"))
    assert torch.equal(weights(tmp_path / "kept")[name], weights(made)[name])
    pretrain(made, tmp_path / "text.txt", tmp_path / "learned", replace(kept, positions="learned"))
    assert not torch.equal(weights(tmp_path / "learned")[name], weights(made)[name])


def test_positions_that_were_learned_are_trained_whatever_the_config_says(tmp_path: Path) -> None:
    """As of a DistilBERT whose teacher's were."""
    model = tiny_models.make_model(SOFTMAX, "distilbert")
    learned = model.base_model.embeddings.position_embeddings.weight.detach().clone()
    model.config.sinusoidal_pos_embds = True
    del model.config.sparse_serve
    save_checkpoint(model, tiny_models.make_tokenizer(tmp_path, "distilbert"), tmp_path)
    made = new_model(tmp_path, SOFTMAX, Classification(("a", "b")), seed=0)
    position = made.base_model.embeddings.position_embeddings.weight
    assert torch.equal(position, learned)
    assert position.requires_grad
    assert ModelSpec.of(made.config).positions == "learned"
    with pytest.raises(OptionError, match="--positions sinusoidal would replace those that"):
        new_language_model(tmp_path, replace(RUN, positions="sinusoidal"))


def interrupted(encoder: Path, text: Path, output: Path, options: PretrainOptions, step: int) -> None:
    """Run until the user presses Ctrl-C after so many steps."""

    with interrupted_after(step):
        pretrain(encoder, text, output, options)


@pytest.mark.parametrize(
    ("options", "step"),
    [
        (RUN, 11),  # right after an epoch's end, which is saved
        (replace(NSP, save_steps=2, gradient_accumulation_steps=2), 4),
        pytest.param(replace(RUN, save_steps=3, attention=DIAGONAL, epochs=4), 25, marks=pytest.mark.slow),
        (replace(RUN, from_scratch=True, positions="sinusoidal"), 11),
    ],
    ids=["epoch", "within", "learned", "scratch"],
)
def test_a_resumed_run_ends_as_if_never_interrupted(
    encoder: Path, text: Path, tmp_path: Path, options: PretrainOptions, step: int
) -> None:
    whole = pretrain(encoder, text, tmp_path / "whole", options)
    interrupted(encoder, text, tmp_path / "out", options, step)
    assert not (tmp_path / "out").exists()
    assert any((tmp_path / "out.partial" / "states").iterdir())
    resumed = pretrain(encoder, text, tmp_path / "out", options, resume=True)
    found = weights(tmp_path / "out")
    assert all(torch.equal(found[name], weight) for name, weight in weights(tmp_path / "whole").items())
    assert replace(resumed, seconds=0) == replace(whole, seconds=0)
    # Once more it is there already.
    again = pretrain(encoder, text, tmp_path / "out", options, resume=True)
    assert json.loads(json.dumps(asdict(again))) == json.loads(json.dumps(asdict(resumed)))


def test_a_run_of_another_task_is_not_resumed(encoder: Path, text: Path, tmp_path: Path) -> None:
    interrupted(encoder, text, tmp_path / "out", RUN, 11)
    with pytest.raises(
        CheckpointError, match=r"was started with other settings: positions \(None, now learned\)"
    ):
        pretrain(encoder, text, tmp_path / "out", replace(RUN, positions="learned"), resume=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "f1"}, "--metric is f1; it must be one of accuracy, perplexity, loss"),
        (
            {"metric": "nsp_accuracy"},
            "--metric is nsp_accuracy; it must be one of accuracy, perplexity, loss",
        ),
        ({"nsp": True, "columns": Columns(text_pair="b")}, "--text-pair-column b with --nsp: it pairs rows"),
        ({"positions": "rotary"}, "--positions is rotary; it must be learned or sinusoidal"),
        ({"epochs": 0}, "--epochs is 0; it must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PretrainOptions(**options)


def test_diagonals_learned_in_pre_training_are_taken_as_fixed_ones(
    encoder: Path, text: Path, tmp_path: Path
) -> None:
    options = replace(RUN, attention=DIAGONAL, learning=PatternOptions(rho_target=0.2))
    pretrain(encoder, text, tmp_path / "out", options)
    taken = choose_attentions(str(encoder), None, [], str(tmp_path / "out"), 0).by_name.values()
    learned = weights(tmp_path / "out")
    (logits,) = (weight for name, weight in learned.items() if "diagonals" in name)
    on = (logits > 0).nonzero().flatten().tolist()
    assert on
    offsets = tuple(sorted({0, *on}))
    assert [each.pattern for each in taken] == [Pattern(global_size=1, offsets=(offsets,))]


def test_a_model_of_several_tasks_goes_on_as_its_encoder_alone(
    encoder: Path, text: Path, tmp_path: Path
) -> None:
    """Adapters and relational layers are of its tasks, of which a language model has none."""
    relational = {"relational": {"tasks": ["paraphrase", "similarity"]}}
    extensions: dict[str, Any] = {**tiny_models.ADAPTERS, **relational}
    several = new_model(encoder, SOFTMAX, tiny_models.TASKS, extensions=extensions)
    save_checkpoint(several, load_tokenizer(encoder), tmp_path / "several")
    pretrain(tmp_path / "several", text, tmp_path / "out", replace(RUN, epochs=1, max_steps=1))
    spec = ModelSpec.of(load_config(tmp_path / "out"))
    assert not spec.tasks
    assert not spec.extensions
    assert not [name for name in weights(tmp_path / "out") if "projected" in name or "relational" in name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            replace(RUN, positions="sinusoidal"),
            "--positions sinusoidal would replace those that .* was trained",
        ),
        (replace(RUN, max_length=25), "--max-length 25 is out of range: a pair has 3 special tokens"),
        (replace(NSP, max_length=4), "no room for a token of each segment; give 5 or more"),
        (replace(RUN, freeze_layers=9), "--freeze-layers is 9; the encoder has 2 layers"),
        (replace(RUN, batch_size=9, gradient_accumulation_steps=2), "--batch-size is 9; it is the rows"),
        (
            replace(RUN, attention=AttentionSpec.parse("local99", None)),
            "the local size 99 of attention local99",
        ),
    ],
)
def test_options_that_do_not_fit_the_encoder_are_refused(
    encoder: Path, text: Path, tmp_path: Path, options: PretrainOptions, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        pretrain(encoder, text, tmp_path / "out", options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "family", [name for name in tiny_models.FAMILIES if name not in ("bert", "mobilebert")]
)
def test_families_without_a_head_for_sentences_are_refused(family: str, text: Path, tmp_path: Path) -> None:
    save_checkpoint(
        tiny_models.make_model(SOFTMAX, family), tiny_models.make_tokenizer(tmp_path, family), tmp_path
    )
    with pytest.raises(OptionError, match=f"families bert and mobilebert, and this is a {family} model"):
        pretrain(tmp_path, text, tmp_path / "out", NSP)


def test_an_encoder_of_one_segment_is_refused_for_sentences(
    encoder: Path, text: Path, tmp_path: Path
) -> None:
    BertConfig.from_pretrained(encoder, type_vocab_size=1).save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="--nsp needs an encoder with two segments, and this one has one"):
        pretrain(tmp_path, text, tmp_path / "out", NSP)


def test_a_tokenizer_of_another_model_is_refused(encoder: Path, text: Path, tmp_path: Path) -> None:
    start = tmp_path / "encoder"
    start.mkdir()
    tokenizer = load_tokenizer(encoder)
    tokenizer.add_tokens(["sunny", "rainy"])
    save_checkpoint(AutoModelForMaskedLM.from_pretrained(encoder), tokenizer, start)
    with pytest.raises(CheckpointError, match="token 'rainy' has id 20, the encoder embeds ids below 19"):
        pretrain(start, text, tmp_path / "out", RUN)


def test_too_little_text_to_judge_by_is_refused(encoder: Path, text: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("[SEP]\n[UNK]\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"the 2 evaluation rows of .*short.txt have so few tokens that none"):
        pretrain(encoder, text, tmp_path / "out", RUN, evaluation=short)
    short.write_text("a\na\n\nb\nb\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"short.txt has 2 rows; holding some out for evaluation needs 4"):
        pretrain(encoder, short, tmp_path / "out", NSP)
