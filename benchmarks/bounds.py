"""Lower bounds of times, which no placement can beat, by bandwidths. Pure functions."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

_STEPS = 100  # iterations of the bisection, to the last bit


def placement_bound_s(
    size_bytes: float, worker_bytes_per_s: Sequence[float], server_bytes_per_s: Sequence[float] = ()
) -> float:
    """Returns the minimum time to sum `size_bytes`, with m_i bytes on worker i and m_j on server j.

    A worker sends what others sum, and the sum of its own share to each of them: M + (n - 2) m_i
    bytes, as much as it receives; a server sends and receives n m_j. So m_i <= (T B_i - M) / (n -
    2), m_j <= T B_j / n, and T is the least for which these reach M. With equal rates this is 2 n
    (n - 1) M / ((n^2 + k n - 2 k) B) for k <= n. Source: Jiang et al., OSDI 2020, section 4.1, and
    its extension to unequal rates by water-filling.
    """
    workers = len(worker_bytes_per_s)
    if workers < 2:
        return 0.0
    least_s = size_bytes / min(worker_bytes_per_s)  # each worker has to send and receive M

    def room(seconds: float) -> float:
        servers = sum(seconds * rate / workers for rate in server_bytes_per_s)
        if workers == 2:
            return servers + size_bytes  # a share costs a worker nothing more
        return servers + sum((seconds * rate - size_bytes) / (workers - 2) for rate in worker_bytes_per_s)

    most_s = 2 * workers * least_s
    if room(least_s) >= size_bytes:
        return least_s
    for _ in range(_STEPS):
        middle_s = (least_s + most_s) / 2
        if room(middle_s) >= size_bytes:
            most_s = middle_s
        else:
            least_s = middle_s
    return most_s


def parameter_server_bound_s(size_bytes: float, workers: int, servers: int, bytes_per_s: float) -> float:
    """All on servers, equal rates."""
    return size_bytes / bytes_per_s * max(1.0, workers / servers)


def overlap_bound_s(forward_s: Sequence[float], backward_s: Sequence[float], communication_s: Sequence[float]) -> float:
    """Returns the minimum time of a training step, between two backward passes.

    Times are by layer, in the order of forward.

    A layer's communication may begin when backward is through with the layer, and its next forward
    when it is over. One thing at a time goes over the link, always the one needed first, and gives
    way to a more urgent one: that is the schedule with the earliest deadlines first, and no other
    one makes the latest layer less late. Source: Horn, "Some Simple Scheduling Algorithms", 1974.
    """
    layers = range(len(forward_s))
    ready_s, now = [0.0] * len(layers), 0.0
    for layer in reversed(layers):
        now += backward_s[layer]
        ready_s[layer] = now
    over_s = _most_urgent_first(ready_s, communication_s)
    end_s = now
    for layer in layers:
        end_s = max(end_s, over_s[layer]) + forward_s[layer]
    return end_s


def _most_urgent_first(ready_s: Sequence[float], needs_s: Sequence[float]) -> list[float]:
    """Returns the end of each job on a shared link; the first job is the most urgent."""
    left_s = list(needs_s)
    over_s = [0.0] * len(left_s)
    coming = sorted(range(len(left_s)), key=lambda job: ready_s[job], reverse=True)
    waiting: list[int] = []
    now = 0.0
    while coming or waiting:
        if not waiting:
            now = max(now, ready_s[coming[-1]])
        while coming and ready_s[coming[-1]] <= now:
            heapq.heappush(waiting, coming.pop())
        job = waiting[0]
        until_s = now + left_s[job]
        if coming and ready_s[coming[-1]] < until_s:
            left_s[job] -= ready_s[coming[-1]] - now
            now = ready_s[coming[-1]]
        else:
            now = over_s[job] = until_s
            heapq.heappop(waiting)
    return over_s
