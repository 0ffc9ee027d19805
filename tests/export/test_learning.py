"""Training with attention patterns: the stages, the sparsity loss, and which epoch is kept."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn import functional as F
from transformers import TrainerControl, TrainerState, TrainingArguments

import sparse_export.training.task as task_module
import sparse_export.training.trainer as trainer_module
from sparse_export.attention.masks import LayerMask
from sparse_export.attention.measures import mask_shares, zero_shares
from sparse_export.attention.patterns import LayerPattern, Pattern
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.encoders.extension import parameter_groups
from sparse_export.encoders.patterned import recorded
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.training import FinetuneOptions, PatternOptions, finetune
from sparse_export.training.calibration import calibrate, set_aside
from sparse_export.training.callbacks import Steering
from sparse_export.training.groups import set_apart
from sparse_export.training.job import Training
from sparse_export.training.learning import PatternLearning, make_learning
from sparse_export.training.schedule import PatternSchedule, Stages, fixed_rho
from sparse_export.training.sparsity import mean_rho
from sparse_export.training.task import TaskJob
from sparse_serve.data import Columns, read_data
from sparse_serve.errors import DataError, OptionError
from tiny_training import FAST, LAYERS, weights, write_rows

AXIS = replace(FAST, attention=AttentionSpec.parse("axis", None), epochs=4)

pytestmark = pytest.mark.usefixtures("single_threaded")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.tsv", 48)


def prepared(encoder: Path, rows: Path, options: FinetuneOptions) -> Training:
    data = read_data(rows, Columns(), task=options.task)
    return TaskJob(options).prepare(str(encoder), data, data)


def learning_of(options: FinetuneOptions, training: Training) -> PatternLearning:
    stages = Stages.of(options, training.batches.plan.steps)
    learning = make_learning(options, training, stages, Console(quiet=True))
    assert learning is not None
    return learning


def at_step(learning: PatternLearning, training: Training, step: int) -> tuple[TrainerState, Any]:
    """Bring a model to a step as the trainer does; its log, and its optimiser."""
    state, control = TrainerState(global_step=step), TrainerControl()
    optimizer = torch.optim.AdamW(training.model.parameters())
    set_apart(optimizer, parameter_groups(training.model), {})
    arguments = TrainingArguments(use_cpu=True)
    learning.on_train_begin(arguments, state, control)
    learning.on_step_begin(arguments, state, control, optimizer=optimizer)
    return state, optimizer


def test_the_schedule_goes_from_everything_to_the_served_mask_at_its_target() -> None:
    options = PatternOptions(alpha=2.0, alpha_schedule="linear", temperature=1.0, final_temperature=0.01)
    stages = Stages(per_epoch=10, dense=10, steps=110, learns=True)
    schedule = PatternSchedule(rho_target=0.8, stages=stages, options=options)
    moments = [schedule.at(step) for step in range(111)]
    assert [moment.sampling.dense for moment in moments] == [True] * 10 + [False] * 101
    assert not any(moment.measures for moment in moments[:10])
    assert sum(moment.measures for moment in moments[10:110]) == 20
    first, last = moments[10], moments[110]
    assert (first.sampling.noise, first.rho_target, first.alpha, first.sampling.temperature) == (1, 0, 0, 1)
    assert (last.sampling.noise, last.rho_target, last.alpha) == (0, 0.8, 2)
    assert last.sampling.temperature == pytest.approx(0.01)
    assert moments[60].sampling.temperature == pytest.approx(0.1)
    # Eq. 10: until half of the epochs.
    assert [moments[step].alpha for step in (35, 60, 80)] == pytest.approx([1, 2, 2])
    for one, two in itertools.pairwise(moments[10:]):
        assert one.sampling.noise >= two.sampling.noise
        assert one.rho_target <= two.rho_target
    assert max(moment.learning_rate for moment in moments) == options.pattern_learning_rate
    assert first.learning_rate == last.learning_rate == 0


def test_an_epoch_is_final_where_noise_and_target_have_settled() -> None:
    for epochs, dense in ((1, None), (4, None), (9, 2), (7, 0)):
        options = replace(AXIS, epochs=epochs, dense_epochs=dense)
        stages = Stages.of(options, 10)
        schedule = PatternSchedule.of(options, stages, 0.5)
        for epoch in range(1, epochs + 1):
            moment = schedule.at(10 * epoch)
            settled = moment.sampling.noise == 0 and moment.rho_target == schedule.rho_target
            expected = "dense" if 10 * epoch <= stages.dense else "final" if settled else "annealing"
            assert stages.stage(10 * epoch) == expected
        assert stages.stage(10 * epochs) == "final"


@pytest.mark.parametrize(
    ("attention", "dense_epochs", "stages"),
    [
        ("axis", None, ["dense", "dense", "final", "final"]),
        ("local2", None, ["final"] * 4),
        ("local2+global1", 1, ["dense", "final", "final", "final"]),
        ("softmax", None, ["final"] * 4),
    ],
)
def test_stages(attention: str, dense_epochs: int | None, stages: list[str]) -> None:
    spec = AttentionSpec.parse(attention, None)
    options = replace(FAST, attention=spec, epochs=4, dense_epochs=dense_epochs)
    found = Stages.of(options, 7)
    assert [found.stage(7 * epoch) for epoch in range(1, 5)] == stages


@pytest.mark.parametrize("alpha", [1.0, 2.5])
def test_the_sparsity_loss_by_hand(encoder: Path, rows: Path, alpha: float) -> None:
    learning_options = PatternOptions(rho_target=0.6, alpha=alpha)
    options = replace(AXIS, learning=learning_options, attention=AttentionSpec.parse("axis+local1", None))
    training = prepared(encoder, rows, options)
    learning = learning_of(options, training)
    settled = learning.schedule.stages.steps - 1
    learning_at = learning.schedule.at(settled)
    assert learning_at.rho_target == 0.6
    # Nothing was measured yet: the model is at ρ 0, and lacks all of its target.
    state, _ = at_step(learning, training, settled)
    assert not state.log_history or learning_at.measures
    lacking = 0.6 - next((each["rho"] for each in state.log_history), 0.0)
    batch = training.collator([training.rows[number] for number in range(7)])
    with recorded(training.model) as masks:
        training.model(**batch)
    cost = learning.cost(masks)
    assert isinstance(cost, torch.Tensor)
    assert cost.item() == pytest.approx(alpha * lacking)

    length = batch["input_ids"].shape[1]
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    tokens = batch["attention_mask"].double()
    rhos = []
    for mask in masks:
        assert mask.rows is not None
        assert mask.columns is not None
        row, column = mask.rows[:, :, None].double(), mask.columns[:, None, :].double()
        on = row + column - row * column  # Eq. 12
        allowed = torch.where(distance <= 1, 1, on) * tokens[:, :, None] * tokens[:, None, :]
        rhos.append(1 - allowed.sum((1, 2)) / tokens.sum(1) ** 2)
    logits = [
        each for module in training.model.modules() if (each := getattr(module, "axis", None)) is not None
    ]
    biases = [layer.bias for layer in logits]
    expected = torch.autograd.grad(-alpha * torch.stack(rhos).mean(), biases, retain_graph=True)
    found = torch.autograd.grad(cost, biases)
    for mine, by_hand in zip(found, expected, strict=True):
        assert torch.allclose(mine, by_hand.float(), atol=1e-6)
        assert by_hand.abs().max() > 1e-4


def test_nothing_is_lost_at_the_target_nor_in_the_dense_stage(encoder: Path, rows: Path) -> None:
    options = replace(AXIS, learning=PatternOptions(rho_target=0.0))
    training = prepared(encoder, rows, options)
    learning = learning_of(options, training)
    batch = training.collator([training.rows[0]])
    for step, count in ((0, 0), (learning.schedule.stages.steps - 1, LAYERS)):
        at_step(learning, training, step)
        with recorded(training.model) as masks:
            training.model(**batch)
        assert (len(masks), learning.cost(masks)) == (count, 0.0)


def test_rho_is_measured_on_the_served_masks_and_noted(encoder: Path, rows: Path) -> None:
    training = prepared(encoder, rows, AXIS)
    learning = learning_of(AXIS, training)
    before = torch.get_rng_state()
    state, _ = at_step(learning, training, learning.schedule.stages.dense)
    assert torch.equal(torch.get_rng_state(), before)
    assert training.model.training
    training.model.eval()
    shares = []
    for row in training.calibration:
        with recorded(training.model) as masks, torch.no_grad():
            batch = training.collator([row])
            training.model(**batch)
        length = len(row["input_ids"])
        for mask in masks:
            assert mask.rows is not None
            assert mask.columns is not None
            allowed = sum(
                abs(i - j) <= 2 or bool(mask.rows[0, i]) or bool(mask.columns[0, j])
                for i in range(length)
                for j in range(length)
            )
            shares.append(1 - allowed / length**2)  # Eq. 9
    assert state.log_history == [
        {"step": learning.schedule.stages.dense, "rho": pytest.approx(sum(shares) / len(shares), abs=1e-6)}
    ]


def test_the_patterns_weights_have_their_own_rate_and_no_decay(encoder: Path, rows: Path) -> None:
    options = replace(AXIS, learning=PatternOptions(pattern_learning_rate=0.25))
    training = prepared(encoder, rows, options)
    learning = learning_of(options, training)
    _, optimizer = at_step(learning, training, learning.schedule.stages.dense + 3)
    names = {id(weight): name for name, weight in training.model.named_parameters()}
    groups = [{names[id(weight)] for weight in group["params"]} for group in optimizer.param_groups]
    assert groups[-1] == {name for name in names.values() if ".axis." in name}
    assert set().union(*groups) == set(names.values())
    assert sum(map(len, groups)) == len(names)
    last = optimizer.param_groups[-1]
    assert (last["lr"], last["weight_decay"]) == (0.25, 0)
    assert optimizer.param_groups[0]["lr"] != 0.25


def test_what_is_learned_changes_whatever_else_is_frozen(encoder: Path, rows: Path, tmp_path: Path) -> None:
    options = replace(AXIS, epochs=1, freeze_layers=LAYERS)
    start = prepared(encoder, rows, options).model.state_dict()
    finetune(encoder, rows, tmp_path / "out", options, evaluation=rows)
    for name, weight in weights(tmp_path / "out").items():
        is_free = ".axis." in name or not name.startswith(("bert.embeddings", "bert.encoder"))
        assert torch.equal(weight, start[name]) != is_free, name


def script_accuracy(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    answers = iter({"loss": 1.0, "accuracy": value, "f1": 0.5, "matthews": 0.0} for value in values)
    monkeypatch.setattr(task_module, "figures_of", lambda *_: lambda _: next(answers))


@pytest.mark.parametrize(
    ("values", "patience", "trained", "best"),
    [
        ([0.9, 0.8, 0.7, 0.6, 0.9, 0.2, 0.1, 0.1], None, 8, 6),
        ([0.9, 0.8, 0.7, 0.6, 0.9, 0.2, 0.3, 0.1], 1, 8, 7),
        ([0.9, 0.8, 0.7, 0.6, 0.9, 0.2, 0.1, 0.9], 1, 7, 6),
    ],
)
def test_only_a_final_epoch_is_the_best_or_tries_the_patience(
    encoder: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: list[float],
    patience: int | None,
    trained: int,
    best: int,
) -> None:
    script_accuracy(monkeypatch, values)
    options = replace(AXIS, epochs=8, early_stopping_patience=patience)
    record = finetune(encoder, rows, tmp_path / "out", options, evaluation=rows)
    assert (len(record.epochs), record.best_epoch) == (trained, best)
    stages = ["dense"] * 4 + ["annealing"] + ["final"] * 3
    assert [epoch.stage for epoch in record.epochs] == stages[:trained]
    assert record.rho == record.epochs[best - 1].rho


def test_a_dense_epoch_is_judged_as_the_dense_model(
    encoder: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[dict[str, torch.Tensor]] = []

    class Recorder(Steering):
        def on_evaluate(self, *args: Any, **rest: Any) -> None:
            states.append({name: each.clone() for name, each in rest["model"].state_dict().items()})
            super().on_evaluate(*args, **rest)

    monkeypatch.setattr(trainer_module, "Steering", Recorder)
    options = replace(AXIS, epochs=2)
    record = finetune(encoder, rows, tmp_path / "out", options, evaluation=rows)
    lines = [line.split("\t") for line in rows.read_text(encoding="utf-8").splitlines()[1:]]
    inputs = load_tokenizer(tmp_path / "out")([text for text, _ in lines], padding=True, return_tensors="pt")
    labels = torch.tensor([label == "positive" for _, label in lines]).long()
    for state, epoch, attention in zip(
        states, record.epochs, (AttentionSpec(), options.attention), strict=True
    ):
        model = load_checkpoint(tmp_path / "out", attention)
        model.load_state_dict(state, strict=False)
        with torch.no_grad():
            loss = F.cross_entropy(model(**inputs).logits, labels).item()
        assert loss == pytest.approx(epoch.eval_loss, abs=1e-5)
    assert (record.epochs[0].rho, record.best_epoch) == (0, 2)


@pytest.mark.parametrize(
    ("name", "lambd"),
    [
        ("axis+local1", None),
        ("axis+local1", -1.0),
        ("local1+global1+random1", None),
        ("layer-diagonal+global1", None),
    ],
)
def test_the_record_tells_how_sparse_each_layer_is(
    encoder: Path, rows: Path, tmp_path: Path, name: str, lambd: float | None
) -> None:
    options = replace(FAST, attention=AttentionSpec.parse(name, lambd))
    record = finetune(encoder, rows, tmp_path / "out", options, evaluation=rows)
    model, tokenizer = load_checkpoint(tmp_path / "out"), load_tokenizer(tmp_path / "out")
    texts = [line.split("\t")[0] for line in rows.read_text(encoding="utf-8").splitlines()[1:]]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad(), recorded(model) as masks:
        maps = model(**inputs, output_attentions=True).attentions
    rho = zero_shares(maps, inputs["attention_mask"])
    assert [layer.rho for layer in record.layers] == pytest.approx(rho.mean(0).tolist(), abs=1e-5)
    support = ((1 - rho) * inputs["attention_mask"].sum(1, keepdim=True)).mean(0)
    assert [layer.support for layer in record.layers] == pytest.approx(support.tolist(), abs=1e-4)
    described = [layer.mask for layer in record.layers]
    for each, mask in zip(described, masks, strict=True):
        assert each is not None
        shares = mask_shares(mask, inputs["attention_mask"]).mean(0).tolist()
        figures = (each.rho, each.rho_without_band or 0, each.rows_on, each.columns_on)
        learns = options.learns
        assert figures == pytest.approx((shares[0], shares[1] * learns, *shares[2:]), abs=1e-5)
        assert (each.rho_without_band is None) == (not learns)
        assert each.rows_on_count == pytest.approx(sum(map(float, _on(mask.rows, inputs, mask))) / len(texts))
    assert record.rho == pytest.approx(sum(each.rho for each in described if each) / LAYERS, abs=1e-5)
    assert (record.rho_target is None, record.rho_without_band is None) == (not options.learns,) * 2


def _on(learned: torch.Tensor | None, inputs: Any, mask: Any) -> torch.Tensor:
    """How many rows of each text are on."""
    tokens: torch.Tensor = inputs["attention_mask"].bool()
    first: torch.Tensor = torch.arange(tokens.shape[1]) < mask.pattern.global_size
    return ((first if learned is None else first | learned) & tokens).sum(1)


def test_mask_shares_by_hand() -> None:
    """One text of 4 tokens before padding: band 0, row 1 and column 3 learned, one global."""
    rows = torch.tensor([[False, True, False, False, True, True]])
    columns = torch.tensor([[False, False, False, True, True, False]])
    mask = LayerMask(LayerPattern((0,), global_size=1), rows, columns)
    tokens = torch.tensor([[1, 1, 1, 1, 0, 0]])
    # Allowed: rows 0 and 1 whole, (2, 0), (2, 2), (2, 3), (3, 0), (3, 3); learned alone: row 1, column 3.
    assert mask_shares(mask, tokens).tolist() == [pytest.approx([1 - 13 / 16, 1 - 7 / 16, 2 / 4, 2 / 4])]
    assert mask_shares(mask, torch.zeros_like(tokens)).tolist() == [[0, 0, 0, 0]]


def test_fixed_rho_is_that_of_the_band_alone() -> None:
    # Of 4 tokens, local 1 allows 10 of 16 pairs; of 2, all.
    assert fixed_rho(Pattern.parse("axis+local1"), [4, 2, 4], LAYERS) == pytest.approx(2 / 3 * 6 / 16)
    assert fixed_rho(Pattern.parse("diagonal"), [5], LAYERS) == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["axis+local0", "diagonal", "axis+layer-diagonal"])
def test_thresholds_are_set_to_the_target(encoder: Path, rows: Path, name: str) -> None:
    options = replace(AXIS, attention=AttentionSpec.parse(name, None))
    training = prepared(encoder, rows, options)
    model = training.model
    torch.manual_seed(3)
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if "axis.weight" in weight_name or "diagonals.logits" in weight_name:
                weight[..., :9] = torch.randn_like(weight[..., :9])

    def measure() -> float:
        return mean_rho(model, training.evaluation, training.collator)

    highest = fixed_rho(
        options.attention.pattern or Pattern(local=0),
        [len(r["input_ids"]) for r in training.evaluation],
        LAYERS,
    )
    for target in (0.25, 0.5):
        calibrate(model, measure, target)
        # A diagonal is as much as a tenth of all pairs.
        assert measure() == pytest.approx(target, abs=0.1 if "diagonal" in name else 0.02)
    calibrate(model, measure, 0.99)
    assert measure() == pytest.approx(highest, abs=1e-6)
    assert calibrate(model, measure, highest) == 0  # nothing is moved where nothing is to be gained


def test_a_target_out_of_reach_is_warned_of(encoder: Path, rows: Path, tmp_path: Path) -> None:
    console = Console(file=StringIO(), soft_wrap=True)
    options = replace(AXIS, epochs=1, learning=PatternOptions(rho_target=0.9))
    record = finetune(encoder, rows, tmp_path / "out", options, evaluation=rows, console=console)
    assert isinstance(console.file, StringIO)
    said = console.file.getvalue()
    assert "out: 6 of the rows to train on are set aside, to set the pattern's threshold on" in said
    assert (
        "warning: --rho-target is 0.9, but what is fixed in axis+local2 leaves at most 0.454 on these" in said
    )
    assert record.rho_target == 0.9


def test_the_default_target_is_within_reach(encoder: Path, rows: Path, tmp_path: Path) -> None:
    record = finetune(encoder, rows, tmp_path / "out", AXIS, evaluation=rows)
    assert record.rho_target is not None
    assert record.calibration is not None
    assert 0 < record.rho_target < 0.454
    assert record.calibration.rho == pytest.approx(record.rho_target, abs=0.02)


def test_thresholds_are_set_on_rows_that_are_neither_trained_nor_judged_on(
    encoder: Path, rows: Path, tmp_path: Path
) -> None:
    """Other words in the evaluation rows change what is reported, and nothing that is learned."""
    others = tmp_path / "others.tsv"
    others.write_text(
        rows.read_text(encoding="utf-8").replace("the film is", "a story very"), encoding="utf-8"
    )
    options = replace(AXIS, learning=PatternOptions(rho_target=0.25), metric="loss", epochs=2)
    one, two = (
        finetune(encoder, rows, tmp_path / name, options, evaluation=path)
        for name, path in (("one", rows), ("two", others))
    )
    assert one.calibration is not None
    assert (one.calibration.rows, one.calibration) == (6, two.calibration)
    assert one.calibration.rho == pytest.approx(0.25, abs=0.05)
    assert one.rho != two.rho
    mine, theirs = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def rows_of(lengths: Iterable[int]) -> list[dict[str, list[int]]]:
    """Encoded rows of these lengths, each of one number of its own."""
    return [{"input_ids": [number] * length} for number, length in enumerate(lengths)]


@pytest.mark.parametrize(("count", "size"), [(2, 1), (40, 5), (200, 16), (2559, 128), (20_000, 256)])
def test_few_training_rows_are_set_aside(count: int, size: int) -> None:
    rows, judged = rows_of(number % 30 + 3 for number in range(count)), rows_of([9] * 40)
    kept, aside = set_aside(rows, judged, 3)
    assert len(aside) == size
    assert sorted(row["input_ids"][0] for row in (*kept, *aside)) == list(range(count))
    assert set_aside(rows, judged, 3) == (kept, aside)
    assert count < 100 or set_aside(rows, judged, 4)[1] != aside


def test_what_is_set_aside_is_about_as_long_as_what_is_judged() -> None:
    rows = rows_of([3 + number % 8 for number in range(1900)] + [10 + number % 40 for number in range(100)])
    lengths = np.random.default_rng(0).integers(12, 45, 300).tolist()
    _, aside = set_aside(rows, rows_of(lengths), 0)
    found = [len(row["input_ids"]) for row in aside]
    assert np.mean(found) == pytest.approx(np.mean(lengths), rel=0.1)
    assert np.quantile(found, [0.1, 0.9]) == pytest.approx(np.quantile(lengths, [0.1, 0.9]), rel=0.2)


@pytest.mark.parametrize("length", [1, 99])
def test_lengths_that_no_training_row_has_are_met_as_nearly_as_can_be(length: int) -> None:
    _, aside = set_aside(rows_of(range(20, 44)), rows_of([length] * 7), 0)
    assert sorted(len(row["input_ids"]) for row in aside) == ([20, 21, 22] if length < 20 else [41, 42, 43])


def test_one_row_cannot_be_set_aside() -> None:
    with pytest.raises(DataError, match="there is one training row; a learned pattern needs two or more"):
        set_aside(rows_of([5]), rows_of([5]), 0)


def test_the_default_number_of_epochs_has_a_choice_of_the_best() -> None:
    options = FinetuneOptions(attention=AXIS.attention)
    stages = Stages.of(options, 10)
    assert [stages.stage(10 * epoch) for epoch in range(1, 5)].count("final") == 2


def test_rho_is_looked_at_often_however_long_the_run() -> None:
    for steps, looks in ((20, 20), (400, 20), (1000, 20), (15_000, 300)):
        schedule = PatternSchedule(0.5, Stages(per_epoch=100, dense=steps, steps=2 * steps, learns=True))
        measured = [step for step in range(2 * steps) if schedule.at(step).measures]
        assert len(measured) == looks
        assert max(later - step for step, later in itertools.pairwise(measured)) <= 50


def test_steps_are_counted_where_they_end_a_run() -> None:
    learns = replace(AXIS, max_steps=9)
    assert Stages.of(learns, 4) == Stages(per_epoch=4, dense=4, steps=9, learns=True)
    assert [Stages.of(learns, 4).epoch(step) for step in (0, 4, 6, 9)] == [0, 1, 1.5, 2.25]
    with pytest.raises(
        OptionError, match="--dense-epochs 3 is 12 steps, and --max-steps 9; leave some steps"
    ):
        Stages.of(replace(AXIS, max_steps=9, dense_epochs=3), 4)
    many = replace(AXIS, max_steps=99, dense_epochs=AXIS.epochs + 1)
    assert Stages.of(many, 4).dense == 4 * (AXIS.epochs + 1)


def test_the_epochs_tell_their_rho(encoder: Path, rows: Path, tmp_path: Path) -> None:
    console = Console(file=StringIO(), soft_wrap=True)
    finetune(encoder, rows, tmp_path / "out", AXIS, evaluation=rows, console=console)
    assert isinstance(console.file, StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in lines] == [
        "epoch 1 of 4 (dense)",
        "epoch 2 of 4 (dense)",
        "epoch 3 of 4",
        "epoch 4 of 4",
    ]
    assert all(", rho 0." in line for line in lines)


def test_a_pattern_is_learned_in_accumulated_parts(encoder: Path, rows: Path, tmp_path: Path) -> None:
    options = replace(AXIS, epochs=10, dense_epochs=4, gradient_accumulation_steps=2)
    record = finetune(encoder, rows, tmp_path / "out", options, evaluation=rows)
    assert record.metrics["accuracy"] > 0.8
    assert record.calibration is not None
    assert record.calibration.rho == pytest.approx(record.rho_target, abs=0.02)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rho_target", 1.0),
        ("rho_target", -0.1),
        ("rho_target", float("nan")),
        ("alpha", -1.0),
        ("alpha", float("inf")),
        ("alpha_schedule", "cosine"),
        ("temperature", 0.0),
        ("final_temperature", float("nan")),
        ("pattern_learning_rate", 0.0),
    ],
)
def test_options_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"--{name.replace('_', '-')} is {value}; it must be "):
        PatternOptions(**{name: value})


@pytest.mark.parametrize(
    ("attention", "changed", "message"),
    [
        (
            "local2",
            {"learning": PatternOptions(rho_target=0.5)},
            "attention local2 learns nothing, .*--rho-target 0.5 would",
        ),
        (
            "sparsegen",
            {"learning": PatternOptions(alpha=3.0)},
            "attention sparsegen learns nothing, .*--alpha 3",
        ),
        ("softmax", {"dense_epochs": 1}, "--dense-epochs 1 is for attention by a pattern, and softmax"),
        ("axis", {"dense_epochs": 2}, "--dense-epochs is 2; it must be at least 0 and below --epochs, 2"),
        ("axis", {"dense_epochs": -1}, "--dense-epochs is -1; it must be at least 0"),
        ("axis", {"dense_epochs": -1, "max_steps": 9}, "--dense-epochs is -1; it must be at least 0$"),
    ],
)
def test_contradictions_are_refused(attention: str, changed: dict[str, Any], message: str) -> None:
    spec = AttentionSpec.parse(attention, -4.0 if attention == "sparsegen" else None)
    with pytest.raises(OptionError, match=message):
        replace(FAST, attention=spec, **changed)


@pytest.mark.parametrize("name", ["local24", "axis+global25", "local2+random25"])
def test_a_pattern_larger_than_the_texts_is_refused(
    encoder: Path, rows: Path, tmp_path: Path, name: str
) -> None:
    options = replace(FAST, attention=AttentionSpec.parse(name, None))
    with pytest.raises(OptionError, match="is larger than the length: texts are cut at 24 tokens"):
        finetune(encoder, rows, tmp_path / "out", options, evaluation=rows)
    assert not list(tmp_path.iterdir())
