"""Cost of a push_pull in MXNet's engine, and the times of push_pulls in a training step.

    python benchmarks/mxnet_ops.py # one rank: the operation itself bpslaunch --nproc-per-node 2 --
    python benchmarks/mxnet_ops.py python -m benchmarks.lab --hosts 2 --mbps 200 -- python
    benchmarks/mxnet_ops.py --timeline

with the Python that has MXNet, and this folder's parent on PYTHONPATH.

Cost: from the push to the end, of one element: one at a time, each waited for; a chain on one
array; and many at once, on arrays of their own. Beside them the same with the core, without an
engine, and with an operation of MXNet's own in place (v += 0). They take turns; medians.

Timeline: a step of equal layers, whose gradients become ready one after the other, the last layer's
first. Times are those at which MXNet's engine began and ended an operation, as MXNet's profiler has
seen them. A letter is a layer; on its line, `.` is between the start of the step and its gradient,
`=` is while it travels. The line above them is what the engine computes: `f` forward, `b` backward.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import byteps.mxnet as bps  # must come before MXNet, for newer releases of NumPy
import mxnet as mx
import numpy as np
from byteps.ops import Buffer, Sum, push_pull_buffer, synchronize
from mxnet import autograd, gluon

OPERATIONS, ROUNDS = 50, 200
LAYERS, WIDTH, BATCH = 8, 512, 2048
COLUMNS = 72  # steps of the timeline
LETTERS = "ABCDEFGHIJ"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timeline", action="store_true")
    parser.add_argument(
        "--backward-bulk-size", type=int, default=1, help="operations of backward in one of the engine's (1; MXNet: 15)"
    )
    options = parser.parse_args()
    bps.init()
    if options.timeline:
        timeline(options.backward_bulk_size)
    else:
        costs()
    bps.shutdown()


class Way(NamedTuple):
    """A way to change an array of one element."""

    start: Callable[[int], Any]  # starts with array number i
    finish: Callable[[list[Any]], object]  # ends the operations of `start`, in this order


def costs() -> None:
    arrays = [mx.nd.ones((1,)) for _ in range(OPERATIONS)]
    numpy_arrays = [np.ones(1, np.float32) for _ in range(OPERATIONS)]
    buffers = [Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array) for array in numpy_arrays]

    def push_pull(i: int) -> None:
        bps.byteps_push_pull(arrays[i], name=f"cost.{i}")

    def push_pull_by_core(i: int) -> Any:
        return push_pull_buffer(buffers[i], buffers[i], f"core.{i}", Sum, 0, finish=lambda: None)

    def add_nothing(i: int) -> None:
        arrays[i] += 0

    def wait_for_engine(_: list[Any]) -> None:
        mx.nd.waitall()

    ours, native = Way(push_pull, wait_for_engine), Way(add_nothing, wait_for_engine)
    core = Way(push_pull_by_core, lambda handles: [synchronize(handle) for handle in handles])
    say(f"{bps.size()} ranks, us for each of {OPERATIONS} operations on one float32:")
    say(f"{'':16}{'push_pull':>16}{'core alone':>16}{'beyond the core':>18}{'v += 0':>16}")
    for title, pattern in (("one at a time", one_at_a_time), ("a chain", chain), ("all at once", all_at_once)):
        core_pattern = one_at_a_time if pattern is chain else pattern  # the core has no chains
        work = ((pattern, ours), (core_pattern, core), (pattern, native))
        ours_us, core_us, native_us = in_turns([functools.partial(each, way) for each, way in work])
        say(f"{title:16}{ours_us:16.1f}{core_us:16.1f}{ours_us - core_us:18.1f}{native_us:16.1f}")


def one_at_a_time(way: Way) -> None:
    for i in range(OPERATIONS):
        way.finish([way.start(i)])


def chain(way: Way) -> None:
    """Runs operations on one array, each of which waits for the previous one."""
    way.finish([way.start(0) for _ in range(OPERATIONS)])


def all_at_once(way: Way) -> None:
    way.finish([way.start(i) for i in range(OPERATIONS)])


def in_turns(functions: Sequence[Callable[[], object]]) -> list[float]:
    """Microseconds of an operation by each function, as a median.

    Ranks meet before the clock starts.
    """
    taken: list[list[float]] = [[] for _ in functions]
    for turn in range(ROUNDS + 1):
        for function, times in zip(functions, taken, strict=True):
            bps.push_pull(mx.nd.ones((1,)), name="meet").wait_to_read()
            begin = time.perf_counter()
            function()
            if turn:  # the first one prepares
                times.append((time.perf_counter() - begin) * 1e6 / OPERATIONS)
    return [statistics.median(times) for times in taken]


class Event(NamedTuple):
    """An operation of the engine; milliseconds."""

    name: str
    begin: float
    end: float


def timeline(backward_bulk_size: int) -> None:
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    for _ in range(LAYERS):
        net.add(gluon.nn.Dense(WIDTH, activation="tanh", use_bias=False, in_units=WIDTH))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True, backward_bulk_size=backward_bulk_size)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1e-3})
    images = mx.nd.random.normal(shape=(BATCH, WIDTH))

    def step() -> None:
        with autograd.record():
            outputs = net(images)
        outputs.backward()
        trainer.step(BATCH)
        mx.nd.waitall()

    for _ in range(3):
        step()
    bps.barrier()
    show_timeline(profiled(step))


def profiled(step: Callable[[], None]) -> list[Event]:
    """Returns the engine's events in a step, in the order of their beginnings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        mx.profiler.set_config(profile_symbolic=True, profile_imperative=True, filename=str(path))
        mx.profiler.set_state("run")
        step()
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        records = [each for each in json.loads(path.read_text())["traceEvents"] if each["ph"] in ("B", "E")]
    # The end of an operation follows its beginning, whatever else there was between them.
    pairs = zip(records[::2], records[1::2], strict=True)
    events = [Event(first["name"], first["ts"] / 1e3, last["ts"] / 1e3) for first, last in pairs]
    return sorted(events, key=lambda event: event.begin)


