"""`byteps plan`: computes the best placement for a cluster, its time, and the benefit of servers.

The bounds are those of network cards (csrc/protocol/placement.h) and of sums. A training step is
simulated with the protocol's own decisions (csrc/sim/scale_job.h).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from byteps.cli import plan_model
from byteps.cli.plan_cluster import MAX_PROCESSES, PLACEMENTS, Cluster, cards_of, server_table
from byteps.cli.plan_model import Gradient, Model
from byteps.cli.plan_text import as_text
from byteps.config import Config
from byteps.errors import BytePSError, InvalidArgumentError

# Of one core, from and to memory; measured (docs/plan.md).
_SUM_GBYTES = 7.0
_MEASURES_TORCH = "byteps.torch.model_times"  # imported only if it is asked for
_THREADS = 4  # what a job uses where machines have the cores


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan", help="predict shares, times and the benefit of servers", description=__doc__, allow_abbrev=False
    )
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument("--workers", type=_count(1), metavar="N", help="number of worker machines")
    cluster.add_argument("--servers", type=_count(0), metavar="K", help="number of server machines (0)")
    cluster.add_argument(
        "--nic-gbps", type=_positive, metavar="G", help="rate of all network cards in each direction (100)"
    )
    cluster.add_argument(
        "--worker-gbps", type=_speeds, metavar="G,G,...", help="rates of the worker machines, if they differ"
    )
    cluster.add_argument("--server-gbps", type=_speeds, metavar="G,G,...", help="rates of the servers, if they differ")
    cluster.add_argument(
        "--gpus-per-machine", type=_count(1), default=8, metavar="G", help="number of GPUs in each worker machine (8)"
    )
    cluster.add_argument("--threads", type=_count(1), metavar="T", help="BYTEPS_SERVER_ENGINE_THREAD (4)")
    cluster.add_argument(
        "--sum-gbytes", type=_positive, metavar="GB", help="GB of gradients that a thread sums in a second (7)"
    )
    cluster.add_argument("--latency-us", type=_positive, default=10.0, metavar="US", help="latency of the network (10)")
    model = parser.add_argument_group("the model")
    size = model.add_mutually_exclusive_group(required=True)
    size.add_argument("--model-mb", type=_positive, metavar="MB", help="size of all gradients in millions of bytes")
    size.add_argument("--model", choices=plan_model.NAMES, help="a known model")
    size.add_argument("--layers", type=Path, metavar="FILE", help="a CSV file of its layers (docs/plan.md)")
    size.add_argument(
        "--torch", metavar="MODULE:FUNCTION", help="measures a PyTorch model here; FUNCTION() returns (model, inputs)"
    )
    model.add_argument(
        "--compute-ms", type=_positive, metavar="MS", help="computing time of a step, forward and backward"
    )
    model.add_argument("--fp16", action="store_true", help="gradients travel as float16 (Compression.fp16)")
    model.add_argument("--bucket-mb", type=_positive, metavar="MB", help="small gradients share buckets of this size")
    model.add_argument("--partition-kib", type=_count(4), metavar="KIB", help="BYTEPS_PARTITION_BYTES / 1024")
    parser.add_argument("--simulate", action="store_true", help="accepted; a step is always simulated")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _count(low: int) -> Any:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= MAX_PROCESSES:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {low} to {MAX_PROCESSES}")
        return int(text)

    return parse


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1e-3 <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0.001 to 1e9")
    return value


def _speeds(text: str) -> list[float]:
    return [_positive(word) for word in text.split(",")]


def _run(arguments: argparse.Namespace) -> int:
    cluster = _cluster(arguments)
    cluster.check()
    model = _model(arguments)
    servers = server_table(cluster, model.nbytes)
    report: dict[str, Any] = {
        "machines_mbps": cluster.machines_mbps,
        "servers_mbps": cluster.servers_mbps,
        "gpus": len(cluster.machines_mbps) * arguments.gpus_per_machine,
        "model_bytes": model.nbytes,
        "assumptions": [*cluster.assumptions, *filter(None, [model.assumption])],
        "shares": cluster.shares("auto"),
        "predicted_s": {placement: cluster.seconds(placement, model.nbytes) for placement in PLACEMENTS},
        "by_servers_s": servers.seconds,
        "useful_servers": servers.useful,
        "half_useful_servers": servers.half,
        "simulation": simulate(cluster, model, arguments.partition_kib, arguments.latency_us / 1e6),
    }
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(as_text(report)))
    return 0


def _cluster(arguments: argparse.Namespace) -> Cluster:
    machines, servers, other, assumed = cards_of(
        arguments.workers, arguments.servers, arguments.nic_gbps, arguments.worker_gbps, arguments.server_gbps
    )
    if arguments.threads is None:
        assumed.append(f"each process sums with up to {_THREADS} threads, on cores of their own (--threads)")
    if arguments.sum_gbytes is None:
        assumed.append(f"each thread sums {_SUM_GBYTES:g} GB/s (--sum-gbytes)")
    return Cluster(
        machines,
        servers,
        other,
        arguments.gpus_per_machine,
        arguments.threads or _THREADS,
        (arguments.sum_gbytes or _SUM_GBYTES) * 1e9,
        assumed,
    )


def _model(arguments: argparse.Namespace) -> Model:
    compute_s = None if arguments.compute_ms is None else arguments.compute_ms / 1e3
    if arguments.model:
        model = plan_model.named(arguments.model, compute_s)
    elif arguments.layers:
        model = plan_model.from_file(arguments.layers, compute_s)
    elif arguments.torch:
        model = _measured(arguments.torch)
        model = model if compute_s is None else model.computed_in(compute_s)
    else:
        model = plan_model.of_size(arguments.model_mb, compute_s)
    if not model.nbytes:
        raise InvalidArgumentError("the model has no gradients")
    model = model.as_fp16() if arguments.fp16 else model
    return model.in_buckets(round(arguments.bucket_mb * 1e6)) if arguments.bucket_mb else model


def _measured(where: str) -> Model:
    module_name, _, function_name = where.partition(":")
    if not module_name or not function_name:
        raise InvalidArgumentError(f"--torch {where}: expected MODULE:FUNCTION")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        make = getattr(importlib.import_module(module_name), function_name)
        model_times = importlib.import_module(_MEASURES_TORCH)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"--torch {where}: {error}") from error
    try:
        times = model_times.measure(make)
    except BytePSError as error:
        raise InvalidArgumentError(f"--torch {where}: {error}") from None
    gradients = [
        Gradient(each.elements * each.element_bytes, each.ready_s, each.needed_s, each.element_bytes)
        for each in times.parameters
    ]
    return Model(gradients, times.backward_s, times.forward_s)


def simulate(cluster: Cluster, model: Model, partition_kib: int | None, latency_s: float) -> dict[str, Any]:
    """Simulates a training step for each placement: with CrossBarrier, and with an optimizer that waits for all sums.

    The keys of the latter begin with "plain_".
    """
    runs: dict[tuple[float, ...], dict[str, float]] = {}  # by shares, which may be equal
    for placement in PLACEMENTS:
        if (shares := tuple(cluster.shares(placement))) in runs:
            continue
        crossing, plain = (_step(cluster, model, placement, waits, partition_kib, latency_s) for waits in (False, True))
        runs[shares] = crossing | {f"plain_{key}": plain[key] for key in ("summed_s", "step_s")}
    return {
        "compute_s": model.compute_s,
        "placements": {placement: runs[tuple(cluster.shares(placement))] for placement in PLACEMENTS},
    }


def _step(
    cluster: Cluster, model: Model, placement: str, waits_for_all: bool, partition_kib: int | None, latency_s: float
) -> dict[str, float]:
    from byteps import _core

    return _core.simulate_step(
        cluster.machines_mbps,
        cluster.servers_mbps,
        placement,
        gradients=[(each.nbytes, each.ready_s, each.needed_s) for each in model.gradients],
        backward_s=model.backward_s,
        forward_s=model.forward_s,
        waits_for_all=waits_for_all,
        partition_bytes=(partition_kib or 0) << 10,
        credit_bytes=int(str(Config.knobs()["credit_bytes"].default)),
        latency_s=latency_s,
        ranks_per_machine=cluster.ranks_per_machine,
        threads=cluster.threads,
        sum_bytes_per_s=cluster.sum_bytes_per_s,
    )
