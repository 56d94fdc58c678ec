"""64 MiB over slow links, for many (n, k)."""

from benchmarks.harness.results import Case, Recorder
from benchmarks.measures.shapes import measure_shapes, ps_name

TITLE = "Network lab: 64 MiB float32, 200 Mbit/s (n = 8: 100 Mbit/s)"
DEADLINE_S = 2500

# n: (Mbit/s, every k, turns of the forced parameter server by k, seconds, how far over the bound is
# near enough)
SHAPES = {
    2: (200, (0, 2), {}, 220, 1.05),
    3: (200, (1,), {1: 3}, 300, 1.05),
    4: (200, (0, 1, 2, 4), {1: 2, 2: 3}, 480, 1.05),
    6: (200, (3,), {3: 3}, 340, 1.05),
    8: (100, (0, 1, 2, 4, 8), {1: 1, 2: 1}, 1000, 1.08),
}
FASTER_THAN_GLOO = {(4, 4): 1.40, (8, 8): 1.65}
FASTER_THAN_PS = {(4, 1): 2.7, (8, 1): 4.5, (8, 2): 2.5}


def run(recorder: Recorder) -> None:
    for workers, (rate_mbps, all_servers, ps_turns, deadline_s, near) in SHAPES.items():
        cases = measure_shapes(
            rate_mbps,
            workers,
            all_servers,
            ps_turns=ps_turns,
            other_turns=2 if workers == 8 else 5,  # 10 s each
            deadline_s=deadline_s,
        )
        for servers, case in sorted(cases.items()):
            add_goals(case, workers, servers, near)
            recorder.add(case)


def add_goals(case: Case, workers: int, servers: int, near: float) -> None:
    case.at_most("time / bound", case.over_bound("byteps"), near)
    if servers == 0:
        case.at_least("speed / gloo's", case.ratio("gloo", "byteps"), 1.0)
        case.at_most("machine's CPU time / gloo's", case.machine_ratio("byteps", "gloo"), 1.0)
    if (workers, servers) in FASTER_THAN_GLOO:
        case.at_least("speed / gloo's", case.ratio("gloo", "byteps"), FASTER_THAN_GLOO[workers, servers])
    if (workers, servers) in FASTER_THAN_PS:
        ratio = case.ratio(ps_name(servers), "byteps")
        case.at_least("speed / forced PS's", ratio, FASTER_THAN_PS[workers, servers])
