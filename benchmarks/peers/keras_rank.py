"""A rank that trains a Keras model on TensorFlow: python -m benchmarks.peers.keras_rank METHOD.

A step understands `model` (keyword arguments of one of MODELS, and its name as `kind`) and `batch`,
the samples of each rank, and trains on a global batch that all methods make alike, of which each
rank has its share. It makes one step more than `calls`, which is not timed: there the ranks meet.
What is timed ends with the last step's result. The answer has `begin` and `end` of that, and
`weights`: some of each variable's values.

Nothing may be traced while the clock runs; if something is, the step fails.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.harness.rank import serve

THREADS_OF_AN_OPERATION = 1
OPERATIONS_AT_ONCE = 4  # see README.md: its collectives are slow with fewer
BATCHES = 4  # different ones
SAMPLES_OF_A_VARIABLE = 16
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

Times = tuple[float, float]
# Runs steps; returns the begin of the second and the end of the last one.
Turn = Callable[[int], Times]


def mlp(width: int, layers: int) -> tuple[Any, Any]:
    """Layers of `width`^2 parameters; the last one's outputs are `width` classes."""
    inputs = keras.Input((width,))
    outputs = inputs
    for _ in range(layers - 1):
        outputs = keras.layers.Dense(width, activation="relu")(outputs)
    return inputs, keras.layers.Dense(width)(outputs)


def transformer(width: int, layers: int, heads: int, patches: int, features: int, classes: int) -> tuple[Any, Any]:
    """The encoder of a vision transformer, without the embedding: all gradients are dense."""
    inputs = keras.Input((patches, features))
    hidden = keras.layers.Dense(width)(inputs)
    for _ in range(layers):
        normal = keras.layers.LayerNormalization()(hidden)
        hidden = hidden + keras.layers.MultiHeadAttention(heads, width // heads)(normal, normal)
        normal = keras.layers.LayerNormalization()(hidden)
        hidden = hidden + keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="gelu")(normal))
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(hidden))
    return inputs, keras.layers.Dense(classes)(pooled)


MODELS: Mapping[str, Callable[..., tuple[Any, Any]]] = {"mlp": mlp, "transformer": transformer}


class Traced(keras.Model):  # type: ignore[misc]
    """A model that knows how often its training step was traced."""

    traces = 0

    def train_step(self, data: Any) -> Any:
        self.traces += 1  # Python runs while TensorFlow traces, only
        return super().train_step(data)


class Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes when a fit began its second step and when it had the result of the last one."""

    def __init__(self, meet: Callable[[], object]) -> None:
        super().__init__()
        self._meet = meet
        self.begin = self.end = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            self._meet()
            self.begin = time.monotonic()

    def on_train_end(self, logs: Any = None) -> None:
        self.end = time.monotonic()


class Library:
    """Plain Keras, which sends no gradients; the others differ in what they override."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])

    def leave(self) -> None:
        """The job."""

    def meet(self) -> None:
        """Waits for the other ranks before the measurement, if the first step did not."""

    def build(self, kind: str, settings: Mapping[str, Any]) -> Any:
        """A compiled model; the same on all ranks."""
        keras.utils.set_random_seed(0)
        inputs, outputs = MODELS[kind](**settings)
        model = Traced(inputs, outputs)
        optimizer = self.distribute(keras.optimizers.SGD(1e-3, momentum=0.9))
        optimizer.build(model.trainable_variables)
        model.compile(optimizer, LOSS)
        return model

    def distribute(self, optimizer: Any) -> Any:
        return optimizer

    def batches(self, model: Any, samples: int) -> Any:
        """Repeats this rank's share of each global batch."""
        return _share(model, samples, self.rank, self.size)

    def fit(self, model: Any, data: Any) -> Turn:
        def turn(steps: int) -> Times:
            clock = Clock(self.meet)
            model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[clock])
            return clock.begin, clock.end

        return turn

    def loop(self, model: Any, data: Any) -> Turn:
        """A training loop of one's own, as TensorFlow's guides write it."""
        run = tf.function(lambda iterator: self.run_step(model, next(iterator)))

        def turn(steps: int) -> Times:
            iterator = iter(data)
            run(iterator)
            self.meet()
            begin = time.monotonic()
            for _ in range(steps - 1):
                loss = run(iterator)
            loss.numpy()
            return begin, time.monotonic()

        return turn

    def run_step(self, model: Any, batch: Any) -> Any:
        return self.step(model, *batch)

    def step(self, model: Any, images: Any, labels: Any) -> Any:
        model.traces += 1
        with tf.GradientTape() as tape:
            # Under a strategy, Keras divides it by the number of replicas.
            loss = LOSS(labels, model(images, training=True))
        gradients = self.tape(tape).gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    def tape(self, tape: Any) -> Any:
        return tape


