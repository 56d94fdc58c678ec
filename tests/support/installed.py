"""Finds installed packages without importing them: some frameworks cannot share a process."""

from __future__ import annotations

import importlib.util

import pytest


def skip_unless_installed(*packages: str) -> None:
    """Skips the test, or the module that is being imported, if one of the packages is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
