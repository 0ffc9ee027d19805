"""The benchmark of whole models on a GPU, at toy size on the processor."""

import csv
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"


@pytest.mark.slow
def test_an_exported_model_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    model_speed = import_module("model_speed")
    output = tmp_path / "model_speed.csv"
    for _ in range(2):  # the second time with the entry that is there
        model_speed.main(output, tmp_path, device="cpu", kind=["ssaf"], toy=True)
    with output.open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["model"], line["variant"], line["lengths"]) for line in lines] == [
        ("ssaf", "own", "full"),
        ("ssaf", "own", "mixed"),
    ]
    assert all(float(line["texts_per_second"]) > 0 for line in lines)