def show_timeline(events: Sequence[Event]) -> None:
    backward = [event for event in events if "_backward" in event.name]
    forward = [event for event in events if "FullyConnected" in event.name and event not in backward]
    push_pulls = {event.name.rpartition(".")[2]: event for event in events if event.name.startswith("BytepsPushPull")}
    layers = [push_pulls[str(layer)] for layer in range(LAYERS)]
    begin, end = forward[0].begin, max(event.end for event in layers)

    def column(time_ms: float) -> int:
        return round(COLUMNS * (time_ms - begin) / (end - begin))

    def bar(letter: str, computing: Sequence[Event]) -> str:
        return letter * (column(computing[-1].end) - column(computing[0].begin))

    say(f"{LAYERS} layers of {WIDTH * WIDTH * 4 / 1e6:.1f} MB, {bps.size()} ranks; all {end - begin:.0f} ms")
    computing = bar("f", forward) + bar("b", backward)
    say(f"  {computing:<{COLUMNS}} {backward[0].begin - begin:6.0f} to {backward[-1].end - begin:6.0f} ms")
    for letter, layer in zip(LETTERS, layers, strict=False):
        line = "." * column(layer.begin) + "=" * (column(layer.end) - column(layer.begin))
        say(f"{letter} {line:<{COLUMNS}} {layer.begin - begin:6.0f} to {layer.end - begin:6.0f} ms")
    for what, key in (("become ready", "begin"), ("are done", "end")):
        order = sorted(range(LAYERS), key=lambda layer, key=key: getattr(layers[layer], key))  # type: ignore[misc]
        say(f"gradients {what} in the order {' '.join(LETTERS[layer] for layer in order)}")
    travelled = sum(layer.end <= backward[-1].end for layer in layers)
    say(f"{travelled} of {LAYERS} are done before backward ends")


def say(text: str) -> None:
    if bps.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