class Nothing(Library):
    """Sends no gradients. byteps makes the ranks begin together."""

    def __init__(self) -> None:
        import byteps
        from byteps.ops import Buffer, Sum, push_pull_buffer, synchronize

        super().__init__()
        byteps.init()
        self.leave = byteps.shutdown  # type: ignore[method-assign]
        array = np.zeros(1, np.float32)
        buffer = Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array)
        self._meet = lambda: synchronize(push_pull_buffer(buffer, buffer, "meet", Sum, 0, finish=lambda: None))

    def meet(self) -> None:
        self._meet()


class Ours(Library):
    """byteps.keras around the optimizer for fit; byteps.tensorflow around the tape for loops."""

    def __init__(self, way: str) -> None:
        import byteps.tensorflow as bps

        bps.init()
        self._bps, self._way = bps, way
        self.rank, self.size, self.leave = bps.rank(), bps.size(), bps.shutdown

    def build(self, kind: str, settings: Mapping[str, Any]) -> Any:
        model = super().build(kind, settings)
        self._bps.broadcast_variables(model.variables + model.optimizer.variables, root_rank=0)
        return model

    def distribute(self, optimizer: Any) -> Any:
        if self._way == "tape":
            return optimizer
        import byteps.keras

        return byteps.keras.DistributedOptimizer(optimizer)

    def tape(self, tape: Any) -> Any:
        return self._bps.DistributedGradientTape(tape)


class Strategy(Library):
    """MultiWorkerMirroredStrategy. It finds the other workers in TF_CONFIG."""

    def __init__(self, implementation: str = "AUTO", bytes_per_pack: int = 0) -> None:
        super().__init__()
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=bytes_per_pack,
            implementation=tf.distribute.experimental.CommunicationImplementation[implementation],
        )
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        _repair_fit()

    def build(self, kind: str, settings: Mapping[str, Any]) -> Any:
        with self._strategy.scope():
            return super().build(kind, settings)

    def batches(self, model: Any, samples: int) -> Any:
        # Not experimental_distribute_dataset, which forgets that the data does not end, and then
        # asks all ranks in each step who has some left.
        return self._strategy.distribute_datasets_from_function(lambda _: _share(model, samples, self.rank, self.size))

    def run_step(self, model: Any, batch: Any) -> Any:
        return self._strategy.run(lambda images, labels: self.step(model, images, labels), args=batch)


def _repair_fit() -> None:
    """Repairs Keras 3.15's fit, which fails under this strategy in two places.

    It averages the first batch over ranks as if a batch were one tensor, to see what to build; our
    models are built. It averages each step's logs over ranks along an axis that they do not have;
    they stay as they are, as byteps's do.
    """
    from keras.src.backend.tensorflow import trainer

    trainer.TensorFlowTrainer._maybe_symbolic_build = lambda *_, **__: None
    trainer._collective_all_reduce_multi_worker = lambda _: False


def _share(model: Any, samples: int, rank: int, size: int) -> Any:
    shape = (BATCHES, size * samples)
    random = np.random.default_rng(0)
    images = random.standard_normal(shape + model.input_shape[1:], dtype=np.float32)
    labels = random.integers(model.output_shape[-1], size=shape)
    mine = slice(rank * samples, (rank + 1) * samples)
    return tf.data.Dataset.from_tensor_slices((images[:, mine], labels[:, mine])).cache().repeat()


METHODS: Mapping[str, tuple[Callable[[], Library], str]] = {
    "mwms": (Strategy, "fit"),
    "mwms-ring": (lambda: Strategy("RING"), "fit"),
    "mwms-packs": (lambda: Strategy(bytes_per_pack=4 << 20), "fit"),
    "mwms-loop": (Strategy, "loop"),
    "byteps": (lambda: Ours("optimizer"), "fit"),
    "tape": (lambda: Ours("tape"), "loop"),
    "nothing": (Nothing, "fit"),
    "nothing-loop": (Nothing, "loop"),
}


def samples(model: Any) -> Iterator[float]:
    """The same few values of each variable, on every rank and by every method."""
    for weights in model.get_weights():
        flat = weights.ravel()
        yield from flat[:: max(1, flat.size // SAMPLES_OF_A_VARIABLE)].tolist()


def main() -> None:
    """Entry point."""
    tf.config.threading.set_intra_op_parallelism_threads(THREADS_OF_AN_OPERATION)
    tf.config.threading.set_inter_op_parallelism_threads(OPERATIONS_AT_ONCE)
    join, way = METHODS[sys.argv[1]]
    library = join()
    prepared: list[tuple[Any, Turn]] = []

    def step(request: Mapping[str, Any]) -> Mapping[str, Any]:
        if not prepared:
            settings = dict(request["model"])
            model = library.build(settings.pop("kind"), settings)
            turn: Turn = getattr(library, way)(model, library.batches(model, request["batch"]))
            prepared.append((model, turn))
            turn(2)
        model, turn = prepared[0]
        traces = model.traces
        begin, end = turn(1 + (request["calls"] or 1))
        if model.traces != traces:
            raise RuntimeError(f"the step was traced again in a turn: {model.traces} times so far, {traces} before")
        return {"begin": begin, "end": end, "weights": list(samples(model))}

    serve(library.rank, step)
    library.leave()


if __name__ == "__main__":
    main()
