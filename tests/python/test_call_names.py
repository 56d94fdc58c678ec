"""Names and numbers of calls in order."""

from __future__ import annotations

import sys
import threading

import pytest

pytest.importorskip("byteps._core")

from byteps.call_names import AUTOMATIC_NAMES, CallNames


def test_numbers_count_each_family_from_1() -> None:
    names = CallNames()
    assert [names.next_number(family) for family in ("a", "b", "a", "a")] == [1, 1, 2, 3]


def test_a_reserved_name_is_given_again_only_when_it_is_released() -> None:
    names = CallNames()
    first = names.next_name("a")
    names.reserve(first)
    assert names.reserved("a") == [first] and names.reserved("") == []
    for _ in range(AUTOMATIC_NAMES - 1):
        names.next_name("a")
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(names.next_name("a")))
    thread.start()
    thread.join(0.05)
    assert not got
    names.release(first)
    thread.join(10)
    assert got == [first] and names.reserved("a") == []


def test_callbacks_come_at_the_release_or_at_once() -> None:
    names, called = CallNames(), list[str]()
    names.reserve("a.0")
    names.on_release("a.0", lambda: called.append("later"))
    assert called == []
    names.release("a.0")
    names.on_release("a.0", lambda: called.append("at once"))
    assert called == ["later", "at once"]


def test_threads_get_different_names_and_numbers() -> None:
    names = CallNames()
    got: list[tuple[str, int]] = []
    threads = [
        threading.Thread(target=lambda: got.extend((names.next_name("a"), names.next_number("a")) for _ in range(64)))
        for _ in range(4)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len({name for name, _ in got}) == len(got) == AUTOMATIC_NAMES
    assert {number for _, number in got} == set(range(1, len(got) + 1))
