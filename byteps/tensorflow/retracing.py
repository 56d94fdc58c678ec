"""tf.functions are traced anew in each job of this process.

Their graphs hold what ends with a job: how many ranks there are, and under which names they meet. And where a rank that
has come new to a job traces a function, and compares with the others what it is about to do, they must trace it, too.
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
    """Makes the job a part of what TensorFlow finds a function's traces by. It offers no public way to do so."""
    try:
        from tensorflow.python.eager.polymorphic_function import function_context

        plain = function_context.make_function_context
    except (ImportError, AttributeError):
        log.warning(
            "TensorFlow %s keeps the traces of functions elsewhere than byteps expects: make functions anew after "
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
