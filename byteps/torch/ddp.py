"""DistributedDataParallel: gradients are averaged during backward, whatever the training loop does with them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from byteps.errors import ArgumentTypeError, InvalidArgumentError
from byteps.per_job import JobNumber
from byteps.runtime import is_initialized, size
from byteps.torch.asynchronous import warn_if_asynchronous
from byteps.torch.backward_end import current_backward
from byteps.torch.backward_reducer import BackwardReducer
from byteps.torch.broadcast import broadcast_parameters
from byteps.torch.buffers import broadcast_buffers
from byteps.torch.compression import AnyCompressor, Compression
from byteps.torch.eager import eager, untraced
from byteps.torch.options import Owner, ReducerOptions, bytes_of_megabytes

__all__ = ["DistributedDataParallel"]

Tensor = torch.Tensor

OWNER = Owner(
    name="DistributedDataParallel",
    when_changed="change gradients when backward has returned, and use no other tool that averages them",
    when_repeated="a backward pass must reach each parameter once",
)


class DistributedDataParallel(nn.Module):
    """A module whose gradients are, when `backward` returns, the averages over all ranks.

    So optimizers, clipping, GradScaler and whatever else works on gradients need not know of it. A backward pass sends
    gradients while it runs, and waits for all at its end. Every rank has to make the same backward passes; which of the
    module's parameters take part may differ.

    Attributes of the wrapped module can be read through it; the module itself is `module`. Its state_dict has the
    prefix "module.", and load_state_dict takes one without it too. Copies and pickles are independent instances, which
    join the job at their first forward pass in training; before, their parameters refuse gradients.
    """

    module: nn.Module
    _guards: dict[Tensor, RemovableHandle]  # hooks of the parameters of a copy that has not joined the job

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[Any] | None = None,
        broadcast_buffers: bool = True,
        compression: AnyCompressor = Compression.none,
        *,
        bucket_cap_mb: float = 1.0,
        find_unused_parameters: bool = False,
        sparse_as_dense: bool = False,
        nan_check: bool = False,
        output_device: Any = None,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
    ) -> None:
        """Wraps `module`, whose parameters and buffers become those of rank 0. Blocks; all ranks must call.

        All ranks must wrap their modules in the same order.

        Args:
            module: with at least one parameter that requires a gradient.
            device_ids: None, or the one device that the module is on.
            broadcast_buffers: replace buffers, such as BatchNorm's statistics, by those of rank 0 before each forward
                in training. Not within `no_sync`.
            compression: one of `Compression`, for the way over the network.
            bucket_cap_mb: small parameters are sent together, in buckets of so many MiB.
            find_unused_parameters: a parameter that got a gradient on no rank keeps its `.grad`, None in general, so
                that the optimizer passes over it. Otherwise it gets zeros, unless no rank has ever had a gradient of
                it. In both cases a parameter that some ranks lack a gradient for gets the average, with zeros for
                theirs.
            sparse_as_dense: make sparse gradients dense. Otherwise every rank gets the rows of all ranks. They share no
                bucket if they are of an nn.Embedding or nn.EmbeddingBag.
            nan_check: look for NaN and infinities in each gradient, and have `backward` raise on all ranks.
            output_device: accepted for torch's scripts, unused.
            gradient_as_bucket_view: reuse the memory of buckets, so that the next backward overwrites the gradients of
                this one even where `zero_grad` has let them go.
            static_graph: unused too.

        Raises:
            InvalidArgumentError: arguments that make no sense; on all ranks: modules that differ.
            NotInitializedError: before `init`.
        """
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ArgumentTypeError(f"DistributedDataParallel: expected a module, got {type(module).__name__}")
        if device_ids is not None and len(device_ids) != 1:
            raise InvalidArgumentError(
                f"DistributedDataParallel: device_ids is {device_ids!r}: expected one device, or None; start one "
                "process per device"
            )
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise InvalidArgumentError("DistributedDataParallel: no parameter of the module requires a gradient")
        warn_if_asynchronous(OWNER.name)
        self.broadcast_buffers = broadcast_buffers
        self._options = ReducerOptions(
            OWNER,
            compression,
            bucket_bytes=bytes_of_megabytes(OWNER, bucket_cap_mb),
            sparse_as_dense=sparse_as_dense,
            find_unused_parameters=find_unused_parameters,
            nan_check=nan_check,
            keep_buckets=gradient_as_bucket_view,
        )
        self._reducer: BackwardReducer | None = None
        self._guards = {}
        self.module = module
        self.register_load_state_dict_pre_hook(_add_missing_prefix)  # type: ignore[no-untyped-call]
        self._join()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        self._before_forward()
        output = self.module(*args, **kwargs)
        self._watch(output)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward adds to the gradients of this rank and sends nothing.

        The first backward outside sends what has come together.
        """
        reducer = self._joined()
        with reducer.pause():
            yield

    def synchronize(self) -> None:
        """Averages the gradients as they are. Backward does it; needed only on a rank that had no backward pass.

        On a rank that had no forward pass either it stands for one of each.
        """
        reducer = self._joined()
        if reducer.acknowledge_early_end():  # ranks whose round has not ended call this, so all do
            return
        if self.training and self._round_of_buffers != reducer.completed_rounds:
            self._synchronize_buffers(reducer)
        reducer.begin_step()
        reducer.synchronize()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reducer": None, "_guards": {}}  # a copy joins the job when it is first trained

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._guard()

    def _joined(self) -> BackwardReducer:
        if self._reducer is None:
            return self._join()
        self._reducer.join()
        return self._reducer

    @eager
    def _join(self) -> BackwardReducer:
        number = JobNumber("DistributedDataParallel")
        named = dict(self.module.named_parameters())
        options = replace(self._options, alone=_with_sparse_gradients(self.module))
        reducer = BackwardReducer(
            {parameter: name for name, parameter in named.items()},
            lambda: f"DistributedDataParallel.{number.get()}.",
            1,
            options,
            on_join=partial(_broadcast_module, weakref.ref(self)),
        )
        reducer.add(list(named.values()), list(named))
        reducer.join()
        _complete_before_steps(reducer)
        for guard in self._guards.values():
            guard.remove()
        self._guards.clear()
        self._round_of_buffers = -1
        self._reducer = reducer
        return reducer

    def _guard(self) -> None:
        """Has gradients of a copy fail until it joins the job: in eval() it cannot, as some ranks may be without it."""
        for parameter in self.module.parameters():
            if parameter.requires_grad and parameter not in self._guards:
                self._guards[parameter] = parameter.register_post_accumulate_grad_hook(untraced(_refuse))

    @eager
    def _before_forward(self) -> None:
        if current_backward() != -1 or not self.training:
            if self._reducer is None:
                self._guard()  # parameters may have been frozen before
            return  # checkpointing computes a forward pass once more
        reducer = self._joined()
        if reducer.waits_for_step:
            reducer.synchronize()
        elif reducer.is_in_backward:  # which has raised
            reducer.abandon()
        reducer.hook_unfrozen()
        self._synchronize_buffers(reducer)

    def _synchronize_buffers(self, reducer: BackwardReducer) -> None:
        if self.broadcast_buffers and not reducer.is_paused:
            self._round_of_buffers = reducer.completed_rounds
            broadcast_buffers(self.module, reducer.prefix)

    @eager
    def _watch(self, output: Any) -> None:
        """Has backward tell when it begins, so that its end can be waited for even if it has others within it."""
        reducer = self._reducer
        if reducer is not None and not reducer.is_paused and torch.is_grad_enabled():
            begin = eager(partial(_begin, weakref.ref(reducer)))
            for tensor in tree_leaves(output):
                if isinstance(tensor, Tensor) and tensor.grad_fn is not None:  # a leaf would keep it for ever
                    tensor.register_hook(begin)


