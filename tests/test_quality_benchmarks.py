"""What the quality benchmarks do with results that are there already: they are added to, and not mixed."""

import csv
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sparse_export.training import FinetuneOptions

QUALITY = Path(__file__).parents[1] / "benchmarks" / "quality"
# Measures what it is told for each seed, unless it was measured.
BENCHMARK = """
import csv, sys
from pathlib import Path
variant, *options = sys.argv[1:]
given = dict(zip(options[::2], options[1::2]))
path = Path(given["--results"]) / "x_runs.csv"
path.parent.mkdir(parents=True, exist_ok=True)
lines = list(csv.DictReader(path.open())) if path.exists() else []
done = {(line["variant"], line["seed"]) for line in lines}
new = [{"variant": variant, "seed": seed} for seed in given["--seeds"].split(",")]
lines += [line for line in new if (variant, line["seed"]) not in done]
with path.open("w", newline="") as file:
    writer = csv.DictWriter(file, list(lines[0]))
    writer.writeheader()
    writer.writerows(lines)
"""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that all of them stand on."""
    monkeypatch.syspath_prepend(QUALITY)
    return import_module("runs")


def test_a_process_for_each_seed_adds_to_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "benchmark.py").write_text(BENCHMARK, encoding="utf-8")
    results = tmp_path / "results"
    results.mkdir()
    measured = [("old", "0", "9"), ("old", "1", "9"), ("old", "7", "9")]
    with (results / "x_runs.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("variant", "seed", "seconds"), *measured])
    other = "variant,seed\nb,1\na,0\n"
    (results / "y_runs.csv").write_text(other, encoding="utf-8")
    for _ in range(2):
        command = [str(QUALITY / "seeds.py"), str(tmp_path / "benchmark.py"), "new"]
        subprocess.run([sys.executable, *command, "--seeds", "0,1", "--results", str(results)], check=True)
        with (results / "x_runs.csv").open(encoding="utf-8", newline="") as file:
            found = sorted(tuple(line.values()) for line in csv.DictReader(file))
        assert found == sorted([*measured, ("new", "0", ""), ("new", "1", "")])
        assert (results / "y_runs.csv").read_text(encoding="utf-8") == other


def test_runs_of_other_data_or_settings_are_not_added_to(runs: Any, tmp_path: Path) -> None:
    for name in ("model.safetensors", "train.tsv", "dev.tsv", "other.tsv"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    setting = FinetuneOptions(epochs=2)
    files = tmp_path, tmp_path / "train.tsv", tmp_path / "dev.tsv"
    run = runs.settings(setting) | runs.inputs(setting, *files)
    runs.refuse_other_settings(tmp_path, [run], setting, **runs.inputs(setting, *files))
    with pytest.raises(SystemExit, match="has runs with epochs 2, now 3"):
        runs.refuse_other_settings(tmp_path, [run], FinetuneOptions(epochs=3))
    others = runs.inputs(setting, *files[:2], tmp_path / "other.tsv")
    with pytest.raises(SystemExit, match="has runs with dev_sha256"):
        runs.refuse_other_settings(tmp_path, [run], setting, **others)


def test_the_first_rows_end_where_rows_end(runs: Any, tmp_path: Path) -> None:
    rows = "text\tlabel\none\u2028line\t0\nanother\t1\n"
    (tmp_path / "rows.tsv").write_text(rows, encoding="utf-8")
    (tmp_path / "part").mkdir()
    part = runs.head(tmp_path / "rows.tsv", 1, tmp_path / "part")
    assert part.read_text(encoding="utf-8") == "text\tlabel\none\u2028line\t0\n"
