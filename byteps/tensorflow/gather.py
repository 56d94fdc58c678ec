"""Gathers rows of all ranks, whose numbers of rows may differ."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from byteps.ops import BROADCAST, Sum
from byteps.runtime import Job, current_job
from byteps.tensorflow.native import push_pull_node

__all__ = ["gather_rows"]

PADDED_SIZES = [0, *(1 << bits for bits in range(4, 63))]  # numbers of rows that are sent


def gather_rows(
    tensors: Sequence[tf.Tensor], name: str, priority: int, *, stateful: bool = False, step: tf.Tensor | None = None
) -> list[tf.Tensor]:
    """Returns each tensor's rows of all ranks, in the order of ranks.

    First the ranks exchange their numbers of rows. Then each rank's rows are broadcast, padded to a
    power of two, so that sizes seldom change.

    Args:
        tensors: with the same first dimension on this rank. Other dimensions and dtypes are the
            same on all ranks.
        name: see `push_pull_node`.
        priority: see `push_pull_node`.
        stateful: see `push_pull_node`.
        step: see `push_pull_node`.
    """
    job = current_job()
    counts = _counts(tf.shape(tensors[0], out_type=tf.int64)[0], job, name, priority, stateful, step)
    gathered = []
    for number, tensor in enumerate(tensors):
        parts = []
        for rank in range(job.size):
            padded = _with_rows(tensor if rank == job.rank else tensor[:0], _padded_size(counts[rank]))
            rows = push_pull_node(
                padded,
                f"{name}.{number}.{rank}",
                BROADCAST,
                priority,
                root_rank=rank,
                stateful=stateful,
                step=step,
            )
            parts.append(rows[: counts[rank]])
        gathered.append(tf.concat(parts, axis=0))
    return gathered


def _counts(mine: tf.Tensor, job: Job, name: str, priority: int, stateful: bool, step: tf.Tensor | None) -> tf.Tensor:
    """Returns the number of rows of each rank.

    Uses `name` itself, so that ranks that do something else under this name get an error.
    """
    here = tf.one_hot(job.rank, job.size, dtype=tf.int64)
    counts, present = tf.unstack(
        push_pull_node(tf.stack([here * mine, here]), name, Sum.value, priority, stateful=stateful, step=step)
    )
    # A graph of tf.compat.v1 may outlive its job, and contains this rank and the number of ranks.
    as_built = tf.debugging.Assert(
        tf.reduce_all(tf.equal(present, 1)),
        [
            f"'{name}': this graph was created in a job of {job.size} ranks, and runs in another job: create it again",
            present,
        ],
    )
    with tf.control_dependencies([] if as_built is None else [as_built]):
        return tf.identity(counts)


def _padded_size(rows: tf.Tensor) -> tf.Tensor:
    sizes = tf.constant(PADDED_SIZES, tf.int64)
    return tf.gather(sizes, tf.searchsorted(sizes, rows[tf.newaxis])[0])


def _with_rows(tensor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns `tensor` padded with zeros to this number of rows."""
    missing = rows - tf.shape(tensor, out_type=tf.int64)[0]
    return tf.pad(tensor, tf.concat([[[0, missing]], tf.zeros([tf.rank(tensor) - 1, 2], tf.int64)], axis=0))
