"""What no placement can beat: the times that bandwidths allow. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_STEPS = 100  # of the bisection: to the last bit


def placement_bound_s(
    size_bytes: float, worker_bytes_per_s: Sequence[float], server_bytes_per_s: Sequence[float] = ()
) -> float:
    """The least time to sum `size_bytes` over n workers when worker i sums m_i of them and server j m_j.

    A worker sends what others sum, and the sum of its own share to each of them: M + (n - 2) m_i bytes, as much as
    it receives; a server sends and receives n m_j. So m_i <= (T B_i - M) / (n - 2), m_j <= T B_j / n, and T is the
    least for which these reach M. With equal rates this is 2 n (n - 1) M / ((n^2 + k n - 2 k) B) for k <= n.
    Source: Jiang et al., OSDI 2020, section 4.1, and its extension to unequal rates by water-filling.
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
