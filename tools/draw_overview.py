"""Draws docs/overview.svg: traffic and time of one push_pull under three placements.

    python tools/draw_overview.py > docs/overview.svg

Shares and times are those that the runtime computes (csrc/protocol/placement.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from byteps import _core

WORKERS, SERVERS = 4, 2
GBIT_PER_S = 10
MEGABYTES = 500

PANEL_WIDTH, GAP, MARGIN = 312, 12, 24
BOX_WIDTH, BOX_HEIGHT, PIPE_WIDTH, PIPE_HEIGHT = 72, 44, 14, 58
TITLE_Y, SERVER_Y = 80, 124
SWITCH_Y = SERVER_Y + BOX_HEIGHT + PIPE_HEIGHT
WORKER_Y = SWITCH_Y + 20 + PIPE_HEIGHT
TIME_Y = WORKER_Y + BOX_HEIGHT + 20
WIDTH = 2 * MARGIN + 3 * PANEL_WIDTH + 2 * GAP
PANEL_BOTTOM = TIME_Y + 34
HEIGHT = PANEL_BOTTOM + 40

STYLE = """\
    text { font-family: "Segoe UI", "Helvetica Neue", Helvetica, Arial, sans-serif; fill: #1f2328; }
    .card { fill: #ffffff; stroke: #d0d7de; }
    .panel { fill: #f6f8fa; }
    .title { font-size: 17px; font-weight: 600; }
    .note { font-size: 13px; fill: #57606a; }
    .label { font-size: 12px; }
    .machine { fill: #ffffff; stroke: #57606a; }
    .idle { fill: none; stroke: #afb8c1; stroke-dasharray: 4 3; }
    .switch { fill: #d0d7de; }
    .pipe { fill: #eaeef2; stroke: #8c959f; stroke-width: 0.75; }
    .used { fill: #54aeff; }
    .full { fill: #0969da; }
    .time { font-size: 17px; font-weight: 600; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .card { fill: #0d1117; stroke: #30363d; }
      .panel { fill: #161b22; }
      .note { fill: #9198a1; }
      .machine { fill: #0d1117; stroke: #9198a1; }
      .idle { stroke: #484f58; }
      .switch { fill: #30363d; }
      .pipe { fill: #21262d; stroke: #6e7681; }
      .used { fill: #1f6feb; }
      .full { fill: #58a6ff; }
    }"""


class Panel(NamedTuple):
    """One placement: its name for the runtime, its title and what to notice."""

    placement: str
    title: str
    note: str


PANELS = (
    Panel("allreduce", "All-reduce", "The CPU machines are idle."),
    Panel("ps", "Parameter server", "The workers wait for the CPU machines."),
    Panel("auto", "byteps: the optimal mix", "Every link is busy until the end."),
)


class Plan(NamedTuple):
    """A push_pull under one placement."""

    shares: list[float]  # of the bytes, that each machine sums: the workers, then the servers
    link_mb: list[float]  # that each machine sends, and receives as many
    time_ms: float


def plan(placement: str) -> Plan:
    workers, servers = [GBIT_PER_S * 1000.0] * WORKERS, [GBIT_PER_S * 1000.0] * SERVERS
    shares = _core.reducer_host_shares(workers, servers, placement)
    time_s = _core.predicted_seconds(workers, servers, shares, MEGABYTES * 1_000_000)
    link_mb = [MEGABYTES * (1 + (WORKERS - 2) * share) for share in shares[:WORKERS]]
    link_mb += [MEGABYTES * WORKERS * share for share in shares[WORKERS:]]
    assert abs(max(link_mb) / (GBIT_PER_S * 125) - time_s) < 1e-6, "the busiest link takes the whole time"
    return Plan(shares, link_mb, time_s * 1000)


def text(x: float, y: float, kind: str, words: str, anchor: str = "middle") -> str:
    return f'  <text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, radius: float = 0) -> str:
    return f'  <rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{kind}"/>'


def draw_machine(x: float, y: float, name: str, share: float) -> Iterator[str]:
    """`x` is its centre."""
    is_idle = share < 0.0005 and name == "CPU"
    yield box(x - BOX_WIDTH / 2, y, BOX_WIDTH, BOX_HEIGHT, "idle" if is_idle else "machine", 5)
    yield text(x, y + 17, "label", name)
    yield text(x, y + 33, "label", "idle" if is_idle else f"sums {share:.0%}")


def draw_link(x: float, y: float, megabytes: float, most_mb: float) -> Iterator[str]:
    """`x` is its centre; the pipe is as full as the link is busy."""
    used = megabytes / most_mb
    yield box(x - PIPE_WIDTH / 2, y, PIPE_WIDTH, PIPE_HEIGHT, "pipe")
    if megabytes:
        height = used * PIPE_HEIGHT
        yield box(x - PIPE_WIDTH / 2, y + PIPE_HEIGHT - height, PIPE_WIDTH, height, "full" if used > 0.999 else "used")
    yield text(x + PIPE_WIDTH / 2 + 4, y + PIPE_HEIGHT / 2 + 4, "label", f"{megabytes:.0f}", "start")


def draw_panel(left: float, panel: Panel, slowest_ms: float) -> Iterator[str]:
    shares, link_mb, time_ms = plan(panel.placement)
    yield box(left, TITLE_Y - 26, PANEL_WIDTH, PANEL_BOTTOM - TITLE_Y + 26, "panel", 8)
    yield text(left + 14, TITLE_Y, "title", panel.title, "start")
    yield text(left + 14, TITLE_Y + 20, "note", panel.note, "start")

    spacing = PANEL_WIDTH / WORKERS
    for index in range(SERVERS):
        x = left + PANEL_WIDTH / 2 + (index - (SERVERS - 1) / 2) * 2 * spacing
        yield from draw_machine(x, SERVER_Y, "CPU", shares[WORKERS + index])
        yield from draw_link(x, SERVER_Y + BOX_HEIGHT, link_mb[WORKERS + index], max(link_mb))
    yield box(left + 14, SWITCH_Y, PANEL_WIDTH - 28, 20, "switch", 4)
    yield text(left + PANEL_WIDTH / 2, SWITCH_Y + 14, "label", "switch")
    for index in range(WORKERS):
        x = left + (index + 0.5) * spacing
        yield from draw_link(x, SWITCH_Y + 20, link_mb[index], max(link_mb))
        yield from draw_machine(x, WORKER_Y, "worker", shares[index])

    longest = PANEL_WIDTH - 28 - 78
    yield box(left + 14, TIME_Y, longest * time_ms / slowest_ms, 14, "full", 2)
    yield text(left + 14 + longest * time_ms / slowest_ms + 8, TIME_Y + 13, "time", f"{time_ms:.0f} ms", "start")


def draw() -> str:
    """The whole file."""
    heading = (
        f"Summing {MEGABYTES} MB of gradients: {WORKERS} workers, {SERVERS} CPU machines, {GBIT_PER_S} Gbit/s links"
    )
    legend = "Beside each link: the MB that it carries in each direction. Blue: the part of the time when it is busy."
    slowest_ms = max(plan(panel.placement).time_ms for panel in PANELS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{heading}">',
        "  <style>",
        STYLE,
        "  </style>",
        box(0.5, 0.5, WIDTH - 1, HEIGHT - 1, "card", 8),
        text(MARGIN, 32, "title", heading, "start"),
        text(MARGIN, PANEL_BOTTOM + 25, "note", legend, "start"),
    ]
    for index, panel in enumerate(PANELS):
        lines += draw_panel(MARGIN + index * (PANEL_WIDTH + GAP), panel, slowest_ms)
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    print(draw(), end="")
