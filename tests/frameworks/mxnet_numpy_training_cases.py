"""gluon, Module and what belongs to them at work, wherever they touch numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from frameworks.mxnet_numpy import in_a_folder, mx, numpy_arrays, same


def _network() -> object:
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Conv2D(4, 3, activation="relu"),
        mx.gluon.nn.BatchNorm(),
        mx.gluon.nn.MaxPool2D(),
        mx.gluon.nn.Dropout(0.1),
        mx.gluon.nn.Dense(3),
    )
    net.initialize(mx.init.Xavier())
    return net


def _data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 3, 48)
    images = generator.normal(size=(48, 1, 8, 8)) + labels[:, None, None, None]
    return images.astype("float32"), labels.astype("float32")


def _train(net: object, optimizer: str, settings: dict[str, object], batches: list[tuple[object, object]]) -> float:
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, settings)
    criterion = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for _ in range(12):
        for images, labels in batches:
            with mx.autograd.record():
                loss = criterion(net(images), labels).mean()
            loss.backward()
            trainer.step(1)
            losses.append(loss.asnumpy().item())
    assert losses[-1] < 0.8 * losses[0], losses
    return losses[-1]


def case_gluon_training() -> None:
    images, labels = (mx.nd.array(array) for array in _data())
    for optimizer, settings in (
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}),
        ("nag", {"learning_rate": 0.1, "momentum": 0.9}),
        ("adam", {"learning_rate": 0.01, "lr_scheduler": mx.lr_scheduler.CosineScheduler(100, 0.01)}),
        ("rmsprop", {"learning_rate": 0.01}),
        ("lamb", {"learning_rate": 0.01}),
    ):
        for how in ({"active": False}, {}, {"static_alloc": True, "static_shape": True}):
            mx.random.seed(1)
            net = _network()
            net.hybridize(**how)
            _train(net, optimizer, settings, [(images, labels)])


def case_gluon_training_with_numpy_arrays() -> None:
    with numpy_arrays():
        images, labels = (mx.np.array(array) for array in _data())
        net = _network()
        net.hybridize()
        _train(net, "adam", {"learning_rate": 0.01}, [(images, labels)])


@in_a_folder
def case_parameters_save_export_and_load(tmp: Path) -> None:
    net = _network()
    net.hybridize()
    images = mx.nd.array(_data()[0])
    expected = net(images)
    net.save_parameters(str(tmp / "p"))
    again = _network()
    again.load_parameters(str(tmp / "p"))
    same(again(images), expected.asnumpy())
    net.export(str(tmp / "net"))
    imported = mx.gluon.SymbolBlock.imports(str(tmp / "net-symbol.json"), ["data"], str(tmp / "net-0000.params"))
    same(imported(images), expected.asnumpy())
    net.cast("float16")
    assert {parameter.dtype for parameter in net.collect_params().values()} == {"float16"} | (
        # BatchNorm's parameters stay float32.
        {"float32"} & {parameter.dtype for parameter in net.collect_params().values()}
    )


def case_optimizers_in_multi_precision() -> None:
    for name in ("sgd", "nag", "adam", "lamb"):
        optimizer = mx.optimizer.create(name, learning_rate=np.float64(0.25), multi_precision=True)
        weight = mx.nd.ones((4,), dtype="float16")
        state = optimizer.create_state_multi_precision(0, weight)
        optimizer.update_multi_precision(0, weight, mx.nd.ones((4,), dtype="float16"), state)
        assert weight.dtype == np.float16
        assert (weight.asnumpy() < 1).all(), name


@in_a_folder
def case_states_of_optimizers(tmp: Path) -> None:
    images, labels = (mx.nd.array(array) for array in _data())
    net = _network()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    with mx.autograd.record():
        net(images).sum().backward()
    trainer.step(1)
    trainer.save_states(str(tmp / "states"))
    trainer.load_states(str(tmp / "states"))
    trainer.step(1, ignore_stale_grad=True)
    updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", momentum=0.9, learning_rate=np.float32(0.5)))
    weight = mx.nd.ones((2,))
    updater(0, mx.nd.ones((2,)), weight)
    other = mx.optimizer.get_updater(mx.optimizer.create("sgd", momentum=0.9, learning_rate=0.5))
    other.set_states(updater.get_states(dump_optimizer=True))
    same(other.states[0], updater.states[0].asnumpy())
    other(0, mx.nd.ones((2,)), weight)
    same(weight, [1 - 0.5 - 0.95] * 2)
    assert labels.shape == (48,)


def case_data_loaders() -> None:
    images, labels = _data()
    dataset = mx.gluon.data.ArrayDataset(images, labels).transform_first(lambda image: image * 2)
    for workers in (0, 2):
        loader = mx.gluon.data.DataLoader(dataset, 16, shuffle=False, num_workers=workers)
        batches = list(loader)
        same(mx.nd.concat(*[image for image, _ in batches], dim=0), images * 2)
        same(mx.nd.concat(*[label for _, label in batches], dim=0), labels)
    shuffled = mx.gluon.data.DataLoader(dataset, 16, shuffle=True, num_workers=2, thread_pool=True)
    same(sum(float(label.sum().asscalar()) for _, label in shuffled), labels.sum())
    pipeline = mx.gluon.data.vision.transforms.Compose(
        [
            mx.gluon.data.vision.transforms.ToTensor(),
            mx.gluon.data.vision.transforms.Normalize(np.float32(0.5), np.float64(0.5)),
        ]
    )
    same(pipeline(mx.nd.zeros((2, 2, 1), dtype="uint8")), np.full((1, 2, 2), -1))


def case_metrics() -> None:
    predicted = mx.nd.array([[0.3, 0.7], [0.9, 0.1], [0.4, 0.6]])
    labels = mx.nd.array([1, 0, 0])
    for name, expected in (
        ("acc", 2 / 3),
        ("f1", 2 / 3),
        ("mcc", 0.5),
        ("ce", -np.log([0.7, 0.9, 0.4]).mean()),
        (mx.metric.TopKAccuracy(2), 1.0),
        (mx.metric.Perplexity(None), np.exp(-np.log([0.7, 0.9, 0.4]).mean())),
        ("nll_loss", -np.log([0.7, 0.9, 0.4]).mean()),
    ):
        metric = mx.metric.create(name)
        metric.update([labels], [predicted])
        same(metric.get()[1], expected)
    for name, expected in (("mae", 0.5), ("mse", 0.25), ("rmse", 0.5), ("loss", 1.5), ("pearsonr", 1.0)):
        metric = mx.metric.create(name)
        metric.update([mx.nd.array([1.0, 2.0])], [mx.nd.array([1.5, 2.5] if name != "loss" else [1.0, 2.0])])
        same(metric.get()[1], expected)
    metric = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), mx.metric.np(lambda label, pred: np.float64(2))])
    metric.update([labels], [predicted])
    same(metric.get()[1], [2 / 3, 2])


def case_initializers_and_random_numbers() -> None:
    init = mx.init
    for initializer in (
        *(init.Zero(), init.One(), init.Constant(np.float32(2)), init.Uniform(0.1), init.Normal(0.1)),
        *(init.Xavier(magnitude=2.24), init.MSRAPrelu(), init.Orthogonal()),
    ):
        parameter = mx.gluon.Parameter("weight", shape=(4, 4), init=initializer)
        parameter.initialize()
        assert np.isfinite(parameter.data().asnumpy()).all()
    parameter = mx.gluon.Parameter("weight", shape=(1, 1, 4, 4), init=init.Bilinear())
    parameter.initialize()
    constant = mx.gluon.Constant("const", np.arange(3))
    constant.initialize()
    same(constant.data(), range(3))
    bias = mx.nd.zeros((8,))
    init.LSTMBias(1.0)("lstm_bias", bias)
    for draw in (
        lambda: mx.random.uniform(0, np.float64(1), shape=(np.int64(3),)),
        lambda: mx.nd.random.normal(np.float32(0), 1, shape=(3,)),
        lambda: mx.nd.random.randint(0, 10, shape=(3,)),
        lambda: mx.nd.random.multinomial(mx.nd.array([0.5, 0.5]), shape=3),
        lambda: mx.nd.random.shuffle(mx.nd.arange(3)),
        lambda: mx.nd.random.gamma(2, 1, shape=3),
    ):
        mx.random.seed(3)
        first = draw().asnumpy()
        mx.random.seed(np.int64(3))
        same(draw(), first)


@in_a_folder
def case_module_fit(tmp: Path) -> None:
    images, labels = _data()
    data = mx.sym.var("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.flatten(data), num_hidden=np.int64(16)), act_type="relu")
    output = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3), name="softmax")
    train = mx.io.NDArrayIter({"data": images}, {"softmax_label": labels}, 16, shuffle=True, last_batch_handle="pad")
    module = mx.mod.Module(output)
    module.fit(
        train,
        eval_data=mx.io.NDArrayIter(mx.nd.array(images), mx.nd.array(labels), 16, last_batch_handle="discard"),
        optimizer="sgd",
        optimizer_params={"learning_rate": np.float64(0.05), "momentum": 0.9},
        initializer=mx.init.Xavier(),
        eval_metric=["acc", mx.metric.Loss()],
        batch_end_callback=mx.callback.Speedometer(16, 1),
        epoch_end_callback=mx.callback.do_checkpoint(str(tmp / "m")),
        num_epoch=10,
    )
    assert dict(module.score(train, "acc"))["accuracy"] > 0.8
    module.save_optimizer_states(str(tmp / "states"))
    again = mx.mod.Module.load(str(tmp / "m"), 10)
    again.bind(train.provide_data, train.provide_label, for_training=False)
    same(again.predict(train).shape, (48, 3))
    np.savetxt(tmp / "data.csv", images.reshape(48, -1), delimiter=",")
    csv = mx.io.CSVIter(data_csv=str(tmp / "data.csv"), data_shape=(np.int64(64),), batch_size=16)
    same(csv.next().data[0], images[:16].reshape(16, -1))
