"""The libraries of sum_rank.py: to join, and to sum an array in place. Runs inside the ranks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Library(NamedTuple):
    """A rank of a job that has started."""

    rank: int
    size: int
    # Returns a function that sums the array of this name in place.
    prepare: Callable[[Array, str], Callable[[], object]]
    leave: Callable[[], object]
    # Returns one that starts the sum and returns a function that waits for it; None: it cannot.
    prepare_start: Callable[[Array, str], Callable[[], Callable[[], object]]] | None = None


def join_byteps() -> Library:
    """Uses byteps.ops, since importing a framework takes ten times as long."""
    import byteps
    from byteps.ops import Buffer, Sum, push_pull_and_wait, push_pull_buffer, synchronize

    byteps.init()

    def prepare(array: Array, name: str) -> Callable[[], object]:
        buffer = Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array)
        return lambda: push_pull_and_wait(buffer, name, Sum)

    def prepare_start(array: Array, name: str) -> Callable[[], Callable[[], object]]:
        buffer = Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array)

        def start() -> Callable[[], object]:
            handle = push_pull_buffer(buffer, buffer, name, Sum, 0, finish=lambda: None)
            return lambda: synchronize(handle)

        return start

    return Library(byteps.rank(), byteps.size(), prepare, byteps.shutdown, prepare_start)


def join_gloo() -> Library:
    """torch.distributed; it finds its interface in GLOO_SOCKET_IFNAME."""
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["BENCH_STORE"], rank=rank, world_size=size)

    def prepare(array: Array, _: str) -> Callable[[], object]:
        tensor = torch.from_numpy(array)
        return lambda: dist.all_reduce(tensor)

    return Library(rank, size, prepare, dist.destroy_process_group)


def join_openmpi() -> Library:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(array: Array, _: str) -> Callable[[], object]:
        return lambda: world.Allreduce(MPI.IN_PLACE, array)

    return Library(world.rank, world.size, prepare, lambda: None)


def join_sockets() -> Library:
    """The two transfers of a sum over plain TCP, one connection per pair of ranks, and nothing else.

    Each rank sums a part: it gets that part of all others, and when all have come, it sends them the
    sum. It shows what the network and the system's TCP take for that: no part is cut into pieces, and
    no rate is limited. BENCH_ADDRESSES: HOST:PORT of each rank.
    """
    rank = int(os.environ["BENCH_RANK"])
    addresses = [address.rsplit(":", 1) for address in os.environ["BENCH_ADDRESSES"].split(",")]
    peers = _connect_all(rank, [(host, int(port)) for host, port in addresses])
    # One thread for each direction of each connection; what one sends is sent in order.
    senders = {peer: ThreadPoolExecutor(1) for peer in peers}
    receivers = {peer: ThreadPoolExecutor(1) for peer in peers}

    def exchange(sent: dict[int, Array], received: dict[int, Array]) -> list[Future[None]]:
        sends = [senders[peer].submit(peers[peer].sendall, _bytes_of(array)) for peer, array in sent.items()]
        for done in [receivers[peer].submit(_receive, peers[peer], array) for peer, array in received.items()]:
            done.result()
        return sends

    def prepare(array: Array, _: str) -> Callable[[], object]:
        parts = np.array_split(array, len(addresses))
        contributions = {peer: np.empty_like(parts[rank]) for peer in peers}

        def sum_in_place() -> None:
            sends = exchange({peer: parts[peer] for peer in peers}, contributions)
            for contribution in contributions.values():
                np.add(parts[rank], contribution, out=parts[rank])
            sends += exchange(dict.fromkeys(peers, parts[rank]), {peer: parts[peer] for peer in peers})
            for sent in sends:
                sent.result()

        return sum_in_place

    def leave() -> None:
        for pool in (*senders.values(), *receivers.values()):
            pool.shutdown()
        for peer in peers.values():
            peer.close()

    return Library(rank, len(addresses), prepare, leave)


def _connect_all(rank: int, addresses: list[tuple[str, int]]) -> dict[int, socket.socket]:
    """Connects to the ranks before this one, and accepts those after it."""
    listener = socket.create_server(addresses[rank], backlog=len(addresses))
    peers = {}
    for peer in range(rank):
        while peer not in peers:
            try:
                peers[peer] = socket.create_connection(addresses[peer])
            except ConnectionRefusedError:
                time.sleep(0.05)
        peers[peer].sendall(bytes([rank]))
    for _ in range(rank + 1, len(addresses)):
        accepted, _ = listener.accept()
        peers[accepted.recv(1)[0]] = accepted
    listener.close()
    for connection in peers.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def _bytes_of(array: Array) -> memoryview:
    return memoryview(array.view(np.uint8))


def _receive(connection: socket.socket, array: Array) -> None:
    rest = _bytes_of(array)
    while rest:
        got = connection.recv_into(rest)
        if got == 0:
            raise ConnectionError("the other rank has closed the connection")
        rest = rest[got:]


JOIN = {"byteps": join_byteps, "gloo": join_gloo, "openmpi": join_openmpi, "sockets": join_sockets}
