"""The serving side of sparse-serve: repository, Triton, client and measurement. Never imports torch."""

from importlib.metadata import version

__version__ = version("sparse-serve")
