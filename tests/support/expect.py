"""`pytest.raises` for the processes of a job, which run without pytest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def expect_error(kind: type[Exception], *parts: str) -> Iterator[None]:
    """Fails unless the block raises `kind` with a message that contains all `parts`."""
    try:
        yield
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in the message: {error}"
    else:
        raise AssertionError(f"expected {kind.__name__} with {parts}, nothing was raised")
