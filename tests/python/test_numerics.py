"""Compares every tree of services with docs/numerics.md, computed by NumPy, bit for bit.

Jobs are of one process: a node for each rank and server, with the names of machines that they say
they are on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce as fold
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.nodes import DEADLINE_S, job

from byteps import _core

Array = npt.NDArray[Any]
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int32", "int64")
OPS = ("sum", "average", "min", "max", "product", "broadcast")
COUNT = 1500  # number of elements


# ---- docs/numerics.md: values are kept as they are stored, bfloat16 as uint16 ----


def computed_in(values: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if dtype == "float16" else values


def stored(values: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)
    return values.astype(dtype)


def mean(values: Sequence[Array], weights: Sequence[int]) -> Array:
    number = values[0].dtype.type
    total = sum(weights)

    def times(factors: Sequence[float], last: float) -> tuple[Array, Array]:
        terms = [x * number(factor) for x, factor in zip(values, factors, strict=True)]
        result = fold(lambda a, b: a + b, terms)
        return result, result * number(last)

    plain = times(weights, 1 / total)[1]
    power = 2.0
    while power < 2 * total:
        power *= 2
    smaller_sum, smaller = times([weight / power for weight in weights], power * float(number(1 / total)))
    largest = np.finfo(number).max
    smaller = np.where(np.isfinite(smaller_sum), np.clip(smaller, -largest, largest), smaller)
    return np.where(np.isfinite(plain), plain, smaller)


def smaller_or_larger(op: str, a: Array, b: Array) -> Array:
    keeps_a = a <= b if op == "min" else a >= b
    return np.where(keeps_a | np.isnan(a), a, b)


def at_one_level(op: str, dtype: str, children: Sequence[Array], weights: Sequence[int]) -> Array:
    """Returns the sum that a service computes of its children's values."""
    if len(children) == 1:
        return children[0]
    values = [computed_in(child, dtype) for child in children]
    if op == "average" and dtype in FLOATS:
        return stored(mean(values, weights), dtype)
    with_two = {"sum": np.add, "average": np.add, "product": np.multiply}.get(op)
    return stored(fold(with_two or (lambda a, b: smaller_or_larger(op, a, b)), values), dtype)


