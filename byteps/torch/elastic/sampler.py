"""A sampler that goes on in the middle of an epoch when the ranks have changed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

import torch.utils.data

from byteps.errors import InvalidArgumentError
from byteps.objects import broadcast_object
from byteps.runtime import rank, size

__all__ = ["ElasticSampler", "Progress"]


class Division(NamedTuple):
    """Samples dealt out to the ranks one by one, as all ranks know."""

    samples: list[int]
    rank: int  # this one
    ranks: int

    def share(self) -> list[int]:
        """Returns the samples of this rank."""
        return self.samples[self.rank :: self.ranks]

    def used_along_with(self, own: Iterable[int]) -> set[int]:
        """Returns these samples of this rank, and what other ranks use in the same steps."""
        rounds = {index: number for number, index in enumerate(self.share())}
        return {
            index
            for number in (rounds[index] for index in own if index in rounds)
            for index in self.samples[number * self.ranks : (number + 1) * self.ranks]
        }


class Progress(NamedTuple):
    """How far this rank is in an epoch. Making it takes no time, whatever the number of samples."""

    epoch: int
    shared: frozenset[int]
    division: Division
    recorded: list[int]  # may have grown since
    num_recorded: int  # so many of them belong to it
    num_committed: int

    def committed(self) -> set[int]:
        """Returns what was used by all ranks until the last commit that they all have passed."""
        return self.division.used_along_with(self.recorded[: self.num_committed])


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a dataset among the ranks, and what is left of it whenever the ranks have changed.

    Make it part of the TorchState, call `record_batch` after each batch, and `set_epoch` at the end
    of each epoch:

        for state.epoch in range(state.epoch, epochs):
            for index, batch in enumerate(loader):
                ...
                state.sampler.record_batch(index, batch_size)
                state.commit()
            state.sampler.set_epoch(state.epoch + 1)

    Every sample is used at least once in each epoch. Those that a lost rank has used since the last
    commit are used again, as the others cannot know of them. All ranks get equally many samples, so
    some are used twice if the ranks do not divide their number.

    Attributes:
        epoch: number of the epoch.
        rank: this rank, as of `reset`.
        num_replicas: number of ranks, as of `reset`.
        remaining_indices: samples of all ranks that were left at `reset`, in their order.
        indices: those of this rank.
        num_samples: number of `indices`.
        total_size: number of samples of all ranks, including those that are used twice.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Creates the sampler, for epoch 0. Call `init` before.

        Args:
            dataset: of a size that does not change, the same on all ranks.
            shuffle: use another random order in each epoch. Otherwise the order is the dataset's.
            seed: of the random orders, the same on all ranks.
        """
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self._begin(0, frozenset())

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in which no sample has been used.

        Call it at the end of the one before. At the beginning, it would forget what was used before
        the ranks have changed.
        """
        self._begin(epoch, frozenset())

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that this rank has used a batch.

        Args:
            batch_idx: number of the batch, from 0, since the loader's iterator was made.
            batch_size: number of samples of every batch; the last one may be smaller.

        Raises:
            InvalidArgumentError: a negative number of a batch, or a size of less than 1.
        """
        if batch_idx < 0 or batch_size < 1:
            raise InvalidArgumentError(
                f"ElasticSampler.record_batch: batch {batch_idx} of size {batch_size}: expected a number from 0 and a "
                "size from 1"
            )
        self.record_indices(self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size])

    def record_indices(self, indices: Iterable[int]) -> None:
        """Notes that this rank has used these samples; for loaders that make batches of their own."""
        self._recorded.extend(indices)

    @property
    def processed_indices(self) -> set[int]:
        """The samples that were used in this epoch, by all ranks, as far as this rank knows."""
        return {*self._shared, *self._progress().committed(), *self._recorded}

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch and `processed_indices`."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` has returned. All ranks must load the same.

        Raises:
            InvalidArgumentError: it is the state of something else.
        """
        if not {"epoch", "processed_indices"} <= set(state_dict):
            raise InvalidArgumentError(
                "ElasticSampler.load_state_dict: expected epoch and processed_indices, got "
                f"{', '.join(map(str, state_dict)) or 'nothing'}"
            )
        self._begin(state_dict["epoch"], frozenset(state_dict["processed_indices"]))

    def reset(self) -> None:
        """Divides what is left among the ranks there are now, without what this rank has recorded.

        Does not communicate. If other ranks have recorded something, call `sync` instead.
        """
        self._shared |= self._progress().committed()
        used = self._shared.union(self._recorded)
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.rank, self.num_replicas = rank(), size()
        self.remaining_indices = [index for index in order if index not in used]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        samples = list(itertools.islice(itertools.cycle(self.remaining_indices), self.total_size))
        division = Division(samples, self.rank, self.num_replicas)
        self.indices = division.share()
        # Others have not left out what this rank has recorded, so it does not know their shares.
        self._division = Division([], 0, 1) if self._recorded else division
        self._num_saved = self._num_committed = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples

    def sync(self) -> None:
        """Gathers what all ranks have used in rank 0's epoch, and divides the rest.

        Blocks; all ranks call it.
        """
        epoch, shared = broadcast_object((self.epoch, self._shared | self._progress().committed()), 0)
        used = set(shared)
        for root in range(size()):
            their_epoch, recorded = broadcast_object((self.epoch, self._recorded), root)
            used.update(recorded if their_epoch == epoch else ())
        self._begin(epoch, frozenset(used))

    def save(self) -> Progress:
        """Notes a commit, and returns the progress at it, for `restore`."""
        # The commit before has passed, so all ranks took part in it, also one that is lost now.
        self._num_committed, self._num_saved = self._num_saved, len(self._recorded)
        return self._progress()

    def restore(self, progress: Progress) -> None:
        """Returns to the progress at a commit."""
        shared = progress.shared.union(progress.committed())
        self._begin(progress.epoch, shared, progress.recorded[: progress.num_recorded])

    def _progress(self) -> Progress:
        return Progress(
            self.epoch, self._shared, self._division, self._recorded, len(self._recorded), self._num_committed
        )

    def _begin(self, epoch: int, shared: frozenset[int], recorded: Iterable[int] = ()) -> None:
        self.epoch = epoch
        self._shared = shared  # used before the division, as all ranks know
        self._recorded = list(recorded)  # used by this rank since
        self._division = Division([], 0, 1)
        self._num_committed = 0
        self.reset()
