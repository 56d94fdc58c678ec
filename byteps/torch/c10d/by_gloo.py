"""Collectives and point-to-point operations that process groups pass on to torch's gloo."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from weakref import WeakMethod

import torch
from torch._C._distributed_c10d import AllToAllOptions, ProcessGroup, ProcessGroupGloo, Store

from byteps.errors import TimeoutError
from byteps.torch.c10d.arguments import check_dtypes, check_list, options_of
from byteps.torch.c10d.group_info import GroupInfo
from byteps.torch.eager import eager

__all__ = ["ByGloo", "GlooProgress", "InnerGloo"]

Tensor = torch.Tensor
Tensors = list[Tensor]
_ProcessGroup: Any = ProcessGroup  # Any: its methods are overloaded


class GlooProgress:
    """A collective of gloo's that a collective of the core waits for: an `Awaited`."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._future = work.get_future()
        self.error: Exception | None = None

    def poll(self) -> bool:
        # `is_completed` of the work is still false while the future calls its callbacks.
        return bool(self._future.done())

    def is_completed(self) -> bool:
        if self.poll() and self.error is None:
            self.error = self._failure()
        return self.poll()

    def wait(self, deadline_s: float) -> None:
        try:
            self._work.wait(timedelta(seconds=max(0.001, deadline_s - time.monotonic())))
        except RuntimeError as error:
            if not self.poll():
                raise TimeoutError("waiting for a collective of gloo's") from None
            self.error = error

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        self._future.add_done_callback(lambda _: callback())

    def _failure(self) -> Exception | None:
        try:
            self._future.wait()
        except RuntimeError as error:
            return error
        return None


class ByGloo(_ProcessGroup):  # type: ignore[misc]
    """Calls gloo's collectives without the GIL, which torch would hold.

    Gloo's thread needs the GIL to release tensors, and gloo's queue waits for that thread.
    """

    _gloo: Any
    # Makes the Work of a collective from gloo's Work, the outputs, a function that fills them when
    # gloo's Work is done, and the options.
    _after_gloo: Callable[[Any, Tensors, Callable[[], object], Any], Any]
    _gloo_was_used = False  # for a collective, since the last barrier

    def _use_gloo(self) -> Any:
        self._gloo_was_used = True
        return self._gloo

    @eager
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Any:
        opts = options_of(AllToAllOptions, opts, timeout)
        return self._use_gloo().alltoall_base(output, input, output_split_sizes, input_split_sizes, opts)

    alltoall_base = all_to_all_single  # its older name

    @eager
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None, *, timeout: timedelta | None = None) -> Any:
        """Uses alltoall_base, because gloo's alltoall takes parts of equal size only."""
        for role, tensors in (("outputs", outputs), ("inputs", inputs)):
            check_list("all_to_all", role, tensors, self.size())
            check_dtypes("all_to_all", role, tensors, inputs[0].dtype)
        opts = options_of(AllToAllOptions, opts, timeout)
        whole = torch.cat([_bytes_of(tensor) for tensor in inputs])
        sizes = [tensor.nbytes for tensor in outputs]
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        work = self._use_gloo().alltoall_base(received, whole, sizes, [tensor.nbytes for tensor in inputs], opts)

        def copy_back() -> None:
            for output, part in zip(outputs, received.split(sizes), strict=True):
                # A clone is aligned.
                output.detach().copy_(part.clone().view(output.dtype).view(output.shape))

        return self._after_gloo(work, outputs, copy_back, opts)

    @eager
    def send(self, tensors: Tensors, dst: int, tag: int) -> Any:
        return self._gloo.send(tensors, dst, tag)

    @eager
    def recv(self, tensors: Tensors, src: int, tag: int) -> Any:
        return self._gloo.recv(tensors, src, tag)


class InnerGloo(ProcessGroupGloo):
    """The gloo backend that torch finds for a group's devices, and whose timeout it sets."""

    def __init__(self, info: GroupInfo, store: Store, on_timeout: Callable[[timedelta], None]) -> None:
        """`on_timeout`: a method of the group, called for as long as the group exists."""
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        # Lazy devices connect to a rank when they first send to it. Groups cannot share one: it
        # would confuse their connections.
        options._devices = [ProcessGroupGloo.create_default_device(lazy_init=True)]
        options._timeout = timedelta(seconds=info.timeout_s)
        super().__init__(store, info.rank, info.size, options)
        # Weak: the group owns this object. In a cycle, the thread that happens to collect garbage
        # would destroy both. A thread of gloo's must not, because it would join itself.
        self._on_timeout = WeakMethod(on_timeout)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        super()._set_default_timeout(timeout)
        if on_timeout := self._on_timeout():
            on_timeout(timeout)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).cpu()
