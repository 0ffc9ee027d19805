"""Which attentions a command line names, and the sweeps that compare them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import image
from transformers import BertConfig

import sparse_export.training.attentions as module
from command_line import exit_status
from sparse_export.attention.patterns import Pattern
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, new_model, save_checkpoint
from sparse_export.cli import app
from sparse_export.encoders.diagonals import AdaptiveDiagonals
from sparse_export.encoders.patterned import layer_patterns, pattern_modules
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.training import FinetuneOptions, PatternOptions, choose_attentions, finetune, runs_of
from sparse_serve.errors import OptionError
from sparse_serve.tasks import Classification
from tiny_training import FAST, LAYERS, weights, write_rows

TASK = Classification(("negative", "positive"))

pytestmark = pytest.mark.usefixtures("single_threaded")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.tsv", 24)


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every encoder be one that has no sparse attention recorded."""
    monkeypatch.setattr(module, "load_config", lambda *_: BertConfig())


def names_of(text: str) -> list[str]:
    return list(choose_attentions("any", text, [], None, 0).by_name)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("local2+global1", ["local2+global1"]),
        ("axis", ["axis"]),
        ("softmax,sparsegen,axis", ["softmax", "sparsegen", "axis"]),
        ("local2/16+global0/1", ["local2", "local2+global1", "local16", "local16+global1"]),
        ("global0/1+local2/4/8", ["local2", "local4", "local8", *(f"global1+local{n}" for n in (2, 4, 8))]),
        ("local0/1+global2", ["local0+global2", "local1+global2"]),
        # Figure 2: the size that both have is trained once.
        (
            "local2+global1/2/4,local1/2/4+global2",
            [*(f"local2+global{n}" for n in (1, 2, 4)), "local1+global2", "local4+global2"],
        ),
        ("local1/1/2", ["local1", "local2"]),
        ("local2+global1/2,global2+local1/2", ["local2+global1", "local2+global2", "global2+local1"]),
        ("local2,local1/2", ["local2", "local1"]),
        (" Softmax , sparseGen", ["softmax", "sparsegen"]),
        ("Local2/4 + Global1", ["local2+global1", "local4+global1"]),
        ("local2, global1", ["local2", "global1"]),
    ],
)
def test_names_stand_for_their_combinations(text: str, names: list[str]) -> None:
    assert sorted(names_of(text)) == sorted(names)
    specs = choose_attentions("any", text, [], None, 0).by_name
    for name, spec in specs.items():
        assert spec == AttentionSpec.parse(name, -4.0 if name == "sparsegen" else None)


def test_curves_go_along_what_has_most_sizes() -> None:
    chosen = choose_attentions("any", "axis,local2/16/128+global0/1,global4/2", [], None, 0)
    curves = [(curve.varies, curve.label, dict(curve.runs)) for curve in chosen.curves]
    assert curves == [
        ("local", "", {2: "local2", 16: "local16", 128: "local128"}),
        ("local", "global1", {n: f"local{n}+global1" for n in (2, 16, 128)}),
        ("global", "", {4: "global4", 2: "global2"}),
    ]


