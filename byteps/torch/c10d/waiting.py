"""Collectives whose caller waits at once: one call of the core (`_core.BlockingCalls`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from byteps._core import BlockingCalls
from byteps.errors import BytePSError
from byteps.torch.c10d.work import CollectiveWork
from byteps.torch.eager import frame_callback, untraced

__all__ = ["waits_in_core"]

F = TypeVar("F", bound=Callable[..., Any])

_AT_ONCE_S = 1e-6  # a limit


def waits_in_core(options: type, short: Callable[[BlockingCalls, object, object], object]) -> Callable[[F], F]:
    """Decorator of a method of BytePSGroup: tries `short` first, if it is called with `options`."""

    def decorate(method: F) -> F:
        # The most frequent calls, in few lines: each costs a microsecond (benchmarks/README.md).
        @untraced
        @functools.wraps(method)
        def call(group: Any, tensors: Any, opts: Any = None, **more: Any) -> Any:
            blocking = group.blocking
            if blocking is None or type(opts) is not options or frame_callback() is not None:
                return method(group, tensors, opts, **more)
            try:
                done = short(blocking, tensors, opts)
            except BytePSError as error:
                raise group.explain(error) from None
            if done is True:
                return None  # no Work, as from torch's own groups if the caller waits at once
            if done is False:
                return method(group, tensors, opts, **more)
            return CollectiveWork(cast(Any, done), tensors, (), _AT_ONCE_S, group).wait()  # raises TimeoutError

        return cast(F, call)

    return decorate
