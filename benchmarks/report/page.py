"""Results as one HTML page without other files: plots inside, tables, goals, machine."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path
from typing import Any

from benchmarks.report.table import HEAD, goal_line, rows_of

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 }
td, th { padding: .1em .8em; text-align: right; border-bottom: 1px solid #ddd } td:first-child { text-align: left }
.missed { color: #b00 } .reached { color: #070 } svg { max-width: 100%; height: auto } small { color: #666 }
"""
_OURS, _PEER = "#2266aa", "#bbbbbb"


def write_page(results: Path, target: Path) -> None:
    """Writes the page of all measures whose JSON is in `results`."""
    documents = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    body = "".join(_measure(document) for document in documents)
    summary = _summary(documents)
    page = f"<!doctype html><meta charset='utf-8'><title>byteps: measures</title><style>{_STYLE}</style>"
    target.write_text(f"{page}<h1>byteps: measures</h1>{summary}{body}\n")


def _summary(documents: list[dict[str, Any]]) -> str:
    goals = [(d["measure"], c["name"], g) for d in documents for c in d["cases"] for g in c["goals"]]
    missed = [entry for entry in goals if not entry[2]["reached"]]
    items = "".join(
        f"<li class=missed>{_text(f'{measure}, {case}')}: {_text(goal_line(goal))}" for measure, case, goal in missed
    )
    return f"<p>{len(goals) - len(missed)} of {len(goals)} goals reached.</p><ul>{items}</ul>"


def _measure(document: dict[str, Any]) -> str:
    where = ", ".join(f"{key}: {value}" for key, value in document["machine"].items())
    stamp = f"{document['date']}, commit {document['commit']}; {where}"
    cases = "".join(_case(case) for case in document["cases"])
    return f"<h2>{_text(document['title'])}</h2><small>{_text(stamp)}</small>{cases}"


def _case(case: dict[str, Any]) -> str:
    head = "".join(f"<th>{_text(name)}" for name in HEAD)
    rows = "".join("<tr>" + "".join(f"<td>{_text(cell)}" for cell in row) for row in rows_of(case))
    goals = "".join(
        f"<li class={'reached' if goal['reached'] else 'missed'}>{_text(goal_line(goal))}" for goal in case["goals"]
    )
    notes = "".join(f"<li>{_text(f'{name}: {value}')}" for name, value in case["notes"].items())
    bound = f"Bound: {case['bound_s']:.4g} s, {case['bound']}." if case["bound_s"] else case["bound"]
    return (
        f"<h3>{_text(case['name'])}</h3><p>{_text(bound)} Load {case['load']:.1f}.</p>"
        f"{_plot(case)}<table><tr>{head}{rows}</table><ul>{goals}{notes}</ul>"
    )


def _plot(case: dict[str, Any]) -> str:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    bars = {name: figures for name, figures in case["figures"].items() if figures["median_s"]}
    if not bars:
        return ""
    figure, axes = pyplot.subplots(figsize=(7, 0.5 + 0.32 * len(bars)))
    names = list(bars)[::-1]
    medians = [bars[name]["median_s"] for name in names]
    spans = [
        [median - min(bars[name]["seconds"]) for name, median in zip(names, medians, strict=True)],
        [max(bars[name]["seconds"]) - median for name, median in zip(names, medians, strict=True)],
    ]
    colours = [_OURS if name.startswith("byteps") else _PEER for name in names]
    axes.barh(names, medians, xerr=spans, color=colours, ecolor="#555555")
    if case["bound_s"]:
        axes.axvline(case["bound_s"], color="#cc3333", linestyle="--", linewidth=1)
    axes.set_xlabel("seconds: median, least and most; dashed: bound")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg", bbox_inches="tight")
    pyplot.close(figure)
    return drawing.getvalue()[drawing.getvalue().index("<svg") :]


def _text(value: str) -> str:
    return html.escape(value)
