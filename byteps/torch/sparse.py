"""Sparse gradients: every rank gets the rows of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.ops import Handle, ReduceOp
from byteps.runtime import current_job
from byteps.torch.start import start_broadcast, start_push_pull, synchronize, synchronize_all

__all__ = ["RowExchange", "densify", "name_of_rows"]

Tensor = torch.Tensor


class RowExchange:
    """One sparse gradient in flight: first the number of rows of each rank, then the rows.

    Each rank's rows are broadcast. This is minimal if ranks have few rows in common, as sparse
    gradients do. A payload consists of the indices (int64, dimension by dimension) and the values.
    """

    def __init__(
        self, parameter: Tensor, grad: Tensor | None, name: str, op: ReduceOp, priority: int, step: int
    ) -> None:
        """Starts the exchange of numbers of rows in this step. A `grad` of None has no rows."""
        if op not in (ReduceOp.Average, ReduceOp.Sum):
            raise UnsupportedError(
                f"'{name}' has a sparse gradient, and op is {op.name}: use Average or Sum, or sparse_as_dense=True"
            )
        job = current_job()
        self._name = name
        self._step = step
        self._rank, self._size = job.rank, job.size
        self._divisor = job.size if op is ReduceOp.Average else 1
        self._like = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
        self._shape = parameter.shape
        self._rows = None if grad is None else grad.detach().coalesce()
        # Ranks without rows do not know the number of sparse dimensions.
        self._header = torch.zeros(self._size, 2, dtype=torch.int64)
        if self._rows is not None:
            self._header[self._rank] = torch.tensor([self._rows._nnz(), self._rows.sparse_dim()])
        self._payloads: list[Tensor] = []
        self._handles: list[Handle] = []
        rows = name_of_rows(name)
        self.counts = start_push_pull(self._header, ReduceOp.Sum, rows, priority, in_place=True, step=step)

    def send_payload(self) -> None:
        """Waits for the numbers of rows, and starts the broadcasts of the rows."""
        synchronize(self.counts)
        for rank in range(self._size):
            nbytes = self._payload_bytes(rank)
            if nbytes == 0:
                self._payloads.append(torch.empty(0, dtype=torch.uint8))
                continue
            payload = torch.empty(nbytes, dtype=torch.uint8)
            if rank == self._rank:
                self._fill(payload)
            self._payloads.append(payload)
            self._handles.append(start_broadcast(payload, rank, f"{name_of_rows(self._name)}.{rank}", self._step))

    def finish(self) -> Tensor | None:
        """Waits for the rows, and returns their sum or average; None if no rank has any."""
        synchronize_all(self._handles)
        if len(self._payloads) < self._size:
            return None  # send_payload has raised
        dims = {int(dim) for _, dim in self._header.tolist() if dim}
        if len(dims) > 1:
            raise InvalidArgumentError(
                f"'{self._name}': the ranks' gradients have {sorted(dims)} sparse dimensions: expected the same number"
            )
        if not dims:
            return None
        indices, values = zip(*(self._read(rank, next(iter(dims))) for rank in range(self._size)), strict=True)
        # Half types are summed in float32, like dense gradients, because a sum may overflow where
        # the average does not.
        in_full = torch.cat(values).float() if self._like.element_size() == 2 else torch.cat(values)
        gathered = torch.sparse_coo_tensor(torch.cat(indices, dim=1), in_full, self._shape, check_invariants=False)
        # Rows are in the order of ranks, so that all ranks get the same bits.
        gradient = gathered.coalesce()
        if self._divisor != 1:
            gradient._values().mul_(1 / self._divisor)
        return gradient.to(self._like.device, self._like.dtype)

    def _row_shape(self, sparse_dim: int) -> torch.Size:
        return self._shape[sparse_dim:]

    def _payload_bytes(self, rank: int) -> int:
        rows, sparse_dim = self._header[rank].tolist()
        return int(rows * (8 * sparse_dim + self._row_shape(sparse_dim).numel() * self._like.element_size()))

    def _fill(self, payload: Tensor) -> None:
        assert self._rows is not None
        indices = self._rows.indices().contiguous().view(-1).view(torch.uint8)
        values = self._rows.values().contiguous().view(-1).view(torch.uint8)
        payload[: indices.numel()] = indices
        payload[indices.numel() : indices.numel() + values.numel()] = values

    def _read(self, rank: int, sparse_dim: int) -> tuple[Tensor, Tensor]:
        rows, payload = int(self._header[rank, 0]), self._payloads[rank]
        shape = self._row_shape(sparse_dim)
        index_bytes = 8 * sparse_dim * rows
        value_bytes = rows * shape.numel() * self._like.element_size()
        indices = payload[:index_bytes].view(torch.int64).view(sparse_dim, rows)
        values = payload[index_bytes : index_bytes + value_bytes].view(self._like.dtype).view(rows, *shape)
        return indices, values


def name_of_rows(name: str) -> str:
    """Returns the name of the push_pull of the numbers of rows of the gradient `name`."""
    return f"{name}.rows"


def densify(parameters: Sequence[Tensor]) -> None:
    """Makes sparse gradients of `parameters` dense."""
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and grad.is_sparse:
            parameter.grad = grad.to_dense()
