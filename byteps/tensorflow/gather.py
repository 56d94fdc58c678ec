"""Rows of all ranks, of which each has another number."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from byteps.ops import BROADCAST, Sum
from byteps.runtime import current_job
from byteps.tensorflow.native import push_pull_node

__all__ = ["gather_rows"]

ROOMS = [0, *(1 << bits for bits in range(4, 63))]  # numbers of rows that are sent


def gather_rows(tensors: Sequence[tf.Tensor], name: str, priority: int, *, stateful: bool = False) -> list[tf.Tensor]:
    """Each tensor's rows of rank 0, then those of rank 1, and so on.

    First the ranks tell each other how many rows they have. Then each rank's rows are broadcast, padded to a power of
    two, so that a job has few names however the numbers change.

    Args:
        tensors: with equal first dimensions on this rank, and equal other dimensions and dtypes on all ranks.
        name: as in `push_pull_node`.
        priority: likewise.
        stateful: likewise.
    """
    job = current_job()
    mine = tf.shape(tensors[0], out_type=tf.int64)[0]
    counts = push_pull_node(
        tf.one_hot(job.rank, job.size, on_value=mine, off_value=tf.constant(0, tf.int64), dtype=tf.int64),
        f"{name}.rows",
        Sum.value,
        priority,
        stateful=stateful,
    )
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
                named_dims=1,
                stateful=stateful,
            )
            parts.append(rows[: counts[rank]])
        gathered.append(tf.concat(parts, axis=0))
    return gathered


def _room(rows: tf.Tensor) -> tf.Tensor:
    rooms = tf.constant(ROOMS, tf.int64)
    return tf.gather(rooms, tf.searchsorted(rooms, rows[tf.newaxis])[0])


def _with_rows(tensor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """`tensor` with zeros behind it."""
    missing = rows - tf.shape(tensor, out_type=tf.int64)[0]
    return tf.pad(tensor, tf.concat([[[0, missing]], tf.zeros([tf.rank(tensor) - 1, 2], tf.int64)], axis=0))
