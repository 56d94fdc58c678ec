"""Finds the process that failed first, and describes its failure."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

from .child import Child


def first_failure(children: Sequence[Child]) -> Child | None:
    """Returns the child that failed first. Call it when all children have ended.

    Children that failed because of another process are considered only if there are no others, and
    so are servers, if the job may have gone on without them and another child failed by itself.
    Returns None if no child failed by itself; children that the launcher stopped did not.
    """
    failed = [child for child in children if _failed_by_itself(child)]
    own = [child for child in failed if child.report is None or not child.report.because_of]
    others = [child for child in own if not child.is_lost]
    return min(others or own or failed, key=_order, default=None)


def verdict(first: Child, children: Sequence[Child]) -> Iterator[str]:
    """Yields lines about the first failure and about later failures."""
    yield f"{name_of(first)} {first.how_it_ended()}{_why(first)}"
    others = [child for child in children if child is not first and _failed_by_itself(child)]
    if others:
        names = ", ".join(f"{child.command.label} ({child.how_it_ended()})" for child in others)
        yield f"after that failed: {names}"


def name_of(child: Child) -> str:
    return f"{child.command.label} (host {socket.gethostname()}, pid {child.pid})"


def _why(child: Child) -> str:
    if child.remark:
        return f": {child.remark}"
    if child.report is None:
        return "".join("; its last line: " + line.decode(errors="replace") for line in child.last_line)
    if child.report.because_of:
        return f", because of another process: {child.report.because_of}"
    return f": {child.report.cause}"


def _failed_by_itself(child: Child) -> bool:
    if child.is_running or child.exit_code == 0:
        return False
    return bool(child.remark) or child.report is not None or not child.was_told_to_end


def _order(child: Child) -> tuple[float, bool]:
    """Sorts by time.

    At the same time, a process that was killed comes before processes that exited.
    """
    return (child.ended_at if child.report is None else child.report.at), child.exit_code <= 128
