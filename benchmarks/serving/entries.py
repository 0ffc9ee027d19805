"""The entries that text in the graph is measured on, and the lines of a result."""

import csv
import os
import platform
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import onnxruntime

from sparse_serve import __version__
from sparse_serve.environment import read_cpu

COMMAND = Path(sysconfig.get_path("scripts"), "sparse-serve")
SMALL_LAYERS, SMALL_WIDTH, SMALL_POSITIONS = 2, 32, 512
Line = dict[str, str]


def export(checkpoint: Path, repository: Path, name: str, *options: str) -> None:
    """Export a checkpoint, unless the repository has an entry of that name; end where it fails."""
    if (repository / name).exists():
        return
    place = (f"--name={name}", f"--model-repository={repository}")
    ended = subprocess.run([COMMAND, "export", str(checkpoint), *place, *options], check=False)
    if ended.returncode:
        raise SystemExit(ended.returncode)


def export_small(checkpoint: Path, repository: Path, name: str, *options: str) -> None:
    """Export a model that costs next to nothing, with a checkpoint's tokenizer, labels and attention."""
    if (repository / name).exists():
        return
    import torch  # noqa: PLC0415  not needed by who measures
    from transformers import AutoConfig, AutoModelForSequenceClassification  # noqa: PLC0415

    from sparse_export.encoders.checkpoint import save_checkpoint  # noqa: PLC0415
    from sparse_export.encoders.tokenizer import load_tokenizer  # noqa: PLC0415

    config = AutoConfig.from_pretrained(checkpoint)
    config.num_hidden_layers, config.num_attention_heads = SMALL_LAYERS, 2
    config.hidden_size, config.intermediate_size = SMALL_WIDTH, 2 * SMALL_WIDTH
    config.max_position_embeddings = SMALL_POSITIONS
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, name)
        folder.mkdir()
        save_checkpoint(model, load_tokenizer(str(checkpoint)), folder)
        export(folder, repository, name, *options)


def environment(server_version: str) -> Line:
    """Return where and with what is measured, the load of the machine at this moment included."""
    cpu = read_cpu()
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu.model,
        "cores": str(cpu.cores),
        "load_average": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.machine()}",
        "triton": server_version,
        "onnxruntime": onnxruntime.__version__,
        "package": __version__,
    }


def write_lines(path: Path, lines: Sequence[Mapping[str, str]]) -> None:
    """Write lines, with a column for every name that any of them has."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
