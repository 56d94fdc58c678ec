"""Cost of a push_pull in a graph of TensorFlow, and the times of push_pulls in a training step.

    python benchmarks/tensorflow_ops.py # one rank: the operator itself python -m
    byteps.launcher.launch --nproc-per-node 2 -- python benchmarks/tensorflow_ops.py python -m
    benchmarks.lab --hosts 2 --mbps 200 -- python benchmarks/tensorflow_ops.py --timeline

Cost: a function of many push_pulls of a few elements that do not depend on each other, and one in
which each gets the last one's result, beside the same functions with an addition in place of each
push_pull. They take turns; medians of what the push_pulls add, for each of them.

Timeline: backward through equal layers, whose gradients become ready one after the other, the last
layer's first. Times come from nodes of the graph that wait for a gradient, or for its push_pull. A
letter is a layer; on its line, `.` is between the start of the step and its gradient, `=` is while
it travels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import byteps.tensorflow as bps
from byteps.tensorflow.exchange import GradientOptions, exchange_gradients

OPERATORS, ROUNDS = 50, 200
LAYERS, WIDTH, BATCH = 8, 512, 2048
COLUMNS = 72  # steps of the timeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timeline", action="store_true")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    bps.init()
    if options.timeline:
        timeline()
    else:
        costs()
    bps.shutdown()


def costs() -> None:
    def push_pull(x: tf.Tensor, i: int) -> tf.Tensor:
        return exchange_gradients([x], [f"cost.{i}"], GradientOptions())[0]

    def add(x: tf.Tensor, _: int) -> tf.Tensor:
        return x + 1.0

    for title, make in (("independent", independent), ("chained", chained)):
        with_us, without_us = in_turns(make(push_pull), make(add))
        added_us = (with_us - without_us) / OPERATORS
        say(f"{bps.size()} ranks, {OPERATORS} {title} push_pulls of 8 float32: {added_us:.1f} us for each")


def independent(operator: Callable[[tf.Tensor, int], tf.Tensor]) -> Any:
    return tf.function(lambda x: tf.add_n([operator(x + float(i), i) for i in range(OPERATORS)]))


def chained(operator: Callable[[tf.Tensor, int], tf.Tensor]) -> Any:
    def function(x: tf.Tensor) -> tf.Tensor:
        for i in range(OPERATORS):
            x = operator(x + float(i), i)
        return x

    return tf.function(function)


def in_turns(*functions: Any) -> list[float]:
    """Microseconds of a call of each function, as a median."""
    x = tf.ones(8)
    taken: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function(x)
    for _ in range(ROUNDS):
        for function, times in zip(functions, taken, strict=True):
            begin = time.perf_counter()
            function(x).numpy()
            times.append((time.perf_counter() - begin) * 1e6)
    return [statistics.median(times) for times in taken]


def timeline() -> None:
    layers = [tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], (layer, 0)) / 30) for layer in range(LAYERS)]
    names = [f"Gradient.{layer}" for layer in range(LAYERS)]

    @tf.function
    def step() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        x = tf.ones([BATCH, WIDTH])
        with tf.GradientTape() as tape:
            for layer in layers:
                x = tf.tanh(x @ layer)
            loss = tf.reduce_sum(x)
        gradients = tape.gradient(loss, layers)
        reduced = exchange_gradients(gradients, names, GradientOptions())
        return [clock_behind(tensor) for tensor in gradients], [clock_behind(tensor) for tensor in reduced]

    for _ in range(3):
        begin_s = time.time()
        ready_s, done_s = step()
    ready_ms, done_ms = ([1e3 * (float(t) - begin_s) for t in times] for times in (ready_s, done_s))
    end_ms = max(done_ms)
    say(f"{LAYERS} layers of {WIDTH * WIDTH * 4 / 1e6:.1f} MB, {bps.size()} ranks; all {end_ms:.0f} ms")
    for layer, (ready, done) in enumerate(zip(ready_ms, done_ms, strict=True)):
        first, last = (round(COLUMNS * ms / end_ms) for ms in (ready, done))
        bar = "." * first + "=" * (last - first)
        say(f"{'ABCDEFGHIJ'[layer]} {bar:<{COLUMNS}} {ready:6.0f} to {done:6.0f} ms")
    for what, times in (("become ready", ready_ms), ("are done", done_ms)):
        order = sorted(range(LAYERS), key=times.__getitem__)
        say(f"gradients {what} in the order {' '.join('ABCDEFGHIJ'[layer] for layer in order)}")


def clock_behind(tensor: tf.Tensor) -> tf.Tensor:
    """The time when `tensor` is there. tf.timestamp would not do: its nodes wait for each other."""
    return tf.numpy_function(lambda _: time.time(), [tensor[0, 0]], tf.float64, stateful=False)


def say(text: str) -> None:
    if bps.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
