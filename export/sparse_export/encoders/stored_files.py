"""Files of a checkpoint beside its weights, whether it is a folder or a model on the hub."""

import json
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from sparse_serve.errors import CheckpointError

RECORD_NAME = "finetune.json"
"""What `finetune` writes about a run."""


class UnreachableError(CheckpointError):
    """Whether a checkpoint has a file is not known: it is neither in the cache nor can the hub be asked."""


class StoredRecord(NamedTuple):
    """What a checkpoint's `finetune.json` says of its attention; None where it does not.

    Attributes:
        max_length: tokens at which the rows were cut that it was trained on.
        rho_target: ρ that a learned pattern was trained towards.
        rho: of the pattern, on the rows that it was judged by.
    """

    max_length: int | None = None
    rho_target: float | None = None
    rho: float | None = None


def stored_file(checkpoint: str | Path, file: str, revision: str | None = None) -> Path | None:
    """Return where a file of a checkpoint lies, None where it is known that there is none.

    Args:
        checkpoint: a folder, or the id of a model on the hub.
        file: its path inside.
        revision: of a model on the hub: a branch, a tag or a commit.

    Raises:
        UnreachableError: it may be there, but cannot be reached.
    """
    folder = Path(checkpoint)
    if folder.is_dir():
        return folder / file if (folder / file).is_file() else None
    try:
        return Path(hf_hub_download(str(checkpoint), file, revision=revision))
    except EntryNotFoundError as error:
        cached = try_to_load_from_cache(str(checkpoint), file, revision=revision)
        if not isinstance(error, LocalEntryNotFoundError) or cached is _CACHED_NO_EXIST:
            return None
    except OSError:  # the hub's and the connection's errors
        pass
    raise UnreachableError(f"{checkpoint}: the hub cannot be asked whether there is {file}")


def stored_record(checkpoint: str | Path, revision: str | None = None) -> StoredRecord | None:
    """Return what `finetune` wrote beside a checkpoint's weights.

    Args:
        checkpoint: a folder, or the id of a model on the hub.
        revision: of a model on the hub: a branch, a tag or a commit.

    Returns:
        None where another program trained them.

    Raises:
        UnreachableError: whether that is so is not known.
    """
    path = stored_file(checkpoint, RECORD_NAME, revision)
    try:
        stored = None if path is None else json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(stored, dict):
        return None
    length = stored.get("max_length")
    is_length = isinstance(length, int) and not isinstance(length, bool) and length > 0
    return StoredRecord(
        length if is_length else None, _share(stored.get("rho_target")), _share(stored.get("rho"))
    )


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None