def result_of(op: str, dtype: str, inputs: Sequence[Array], machines: Sequence[int]) -> Array:
    """Returns the result of the whole tree; `machines` by rank."""
    if op == "broadcast":
        return inputs[-1]
    ranks_of: dict[int, list[int]] = {}
    for rank, machine in enumerate(machines):
        ranks_of.setdefault(machine, []).append(rank)
    partials = [at_one_level(op, dtype, [inputs[r] for r in ranks], [1] * len(ranks)) for ranks in ranks_of.values()]
    sizes = [len(ranks) for ranks in ranks_of.values()]
    result = at_one_level(op, dtype, partials, [size // gcd(*sizes) for size in sizes])
    return result // np.array(len(inputs), dtype) if op == "average" and dtype in INTEGERS else result


# ---- inputs ----


def inputs_of(dtype: str, ranks: int, random: np.random.Generator) -> list[Array]:
    """Ordinary numbers, any bits at all, and values near overflow and underflow."""
    numpys = {"bfloat16": "uint16"}.get(dtype, dtype)
    size = np.dtype(numpys).itemsize
    bits = random.integers(0, 256, (ranks, COUNT * size), np.uint8).view(numpys)
    if dtype in INTEGERS:
        return list(bits)
    limits = np.finfo(np.float32 if dtype == "bfloat16" else dtype)
    near_overflow = float(limits.max) * (1 - 0.01 * random.random((ranks, COUNT)))
    near_underflow = float(limits.smallest_normal) * random.random((ranks, COUNT))
    with np.errstate(all="ignore"):
        kinds = [
            random.normal(size=(ranks, COUNT)),
            near_overflow,
            near_overflow * random.choice([-1, 1], (ranks, COUNT)),
            near_underflow * random.choice([-1, 0, 1], (ranks, COUNT)),
        ]
        made = [stored(kind.astype(np.float64 if dtype == "float64" else np.float32), dtype) for kind in kinds]
    choice = np.arange(COUNT) % (len(made) + 1)
    return [
        np.select([choice == k for k in range(len(made))], [m[rank] for m in made], bits[rank]) for rank in range(ranks)
    ]


def same_bits(op: str, actual: Array, expected: Array, dtype: str) -> bool:
    """Compares bits; all NaN are equal, since the CPU chooses the NaN of a sum."""
    unequal = actual.view(f"u{actual.itemsize}") != expected.view(f"u{actual.itemsize}")
    if dtype in INTEGERS or op == "broadcast":
        return not unequal.any()
    both_nan = np.isnan(computed_in(actual, dtype)) & np.isnan(computed_in(expected, dtype))
    return not (unequal & ~both_nan).any()


# ---- jobs ----


def results_of(
    nodes: Sequence[_core.Node], tensors: dict[tuple[str, str], list[Array]]
) -> dict[tuple[str, str], list[Array]]:
    """All tensors at once, so that many roots take part; what each rank gets."""
    results = {key: [np.empty_like(x) for x in inputs] for key, inputs in tensors.items()}

    def run(rank: int) -> None:
        handles = []
        for (op, dtype), inputs in tensors.items():
            x, y = inputs[rank], results[op, dtype][rank]
            codes = _core.DTYPE_CODES[dtype], _core.OP_CODES[op]
            handles.append(
                nodes[rank].push_pull(
                    f"{op}.{dtype}", x.ctypes.data, y.ctypes.data, x.nbytes, *codes, len(nodes) - 1, 0
                )
            )
        for handle in handles:
            nodes[rank].wait(handle, DEADLINE_S)

    with ThreadPoolExecutor(len(nodes)) as threads:
        list(threads.map(run, range(len(nodes))))
    return results


def check_tree(machines: Sequence[int], servers: int, placement: str) -> None:
    random = np.random.default_rng([*machines, servers])
    with np.errstate(all="ignore"), job(machines, servers, placement) as nodes:
        tensors = {(op, dtype): inputs_of(dtype, len(machines), random) for dtype in (*FLOATS, *INTEGERS) for op in OPS}
        for (op, dtype), results in results_of(nodes, tensors).items():
            expected = result_of(op, dtype, tensors[op, dtype], machines)
            for rank, result in enumerate(results):
                where = f"{op} of {dtype} on rank {rank}, machines {machines}, {servers} servers, {placement}"
                assert same_bits(op, result, expected, dtype), where


# By rank; the last ones: machines of unequal size, and ranks that take turns.
TREES = [[i // ranks for i in range(machines * ranks)] for machines in range(1, 5) for ranks in range(1, 5)] + [
    [0, 0, 0, 1],
    [0, 1, 1, 1, 1, 1, 2, 2, 2],
    [0, 1, 0, 1, 2, 0],
]


def test_all_dtypes_are_tested() -> None:
    assert {*FLOATS, *INTEGERS} == _core.DTYPE_CODES.keys()


@pytest.mark.parametrize("machines", TREES, ids=lambda machines: "".join("abcd"[m] for m in machines))
def test_results_are_those_of_the_formula_wherever_their_roots_are(machines: list[int]) -> None:
    check_tree(machines, 0, "auto")
    check_tree(machines, 1, "ps")
    check_tree(machines, 2, "auto")
    check_tree(machines, 3, "weights:" + ",".join(["1"] * (len(set(machines)) + 3)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_averages_of_finite_values_are_finite(dtype: str) -> None:
    """Checks the formula; the test above compares services with it."""
    random = np.random.default_rng(1)
    for machines in TREES:
        with np.errstate(all="ignore"):
            inputs = inputs_of(dtype, len(machines), random)
            finite = np.all([np.isfinite(computed_in(x, dtype)) for x in inputs], axis=0)
            average = computed_in(result_of("average", dtype, inputs, machines), dtype)
        assert finite.sum() > COUNT / 2
        assert np.isfinite(average[finite]).all(), machines
