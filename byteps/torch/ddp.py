"""DistributedDataParallel: a module whose gradients are averaged during backward."""

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

    So optimizers, clipping, GradScaler and other code that uses gradients work as on one process. A
    backward pass sends gradients while it runs, and waits for all at its end. All ranks must make
    the same backward passes, but different parameters of the module may take part in them.

    Attributes of the wrapped module, `module`, can be read through this one. The state_dict has the
    prefix "module."; load_state_dict also takes one without the prefix. Copies and pickles are
    independent instances, which join the job at their first forward pass in training; until then a
    gradient of their parameters is an error.
    """

    module: nn.Module
    _guards: dict[Tensor, RemovableHandle]  # hooks, in a copy that has not joined the job

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
        """Wraps `module`, and gives all ranks the parameters and buffers of rank 0. Blocks; all
        ranks must call it.

        All ranks must wrap their modules in the same order.

        Args:
            module: at least one of its parameters requires a gradient.
            device_ids: None, or a list of the one device that the module is on.
            broadcast_buffers: replace buffers, such as BatchNorm's statistics, by those of rank 0
                before each forward in training, except within `no_sync`.
            compression: one of `Compression`, for the network.
            bucket_cap_mb: size of the buckets in which small parameters are sent together, in MiB.
            find_unused_parameters: a parameter that has a gradient on no rank keeps its `.grad`,
                mostly None, so that the optimizer skips it. Otherwise it gets zeros, unless no rank
                has ever had its gradient. In both cases, if only some ranks have a gradient, the
                others' counts as zeros in the average.
            sparse_as_dense: make sparse gradients dense. Otherwise every rank gets the rows of all
                ranks. Gradients of an nn.Embedding or nn.EmbeddingBag share no bucket.
            nan_check: look for NaN and infinities in each gradient; then `backward` raises on all
                ranks.
            output_device: unused; accepted for torch's scripts.
            gradient_as_bucket_view: reuse the memory of buckets, so that the next backward
                overwrites the gradients of this one, even if `zero_grad` has dropped them.
            static_graph: unused; accepted for torch's scripts.

        Raises:
            InvalidArgumentError: invalid arguments. On all ranks: their modules differ.
            NotInitializedError: `init` was not called.
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

        The first backward after it sends the sums.
        """
        reducer = self._joined()
        with reducer.pause():
            yield

    def synchronize(self) -> None:
        """Averages the gradients, as backward does. Needed only on a rank without a backward pass.

        On a rank that has made no forward pass either, it takes the place of both.
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
        # A copy joins the job when it is first trained.
        return {**self.__dict__, "_reducer": None, "_guards": {}}

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
        """Has gradients of a copy raise until it joins the job.

        It cannot join in eval(), because other ranks may not have the copy.
        """
        for parameter in self.module.parameters():
            if parameter.requires_grad and parameter not in self._guards:
                self._guards[parameter] = parameter.register_post_accumulate_grad_hook(untraced(_refuse))

    @eager
    def _before_forward(self) -> None:
        if current_backward() != -1 or not self.training:
            if self._reducer is None:
                self._guard()  # again, because parameters may have been frozen before
            return  # no new pass: checkpointing repeats a forward pass during backward
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
        """Has the round end with the backward pass of `output` and all passes nested in it."""
        reducer = self._reducer
        if reducer is not None and not reducer.is_paused and torch.is_grad_enabled():
            begin = eager(partial(_begin, weakref.ref(reducer)))
            for tensor in tree_leaves(output):
                # A leaf would keep the hook forever.
                if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                    tensor.register_hook(begin)


def _broadcast_module(model: weakref.ref[DistributedDataParallel], prefix: str) -> None:
    """Gives all ranks the parameters and buffers of rank 0, in each job of the model."""
    alive = model()
    if alive is not None:
        broadcast_parameters([*alive.module.named_parameters(), *alive.module.named_buffers()], 0, prefix)


def _refuse(_: Tensor) -> None:
    if is_initialized() and size() > 1:
        raise InvalidArgumentError(
            "DistributedDataParallel: a copy of a model got a gradient before it has joined the job, and other ranks "
            "would not get it: on all ranks, call train() and make the copy's first forward pass before eval(), or "
            "wrap its module again: DistributedDataParallel(model.module)"
        )


def _begin(reducer: weakref.ref[BackwardReducer], _: Tensor) -> None:
    alive = reducer()
    if alive is not None and not alive.is_paused:
        alive.watch_backward()


_reducers: weakref.WeakSet[BackwardReducer] = weakref.WeakSet()
_step_hook: Any = None


def _complete_before_steps(reducer: BackwardReducer) -> None:
    """Has steps of optimizers end the round if compiled autograd has hidden the end of the pass."""
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
    """Returns the parameters whose gradients may be sparse. They cannot share a bucket."""
    tables = (part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse)
    return frozenset(table.weight for table in tables)


def _add_missing_prefix(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    own = [key for key in state_dict if key.startswith(prefix)]
    if not any(key.startswith(f"{prefix}module.") for key in own):
        for key in own:
            state_dict[f"{prefix}module.{key[len(prefix) :]}"] = state_dict.pop(key)
