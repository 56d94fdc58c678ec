"""Speaks the wire format (docs/wire-format.md) without byteps' code, for misbehaving peers."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import resource
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from byteps.version import package_version

HELLO, PUSH_PULL, RESULT, FAILED, GOODBYE, PROBE = 1, 2, 3, 4, 5, 6
MOVED, HOLDS, FETCH, HELD = 7, 8, 9, 10
JOIN, ROSTER, DECLARE, PLACED, REFUSED, BARRIER, BARRIER_DONE = 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47
HEARTBEAT, SUSPECT, LOST, LEAVE, LEFT, FINISHED = 0x48, 0x49, 0x4A, 0x4B, 0x4C, 0x4D
PROBE_SETUP, PROBE_READY, PROBE_START, PROBE_DONE = 0x4E, 0x4F, 0x50, 0x51
WAITS, WAITING, ROUND_FAILED = 0x52, 0x53, 0x54
FORGET, FORGOTTEN, TRAFFIC, SPEEDS = 0x57, 0x58, 0x59, 0x5A
REMOVED, LINGERS, ALL_LINGER, ADDED = 0x5B, 0x5C, 0x5D, 0x5E
STANDBY, REPLICATE, REPLICATED, REJOIN, RESUMED = 0x5F, 0x60, 0x61, 0x62, 0x63
WORKER, SERVER = 1, 2
FLOAT32, SUM = 3, 1
CLUSTER = 2  # level

_GREETING = b"BPS\x02"
_MAGIC = b"BPF\x01"
_VERSION = 17
_IN_SESSION = struct.pack("<B3xI", 1, 0)  # a frame of a session; nothing was received so far
_PATIENCE_S = 20


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)


def connect_with_secret(port: int, secret: str, job_id: str) -> socket.socket:
    """A connection that has proved the secret.

    ConnectionError if the other side does not accept the proof.
    """
    connection = connect(port)
    nonce = os.urandom(32)
    connection.sendall(_GREETING + nonce)
    other = _receive(connection, 36)
    assert other.startswith(_GREETING), other

    def proof(label: str) -> bytes:
        return hmac.digest(secret.encode(), label.encode() + nonce + other[4:], hashlib.sha256)

    connection.sendall(proof("byteps secret") + proof("byteps connect" + job_id))
    verdict = _receive(connection, 32)
    if not hmac.compare_digest(verdict, proof("byteps accept" + job_id)):
        connection.close()
        raise ConnectionError("another job" if verdict == proof("byteps other job") else verdict.decode())
    return connection


def greet(connection: socket.socket) -> None:
    """Sends the greeting, which needs no secret."""
    connection.sendall(_GREETING + os.urandom(32))


class Crowd:
    """Strangers at each port, in a context.

    Each sends a greeting, and connects again when it is refused.
    """

    def __init__(self, ports: Sequence[int], count: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 200 + 2 * count * len(ports))), hard))
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._turned_away = 0
        for port in ports:
            for _ in range(count):
                self._call(port)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        end_s = time.monotonic() + 10
        while self._turned_away == 0 and time.monotonic() < end_s:  # the rest may be over before its turn
            time.sleep(0.01)
        self._over.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        assert self._turned_away > 0  # or there was room for all of them

    def _call(self, port: int) -> None:
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
        self._selector.register(stranger, selectors.EVENT_WRITE, port)

    def _run(self) -> None:
        while not self._over.is_set():
            for key, events in self._selector.select(0.1):
                stranger = cast(socket.socket, key.fileobj)
                try:
                    if events & selectors.EVENT_WRITE:
                        greet(stranger)
                        self._selector.modify(stranger, selectors.EVENT_READ, key.data)
                        continue
                    if stranger.recv(100):
                        continue
                except OSError:
                    pass
                self._turned_away += 1
                self._selector.unregister(stranger)
                stranger.close()
                self._call(key.data)


def frame(head: bytes, payload: bytes = b"") -> bytes:
    return _MAGIC + struct.pack("<HHQ", len(head), 0, len(payload)) + head + payload


def control(kind: int, fields: bytes = b"") -> bytes:
    """Returns a frame of an open session: a message to or from the scheduler."""
    return frame(_IN_SESSION + struct.pack("<BB6x", _VERSION, kind), fields)


def open_session(number: int, *, received: int = 0, oldest: int = 0) -> bytes:
    """Returns the first frame of a connection over TCP."""
    return frame(struct.pack("<B3xIQQQ", 2, received, os.getpid(), number, oldest))


def data(kind: int, *, epoch: int = 0, tensor: int = 0, round_: int = 0, rank: int = 0, payload: bytes = b"") -> bytes:
    """Returns a frame of an open session: a message about a float32 tensor with one partition."""
    code = 4 if kind == FAILED else 0
    level = CLUSTER if kind == HELLO else 0
    fields = (epoch, 8 * tensor, 0, 0, round_, len(payload), rank, 0, 0, 0)
    head = struct.pack("<BBBBBB2xIIIiQQHHHH16x", _VERSION, kind, FLOAT32, SUM, code, level, *fields)
    return frame(_IN_SESSION + head, payload)


def text(value: str) -> bytes:
    return struct.pack("<H", len(value)) + value.encode()


def _node(role: int, rank: int) -> bytes:
    node = struct.pack("<BiiiQ", role, rank, 0, 1, os.getpid()) + text("intruder") + text("its machine")
    endpoints = text("tcp") + struct.pack("<I", 1) + text("127.0.0.1:9")
    endpoints += text("a later one") + struct.pack("<I", 1) + text("its address")
    speed_mbps, num_endpoints = 1000, 2
    return node + struct.pack("<IBII", speed_mbps, 0, 1, num_endpoints) + endpoints


def join(rank: int, workers: int, servers: int) -> bytes:
    return control(JOIN, _node(WORKER, rank) + struct.pack("<II", workers, servers) + text(package_version()))


def receive_epoch(connection: socket.socket) -> int:
    """Returns that of the message after the answer to Join: the roster, or the measurement of cards."""
    head_bytes, _ = struct.unpack("<4xH2xQ", _receive(connection, 16))
    assert _receive(connection, head_bytes)[0] == 3  # the session is open
    assert _receive_control(connection)[0] == HEARTBEAT
    kind, fields = _receive_control(connection)
    assert kind in (ROSTER, PROBE_SETUP)
    return int(struct.unpack_from("<I", fields)[0])


def every_message(epoch: int, rank: int) -> list[bytes]:
    """Returns at least one valid frame of each type."""
    numbers = struct.pack("<II", 7, 1)
    failure = b"\x04" + text("because")
    return [
        *(data(kind, epoch=epoch, rank=rank) for kind in (HELLO, FAILED, GOODBYE)),
        *(data(PUSH_PULL, epoch=epoch, rank=rank, tensor=t, round_=1, payload=b"\0" * 64) for t in range(1, 5)),
        *(data(kind, epoch=epoch, rank=rank, tensor=1, round_=2) for kind in (HOLDS, FETCH)),
        *(data(kind, epoch=epoch, rank=rank, tensor=2, round_=2, payload=b"\0" * 64) for kind in (MOVED, HELD)),
        data(PROBE, epoch=epoch, rank=rank, payload=b"\0" * 64),
        data(RESULT, epoch=epoch, rank=rank, tensor=1, round_=1, payload=b"\0" * 64),
        join(rank, 2, 1),
        control(DECLARE, text("layer0") + struct.pack("<BQBBBB", FLOAT32, 400, 0, 0, 0, 0)),
        control(PLACED, text("layer0") + struct.pack("<QBBIHHQBB", 1, 0, 0, 1, 2, 0, 0, 0, 0)),
        control(REFUSED, text("layer0") + struct.pack("<Q", 1) + failure + struct.pack("<Q", 1)),
        control(ROUND_FAILED, text("layer0") + struct.pack("<QB", 1, 1) + failure + struct.pack("<Q", 0)),
        control(FORGET, struct.pack("<I", 1) + text("layer0") + struct.pack("<QQBB", 1, 0, 0, 0)),
        control(FORGOTTEN, struct.pack("<IQI", 1, 8, 1)),
        control(TRAFFIC, struct.pack("<IIBQQ", 1, 0, 0, 1 << 20, 1000)),
        control(SPEEDS, struct.pack("<BIIII", 1, 1, 200, 1, 10**9) + text("slower")),
        control(REMOVED, struct.pack("<I", 2) + text("no reason") + struct.pack("<IIB", 1, 10**9, 1)),
        control(ALL_LINGER),
        control(ADDED, _node(SERVER, 1)),
        *(control(kind, struct.pack("<I", 1)) for kind in (BARRIER, LEFT, LINGERS)),
        control(BARRIER_DONE, struct.pack("<I", 1) + failure),
        control(SUSPECT, struct.pack("<I", 0) + text("no reason")),
        control(LOST, failure),
        control(LEFT, numbers),
        control(FINISHED, text("the end")),
        control(HEARTBEAT, struct.pack("<Q", 0)),
        control(STANDBY, text("127.0.0.1:9")),
        control(REPLICATE, struct.pack("<QI", 1, 4) + b"\0" * 4),
        control(REJOIN, struct.pack("<IIQ", epoch, 1, 2)),
        *(control(kind, struct.pack("<Q", 0)) for kind in (REPLICATED, RESUMED)),
        open_session(1),
        open_session(1, received=1, oldest=1),
        frame(struct.pack("<B3xI", 3, 0)),
        frame(struct.pack("<B3xI", 4, 0)),
        control(LEAVE, text("")),
        control(WAITS, text("for a barrier") + b"\x01"),
        control(WAITING, text("for rank 0")),
        control(PROBE_SETUP, struct.pack("<I", epoch)),
        control(PROBE_READY, struct.pack("<I", 1) + text("127.0.0.1:9")),
        control(PROBE_START, struct.pack("<IIII", 1, 1, 1, 1) + text("127.0.0.1:9")),
        control(PROBE_DONE, struct.pack("<IQQ", 1, 1 << 20, 100)),
    ]


@dataclass
class Mutator:
    """Frames that are nearly valid, the same ones for the same seed."""

    random: random.Random
    valid: Sequence[bytes]

    def next(self) -> bytes:
        mutated = bytearray(self.random.choice(self.valid))
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 5))):
            self._mutate(mutated)
        return bytes(mutated)

    def _mutate(self, mutated: bytearray) -> None:
        pick = self.random
        # Mostly behind the prefix: what is wrong with that ends a connection at once.
        at = min(pick.choice((0, 16, 16, 16, 24)) + pick.randrange(len(mutated)), len(mutated) - 1)
        match pick.randrange(6):
            case 0:
                mutated[at] ^= 1 << pick.randrange(8)
            case 1:
                mutated[at] = pick.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                number = pick.choice((0, 1, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 64) - 1))
                width = pick.choice((2, 4, 8))
                mutated[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
            case 3:
                del mutated[max(at, 1) :]
            case 4:
                mutated[at:at] = pick.randbytes(pick.randrange(1, 40))
            case 5:
                other = pick.choice(self.valid)
                mutated[at:] = other[min(at, len(other) - 1) :]


def _receive_control(connection: socket.socket) -> tuple[int, bytes]:
    head_bytes, payload_bytes = struct.unpack("<4xH2xQ", _receive(connection, 16))
    kind = _receive(connection, head_bytes)[len(_IN_SESSION) + 1]
    return kind, _receive(connection, payload_bytes)


def receive_all(connection: socket.socket) -> bytes:
    """Returns what comes until the other end hangs up."""
    received = b""
    while part := connection.recv(1000):
        received += part
    return received


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionError(f"closed after {len(received)} of {count} bytes")
        received += part
    return received
