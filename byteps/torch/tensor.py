"""The memory of torch tensors, for the core."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from byteps import _core
from byteps.buffer import DTYPE_CODES, Buffer
from byteps.device import Device
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.ops import unsupported_dtype
from byteps.torch.device import device_of

__all__ = ["DTYPE_NAMES", "READER", "Staged", "memory_order", "memory_that_stays", "own_memory", "stage"]

DTYPE_NAMES = {getattr(torch, name): name for name in DTYPE_CODES}
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
READER = _core.TensorReader(
    _PLAIN_TYPES, {dtype: DTYPE_CODES[name] for dtype, name in DTYPE_NAMES.items()}, torch.strided
)
_ADVICE = {
    torch.bool: "convert it with tensor.to(torch.uint8)",
    torch.complex32: "pass torch.view_as_real(tensor)",
    torch.complex64: "pass torch.view_as_real(tensor)",
    torch.complex128: "pass torch.view_as_real(tensor)",
}


@dataclass(frozen=True, slots=True)
class Staged:
    """A tensor's elements in memory that the core can use.

    `memory` is row-major: the tensor's own memory, through a permutation of its dimensions if it is
    dense in another order, or a host copy.
    """

    memory: torch.Tensor
    # Of the tensor; if it is passed as bytes, with the bytes of an element as last dimension.
    shape: tuple[int, ...]
    order: tuple[int, ...] | None  # the permutation; None: row-major
    copied: bool  # whether it is a host copy
    device: Device | None = None  # whose memory it is; None: the host's

    @property
    def buffer(self) -> Buffer:
        memory = self.memory
        dtype = DTYPE_NAMES[memory.dtype]
        return Buffer(memory.data_ptr(), memory.nbytes, dtype, memory, self.shape, self.order or (), self.device)

    def copy_back(self, tensor: torch.Tensor) -> None:
        """Copies a host copy back into its tensor. Does nothing without a host copy."""
        if self.copied:
            tensor.detach().copy_(self.memory.view(tensor.dtype).view(tensor.shape))


def stage(tensor: torch.Tensor, *, any_dtype: bool = False, row_major: bool = False, on_host: bool = False) -> Staged:
    """Returns memory of the tensor: its own if it is dense, otherwise a host copy.

    Args:
        tensor: must not change before the push_pull is done.
        any_dtype: pass dtypes without arithmetic in the core as uint8 (for `broadcast`).
        row_major: also copy a tensor that is dense in another order, which may differ between ranks
            then.
        on_host: also copy a tensor that is on a device.

    Raises:
        InvalidArgumentError: `tensor` is not a tensor, or the core cannot reduce its dtype.
        UnsupportedError: it has no plain memory: sparse, quantized, meta and fake tensors.
    """
    _check_plain(tensor)
    tensor = tensor.detach()
    order = memory_order(tensor)
    usable = order is None or (order != () and not row_major)
    device = None if on_host or tensor.is_cpu else device_of(tensor.device)
    if (tensor.is_cpu or device is not None) and usable and not tensor.is_neg() and not tensor.is_conj():
        memory = tensor if order is None else tensor.permute(order)
        return _staged(tensor, _as_known_dtype(memory, any_dtype), order, copied=False, device=device)
    memory = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return _staged(tensor, _as_known_dtype(memory, any_dtype), None, copied=True)


def own_memory(tensor: torch.Tensor) -> Buffer | None:
    """Returns the memory of a tensor that `stage` would return as it is, without its shape.

    None: the tensor is not that simple, or not row-major. Costs a third of `stage`.
    """
    found = READER.read(tensor)
    if found is None:
        return None
    ptr, nbytes = found
    return Buffer(ptr, nbytes, DTYPE_NAMES[tensor.dtype], tensor.detach())


def _staged(
    tensor: torch.Tensor,
    memory: torch.Tensor,
    order: tuple[int, ...] | None,
    *,
    copied: bool,
    device: Device | None = None,
) -> Staged:
    shape = tuple(tensor.shape)
    if memory.dtype is tensor.dtype:
        return Staged(memory, shape, order, copied, device)
    ends = () if order is None else (*order, len(shape))
    return Staged(memory, (*shape, tensor.element_size()), ends or None, copied, device)


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the order of dimensions in memory: None if row-major, () if it is not dense."""
    if tensor.is_contiguous():
        return None
    shape, strides = tensor.shape, tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim] if shape[dim] > 1 else 0, dim))
    expected = 1
    for dim in reversed(order):
        if shape[dim] > 1:
            if strides[dim] != expected:
                return ()
            expected *= shape[dim]
    return tuple(order)


def _check_plain(tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"a tensor of layout {tensor.layout} and dtype {tensor.dtype} is not supported: pass tensor.to_dense(), or "
            "create the embedding with sparse=False"
        )
    if tensor.is_quantized:
        raise UnsupportedError(f"a quantized tensor ({tensor.dtype}) is not supported: pass tensor.dequantize()")
    # The pointer of a subclass with its own dispatch (FakeTensor, DTensor) does not point to
    # elements.
    if tensor.is_meta or type(tensor).__torch_dispatch__ != torch.Tensor.__torch_dispatch__:
        raise UnsupportedError(
            f"a {type(tensor).__name__} of dtype {tensor.dtype} on device {tensor.device} has no memory of its own: "
            "pass a plain tensor, such as DTensor.to_local()"
        )


def _as_known_dtype(memory: torch.Tensor, any_dtype: bool) -> torch.Tensor:
    if memory.dtype in DTYPE_NAMES:
        return memory
    if any_dtype:
        return memory.reshape(-1).view(torch.uint8)
    advice = _ADVICE.get(memory.dtype, "convert it with tensor.to()")
    raise unsupported_dtype(memory.dtype, advice, known=DTYPE_NAMES.values())


def memory_that_stays(size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns `size` elements of host memory that network cards register only once.

    It is a `_core.Memory`, is not initialised, and must not be resized.
    """
    if size == 0:
        return torch.empty(0, dtype=dtype, device=device)
    return torch.frombuffer(_core.Memory(size * dtype.itemsize), dtype=dtype, count=size)
