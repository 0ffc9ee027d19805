"""What a sentence-transformers folder says of how hidden states become an embedding.

Its `modules.json` names what follows the encoder: a pooling, and perhaps a normalization. Its
`sentence_bert_config.json` says at how many tokens that library cuts texts.
"""

import json
from pathlib import Path
from typing import Any

from sparse_export.encoders.stored_files import UnreachableError, stored_file
from sparse_serve.errors import CheckpointError

_MODULES, _SETTINGS = "modules.json", "sentence_bert_config.json"
# The modes of pooling that an exported model has, as versions of that library call them.
_MODE = "pooling_mode"
_POOLINGS = {"cls_token": "first", "mean_tokens": "mean", "cls": "first", "mean": "mean"}


def embedding_settings(checkpoint: str | Path, *, is_pooling_known: bool = False) -> dict[str, Any]:
    """Return the settings `pooling` and `normalize` that a checkpoint stores; none of a plain one.

    Args:
        checkpoint: a folder, or the id of a model on the hub.
        is_pooling_known: what pools is stated otherwise, so that the folder's own need not be understood.

    Raises:
        CheckpointError: a file is malformed, says what an exported model does not do, or may be there but
            cannot be reached.
    """
    modules = _read(checkpoint, _MODULES)
    if modules is None:
        return {}
    try:
        paths = {str(each["type"]).rpartition(".")[2]: str(each["path"]) for each in modules}
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{checkpoint}: {_MODULES} is malformed: {error!r}") from None
    settings: dict[str, Any] = {"normalize": "Normalize" in paths}
    if is_pooling_known:
        return settings
    for kind in paths.keys() - {"Transformer", "Pooling", "Normalize"}:
        raise CheckpointError(
            f"{checkpoint}: {_MODULES} has a {kind} behind the encoder, which is not exported: give "
            "--pooling first or mean to embed without it"
        )
    return settings | ({"pooling": _pooling(checkpoint, paths["Pooling"])} if "Pooling" in paths else {})


def stored_max_length(checkpoint: str | Path) -> int | None:
    """Return at how many tokens sentence-transformers cuts a checkpoint's texts; None where it does not say,
    or cannot be asked.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        settings = _read(checkpoint, _SETTINGS)
    except UnreachableError:
        return None
    length = settings.get("max_seq_length") if isinstance(settings, dict) else None
    return length if isinstance(length, int) else None


def _pooling(checkpoint: str | Path, folder: str) -> str:
    file = f"{folder}/config.json"
    config = _read(checkpoint, file)
    if not isinstance(config, dict):
        raise CheckpointError(f"{checkpoint}: {_MODULES} names a pooling, but {file} tells none")
    modes = [name.removeprefix(f"{_MODE}_") for name, value in config.items() if value is True]
    modes = [mode for mode in modes if f"{_MODE}_{mode}" in config]
    if isinstance(config.get(_MODE), str):
        modes.append(config[_MODE])
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise CheckpointError(
            f"{checkpoint}: {file} pools by {', '.join(modes) or 'nothing'}; an exported model pools by the "
            "first token or by the mean: give --pooling first or mean"
        )
    return _POOLINGS[modes[0]]


def _read(checkpoint: str | Path, file: str) -> Any:
    """Return what a JSON file of a checkpoint holds, None where it is known that there is none."""
    try:
        path = stored_file(checkpoint, file)
    except UnreachableError as error:
        raise UnreachableError(
            f"{error}, which says how it embeds: give --pooling first or mean, and --normalize or "
            "--no-normalize"
        ) from None
    if path is None:
        return None
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint}: {file} cannot be read: {error}") from None
