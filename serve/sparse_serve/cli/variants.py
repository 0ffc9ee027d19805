"""The variants of a measurement, as `profile` and `report diff` take them on the command line."""

from typing import get_args

from sparse_serve.errors import OptionError
from sparse_serve.report.measured import VARIANTS, Variant


def variants_named(text: str) -> tuple[Variant, ...]:
    """Return the variants of a list of their names.

    Raises:
        OptionError: one is unknown.
    """
    wanted = [part.strip() for part in text.split(",")]
    for name in wanted:
        if name not in get_args(Variant):
            raise OptionError(f"--variants has no variant '{name}'; accepted are {', '.join(VARIANTS)}")
    return tuple(variant for variant in VARIANTS if variant in wanted)
