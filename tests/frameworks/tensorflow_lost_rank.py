"""A rank that trains in one of the modes until rank 1 dies in the middle of a step.

    python tensorflow_lost_rank.py MODE

Rank 1 ends with 9; a rank that gets an exception prints it and ends with 3, by the way that any
program ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import byteps.tensorflow as bps

STEPS, FATAL_STEP = 1000, 3


class Steps:
    begun = 0


@tf.custom_gradient
def bomb(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Ends rank 1 in backward of that step, while gradients of later layers are in flight."""

    def explode(gradient: np.ndarray) -> np.ndarray:
        if bps.rank() == 1 and Steps.begun > FATAL_STEP:
            os._exit(9)
        return gradient

    def backward(gradient: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(explode, [gradient], gradient.dtype), gradient.shape)

    return tf.identity(x), backward


def variables() -> list[tf.Variable]:
    return [tf.Variable(tf.ones([64, 64]) / 64, name=f"layer{i}") for i in range(4)]


def loss(layers: list[tf.Variable]) -> tf.Tensor:
    x = tf.ones([2, 64])
    for layer in layers[:2]:
        x = tf.tanh(x @ layer)
    x = bomb(x)
    for layer in layers[2:]:
        x = tf.tanh(x @ layer)
    return tf.reduce_mean(x)


def train_with_tape(in_function: bool) -> None:
    layers = variables()

    def step() -> None:
        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            value = loss(layers)
        for gradient, layer in zip(tape.gradient(value, layers), layers, strict=True):
            layer.assign_sub(0.1 * gradient)

    run = tf.function(step) if in_function else step
    for _ in range(STEPS):
        Steps.begun += 1
        run()


def function() -> None:
    train_with_tape(in_function=True)


def eager() -> None:
    train_with_tape(in_function=False)


def fit() -> None:
    import keras

    import byteps.keras

    class Layer(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return bomb(x)

    class Count(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            Steps.begun += 1

    dense = [keras.layers.Dense(64, activation="tanh") for _ in range(3)]
    model = keras.Sequential([dense[0], Layer(), *dense[1:], keras.layers.Dense(1)])
    model.compile(byteps.keras.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
    callbacks = [Count(), byteps.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(np.ones((STEPS, 64)), np.ones((STEPS, 1)), batch_size=1, verbose=0, callbacks=callbacks)


MODES = {"eager": eager, "function": function, "fit": fit}


def main() -> int:
    bps.init()
    try:
        MODES[sys.argv[1]]()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