@pytest.mark.parametrize(
    ("text", "lambdas", "message"),
    [
        ("entmax", [], "entmax"),
        ("local2+", [], "has no meaning at ''"),
        ("softmax,", [], "--attention is 'softmax,': one of its names is empty"),
        ("", [], "one of its names is empty"),
        ("sparsegen+local2", [], "sparsegen is not joined to a pattern; .* give λ by --lambda"),
        ("Local2+Softmax", [], "softmax is not joined to a pattern"),
        ("local2,Local2", [], "names local2 and local2, which are the same; give each once"),
        ("axis,softmax,axis+local2", [], r"names axis and axis\+local2, which are the same"),
        ("local1+global1,global1+local1", [], "which are the same"),
        ("local1/2,local2/1", [], "names local1/2 and local2/1, which are the same"),
        ("local2+local3", [], "contradicts itself"),
        ("local2/3+local4", [], "contradicts itself"),
        ("local2+global0", [], "global0 allows nothing"),
        ("global0/1+random0/1", [], "where all sizes are 0 nothing is allowed"),
        ("local2/x", [], "has no meaning at 'local2/x'"),
        ("axis/2", [], "has no meaning at 'axis/2'"),
        ("local1,local2", [-4.0, 0.0], "--attention names 2 attentions and --lambda 2 values"),
        ("softmax", [-4.0], "softmax attention takes no lambda"),
        ("local2", [-4.0, 1.0], "below 1"),
        ("axis", [-4.0, -4.0], "give each λ once"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, lambdas: list[float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        choose_attentions("any", text, lambdas, None, 0)


def test_what_two_curves_share_is_on_both() -> None:
    chosen = choose_attentions("any", "local2+global1/2,global2+local1/2", [], None, 0)
    assert [dict(curve.runs) for curve in chosen.curves] == [
        {1: "local2+global1", 2: "local2+global2"},
        {1: "global2+local1", 2: "local2+global2"},
    ]


def test_lambdas_make_a_run_each_with_a_pattern_too() -> None:
    chosen = choose_attentions("any", "local2", [-7.0, 0.5], None, 0)
    assert chosen.by_name == {
        f"lambda_{lambd:g}": AttentionSpec.parse("local2", lambd) for lambd in (-7, 0.5)
    }
    assert choose_attentions("any", "local2,sparsegen", [-7.0], None, 0).by_name == {
        name: AttentionSpec.parse(name, -7) for name in ("local2", "sparsegen")
    }


def test_softmax_beside_others_takes_no_lambda() -> None:
    assert choose_attentions("any", "softmax,sparsegen", [-7.0], None, 0).by_name == {
        "softmax": AttentionSpec(),
        "sparsegen": AttentionSpec(-7.0),
    }


def test_random_keys_follow_the_seed_of_the_run() -> None:
    seeds = {
        name: spec.pattern.seed
        for name, spec in choose_attentions("any", "local2,random1", [], None, 9).by_name.items()
        if spec.pattern is not None
    }
    assert seeds == {"local2": 0, "random1": 9}


@pytest.mark.usefixtures("_plain")
def test_the_default_is_sparsegen() -> None:
    (default,) = choose_attentions("any", None, [], None, 0).by_name.values()
    assert default == FinetuneOptions().attention == AttentionSpec(-4.0)
    (given,) = choose_attentions("any", None, [-7.0], None, 0).by_name.values()
    assert given == AttentionSpec(-7.0)


def saved(encoder: Path, folder: Path, attention: AttentionSpec, logits: Any = None) -> str:
    """A checkpoint of an encoder with this attention; of learned diagonals with given logits."""
    model = new_model(encoder, attention, TASK)
    for number, each in enumerate(pattern_modules(model)):
        if isinstance(each, AdaptiveDiagonals):
            with torch.no_grad():
                each.logits[:4] = torch.tensor(logits[number])
    save_checkpoint(model, load_tokenizer(encoder), folder)
    return str(folder)


def test_a_softmax_encoder_stays_one_where_that_is_asked_for(encoder: Path) -> None:
    """As where tasks are added to it."""
    assert choose_attentions(str(encoder), None, [], None, 0).by_name == {"sparsegen": AttentionSpec(-4.0)}
    kept = choose_attentions(str(encoder), None, [], None, 0, keeps_softmax=True)
    assert kept.by_name == {"softmax": AttentionSpec()}


def test_an_encoder_keeps_its_own_attention(encoder: Path, tmp_path: Path) -> None:
    own = AttentionSpec(None, Pattern(local=2, global_size=1, random=1, seed=5))
    checkpoint = saved(encoder, tmp_path / "own", own)
    assert list(choose_attentions(checkpoint, None, [], None, 0).by_name.values()) == [own]
    assert list(choose_attentions(checkpoint, None, [-2.0], None, 0).by_name.values()) == [
        replace(own, lambd=-2.0)
    ]
    (other,) = choose_attentions(checkpoint, "sparsegen", [], None, 0).by_name.values()
    assert other == AttentionSpec(-4.0)


@pytest.mark.parametrize(
    ("name", "logits", "offsets"),
    [
        ("diagonal+global1", [[-1.0, 0.5, -1.0, 2.0]], ((0, 1, 3),)),
        (
            "layer-diagonal+global1",
            [[-1.0, 0.5, 0.0, -2.0], [0.1, -1.0, 1.0, 1.0]],
            ((0, 1), (0, 2, 3)),
        ),
    ],
)
def test_learned_diagonals_are_taken_as_fixed_ones(
    encoder: Path, rows: Path, tmp_path: Path, name: str, logits: Any, offsets: Any
) -> None:
    checkpoint = saved(encoder, tmp_path / "learned", AttentionSpec.parse(name, None), logits)
    (alone,) = choose_attentions(str(encoder), None, [], checkpoint, 0).by_name.values()
    assert alone.pattern == Pattern(global_size=1, offsets=offsets)
    (joined,) = choose_attentions(str(encoder), "random1", [-4.0], checkpoint, 3).by_name.values()
    assert joined == AttentionSpec(-4.0, Pattern(random=1, seed=3, offsets=offsets))

    options = replace(FAST, attention=alone)
    record = finetune(encoder, rows, tmp_path / "out", options, evaluation=rows)
    trained = load_checkpoint(tmp_path / "out")
    by_layer = offsets * (LAYERS // len(offsets))
    assert [layer.diagonals for layer in layer_patterns(trained)] == list(by_layer)
    assert not [weight for weight in weights(tmp_path / "out") if "diagonals" in weight]
    assert record.rho_target is None
    # What was fixed before can be taken on.
    (again,) = choose_attentions(str(encoder), None, [], str(tmp_path / "out"), 0).by_name.values()
    assert again == alone


def test_a_pattern_is_taken_on_with_its_lambda(encoder: Path, tmp_path: Path) -> None:
    learned = saved(encoder, tmp_path / "learned", AttentionSpec.parse("diagonal", -2.0), [[1.0] * 4])
    for lambdas, expected in (([], -2.0), ([-5.0], -5.0)):
        (taken,) = choose_attentions(str(encoder), None, lambdas, learned, 0).by_name.values()
        assert taken.lambd == expected


def test_diagonals_that_do_not_fit_are_refused(encoder: Path, tmp_path: Path) -> None:
    learned = saved(encoder, tmp_path / "learned", AttentionSpec.parse("diagonal", None), [[1.0] * 4])
    for text, message in (
        ("diagonal+global1", "--pattern-from fixes the diagonals of a pattern, and --attention is diagonal"),
        ("softmax", "--pattern-from fixes the diagonals of a pattern, and --attention is softmax"),
    ):
        with pytest.raises(OptionError, match=message):
            choose_attentions(str(encoder), text, [], learned, 0)
    without = saved(encoder, tmp_path / "without", AttentionSpec.parse("local2", None))
    for other in (None, "global1"):
        with pytest.raises(OptionError, match="has no diagonals: its attention is local2; give a checkpoint"):
            choose_attentions(str(encoder), other, [], without, 0)
    with pytest.raises(OptionError, match="has no diagonals: its attention is softmax; give a checkpoint"):
        choose_attentions(str(encoder), None, [], str(encoder), 0)


def test_diagonals_by_layer_need_as_many_layers(encoder: Path, tmp_path: Path) -> None:
    logits = [[1.0] * 4] * LAYERS
    learned = saved(encoder, tmp_path / "learned", AttentionSpec.parse("layer-diagonal", None), logits)
    config = json.loads((encoder / "config.json").read_text(encoding="utf-8"))
    deeper = tmp_path / "deeper"
    deeper.mkdir()
    (deeper / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}), encoding="utf-8")
    with pytest.raises(OptionError, match=r"has diagonals for 2 layers, and .*deeper has 3; give a checkp"):
        choose_attentions(str(deeper), "global1", [], learned, 0)


def test_options_go_where_they_have_a_use() -> None:
    def make(**given: Any) -> FinetuneOptions:
        return replace(FAST, **given)

    chosen = choose_attentions("any", "softmax,local2,axis", [], None, 0)
    runs = runs_of(make, chosen, PatternOptions(rho_target=0.5), 1)
    assert {name: each.learning for name, each in runs.items()} == {
        "softmax": None,
        "local2": None,
        "axis": PatternOptions(rho_target=0.5),
    }
    assert {name: each.dense_epochs for name, each in runs.items()} == {
        "softmax": None,
        "local2": 1,
        "axis": 1,
    }
    fixed = choose_attentions("any", "softmax,local2", [], None, 0)
    with pytest.raises(OptionError, match=r"learns nothing, and --rho-target 0\.5 would have no effect"):
        runs_of(make, fixed, PatternOptions(rho_target=0.5), None)
    with pytest.raises(OptionError, match="--dense-epochs 1 is for attention by a pattern"):
        runs_of(make, choose_attentions("any", "softmax,sparsegen", [], None, 0), None, 1)


def command(*args: object) -> int:
    return exit_status(app, "finetune", *args)


@pytest.fixture(scope="module")
def swept(encoder: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The arguments of a sweep that was made, and where."""
    output = tmp_path_factory.mktemp("swept") / "sweep"
    args = (encoder, "--train", rows, "--eval", rows, "--output", output, "--epochs", 2, "-b", 8)
    assert command(*args, "--attention", "local1/4+global0/1,softmax,axis", "--rho-target", "0.3") == 0
    return args, output


def test_a_sweep_makes_a_checkpoint_each_and_compares_them(
    swept: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    args, output = swept
    names = ["local1", "local1+global1", "local4", "local4+global1", "softmax", "axis"]
    assert {path.name for path in output.iterdir()} == {*names, "sweep.json", "sweep.png"}
    for name in names:
        assert ModelSpec.of(load_checkpoint(output / name).config).attention.name == (
            "axis+local2" if name == "axis" else name
        )
    assert image.imread(output / "sweep.png").std() > 0.01

    written = json.loads((output / "sweep.json").read_text(encoding="utf-8"))
    assert set(written["runs"]) == set(names)
    by_name = {
        name: json.loads((output / name / "finetune.json").read_text(encoding="utf-8")) for name in names
    }
    for name, entry in written["runs"].items():
        record = by_name[name]
        best = record["epochs"][record["best_epoch"] - 1]
        assert entry["metrics"] == {**best["metrics"], "loss": best["eval_loss"]}
        if name != "softmax":
            assert entry["rho"] == pytest.approx(record["rho"], abs=1e-5)
    curves = [(curve["varies"], curve["label"], curve["runs"]) for curve in written["curves"]]
    assert curves == [
        ("local", "", {"1": "local1", "4": "local4"}),
        ("local", "global1", {"1": "local1+global1", "4": "local4+global1"}),
    ]

    # Made again, all is there; the table is in the order of the names.
    more = ("--attention", "local1/4+global0/1,softmax,axis", "--rho-target", "0.3", "--resume")
    assert command(*args, *more) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in table[1:7]] == sorted(names, key=list(written["runs"]).index)
    assert next(row for row in table if row[:1] == ["softmax"])[-2:] == ["0.000", "all"]
    rho = {row[0]: float(row[-2]) for row in table[1:7]}
    assert rho["local1"] > rho["local4"] > rho["softmax"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("--attention", "axis", "--rho-target", "1"),
            "--rho-target is 1.0; it must be a share of pairs, at",
        ),
        (
            ("--attention", "axis", "--rho-target", "-0.5"),
            "--rho-target is -0.5; it must be a share of pairs",
        ),
        (
            ("--attention", "local2", "--rho-target", "0.5"),
            "attention local2 learns nothing, and --rho-target",
        ),
        (
            ("--rho-target", "0.5"),
            "attention sparsegen learns nothing, and --rho-target 0.5 would have no eff",
        ),
        (
            ("--attention", "local2", "--alpha", "1"),
            "attention local2 learns nothing, and any of --rho-target, --alpha, ",
        ),
        (("--attention", "local2+local4"), "contradicts itself"),
        (("--attention", "local2,local30"), "the local size 30 of attention local30 is larger"),
        (("--attention", "local30"), "is larger than the length: texts are cut at 24 tokens"),
        (
            ("--attention", "axis+global9", "--max-length", "8"),
            "the global size 9 of attention axis+global9 is",
        ),
        (
            ("--attention", "axis", "--dense-epochs", "1"),
            "--dense-epochs is 1; it must be at least 0 and below",
        ),
        (("--attention", "axis", "--alpha-schedule", "cosine"), "'cosine' is not one of"),
        (
            ("--attention", "local1,local2", "--lambda", "-4,0"),
            "--attention names 2 attentions and --lambda 2",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    encoder: Path,
    rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    message: str,
) -> None:
    assert command(encoder, "--train", rows, "--output", tmp_path / "out", "--epochs", "1", *args) == 2
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert not out
    assert len(errors) == 1
    assert message in errors[0]
    assert not (tmp_path / "out").exists()


def test_the_help_tells_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--help") == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    defaults = PatternOptions()
    for option, default in (
        ("--alpha ", f"{defaults.alpha:g}"),
        ("--alpha-schedule ", defaults.alpha_schedule),
        ("--temperature ", f"{defaults.temperature:g}"),
        ("--pattern-learning-rate ", f"{defaults.pattern_learning_rate:g}"),
        ("--lambda ", f"{FinetuneOptions().attention.lambd:g} with sparsegen"),
    ):
        assert out.split(f" {option}")[1].split("[default: (")[1].startswith(f"{default})"), option
