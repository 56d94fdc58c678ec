"""resume_program.py's Trainer with Keras: fit and custom loops with a compiled step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import byteps.keras as bps

__all__ = ["Trainer", "bps"]


class Trainer:
    def __init__(self, distributed: bool) -> None:
        self.distributed = distributed
        keras.utils.set_random_seed(0 if bps.rank() == 0 else 1)
        self.models = []
        for eagerly in (False, True):
            layers = [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", run_eagerly=eagerly)
            model.optimizer.build(model.trainable_variables)
            self.models.append(model)

    @staticmethod
    def before() -> None:
        for _ in range(2):
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8)])
            model.compile(bps.DistributedOptimizer(keras.optimizers.SGD()), "mse")
            model.train_on_batch(np.ones((2, 6)), np.ones((2, 8)))

    def broadcast(self) -> None:
        for model in self.models:
            bps.broadcast_global_variables(0, model)

    def distribute(self) -> None:
        for model in self.models:
            bps.DistributedOptimizer(model.optimizer)

    def step(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        for model in self.models:
            model.fit(x, y, batch_size=len(x), verbose=0, epochs=1)

    def weights(self) -> list[Any]:
        return [weight for model in self.models for weight in model.get_weights()]
