"""Makes TensorFlow trace functions again in each job of this process.

Graphs contain data of a job: the number of ranks and names of tensors. Moreover, a rank that is new
in a job traces its functions and compares them with the other ranks, so these must trace them, too.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import tensorflow as tf

from byteps.runtime import jobs_so_far

__all__ = ["install"]

log = logging.getLogger("byteps")


def install() -> None:
    """Adds the number of the job to the key of TensorFlow's traces.

    There is no public API for this.
    """
    try:
        from tensorflow.python.eager.polymorphic_function import function_context

        plain = function_context.make_function_context
    except (ImportError, AttributeError):
        log.warning(
            "TensorFlow %s does not have the cache of traces that byteps expects: create functions again after "
            "resume()",
            tf.__version__,
        )
        return

    @functools.wraps(plain)
    def make_function_context(*args: Any, **kwargs: Any) -> Any:
        context = plain(*args, **kwargs)
        jobs = jobs_so_far()
        return context if jobs <= 1 else context._replace(context=(jobs, context.context))

    function_context.make_function_context = make_function_context
