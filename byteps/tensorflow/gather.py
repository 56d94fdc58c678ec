"""Rows of all ranks, of which each has another number."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from byteps.ops import BROADCAST, Sum
from byteps.runtime import Job, current_job
from byteps.tensorflow.native import push_pull_node

__all__ = ["gather_rows"]

ROOMS = [0, *(1 << bits for bits in range(4, 63))]  # numbers of rows that are sent


def gather_rows(
    tensors: Sequence[tf.Tensor], name: str, priority: int, *, stateful: bool = False, step: tf.Tensor | None = None
) -> list[tf.Tensor]:
    """Each tensor's rows of rank 0, then those of rank 1, and so on.

    First the ranks tell each other how many rows they have. Then each rank's rows are broadcast, padded to a power of
    two, so that a job has few names however the numbers change.

    Args:
        tensors: with equal first dimensions on this rank, and equal other dimensions and dtypes on all ranks.
        name: as in `push_pull_node`.
        priority: likewise.
        stateful: likewise.
        step: likewise.
    """
    job = current_job()
    counts = _counts(tf.shape(tensors[0], out_type=tf.int64)[0], job, name, priority, stateful, step)
    gathered = []
    for number, tensor in enumerate(tensors):
        parts = []
        for rank in range(job.size):
            padded = _with_rows(tensor if rank == job.rank else tensor[:0], _room(counts[rank]))
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
    """How many rows each rank has. By the name itself: there ranks meet that do something else by it."""
    here = tf.one_hot(job.rank, job.size, dtype=tf.int64)
    counts, present = tf.unstack(
        push_pull_node(tf.stack([here * mine, here]), name, Sum.value, priority, stateful=stateful, step=step)
    )
    # A graph that outlives its job, as those of tf.compat.v1 do, has this rank and the number of ranks in it.
    as_built = tf.debugging.Assert(
        tf.reduce_all(tf.equal(present, 1)),
        [f"'{name}': this graph was made in a job of {job.size} ranks, and runs in another one: make it anew", present],
    )
    with tf.control_dependencies([] if as_built is None else [as_built]):
        return tf.identity(counts)


def _room(rows: tf.Tensor) -> tf.Tensor:
    rooms = tf.constant(ROOMS, tf.int64)
    return tf.gather(rooms, tf.searchsorted(rooms, rows[tf.newaxis])[0])


def _with_rows(tensor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """`tensor` with zeros behind it."""
    missing = rows - tf.shape(tensor, out_type=tf.int64)[0]
    return tf.pad(tensor, tf.concat([[[0, missing]], tf.zeros([tf.rank(tensor) - 1, 2], tf.int64)], axis=0))
