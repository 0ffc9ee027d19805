"""What a library user imports, and what importing it costs."""

import subprocess
import sys
from importlib import import_module

import sparse_export


def test_every_public_name_is_there_and_is_the_one_of_its_room() -> None:
    assert sorted(sparse_export.__all__) == sparse_export.__all__ == dir(sparse_export)
    for name, home in sparse_export._HOMES.items():
        assert getattr(sparse_export, name) is getattr(import_module(f"sparse_export.{home}"), name)
    assert set(sparse_export._HOMES) == set(sparse_export.__all__)


def test_other_names_are_not() -> None:
    assert not hasattr(sparse_export, "load_classifier")


def test_the_door_opens_without_torch() -> None:
    code = "import sys, sparse_export; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_trains_knows_no_onnx() -> None:
    code = (
        "import sys\n"
        "import sparse_export.training\n"
        "sys.exit(any(name.split('.')[0] in ('onnx', 'onnxruntime', 'onnxscript') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
