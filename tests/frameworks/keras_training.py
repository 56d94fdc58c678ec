"""Keras models that learn alone on a whole batch, and on several ranks on their shares of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import byteps.keras as bps

if keras.backend.backend() == "tensorflow":  # several ranks share a few cores
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)

STEPS = 4
BATCH = 24  # divisible by 1, 2, 3 and 4 ranks
Make = Callable[[], Any]
Array = np.ndarray[Any, Any]


def mlp() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(8, "tanh"), layers.Dense(3, name="head")]
    )


def sgd(**options: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


def data(steps: int = STEPS) -> tuple[Array, Array]:
    """Inputs [steps, batch, 6] and classes [steps, batch]."""
    random = np.random.default_rng(7)
    x = random.standard_normal((steps, BATCH, 6)).astype(np.float32)
    return x, random.integers(0, 3, (steps, BATCH))


def share(batches: Array, distributed: bool) -> Array:
    """Returns this rank's part of each batch, in the order of fit."""
    part = np.split(batches, bps.size(), axis=1)[bps.rank()] if distributed else batches
    return part.reshape(-1, *batches.shape[2:])


def unlike_others() -> None:
    """Gives this rank another seed and other counters in Keras's names than other ranks."""
    keras.utils.set_random_seed(100 + bps.rank())
    for _ in range(bps.rank()):
        keras.Sequential([keras.Input((1,)), keras.layers.Dense(1), keras.layers.Embedding(2, 2)])


def compiled(make_model: Make, make_optimizer: Make, distributed: bool, wrap: Any = None, **options: Any) -> Any:
    if distributed:
        unlike_others()
    if not distributed or bps.rank() == 0:
        keras.utils.set_random_seed(0)
    model, optimizer = make_model(), make_optimizer()
    if distributed:
        optimizer = (wrap or bps.DistributedOptimizer)(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **({"jit_compile": False} | options))
    return model


def fit(model: Any, distributed: bool, batches: tuple[Array, Array] | None = None, **options: Any) -> Any:
    x, y = batches or data()
    callbacks = [*options.pop("callbacks", ())]
    if distributed:
        callbacks.insert(0, bps.callbacks.BroadcastGlobalVariablesCallback(0))
    batch = BATCH // bps.size() if distributed else BATCH
    arguments = {"batch_size": batch, "shuffle": False, "verbose": 0, "epochs": 1} | options
    return model.fit(share(x, distributed), share(y, distributed), callbacks=callbacks, **arguments)


def trained(
    make_model: Make,
    make_optimizer: Make,
    distributed: bool,
    wrap: Any = None,
    batches: tuple[Array, Array] | None = None,
    fit_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    model = compiled(make_model, make_optimizer, distributed, wrap, **options)
    fit(model, distributed, batches, **(fit_options or {}))
    return model


def state(model: Any) -> list[Array]:
    """Returns weights and optimizer state, with one zero: torch's accumulators may be -0."""
    return [np.array(v.numpy(), np.float64) + 0.0 for v in [*model.weights, *model.optimizer.variables]]


def of_rank_0(make: Make) -> Any:
    """Returns the result of rank 0's `make`, which the other ranks do not call."""
    return bps.broadcast_object(make() if bps.rank() == 0 else None, 0)


def assert_close(expected: list[Array], got: list[Array], tolerance: float = 1e-6) -> None:
    assert len(expected) == len(got)
    for place, (one, other) in enumerate(zip(expected, got, strict=True)):
        difference = float(np.abs(one - other).max(initial=0))
        assert difference <= tolerance, f"variable {place} of shape {one.shape} differs by {difference}"


def assert_equal_on_all_ranks(model: Any) -> None:
    digest = hashlib.sha256(b"".join(part.tobytes() for part in state(model))).hexdigest()
    assert bps.broadcast_object(digest, 0) == digest


def assert_same_training(
    make_model: Make = mlp, make_optimizer: Make = sgd, tolerance: float = 1e-6, wrap: Any = None, **options: Any
) -> Any:
    """Returns the model that was trained together."""
    reference = of_rank_0(lambda: state(trained(make_model, make_optimizer, distributed=False, **options)))
    together = trained(make_model, make_optimizer, distributed=True, wrap=wrap, **options)
    assert_close(reference, state(together), tolerance)
    assert_equal_on_all_ranks(together)
    return together
