"""Which ONNX Runtime each Triton release carries, and the newest opset and IR that runtime loads."""

from dataclasses import dataclass

from sparse_serve.environment import onnxruntime_version
from sparse_serve.errors import OptionError
from sparse_serve.extras import install_hint

DEFAULT_RELEASE = "26.07"
BUNDLED = "24.10"


@dataclass(frozen=True)
class Release:
    """A Triton release.

    `opset` is the highest version of the ai.onnx domain and `ir_version` the highest ONNX IR that its
    ONNX Runtime accepts. The bundled server has no ONNX Runtime: it uses the environment's.
    """

    name: str
    onnxruntime: str
    opset: int
    ir_version: int


# Measured: the newest model each runtime's loader takes.
_LIMITS = {
    "1.20.1": (21, 10),
    "1.22.0": (22, 10),
    "1.23.2": (23, 11),
    "1.24.2": (25, 13),
    "1.24.4": (25, 13),
    "1.27.0": (26, 13),
    "1.28.0": (26, 13),
}

_RUNTIMES = {
    "25.02": "1.20.1",
    "25.06": "1.22.0",
    "25.07": "1.22.0",
    "25.12": "1.23.2",
    "26.03": "1.24.2",
    "26.04": "1.24.4",
    "26.05": "1.24.4",
    "26.06": "1.24.4",
    "26.07": "1.27.0",
    "26.08": "1.28.0",
}

RELEASES = {name: Release(name, runtime, *_LIMITS[runtime]) for name, runtime in _RUNTIMES.items()}


def release(name: str) -> Release:
    """Return the Triton release called `name`, such as "26.07".

    Raises:
        OptionError: the release is not known, or is the bundled one and there is no ONNX Runtime here.
    """
    if name == BUNDLED:
        return _bundled()
    if name not in RELEASES:
        known = ", ".join((BUNDLED, *RELEASES))
        raise OptionError(f"Triton release '{name}' is not known, known are {known}")
    return RELEASES[name]


def _bundled() -> Release:
    """Of a runtime that is not in the list, the limits of the newest one before it hold."""
    installed = onnxruntime_version()
    if installed is None:
        raise OptionError(
            f"Triton {BUNDLED}, the bundled one, runs the ONNX Runtime installed here, and there is none: "
            f"{install_hint('serve')}; or check against another release"
        )
    older = [known for known in _LIMITS if _minor(known) <= _minor(installed)]
    return Release(BUNDLED, installed, *_LIMITS[max(older, key=_minor, default=min(_LIMITS, key=_minor))])


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
