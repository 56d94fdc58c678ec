"""ElasticSampler: ranks are threads of this process, which come and go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from byteps.errors import InvalidArgumentError  # noqa: E402
from byteps.torch.elastic import ElasticSampler, SamplerStateHandler  # noqa: E402
from byteps.torch.elastic import sampler as module  # noqa: E402


class Ranks:
    """The ranks of a job, whose calls of `each` run at the same time and may broadcast."""

    def __init__(self) -> None:
        self.me = threading.local()
        self.resize(1)

    def resize(self, size: int) -> None:
        self.size, self.rank = size, 0  # outside of `each`
        self.barrier = threading.Barrier(size, timeout=30)
        self.sent: Any = None

    def each(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Calls a function on each rank; these are all ranks there are from now on."""
        self.resize(len(calls))

        def on(rank: int) -> Any:
            self.me.rank = rank
            return calls[rank]()

        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(on, range(len(calls))))

    def broadcast(self, obj: Any, root_rank: int) -> Any:
        if self.me.rank == root_rank:
            self.sent = obj
        self.barrier.wait()
        received = self.sent
        self.barrier.wait()
        return received


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    ranks = Ranks()
    monkeypatch.setattr(module, "rank", lambda: getattr(ranks.me, "rank", 0))
    monkeypatch.setattr(module, "size", lambda: ranks.size)
    monkeypatch.setattr(module, "broadcast_object", ranks.broadcast)
    return ranks


class Worker:
    """A training process: a sampler, as a TorchState handles it, and the samples that it has used."""

    def __init__(self, samples: int = 0, **options: Any) -> None:
        self.sampler = ElasticSampler(range(samples), **options)
        self.handler = SamplerStateHandler(self.sampler)
        self.used: list[int] = []
        self.batch = 0

    def step(self, batch_size: int = 1) -> None:
        start = self.batch * batch_size
        self.used += list(self.sampler)[start : start + batch_size]
        self.sampler.record_batch(self.batch, batch_size)
        self.batch += 1

    def sync(self) -> None:
        """What happens when training begins, or goes on with other ranks."""
        self.handler.sync()
        self.handler.save()
        self.batch = 0

    def finish(self) -> None:
        while self.batch < len(self.sampler):
            self.step()


def begin(ranks: Ranks, count: int, samples: int = 20, **options: Any) -> list[Worker]:
    workers = ranks.each([lambda: Worker(samples, **options)] * count)
    ranks.each([worker.sync for worker in workers])
    return workers


def steps(workers: Sequence[Worker], count: int, batch_size: int = 1, commit: bool = True) -> None:
    for _ in range(count):
        for worker in workers:
            worker.step(batch_size)
            if commit:
                worker.handler.save()


def change(ranks: Ranks, workers: Sequence[Worker]) -> None:
    """A commit at which these are the ranks from now on."""
    ranks.each([worker.sync for worker in workers])
    assert len({len(worker.sampler) for worker in workers}) == 1, "all ranks make equally many steps"


