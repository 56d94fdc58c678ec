"""init, shutdown, suspend, resume, fork, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.job import run_job


def run(source: str, folder: Path, ranks: int = 1, env: dict[str, str] | None = None) -> list[str]:
    """The outputs of the ranks, which must end well."""
    finished = run_job(["-c", "import byteps as bps\n" + source], ranks, folder, env)
    for process in finished:
        assert process.returncode == 0, process.output
    return [process.output for process in finished]


def test_use_before_init_and_after_shutdown_says_what_to_call(tmp_path: Path) -> None:
    (output,) = run(
        """
import numpy as np
from byteps.errors import NotInitializedError
uses = (bps.rank, bps.size, bps.local_rank, bps.local_size, bps.cross_rank, bps.cross_size, bps.is_homogeneous,
        bps.barrier, bps.metrics, bps.get_pushpull_speed, bps.suspend, lambda: bps.push_pull(np.ones(1)),
        lambda: bps.broadcast_object(1))
def all_fail():
    assert not bps.is_initialized()
    for use in uses:
        try:
            use()
        except NotInitializedError as error:
            print(error)
        else:
            raise AssertionError(use)
all_fail()
bps.init()
bps.shutdown()
all_fail()
""",
        tmp_path,
    )
    before = "byteps is not initialized: call byteps.init() first"
    after = "byteps is not initialized any more: shutdown() was called: call byteps.init() first"
    assert output.splitlines() == [before] * 13 + [after] * 13


def test_init_twice_and_shutdown_twice_do_nothing(tmp_path: Path) -> None:
    run("bps.init(); bps.init(lazy=False); assert bps.size() == 1; bps.shutdown(); bps.shutdown()", tmp_path)


def test_init_after_shutdown_starts_anew(tmp_path: Path) -> None:
    run("bps.init(); bps.shutdown(); bps.init(); assert bps.is_initialized() and bps.rank() == 0", tmp_path)


def test_a_rank_may_be_early_for_the_next_job(tmp_path: Path) -> None:
    # It finds the scheduler of the last one, at any point of its end.
    run(
        """
import random, time
for _ in range(150):
    bps.init()
    bps.barrier()
    time.sleep(random.random() * 0.005)
    bps.shutdown()
""",
        tmp_path,
        ranks=2,
    )


def test_the_environment_counts_at_init_only(tmp_path: Path) -> None:
    run(
        "import os; bps.init(); os.environ['BYTEPS_PARTITION_BYTES'] = 'x'; bps.suspend(); bps.resume(1, 0, 0)",
        tmp_path,
    )


def test_suspend_and_resume(tmp_path: Path) -> None:
    (output,) = run(
        """
import numpy as np
from byteps.errors import NotInitializedError
def fails(use):
    try:
        use()
    except (NotInitializedError, ValueError) as error:
        print(error)
        return True
fails(lambda: bps.resume(1, 0, 0)) or 1 / 0
bps.init()
bps.push_pull(np.ones(3), name="a")
fails(lambda: bps.resume(1, 0, 0)) or 1 / 0
bps.suspend()
fails(lambda: bps.push_pull(np.ones(3), name="a")) or 1 / 0
assert not bps.is_initialized()
assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (0, 1, 0, 1)  # as scripts of BytePS log them
bps.resume(num_workers=1, num_servers=0, global_rank=0, context=None)
assert bps.rank() == 0 and bps.size() == 1
bps.push_pull(np.ones(3), name="a")
""",
        tmp_path,
    )
    assert "resume() without suspend()" in output
    assert "suspend() was called, and resume() was not" in output


def test_a_forked_child_knows_its_rank_and_cannot_communicate(tmp_path: Path) -> None:
    outputs = run(
        """
import os, subprocess, sys
from pathlib import Path
import numpy as np
from byteps.errors import NotInitializedError
sockets = "[entry.name for entry in Path('/proc/self/fd').iterdir() if entry.is_socket()]"
bps.init()
bps.push_pull(np.ones(3), name="a")
of_program = subprocess.check_output(
    [sys.executable, "-c", f"from pathlib import Path; print({sockets})"], close_fds=False, text=True
)
assert of_program == "[]\\n", of_program
mine, other = f"of {bps.rank()}", f"of {1 - bps.rank()}"
pending = bps.push_pull_async(np.ones(3), False, mine)  # the other rank begins when its child is gone
child = os.fork()
if child == 0:
    assert eval(sockets) == [], eval(sockets)
    assert bps.rank() == int(os.environ["BYTEPS_LOCAL_RANK"]) and not bps.is_initialized()
    for use in (lambda: bps.push_pull(np.ones(3), name="a"), bps.barrier, bps.init, lambda: bps.poll(pending),
                lambda: bps.synchronize(pending)):
        try:
            use()
        except NotInitializedError as error:
            print(error)
        else:
            raise AssertionError(use)
    bps.shutdown()  # must not be the parent's
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert bps.push_pull(np.ones(3), False, other)[0] == bps.synchronize(pending)[0] == bps.size()
assert bps.push_pull(np.ones(3), False, name="a")[0] == bps.size()
bps.barrier()
""",
        tmp_path,
        ranks=2,
    )
    for rank, output in enumerate(outputs):
        assert f"forked from rank {rank}" in output
        assert "spawn" in output


def test_workers_of_a_data_loader_do_no_harm(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(
        """
import torch
import byteps.torch as bps
class Shard(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from range(bps.rank(), 20, bps.size())
bps.init()
for epoch in range(2):
    loader = torch.utils.data.DataLoader(Shard(), batch_size=5, num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        assert torch.equal(bps.push_pull(batch * 0 + 1, False, "ones"), torch.full((5,), bps.size()))
""",
        tmp_path,
        ranks=2,
    )


def test_only_workers_can_init(tmp_path: Path) -> None:
    env = {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1"}
    (finished,) = run_job(["-c", "import byteps; byteps.init()"], 1, tmp_path, env)
    assert finished.returncode == 1
    assert "init() in a process with DMLC_ROLE=server: only workers call it" in finished.output


def test_shutdown_runs_at_exit(tmp_path: Path) -> None:
    run("import numpy as np; bps.init(); print(bps.push_pull(np.ones(2), name='a'))", tmp_path, ranks=2)


def test_importing_byteps_loads_nothing(tmp_path: Path) -> None:
    run("import sys; assert not {'numpy', 'torch', 'byteps._core', 'byteps.config'} & set(sys.modules)", tmp_path)
    run("from byteps import *; assert rank and push_pull and __version__", tmp_path)
