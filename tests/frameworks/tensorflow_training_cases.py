"""DistributedGradientTape: ranks on shares learn what one process learns on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from frameworks.tensorflow_expect import assert_equal, nodes_of, total
from frameworks.tensorflow_training import (
    STEPS,
    Batch,
    Model,
    alone,
    assert_trains_as_one_process,
    data,
    share,
    weights,
)
from support.expect import expect_error
from support.said import Said

import byteps.tensorflow as bps
from byteps import rank, size
from byteps.errors import AbortedError, InvalidArgumentError, UnsupportedError
from byteps.tensorflow.exchange import GradientOptions, exchange_gradients
from byteps.tensorflow.native import push_pull_node, step_node

Part = Callable[[Batch], Batch]
Apply = Callable[[list[Any], list[tf.Variable]], None]


def tape_of(part: Part, **options: Any) -> tf.GradientTape:
    tape = tf.GradientTape()
    return tape if part is alone else bps.DistributedGradientTape(tape, **options)


def sgd(gradients: list[Any], variables: list[tf.Variable]) -> None:
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is not None:
            variable.assign_sub(0.5 * tf.convert_to_tensor(gradient))


def training(apply_of: Callable[[Model], Apply], *, in_function: bool, **options: Any) -> Callable[[Model, Part], None]:
    def train(model: Model, part: Part) -> None:
        apply = apply_of(model)

        def step(*batch: tf.Tensor) -> None:
            with tape_of(part, **options) as tape:
                loss = model.loss(batch)
            variables = model.variables_in_order
            apply(tape.gradient(loss, variables), variables)

        run = tf.function(step) if in_function else step
        for number in range(STEPS):
            run(*part(data(number)))

    return train


def with_keras(make: Callable[[], Any]) -> Callable[[Model], Apply]:
    def apply_of(model: Model) -> Apply:
        optimizer = make()
        used = [variable for variable in model.variables_in_order if variable is not model.unused]
        optimizer.build(used)

        def apply(gradients: list[Any], variables: list[tf.Variable]) -> None:
            pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
            optimizer.apply_gradients(pairs)

        return apply

    return apply_of


def case_plain_steps_in_a_function() -> None:
    assert_trains_as_one_process(training(lambda model: sgd, in_function=True))


def case_plain_steps_eagerly() -> None:
    assert_trains_as_one_process(training(lambda model: sgd, in_function=False))


def case_slices_made_dense() -> None:
    assert_trains_as_one_process(training(lambda model: sgd, in_function=True, sparse_as_dense=True))


def case_optimizers_of_keras() -> None:
    import keras

    for make in (lambda: keras.optimizers.SGD(0.3, momentum=0.9), lambda: keras.optimizers.Adam(0.02)):
        for in_function in (True, False):
            assert_trains_as_one_process(training(with_keras(make), in_function=in_function))


def case_a_loss_of_the_rows_of_all_ranks() -> None:
    """Contrastive learning: gradients go through allgather and broadcast."""

    def train(model: Model, part: Part) -> None:
        alone_now = part is alone
        variables = [model.kernel, model.head]
        for number in range(STEPS):
            _, numbers, _ = part(data(number))
            with tape_of(part) as tape:
                kernel = model.kernel if alone_now else bps.broadcast(model.kernel, size() - 1, name="kernel")
                mine = tf.tanh(numbers @ kernel[:4]) @ model.head
                everyone = mine if alone_now else bps.allgather(mine, name="rows of all")
                loss = tf.reduce_mean(tf.square(mine @ tf.transpose(everyone)))
            sgd(tape.gradient(loss, variables), variables)

    assert_trains_as_one_process(train)


def case_ranks_that_begin_with_other_variables_are_told_so() -> None:
    """The warning comes in the second step: Horovod's scripts broadcast after the first."""
    last = size() - 1
    for broadcasts in (False, True):
        variable = tf.Variable([1.0, 2.0 if rank() == last else 3.0], name="apart")
        with Said() as lines:
            for step in range(3):
                with bps.DistributedGradientTape(tf.GradientTape()) as tape:
                    loss = tf.reduce_sum(tf.square(variable))
                sgd(tape.gradient(loss, [variable]), [variable])
                assert lines == [] or step > 0
                if broadcasts and step == 0:
                    bps.broadcast_variables([variable], 0)
        told = not broadcasts and rank() in (0, last) and last > 0
        assert [f"the weights of rank {last} are not those of rank 0" in line for line in lines] == [True] * told, lines