def used(workers: Sequence[Worker]) -> Counter[int]:
    return Counter(index for worker in workers for index in worker.used)


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("samples", [0, 1, 2, 12, 13, 14])
def test_ranks_get_equally_many_samples_and_together_all(ranks: Ranks, count: int, samples: int) -> None:
    workers = begin(ranks, count, samples)
    for worker in workers:
        assert len(worker.sampler) == len(list(worker.sampler)) == -(-samples // count)
        worker.finish()
    total = used(workers)
    assert set(total) == set(range(samples))
    assert sum(total.values()) == -(-samples // count) * count


def test_orders_differ_by_epoch_and_seed_but_not_by_rank(ranks: Ranks) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = ElasticSampler(range(50), seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    orders = [order(0, 0), order(0, 1), order(5, 0)]
    assert all(sorted(each) == list(range(50)) for each in orders)
    assert len(set(map(tuple, [*orders, list(range(50))]))) == 4
    ranks.resize(2)
    both = [list(sampler) for sampler in ranks.each([lambda: ElasticSampler(range(50))] * 2)]
    assert [both[0][0], both[1][0], both[0][1]] == orders[0][:3]


@pytest.mark.usefixtures("ranks")
def test_without_shuffling_the_order_is_the_datasets() -> None:
    loader = torch.utils.data.DataLoader(range(10), batch_size=3, sampler=ElasticSampler(range(10), shuffle=False))
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_a_rank_that_comes_takes_part_in_the_rest_of_the_epoch(ranks: Ranks) -> None:
    old = begin(ranks, 2)
    steps(old, 3, batch_size=2)
    new = Worker(20)
    change(ranks, [*old, new])
    assert new.sampler.remaining_indices == old[0].sampler.remaining_indices
    assert len(new.sampler.remaining_indices) == 20 - 3 * 2 * 2
    steps([*old, new], 1)
    for worker in (*old, new):
        worker.finish()
    total = used([*old, new])
    assert set(total) == set(range(20))
    assert sum(total.values()) == 12 + 9, "only the division of 8 samples among 3 ranks uses one twice"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_rank_is_lost(ranks: Ranks, lost: int) -> None:
    """Others use again what it has used after the last commit that all have passed, and nothing else."""
    workers = begin(ranks, 3, 60)
    steps(workers, 4, batch_size=2)
    left = [worker for worker in workers if worker is not workers[lost]]
    workers[lost].step(2)  # and is lost before the commit
    steps(left, 1, batch_size=2)
    change(ranks, left)
    repeated = set(workers[lost].used[-2:])
    assert set(left[0].sampler.remaining_indices) == set(range(60)) - set(used(workers)) | repeated
    for worker in left:
        worker.finish()
    total = used(workers)
    assert set(total) == set(range(60))
    assert {index for index, times in total.items() if times > 1} == repeated


def test_steps_without_the_lost_rank_do_not_count_for_it(ranks: Ranks) -> None:
    workers = begin(ranks, 2)
    steps(workers, 2)
    steps(workers[:1], 3, commit=False)  # the other one is lost; there is no commit for a while
    workers[0].handler.save()
    change(ranks, workers[:1])
    workers[0].finish()
    assert used(workers) == Counter(range(20))


def test_losses_and_arrivals_one_after_the_other(ranks: Ranks) -> None:
    everyone = workers = begin(ranks, 4, 101, shuffle=True, seed=3)
    for round_number in range(6):
        steps(workers, 2)
        new = [Worker(101, seed=3) for _ in range(round_number % 3)]
        workers = [*workers[1:], *new]
        everyone = [*everyone, *new]
        change(ranks, workers)
    for worker in workers:
        worker.finish()
    assert set(used(everyone)) == set(range(101))


def test_a_new_rank_gets_the_epoch_and_its_own_records_of_another_one_do_not_count(ranks: Ranks) -> None:
    old = begin(ranks, 1)
    old[0].sampler.set_epoch(3)
    steps(old, 4)
    new = Worker(20)
    steps([new], 2)
    change(ranks, [*old, new])
    assert new.sampler.epoch == 3
    assert new.sampler.processed_indices == old[0].sampler.processed_indices == set(old[0].used)


def test_the_next_epoch_begins_with_all_samples(ranks: Ranks) -> None:
    workers = begin(ranks, 2)
    steps(workers, 4)
    ranks.each([lambda each=each: each.sampler.set_epoch(1) for each in workers])
    assert len(workers[0].sampler) == 10
    assert not workers[0].sampler.processed_indices


def test_restore_returns_to_the_last_commit(ranks: Ranks) -> None:
    (worker,) = begin(ranks, 1)
    steps([worker], 3)
    committed = set(worker.used)
    steps([worker], 2, commit=False)
    worker.sampler.set_epoch(1)
    for _ in range(2):
        worker.handler.restore()
        assert worker.sampler.epoch == 0
        assert worker.sampler.processed_indices == committed
        assert set(worker.sampler) == set(range(20)) - committed
        worker.sampler.record_batch(0, 5)


def test_a_failed_job_goes_on_from_the_last_commit(ranks: Ranks) -> None:
    workers = begin(ranks, 3, 60)
    steps(workers, 4)
    committed = set(used(workers))
    last_of_lost = workers[1].used[-1]
    steps(workers, 2, commit=False)
    left = [workers[0], workers[2]]
    for worker in left:
        worker.handler.restore()
    change(ranks, [*left, Worker(60)])
    assert set(left[0].sampler.remaining_indices) == set(range(60)) - committed | {last_of_lost}


def test_a_reset_before_the_sync_loses_nothing(ranks: Ranks) -> None:
    """As in a reset callback of the program."""
    workers = begin(ranks, 3, 30)
    steps(workers, 4)
    left = workers[:2]
    ranks.each([worker.sampler.reset for worker in left])
    change(ranks, left)
    assert set(left[0].sampler.remaining_indices) == set(range(30)) - set(used(workers)) | {workers[2].used[-1]}


def test_after_a_reset_of_its_own_a_rank_does_not_guess_what_others_use(ranks: Ranks) -> None:
    workers = begin(ranks, 2, 40)
    workers[0].sampler.record_indices(workers[0].sampler.indices[:1])
    workers[0].used += workers[0].sampler.indices[:1]
    ranks.each([worker.sampler.reset for worker in workers])
    steps(workers, 4)
    change(ranks, workers[:1])
    assert set(workers[0].sampler.remaining_indices) >= set(range(40)) - set(used(workers))


def test_a_checkpoint_continues_the_epoch(ranks: Ranks) -> None:
    workers = begin(ranks, 2)
    workers[0].sampler.set_epoch(2)
    workers[0].batch = 0
    steps(workers[:1], 3)
    saved = workers[0].sampler.state_dict()
    assert saved == {"epoch": 2, "processed_indices": saved["processed_indices"]}
    ranks.resize(1)
    sampler = ElasticSampler(range(20))
    sampler.load_state_dict(saved)
    assert sampler.epoch == 2
    assert set(sampler) == set(range(20)) - set(saved["processed_indices"])
    assert saved["processed_indices"] == sorted(workers[0].sampler.processed_indices)
    assert set(workers[0].used) < set(saved["processed_indices"]), "with those of the other rank until the last commit"


def test_what_a_loader_of_its_own_has_used(ranks: Ranks) -> None:
    workers = begin(ranks, 2)
    workers[1].sampler.record_indices([17, 3])
    change(ranks, workers)
    assert set(workers[0].sampler.remaining_indices) == set(range(20)) - {17, 3}


@pytest.mark.parametrize(("batch", "size"), [(-1, 2), (0, 0)])
@pytest.mark.usefixtures("ranks")
def test_what_is_no_batch_is_refused(batch: int, size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a number from 0 and a size from 1"):
        ElasticSampler(range(4)).record_batch(batch, size)


@pytest.mark.usefixtures("ranks")
def test_the_state_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="expected epoch and processed_indices, got epoch, seed"):
        ElasticSampler(range(4)).load_state_dict({"epoch": 1, "seed": 2})
