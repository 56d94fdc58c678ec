"""MXNet at work, wherever it touches numpy. test_mxnet_numpy.py runs it with each numpy."""

from __future__ import annotations

import ast
import pickle
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
from byteps.mxnet.numpy_names import import_mxnet
from frameworks.mxnet_numpy import BEFORE, DTYPES, NUMPY_2, in_a_folder, mx, numpy_arrays, same
from frameworks.mxnet_numpy_training_cases import *  # noqa: F403


def case_numpy_is_left_as_it_was() -> None:
    submodules = {name for name, value in vars(np).items() if isinstance(value, ModuleType)}
    assert {name: value for name, value in vars(np).items() if name not in submodules} == {
        name: value for name, value in BEFORE.items() if name not in submodules
    }
    assert submodules.isdisjoint({"compat"} if NUMPY_2 else ())


def case_every_name_of_numpy_in_the_sources_of_mxnet_is_known() -> None:
    lacking = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if name.startswith("mxnet") and path.endswith(".py"):
            own = {alias for alias, value in vars(module).items() if getattr(value, "__name__", "") == "numpy"}
            for node in ast.walk(ast.parse(Path(path).read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in own:
                    numpy_of_module = vars(module)[node.value.id]
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        if isinstance(numpy_of_module, ModuleType) and not hasattr(numpy_of_module, node.attr):
                            lacking.append(f"{name}:{node.lineno} {node.attr}")
    lacking = [line for line in lacking if not line.startswith("mxnet.numpy:")]
    assert not lacking, lacking


def case_a_second_import_is_the_same_module() -> None:
    assert import_mxnet() is mx


def case_arrays_of_every_dtype() -> None:
    for dtype in DTYPES:
        source = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
        array = mx.nd.array(source, dtype=dtype)
        same(array, source, dtype)
        assert array.dtype == np.dtype(dtype).type
        same(mx.nd.zeros((2, 2), dtype=dtype), np.zeros((2, 2)), dtype)
        same(mx.nd.ones((2, 2), dtype=np.dtype(dtype)), np.ones((2, 2)), dtype)
        same(mx.nd.full((2,), 1, dtype=dtype), [1, 1], dtype)
        same(array.astype("float32"), source, "float32")
        same(array.copy(), source, dtype)
        same(pickle.loads(pickle.dumps(array)), source, dtype)
        assert array[0, 1].asscalar() == 1
        assert type(array[0, 1].asscalar()) is np.dtype(dtype).type


def case_arrays_from_python() -> None:
    same(mx.nd.array([1, 2.5]), [1, 2.5], "float32")
    same(mx.nd.array([[1, 2], [3, 4]], dtype="int32"), [[1, 2], [3, 4]], "int32")
    same(mx.nd.array((np.float32(1), np.float64(2))), [1, 2], "float32")
    same(mx.nd.array([np.arange(2), np.arange(2)]), [[0, 1], [0, 1]], "float32")
    same(mx.nd.array(np.arange(6).reshape(2, 3)[:, ::2]), [[0, 2], [3, 5]])
    same(mx.nd.array(np.float64(3)), 3)
    same(mx.nd.array(7), 7)
    same(np.array(mx.nd.array([1.0, 2.0]).asnumpy()), [1, 2])
    same(mx.nd.from_numpy(np.ones((2, 2), "float32")), np.ones((2, 2)))
    same(mx.nd.arange(0, np.int64(4)), range(4))
    same(mx.nd.concat(*[mx.nd.ones((1, 2))] * 2, dim=0), np.ones((2, 2)))


def case_scalars() -> None:
    array = mx.nd.array([1.0, 2.0])
    for two in (2, 2.0, np.float32(2), np.float64(2), np.int64(2), np.int8(2)):
        for result, expected in (
            (array + two, [3, 4]),
            (two + array, [3, 4]),
            (two - array, [1, 0]),
            (array * two, [2, 4]),
            (two / array, [2, 1]),
            (array**two, [1, 4]),
            (array > two, [0, 0]),
        ):
            assert isinstance(result, mx.nd.NDArray)
            same(result, expected, "float32")
    one = mx.nd.array([5])
    assert (bool(one), one.asscalar()) == (True, 5.0)
    assert mx.nd.array([[2]], dtype="int64").asscalar() == 2
    assert array.size == 2
    assert str(array).split() == ["[1.", "2.]", "<NDArray", "2", "@cpu(0)>"]


def case_indexing() -> None:
    source = np.arange(24, dtype="float32").reshape(2, 3, 4)
    array = mx.nd.array(source)
    keys = (1, -1, slice(1, None), (0, 2), (slice(None), 1, slice(None, None, 2)), (Ellipsis, 1), None, np.int64(1))
    for key in keys:
        same(array[key], source[key])
    for key in ([1, 0], np.array([1, 0]), (np.array([0, 1]), [2, 0]), (slice(None), [0, 2])):
        same(array[key], source[key])
    same(array[:, mx.nd.array([0, 2], dtype="int32")], source[:, [0, 2]])
    same(mx.nd.contrib.boolean_mask(array, mx.nd.array([0, 1])), source[[False, True]])
    array[0, 1] = 7
    array[1] = np.full((3, 4), 2.0)
    array[:, [0, 2], 1] = np.float32(5)
    array[0, 0, 0] = np.float64(9)
    source[0, 1], source[1], source[:, [0, 2], 1], source[0, 0, 0] = 7, 2, 5, 9
    same(array, source)
    with numpy_arrays():
        array = mx.np.array(source)
        mask = source > 6
        for key in (mask, mask[0, :, 0], source[0] > 5):
            if key.shape == source.shape[: key.ndim]:
                same(array[mx.np.array(key, dtype="bool")], source[key])
                same(array[key], source[key])
        same(array[True], source[True])
        array[mx.np.array(mask, dtype="bool")] = 0
        same(array, np.where(mask, 0, source))


def case_numbers_of_numpy_as_parameters_of_operators() -> None:
    two = np.int64(2)
    same(mx.nd.reshape(mx.nd.arange(6), shape=(np.int32(3), two)), np.arange(6).reshape(3, 2))
    same(mx.nd.zeros((two, 3)).reshape((np.int64(-1),)), np.zeros(6))
    same(mx.nd.slice(mx.nd.arange(6), begin=(two,), end=(np.int64(4),)), [2, 3])
    same(mx.nd.sum(mx.nd.ones((2, 2, 2)), axis=(np.int64(0), np.int8(1))), [4, 4])
    same(mx.nd.clip(mx.nd.arange(3), np.float32(0.5), np.float64(1.5)), [0.5, 1, 1.5])
    same(mx.nd.tile(mx.nd.ones((1,)), reps=[two]), [1, 1])
    weights = [mx.nd.ones((2,)), mx.nd.ones((3,))]
    grads = [mx.nd.ones((2,)), mx.nd.ones((3,))]
    mx.nd.multi_sgd_update(
        *[array for pair in zip(weights, grads, strict=True) for array in pair],
        lrs=[np.float64(0.5), np.float32(0.25)],
        wds=(np.float64(0), 0.0),
        out=weights,
        num_weights=2,
    )
    same(weights[0], [0.5] * 2)
    same(weights[1], [0.75] * 3)
    data = mx.sym.var("data", shape=(two, np.int64(3)), lr_mult=np.float32(2))
    assert data.attr("__shape__") == "(2, 3)"
    reshaped = mx.sym.reshape(data, shape=(np.int64(3), two))
    assert reshaped.infer_shape()[1] == [(3, 2)]
    with mx.AttrScope(names=str(("np.a", two))):
        assert "np.a" in mx.sym.var("x").attr("names")
    same(
        mx.nd.pad(mx.nd.ones((1, 1, 2, 2)), mode="constant", pad_width=(0,) * 6 + (np.int64(1), 1))[0, 0, 0],
        [0, 1, 1, 0],
    )
    net = mx.gluon.nn.Dense(two, in_units=np.int64(3))
    net.initialize()
    net.hybridize()
    assert net(mx.nd.ones((4, 3))).shape == (4, 2)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": np.float64(0.1), "wd": np.float32(0)})
    with mx.autograd.record():
        net(mx.nd.ones((4, 3))).backward()
    trainer.step(np.int64(4))
    trainer.set_learning_rate(np.float32(0.01))
    trainer.step(4, ignore_stale_grad=True)


@in_a_folder
def case_save_and_load(tmp: Path) -> None:
    path = str(tmp / "arrays")
    arrays = {dtype: mx.nd.ones((2, 3), dtype=dtype) for dtype in DTYPES}
    mx.nd.save(path, arrays)
    for dtype, array in mx.nd.load(path).items():
        same(array, np.ones((2, 3)), dtype)
    with numpy_arrays():
        mx.npx.save(path, {"a": mx.np.array([True, False], dtype="bool"), "b": mx.np.array(2.5)})
        loaded = mx.npx.load(path)
        same(loaded["a"], [True, False], "bool")
        same(loaded["b"], 2.5)


def case_numpy_interface() -> None:
    with numpy_arrays():
        a = mx.np.array([[1.0, 2.0], [3.0, 4.0]])
        source = a.asnumpy()
        for got, expected in (
            (mx.np.alltrue(a), True),
            (mx.np.in1d(a, mx.np.array([1.0, 3.0])), [True, False, True, False]),
            (mx.np.msort(mx.np.array([[3.0, 1.0], [2.0, 4.0]])), [[2, 1], [3, 4]]),
            (mx.np.product(a), 24),
            (mx.np.round_(a * 0.4), [[0, 1], [1, 2]]),
            (mx.np.sometrue(a > 3), True),
            (mx.np.trapz(mx.np.array([1.0, 2.0, 3.0])), 4),
            (mx.np.interp(mx.np.array([1.5]), mx.np.array([1.0, 2.0]), mx.np.array([0.0, 1.0])), [0.5]),
            (mx.np.isin(a, mx.np.array([1.0])), source == 1),
            (mx.np.pad(a, ((1, 1), (1, 1)), mode="constant"), np.pad(source, 1)),
            (mx.np.pad(a, ((1, 0), (0, 1)), mode="edge"), np.pad(source, ((1, 0), (0, 1)), mode="edge")),
            (mx.np.full((2,), True), [True, True]),
            (mx.np.array([True, False], dtype=mx.np.bool), [True, False]),
            (mx.np.percentile(a, 50), 2.5),
            (mx.np.unique(mx.np.array([2.0, 1.0, 2.0])), [1, 2]),
            (mx.np.where(a > 2, a, -a), np.where(source > 2, source, -source)),
            (mx.np.concatenate([a, a]), np.concatenate([source, source])),
            (mx.np.linalg.norm(a), np.linalg.norm(source)),
            (mx.np.einsum("ij->ji", a), source.T),
            (mx.np.resize(a, (3, 2)), np.resize(source, (3, 2))),
            (mx.np.array([mx.np.inf, mx.np.PINF, mx.np.PZERO]), [np.inf, np.inf, 0]),
            (mx.np.nan_to_num(mx.np.array([mx.np.NaN, mx.np.NINF]), neginf=1), [0, 1]),
            (mx.np.empty_like(a, subok=False).shape, (2, 2)),
            (mx.np.random.uniform(size=(np.int64(2),)).shape, (2,)),
            (a.reshape(-1, np.int64(1)), source.reshape(-1, 1)),
            (a.mean(axis=np.int64(0)), source.mean(axis=0)),
        ):
            same(got, expected)
        for function in (np.concatenate, np.stack):  # numpy's own functions hand over to MXNet's
            assert isinstance(function([a, a]), mx.np.ndarray)
        for got in (np.sum(a), np.sqrt(a), np.add(a, a), np.any(a), np.prod(a), np.maximum(a, 2)):
            assert isinstance(got, mx.np.ndarray), got
        same(np.any(a > 3), True)
        same(np.round(a), source)
        assert a.item(0) == 1.0
        assert a.sum().item() == 10
        a.attach_grad()
        with mx.autograd.record():
            ((a @ a).sum() + mx.np.trace(a * 2)).backward()
        same(a.grad, source.sum(axis=0)[:, None] + source.sum(axis=1) + 2 * np.eye(2))
        try:
            mx.np.pv(0.1, 2, 3)
        except RuntimeError as error:
            assert "numpy_financial" in str(error) or "numpy-financial" in str(error)
        else:
            raise AssertionError("numpy has functions of finance again")


def case_modules_that_few_use() -> None:
    from mxnet import image, recordio, test_utils, visualization
    from mxnet.contrib import amp, onnx, quantization, svrg_optimization, text
    from mxnet.gluon.contrib import estimator

    assert all((visualization, amp, onnx, quantization, svrg_optimization, text, image))
    handler = estimator.EarlyStoppingHandler(monitor=mx.metric.Accuracy(), mode="min")
    handler.train_begin(None)
    assert handler.best == np.inf
    same(test_utils.default_rtols()[np.dtype(np.bool_)], 0)
    test_utils.assert_almost_equal(mx.nd.ones((2,)), np.ones(2))
    test_utils.check_numeric_gradient(mx.sym.var("a") * 2, [np.ones((2, 2))])
    header = recordio.IRHeader(0, np.array([1, 2], "float32"), 1, 0)
    unpacked, content = recordio.unpack(recordio.pack(header, b"abc"))
    same(unpacked.label, [1, 2])
    assert content == b"abc"
    recordio.cv2 = SimpleNamespace(  # OpenCV, which is not installed
        IMWRITE_JPEG_QUALITY=1, imencode=lambda *_: (True, np.frombuffer(b"image", "uint8"))
    )
    assert recordio.unpack(recordio.pack_img(header, np.zeros((2, 2, 3))))[1] == b"image"
    same(image.fixed_crop(mx.nd.ones((4, 4, 3)), 0, 0, 2, 2).shape, (2, 2, 3))
    same(image.color_normalize(mx.nd.ones((2, 2, 3)), mx.nd.array([1, 1, 1])), np.zeros((2, 2, 3)))
    for augment in image.CreateAugmenter((3, 4, 4), rand_mirror=True, mean=True, std=True, brightness=0.1):
        augment.dumps()


@in_a_folder
def case_records(tmp: Path) -> None:
    from mxnet import recordio

    writer = recordio.MXIndexedRecordIO(str(tmp / "r.idx"), str(tmp / "r.rec"), "w")
    for i in range(3):
        writer.write_idx(i, recordio.pack(recordio.IRHeader(0, float(i), i, 0), bytes([i])))
    writer.close()
    dataset = mx.gluon.data.RecordFileDataset(str(tmp / "r.rec"))
    assert [recordio.unpack(dataset[i])[0].label for i in range(3)] == [0, 1, 2]


def case_sparse_arrays() -> None:
    dense = np.zeros((4, 2), "float32")
    dense[[1, 3]] = [[1, 2], [3, 4]]
    sparse = mx.nd.sparse.row_sparse_array((dense[[1, 3]], np.array([1, 3])), shape=(4, 2))
    same(sparse, dense)
    same(sparse.indices, [1, 3], "int64")
    retained = mx.nd.sparse.retain(mx.nd.array(dense).tostype("row_sparse"), mx.nd.array([1], dtype="int64"))
    same(retained, np.where(np.arange(4)[:, None] == 1, dense, 0))
    same(mx.nd.sparse.csr_matrix(dense), dense)
    same(mx.nd.sparse.csr_matrix((np.array([1.0, 2.0]), [0, 1], [0, 1, 2]), shape=(2, 2)), [[1, 0], [0, 2]])
    assert mx.nd.sparse.csr_matrix((np.array([1.0, 2.0]), [0, 1], [0, 1, 2])).shape == (2, 2)
    assert mx.nd.sparse.row_sparse_array((dense[[1, 3]], np.array([1, 3]))).shape == (4, 2)
    same(mx.nd.sparse.zeros("row_sparse", (np.int64(2), 2)), np.zeros((2, 2)))
    embedding = mx.gluon.nn.Embedding(5, 2, sparse_grad=True)
    embedding.initialize()
    trainer = mx.gluon.Trainer(embedding.collect_params(), "adam", {"learning_rate": 0.1, "lazy_update": True})
    with mx.autograd.record():
        embedding(mx.nd.array([1, 3])).sum().backward()
    assert embedding.weight.grad().stype == "row_sparse"
    trainer.step(1)


def case_custom_operators() -> None:
    class Twice(mx.operator.CustomOp):
        def forward(self, is_train: bool, req: list[str], in_data: list, out_data: list, aux: list) -> None:
            self.assign(out_data[0], req[0], mx.nd.array(in_data[0].asnumpy() * np.float32(2)))

        def backward(
            self, req: list[str], out_grad: list, in_data: list, out_data: list, in_grad: list, aux: list
        ) -> None:
            self.assign(in_grad[0], req[0], out_grad[0] * 2)

    @mx.operator.register("byteps_twice")
    class TwiceProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx: object, in_shapes: list, in_dtypes: list) -> Twice:
            return Twice()

    x = mx.nd.array([1.0, 2.0])
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Custom(x, op_type="byteps_twice")
    y.backward()
    same(y, [2, 4])
    same(x.grad, [2, 2])


def case_axes_and_control_flow() -> None:
    array = mx.nd.arange(24).reshape((2, 3, 4))
    same(mx.nd.moveaxis(array, 0, np.int64(1)), np.moveaxis(array.asnumpy(), 0, 1))
    out, _ = mx.nd.contrib.foreach(lambda x, s: (x + s, s + 1), array, mx.nd.zeros((1,)))
    same(out, array.asnumpy() + np.arange(2)[:, None, None])
    same(mx.nd.topk(array[0], k=np.int64(1)), np.full((3, 1), 3))
    rnn = mx.gluon.rnn.LSTM(4)
    rnn.initialize()
    assert rnn(mx.nd.ones((5, 2, 3))).shape == (5, 2, 4)
