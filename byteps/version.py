"""The version of byteps, as installed."""

from __future__ import annotations

from importlib import metadata


def package_version() -> str:
    """Empty where byteps is imported from its sources."""
    try:
        return metadata.version("byteps")
    except metadata.PackageNotFoundError:
        return ""