def case_compressed_gradients() -> None:
    for compression, tolerance in ((bps.Compression.fp16, 2e-3), (bps.Compression.bf16, 2e-2)):
        assert_trains_as_one_process(
            training(lambda model: sgd, in_function=True, compression=compression), tolerance=tolerance
        )


def case_the_sum_of_gradients() -> None:
    def apply_of(model: Model) -> Apply:
        def apply(gradients: list[Any], variables: list[tf.Variable]) -> None:
            scale = 1.0 if alone_now else 1.0 / size()
            sgd([None if g is None else scale * tf.convert_to_tensor(g) for g in gradients], variables)

        return apply

    alone_now = False
    train = training(apply_of, in_function=False, op=bps.Sum)
    model = Model()
    train(model, share)
    alone_now = True
    whole = Model()
    train(whole, alone)
    for mine, theirs in zip(weights(model), weights(whole), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


def case_inner_functions_of_xla() -> None:
    """The computation of gradients may be compiled, but not their exchange."""

    def train(model: Model, part: Part) -> None:
        variables = [model.kernel, model.bias, model.head]

        @tf.function(jit_compile=True)
        def gradients(x: tf.Tensor, wanted: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                y = tf.tanh(x @ model.kernel + model.bias) @ model.head
                loss = tf.reduce_mean(tf.square(y - wanted))
            return tape.gradient(loss, variables)

        @tf.function
        def step(words: tf.Tensor, numbers: tf.Tensor, wanted: tf.Tensor) -> None:
            x = tf.concat([tf.reduce_mean(tf.gather(model.embedding, words), axis=1), numbers], axis=1)
            own = gradients(x, wanted)
            if part is share:
                own = [bps.push_pull(g, name=f"xla.{i}") for i, g in enumerate(own)]
            sgd(own, variables)

        for number in range(STEPS):
            step(*part(data(number)))

    assert_trains_as_one_process(train)


def case_sources_of_any_structure_and_a_persistent_tape() -> None:
    model = Model()
    batch = share(data(0))
    with bps.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = model.loss(batch)
    nested = tape.gradient(loss, {"a": model.kernel, "b": [model.bias, model.unused]})
    single = tape.gradient(loss, model.kernel)
    with tf.GradientTape() as plain:
        loss = model.loss(data(0))
    expected = plain.gradient(loss, [model.kernel, model.bias])
    np.testing.assert_allclose(nested["a"], expected[0], atol=1e-6)
    np.testing.assert_allclose(nested["b"][0], expected[1], atol=1e-6)
    np.testing.assert_allclose(single, expected[0], atol=1e-6)
    assert nested["b"][1] is None


def case_priorities_follow_the_order_of_variables() -> None:
    variables = [tf.Variable([1.0]) for _ in range(5)]

    @tf.function
    def step() -> Any:
        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([v * v for v in variables])
        return tape.gradient(loss, variables)

    graph = step.get_concrete_function().graph
    nodes = [node for node in graph.get_operations() if node.type == "BytepsPushPull"]
    assert [node.get_attr("priority") for node in nodes] == [0, -1, -2, -3, -4]
    assert len({node.get_attr("tensor_name") for node in nodes}) == 5


def case_a_step_that_breaks_off_on_one_rank_leaves_no_rank_a_step_behind() -> None:
    """Each rank may miss gradients of that step; those of later steps meet."""
    culprit = size() - 1

    @tf.function
    def function(step: Any, fails: Any) -> Any:
        mine = tf.fill([3], 10.0 * step + rank())
        number = step_node("a step that breaks off")
        with tf.control_dependencies([number]):
            tf.debugging.assert_equal(fails, False, message="out of luck")
            late = tf.identity(mine)
        gradients = {"early": mine, "late": late}
        return [push_pull_node(each, name, bps.Sum.value, 0, step=number) for name, each in gradients.items()]

    for step in range(5):
        fails = step == 2 and rank() == culprit
        try:
            results = function(tf.constant(float(step)), tf.constant(fails))
        except (AbortedError, tf.errors.OpError):
            assert step == 2
        else:
            assert not fails
            for result in results:
                assert_equal(result, np.full(3, 10.0 * step * size() + total() - size()))


def case_a_loop_of_training_steps_in_one_function() -> None:
    """TensorFlow begins an iteration before the last one has ended."""
    a, b = tf.Variable(tf.ones(4)), tf.Variable(tf.fill([4], 2.0))

    @tf.function
    def train(steps: Any) -> None:
        for _ in tf.range(steps):
            with bps.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(a * b) * 0.1 * (rank() + 1.0)
            sgd(tape.gradient(loss, [a, b]), [a, b])

    plain_a, plain_b = tf.Variable(tf.ones(4)), tf.Variable(tf.fill([4], 2.0))
    train(tf.constant(40))
    for _ in range(40):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(plain_a * plain_b) * 0.1 * ((size() + 1) / 2)
        sgd(tape.gradient(loss, [plain_a, plain_b]), [plain_a, plain_b])
    np.testing.assert_allclose(a, plain_a, rtol=1e-4)
    np.testing.assert_allclose(b, plain_b, rtol=1e-4)


def case_steps_are_counted_when_gradients_come() -> None:
    """And not before, as in iterations of a loop that TensorFlow has begun early."""

    @tf.function
    def function(x: Any) -> Any:
        return exchange_gradients([x + 1.0, x + 2.0], ["first", "last"], GradientOptions())

    labelled = [n for n in nodes_of(function, tf.ones(3), type_prefix="BytepsAnchor") if n.get_attr("label")]
    assert [len(node.control_inputs) for node in labelled] == [1]
    assert_equal(function(tf.ones(3)), [[2.0] * 3, [3.0] * 3])


def case_ranks_whose_gradients_differ() -> None:
    if size() == 1:
        return
    a, b = tf.Variable([1.0], name="a"), tf.Variable([2.0], name="b")
    with bps.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = a * a if rank() == 0 else a * b
    with expect_error(
        InvalidArgumentError, "the ranks differ", "'Gradient.b.1' without a gradient", f"rank {size() - 1} has"
    ):
        tape.gradient(loss, [a, b])


def case_ranks_whose_slices_differ_in_kind() -> None:
    if size() == 1:
        return
    table = tf.Variable(tf.ones([4, 2]), name="table")
    with bps.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(tf.gather(table, [0, 1]) if rank() == 0 else table)
    with expect_error(InvalidArgumentError, "tf.IndexedSlices of float32", "a tensor of float32"):
        tape.gradient(loss, [table])


def case_wrong_tapes_and_options() -> None:
    with expect_error(InvalidArgumentError, "expected a tf.GradientTape, got object"):
        bps.DistributedGradientTape(object())
    tape = bps.DistributedGradientTape(tf.GradientTape())
    with expect_error(UnsupportedError, "distributed already"):
        bps.DistributedGradientTape(tape)
    with expect_error(InvalidArgumentError, "op is 'mean'"):
        bps.DistributedGradientTape(tf.GradientTape(), op="mean")
    with expect_error(InvalidArgumentError, "compression is 'fp16'"):
        bps.DistributedGradientTape(tf.GradientTape(), compression="fp16")
