"""Results as text."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.plain import NEAR

HEAD = ("contender", "median", "x bound", "byteps is", "CPU s/GB", "machine", "turns", "x own plain loop")


def rows_of(case: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns a row for each contender, in the order of HEAD, or the reason of its failure."""
    ours = case["figures"].get("byteps", {}).get("median_s")
    rows = []
    for name, figures in case["figures"].items():
        median = figures["median_s"]
        if figures["failure"] is None and median is None:
            continue  # a measure that counts
        if median is None:
            rows.append((name, "failed", (figures["failure"] or "").partition("\n")[0]))
            continue
        bound = case["bounds_s"].get(name, case["bound_s"])
        rows.append(
            (
                name,
                duration(median),
                f"{median / bound:.3f}" if bound else "",
                f"{median / ours:.2f} x as fast" if ours and name != "byteps" else "",
                _per_gigabyte(figures["mean_cpu_s"], case),
                _per_gigabyte(figures["mean_machine_s"], case),
                str(len(figures["seconds"])),
                _beside_plain_loop(figures),
            )
        )
    return rows


def _per_gigabyte(seconds: float | None, case: dict[str, Any]) -> str:
    return f"{seconds / case['gigabytes']:.2f}" if case["gigabytes"] and seconds is not None else ""


def _beside_plain_loop(figures: dict[str, Any]) -> str:
    """The harness slows a contender that is far above its own plain loop: then its row says so."""
    ratio = figures["over_plain"]
    if figures["plain_failure"]:
        return "plain loop failed: " + figures["plain_failure"].partition("\n")[0]
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio <= NEAR else f"{ratio:.2f}: UNFAIR, above {NEAR:g}"


def goal_line(goal: dict[str, Any]) -> str:
    sign = ">=" if goal["at_least"] else "<="
    value = "no figure" if goal["value"] is None else f"{goal['value']:.3f}"
    return f"{'reached' if goal['reached'] else 'MISSED '}  {goal['what']}: {value} ({sign} {goal['limit']:g})"


def show(case: dict[str, Any]) -> None:
    """Prints a case."""
    bound = f"bound {duration(case['bound_s'])} ({case['bound']})" if case["bound_s"] else case["bound"]
    print(f"\n{case['name']}   {bound}; load {case['load']:.1f}")
    rows = rows_of(case)
    for row in [HEAD, *rows] if rows else []:
        print(_line(row))
    for goal in case["goals"]:
        print(f"  {goal_line(goal)}")
    for name, value in case["notes"].items():
        print(f"  {name}: {value}")
    print(end="", flush=True)


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.3f} s"


def _line(row: tuple[str, ...]) -> str:
    if len(row) < len(HEAD):
        return f"  {row[0]:28}" + " ".join(row[1:])
    return f"  {row[0]:28}{row[1]:>12}{row[2]:>9}{row[3]:>18}{row[4]:>10}{row[5]:>9}{row[6]:>7}  {row[7]}".rstrip()
