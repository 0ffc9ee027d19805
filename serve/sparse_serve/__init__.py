"""The serving side of sparse-serve: repository, Triton, client and measurement. Never imports torch."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparse_serve.classifier import Classifier
    from sparse_serve.client import Client

__all__ = ["Classifier", "Client", "__version__"]

__version__: str


def __getattr__(name: str) -> Any:
    # The text backend has some of this package's modules, where the package is not installed.
    if name == "__version__":
        return version("sparse-serve")
    if name == "Client":
        return import_module("sparse_serve.client").Client
    if name == "Classifier":
        with import_module("sparse_serve.extras").needing("Classifier", "cpu"):
            return import_module("sparse_serve.classifier").Classifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
