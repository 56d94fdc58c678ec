"""The version of the installed package."""

from __future__ import annotations

from importlib import metadata


def package_version() -> str:
    """Returns the version; "" if byteps is imported from its sources."""
    try:
        return metadata.version("byteps")
    except metadata.PackageNotFoundError:
        return ""
