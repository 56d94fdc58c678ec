"""A rank whose tensors are in the memory of a played GPU; see test_device_memory.py."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from support.played_device import PlayedDevice

import byteps
from byteps.errors import BytePSError
from byteps.numpy import push_pull
from byteps.ops import Average, Sum, broadcast_buffer, push_pull_buffer


def sums(device: PlayedDevice) -> None:
    rank, size = byteps.rank(), byteps.size()
    arrays = [device.empty((10, 100 * (i + 1)), "float32") for i in range(5)]
    results = [device.empty(array.shape, "float32") for array in arrays]
    seen = [np.zeros_like(array) for array in arrays]
    for step in range(1, 6):
        handles = []
        for i, (array, result) in enumerate(zip(arrays, results, strict=True)):
            device.launch(lambda array=array, i=i, step=step: array.fill(rank + i * step))
            source, target = device.buffer(array), device.buffer(result)
            handles.append(push_pull_buffer(source, target, f"t{i}", Average if i % 2 else Sum, i, lambda: None))
        for handle, result, got in zip(handles, results, seen, strict=True):
            handle.synchronize()
            device.launch(lambda result=result, got=got: np.copyto(got, result))
        device.synchronize()
        for i, got in enumerate(seen):
            total = size * (size - 1) / 2 + size * i * step
            assert (got == (total / size if i % 2 else total)).all(), (step, i, got)
    device.launch(lambda: arrays[0].fill(rank))
    broadcast_buffer(device.buffer(arrays[0]), size - 1, "b", lambda: None).synchronize()
    device.launch(lambda: np.copyto(seen[0], arrays[0]))
    device.synchronize()
    assert (seen[0] == size - 1).all(), seen[0]
    print(f"staged {byteps.metrics()['staged_bytes']:.0f} unpinned {byteps.metrics()['unpinned_bytes']:.0f}")


def released(device: PlayedDevice) -> None:
    """Tensors are kept until no copy uses them, and not longer."""
    import gc
    import weakref

    class Owner:
        pass

    kept = []
    for _ in range(20):
        array = device.empty((1000,), "float32")
        device.launch(lambda array=array: array.fill(1))
        owner = Owner()
        kept.append(weakref.ref(owner))
        buffer = device.buffer(array)._replace(owner=owner)
        push_pull_buffer(buffer, buffer, "t", Sum, 0, lambda: None).synchronize()
        del owner, buffer
        device.synchronize()
    gc.collect()
    alive = sum(reference() is not None for reference in kept)
    assert alive <= 1, alive  # let go at the next push_pull


def forked(device: PlayedDevice) -> None:
    """A child never calls CUDA, and its parent goes on."""
    array = device.empty((1000,), "float32")
    device.launch(lambda: array.fill(1))
    handle = push_pull_buffer(device.buffer(array), device.buffer(array), "t", Sum, 0, lambda: None)
    child = os.fork()
    if child == 0:
        try:
            push_pull_buffer(device.buffer(array), device.buffer(array), "u", Sum, 0, lambda: None)
        except BytePSError as error:
            os._exit(7 if "forked" in str(error) else 8)
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    handle.synchronize()
    device.synchronize()
    assert (array == byteps.size()).all()


def lost(device: PlayedDevice) -> None:
    """Rank 1 loses its device: both get an error, and the job and the name can still be used."""
    array = device.empty((100_000,), "float32")
    for step in range(10):
        if step == 5 and byteps.rank() == 1:
            device.fail()
        try:
            device.launch(lambda: array.fill(1))
            push_pull_buffer(device.buffer(array), device.buffer(array), "t", Sum, 0, lambda: None).synchronize()
        except BytePSError as error:
            print(f"step {step}: {error}")
            break
    else:
        raise AssertionError("nobody was told")
    total = push_pull(np.ones(10, dtype="float32"), average=False, name="host")
    assert (total == byteps.size()).all()


def hook(device: PlayedDevice) -> None:
    """Prints what a call costs; not a test."""
    arrays = [device.empty((1000,), "float32") for _ in range(200)]
    buffers = [device.buffer(array) for array in arrays]
    times = []
    for _ in range(10):
        handles = []
        for i, buffer in enumerate(buffers):
            start = time.perf_counter()
            handles.append(push_pull_buffer(buffer, buffer, f"t{i}", Sum, 0, lambda: None))
            times.append(time.perf_counter() - start)
        for handle in handles:
            handle.synchronize()
    print(f"median {np.median(times) * 1e6:.1f} us")


if __name__ == "__main__":
    byteps.init()
    {"sums": sums, "released": released, "forked": forked, "lost": lost, "hook": hook}[sys.argv[1]](PlayedDevice())
    byteps.shutdown()
