"""The gradients of one optimizer, from backward to step."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable

import torch

from byteps.errors import InvalidArgumentError
from byteps.ops import Handle, ReduceOp
from byteps.runtime import current_job
from byteps.torch.compression import Compressor
from byteps.torch.eager import eager
from byteps.torch.ops import start_push_pull, synchronize

__all__ = ["Exchange"]

Tensor = torch.Tensor


class _Gradient:
    """Where one parameter's gradient is. It does not know its parameter, which owns it through the hook."""

    __slots__ = ("ctx", "handle", "hooked", "name", "passes_left", "priority", "sent", "sent_version")

    def __init__(self, name: str, priority: int, passes: int) -> None:
        self.name = name
        self.priority = priority
        self.hooked = False
        self.passes_left = passes
        self.handle: Handle | None = None  # in flight
        self.sent: Tensor | None = None  # the parameter's .grad at that time
        self.sent_version = 0
        self.ctx: object = None  # what the compression wants back


class Exchange:
    """Sends gradients when backward has them, and waits for the sums.

    Only the thread that runs the training loop calls the methods; backward may run in others.
    """

    def __init__(
        self, names: dict[Tensor, str], prefix: str, compression: type[Compressor], passes: int, op: ReduceOp
    ) -> None:
        current_job()  # an error now rather than in the first backward pass
        self.skip = False  # step must not synchronize
        self.synchronized = False  # and no gradient has come since
        self._names = names
        self._positions = {parameter: position for position, parameter in enumerate(names)}
        self._prefix = prefix
        self._compression = compression
        self._passes = passes
        self._op = op
        self._gradients: list[tuple[Tensor, _Gradient]] = []
        self._in_flight: deque[tuple[Tensor, _Gradient]] = deque()

    def add_group(self, parameters: Iterable[Tensor], group: int) -> None:
        """Takes care of the gradients of `parameters`, which are the optimizer's group number `group`."""
        for index, parameter in enumerate(parameters):
            name = self._names.get(parameter, f"group{group}.{index}")
            position = self._positions.get(parameter, len(self._gradients))
            gradient = _Gradient(f"{self._prefix}{name}", -position, self._passes)
            self._gradients.append((parameter, gradient))
            if parameter.requires_grad:
                self._hook(parameter, gradient)

    def set_passes(self, passes: int) -> None:
        self.check_idle("set_backward_passes_per_step()")
        self._passes = passes
        self._expect_next_step()

    def check_idle(self, action: str) -> None:
        """Raises InvalidArgumentError while the core uses the gradients' memory."""
        if self._in_flight:
            raise InvalidArgumentError(
                f"{action} while {len(self._in_flight)} gradients are in flight, such as "
                f"'{self._in_flight[0][1].name}': call optimizer.step() or optimizer.synchronize() first"
            )

    @eager
    @torch.no_grad()
    def synchronize(self) -> None:
        """Sends the gradients that backward did not send, and waits for all.

        Raises:
            InvalidArgumentError: a gradient was changed while it was in flight.
            BytePSError: what the push_pull failed of.
        """
        if current_job().size > 1:
            for parameter, gradient in self._gradients:
                if parameter.requires_grad and gradient.handle is None:
                    self._send(parameter, gradient)
        first_error: Exception | None = None
        while self._in_flight:  # all of them, whatever happens: none may be left when the next step begins
            parameter, gradient = self._in_flight[0]
            try:
                self._finish(parameter, gradient)
            except Exception as error:
                first_error = first_error or error
            gradient.handle = gradient.sent = None
            self._in_flight.popleft()
        self._expect_next_step()
        self.synchronized = True
        if first_error is not None:
            raise first_error

    def _hook(self, parameter: Tensor, gradient: _Gradient) -> None:
        gradient.hooked = True
        alive = weakref.ref(self)  # the parameter owns the hook: a reference back would keep both forever

        def on_gradient(parameter: Tensor) -> None:
            exchange = alive()
            if exchange is not None:
                exchange._on_gradient(parameter, gradient)

        # Compiled autograd would trace the hook, and then computes wrong gradients.
        parameter.register_post_accumulate_grad_hook(eager(on_gradient))

    def _on_gradient(self, parameter: Tensor, gradient: _Gradient) -> None:
        if gradient.passes_left == 0:
            raise InvalidArgumentError(
                f"backward() gave '{gradient.name}' a gradient more than backward_passes_per_step={self._passes} times "
                "since the last step: set backward_passes_per_step, or step between the passes. (Checkpointing counts "
                "twice with use_reentrant=True: use False. Set requires_grad to False where a pass needs no gradient.)"
            )
        self.synchronized = False
        gradient.passes_left -= 1
        if gradient.passes_left == 0 and current_job().size > 1:
            self._send(parameter, gradient)

    def _send(self, parameter: Tensor, gradient: _Gradient) -> None:
        grad = parameter.grad
        if grad is None:
            grad = parameter.grad = torch.zeros_like(parameter)
        elif grad.layout is torch.strided and grad.stride() != parameter.stride():
            # Ranks agree on the order of the parameter's elements in memory, not on that of any tensor put into .grad.
            grad = parameter.grad = torch.empty_like(parameter).copy_(grad)
        wire, gradient.ctx = self._compression.compress(grad)
        gradient.handle = start_push_pull(wire, self._op, gradient.name, gradient.priority, in_place=True)
        gradient.sent, gradient.sent_version = grad, grad._version
        self._in_flight.append((parameter, gradient))

    def _finish(self, parameter: Tensor, gradient: _Gradient) -> None:
        handle, grad = gradient.handle, gradient.sent
        assert handle is not None and grad is not None
        untouched = parameter.grad is grad and grad._version == gradient.sent_version
        reduced = synchronize(handle)
        if not untouched:
            raise InvalidArgumentError(
                f"'{gradient.name}' was changed while it was in flight: call optimizer.synchronize() before clipping "
                "gradients, GradScaler.unscale_() or GradScaler.step(), and step or synchronize before zero_grad()"
            )
        result = self._compression.decompress(reduced, gradient.ctx)
        if result is not grad:
            grad.copy_(result)

    def _expect_next_step(self) -> None:
        for parameter, gradient in self._gradients:
            gradient.passes_left = self._passes
            if parameter.requires_grad and not gradient.hooked:
                self._hook(parameter, gradient)
