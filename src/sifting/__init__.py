"""Spend backward passes only on the samples worth them."""

from sifting._version import __version__

__all__ = ["__version__"]
