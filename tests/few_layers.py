"""A pretrained encoder cut to its first layers: real words and weights at a fraction of the time."""

import json
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def few_layers(encoder: Path, folder: Path, layers: int = 1) -> Path:
    """Write an encoder of the BERT family, with its tokenizer and all else of its folder, into `folder`."""
    shutil.copytree(encoder, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    config = json.loads((encoder / "config.json").read_text(encoding="utf-8"))
    assert config["num_hidden_layers"] > layers
    config["num_hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {
        name: weight
        for name, weight in load_file(encoder / "model.safetensors").items()
        if (layer := re.search(r"encoder\.layer\.(\d+)\.", name)) is None or int(layer[1]) < layers
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