def _broadcast_module(model: weakref.ref[DistributedDataParallel], prefix: str) -> None:
    """Makes the parameters and buffers those of rank 0, in each job that the model is trained in."""
    alive = model()
    if alive is not None:
        broadcast_parameters([*alive.module.named_parameters(), *alive.module.named_buffers()], 0, prefix)


def _refuse(_: Tensor) -> None:
    if is_initialized() and size() > 1:
        raise InvalidArgumentError(
            "DistributedDataParallel: a copy of a model got a gradient before it has joined the job, which would be "
            "this rank's alone: on all ranks, call train() and make the copy's first forward pass before eval(), or "
            "wrap what it has in it anew: DistributedDataParallel(model.module)"
        )


def _begin(reducer: weakref.ref[BackwardReducer], _: Tensor) -> None:
    alive = reducer()
    if alive is not None and not alive.is_paused:
        alive.watch_backward()


_reducers: weakref.WeakSet[BackwardReducer] = weakref.WeakSet()
_step_hook: Any = None


def _complete_before_steps(reducer: BackwardReducer) -> None:
    """Has the next step of any optimizer wait where compiled autograd hides that a pass has ended."""
    global _step_hook  # noqa: PLW0603  (torch's registry of hooks is the process's)
    _reducers.add(reducer)
    if _step_hook is None:
        _step_hook = register_optimizer_step_pre_hook(_complete_all)


@eager
def _complete_all(*_: Any) -> None:
    for reducer in list(_reducers):
        if reducer.waits_for_step:
            reducer.synchronize()
        reducer.acknowledge_early_end()


def _with_sparse_gradients(module: nn.Module) -> frozenset[Tensor]:
    """The parameters whose gradients may be sparse: they cannot share a bucket."""
    tables = (part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse)
    return frozenset(table.weight for table in tables)


def _add_missing_prefix(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    own = [key for key in state_dict if key.startswith(prefix)]
    if not any(key.startswith(f"{prefix}module.") for key in own):
        for key in own:
            state_dict[f"{prefix}module.{key[len(prefix) :]}"] = state_dict.pop(key)
