"""YAML files that a command line names: one way to read them, whoever understands what they say."""

from pathlib import Path
from typing import Any

import yaml

from sparse_serve.errors import DataError, OptionError


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML is untyped
    """A loader that refuses two entries of one name, of which YAML would take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        # What is no mapping, whatever its tag says, is refused below.
        entries = node.value if isinstance(node, yaml.MappingNode) else ()
        names = [self.construct_object(key, deep=True) for key, _ in entries]
        for name in names:
            if names.count(name) > 1:
                raise yaml.YAMLError(f"{name!r} stands there twice")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(option: str, path: Path) -> Any:
    """Return what the file that an option names holds; None of an empty one.

    Raises:
        DataError: it cannot be read.
        OptionError: it is not YAML, or has two entries of one name.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
    except OSError as error:
        raise DataError(f"--{option} {path} cannot be read: {error.strerror}; give a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise OptionError(f"--{option} {path} is not YAML: {reason:.200}") from None
