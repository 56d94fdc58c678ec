"""System calls of one rank for each MB that it sums, by strace, which slows all down: no times."""

import re
import signal
import subprocess
import tempfile
from pathlib import Path

from benchmarks.harness.alternate import Figures
from benchmarks.harness.contender import Contender, ContenderError
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts, OnOneHost, Testbed

TITLE = "System calls per MB (of one rank's tensor)"
DEADLINE_S = 150

TENSOR_BYTES = 64 << 20
CALLS = 3


def run(recorder: Recorder) -> None:
    with Lab([1000]) as lab:
        _add(recorder, "one machine, 2 ranks", OnOneHost(lab, 2))
    with Lab([500] * 3) as lab:
        _add(recorder, "lab, 2 workers, no server", OnHosts(lab, 2))
        _add(recorder, "lab, 2 workers, 1 server", OnHosts(lab, 2, 1))


def _add(recorder: Recorder, name: str, testbed: Testbed) -> None:
    contenders = [launch.byteps(testbed), launch.gloo(testbed)]
    case = Case(name, None, "", {contender.name: Figures() for contender in contenders})
    for contender in contenders:
        try:
            count, busiest = _count(contender)
            case.notes[f"{contender.name}: calls per MB"] = f"{count / (CALLS * TENSOR_BYTES / 1e6):.1f}; {busiest}"
        except (ContenderError, OSError, subprocess.TimeoutExpired) as error:
            case.figures[contender.name].failure = str(error)
        finally:
            contender.stop()
    recorder.add(case)


def _count(contender: Contender) -> tuple[int, str]:
    """All calls of the last rank's threads during the steps, and the most frequent ones."""
    request = {"bytes": TENSOR_BYTES, "calls": CALLS}
    contender.start()
    contender.step({**request, "calls": 0})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "strace"
        strace = subprocess.Popen(
            ["strace", "-c", "-f", "-o", report, "-p", str(contender.rank_pids[-1])], stderr=subprocess.PIPE, text=True
        )
        assert strace.stderr is not None
        while "attached" not in (line := strace.stderr.readline()):
            if not line:
                raise OSError("strace could not attach")
        contender.step(request)
        strace.send_signal(signal.SIGINT)
        strace.communicate(timeout=20)
        rows = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", report.read_text(), re.MULTILINE)
    counts = sorted(((int(count), call) for count, call in rows if call != "total"), reverse=True)
    return sum(count for count, _ in counts), ", ".join(f"{call} {count}" for count, call in counts[:4])
