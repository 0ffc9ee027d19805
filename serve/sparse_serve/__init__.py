"""The serving side of sparse-serve: repository, Triton, client and measurement. Never imports torch."""

from importlib.metadata import version

__version__: str


def __getattr__(name: str) -> str:
    # Triton's backend has some of this package's modules, where the package is not installed.
    if name == "__version__":
        return version("sparse-serve")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
