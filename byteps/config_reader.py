"""Computes the fields of `byteps.config.Config` from environment variables.

Collects faults instead of raising them, so that users see all of them at once.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from byteps.detect import Detected, detect, job_id_of, ports_of
from byteps.knob import Knob
from byteps.retired import RETIRED
from byteps.secret_file import MIN_SECRET_CHARS, read_secret_file

LOOPBACK = "127.0.0.1"
_DERIVED = "derived"
_MAX_PARTITIONS_OF_CREDIT = 1023  # larger values of BYTEPS_SCHEDULING_CREDIT are bytes
_MAX_SIZE = 1 << 14
_PARTITION_BYTES = 1 << 20  # the largest automatic partition size
_RANK_FIELDS = ("num_machines", "machine_id", "local_rank", "local_size", "global_rank")


class Reader:
    """Reads once, in the constructor.

    The results are `values`, `sources`, `faults` and `warnings`.
    """

    def __init__(self, environ: Mapping[str, str], knobs: Mapping[str, Knob]) -> None:
        self._environ = environ
        self._knobs = knobs
        self.values: dict[str, Any] = {field: knob.default for field, knob in knobs.items()}
        self.sources: dict[str, str] = dict.fromkeys(knobs, "default")
        self.faults: list[str] = []
        self.warnings: list[str] = []

        self._read_table()
        self._warn_of_other_names()
        self._read_secret_file()
        self._compute_credit()
        if self.values["role"] == "coordinator":
            self._check_coordinator()
        elif self.values["role"] == "worker" and self.values["elastic"]:
            self._set("size", 1, _DERIVED)  # the job tells it
            self._require_scheduler()
        elif self.values["role"] == "worker":
            found = None if self._is_given(*_RANK_FIELDS) else detect(environ, self.faults)
            if found is not None:
                self._set_rank_by_launcher(found)
            else:
                self._set_rank_by_variables()
            self._set_scheduler_of_worker(found)
        else:
            self._check_server_or_scheduler()
        self._check_number_of_processes()
        self._check_secret()

    def _read_table(self) -> None:
        for field, knob in self._knobs.items():
            for name in knob.names:
                if text := self._environ.get(name, "").strip():
                    self._read(field, name, text)
                    break

    def _read(self, field: str, name: str, text: str) -> None:
        knob = self._knobs[field]
        try:
            self._set(field, knob.parse(text), f"environment {name}")
        except ValueError as expected:
            self.faults.append(f"{name}={text!r}: expected {expected}")

    def _set(self, field: str, value: object, source: str) -> None:
        self.values[field] = value
        self.sources[field] = source

    def _is_given(self, *fields: str) -> bool:
        """Whether a variable of one of the fields is set, to any value."""
        return any(self._environ.get(name, "").strip() for field in fields for name in self._knobs[field].names)

    def _warn_of_other_names(self) -> None:
        known = {name for knob in self._knobs.values() for name in knob.names}
        for name in sorted(self._environ.keys() - known):
            if name in RETIRED:
                if self._environ[name].strip() not in {"", "0"}:
                    self.warnings.append(f"{name} has no effect: {RETIRED[name]}")
            elif name.startswith(("BYTEPS_", "DMLC_")):
                self._warn_of_unknown(name, known)

    def _warn_of_unknown(self, name: str, known: Iterable[str]) -> None:
        nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
        if nearest:
            self.warnings.append(f"{name} is not a setting of byteps: did you mean {nearest[0]}?")
        elif name.startswith("BYTEPS_"):  # DMLC_ is the prefix of other programs too
            self.warnings.append(f"{name} is not a setting of byteps: `byteps env` lists those that are")

    def _read_secret_file(self) -> None:
        path = self.values["secret_file"]
        if not path:
            return
        if self.values["secret"]:
            self.faults.append("BYTEPS_SECRET and BYTEPS_SECRET_FILE are both set: expected one of them")
            return
        try:
            self._set("secret", read_secret_file(Path(path)), f"file {path}")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.faults.append(f"BYTEPS_SECRET_FILE={path!r}: {reason}")

    def _compute_credit(self) -> None:
        credit = self.values["credit_bytes"]
        if credit == 0:
            self._set("credit_bytes", self._knobs["credit_bytes"].default, "default")
        elif credit <= _MAX_PARTITIONS_OF_CREDIT:
            self.values["credit_bytes"] = credit * (self.values["partition_bytes"] or _PARTITION_BYTES)

    # --- rank and size

    def _set_rank_by_launcher(self, found: Detected) -> None:
        for field in ("rank", "size", "local_rank", "local_size"):
            self._set(field, getattr(found, field), found.launcher)

    def _set_rank_by_variables(self) -> None:
        values = self.values
        if values["local_size"] == -1 and not self._is_given("local_size"):
            values["local_size"] = 1
        machines, local_size = values["num_machines"] or 1, values["local_size"]
        self._require_index("machine_id", machines, needed=machines > 1 and not self._is_given("global_rank"))
        self._require_index("local_rank", local_size, needed=local_size > 1)
        size = machines * local_size
        if size > _MAX_SIZE:
            self.faults.append(f"DMLC_NUM_WORKER={machines} x BYTEPS_LOCAL_SIZE={local_size}: more than {_MAX_SIZE}")
        self._require_index("global_rank", size, needed=False)
        self._set("size", size, _DERIVED)
        rank = max(values["machine_id"], 0) * local_size + max(values["local_rank"], 0)
        self._set("rank", rank if values["global_rank"] == -1 else values["global_rank"], _DERIVED)

    def _require_index(self, field: str, count: int, *, needed: bool) -> None:
        name = self._knobs[field].names[0]
        index = self.values[field]
        if index >= count:
            self.faults.append(f"{name}={index}: expected less than {count}, the number of them")
        elif needed and not self._is_given(field):
            self.faults.append(f"{name} is not set: expected a number from 0 to {count - 1}")
        elif index == -1 and field != "global_rank":
            self.values[field] = 0

    # --- address of the scheduler

    def _set_scheduler_of_worker(self, found: Detected | None) -> None:
        values = self.values
        if found is None and values["num_machines"] <= 1 and not self._wants_scheduler():
            self._set_one_machine()
        if values["size"] == 1 and values["num_servers"] == 0 and not values["force_distributed"]:
            return
        if values["placement"] == "ps" and values["num_servers"] == 0:
            self.faults.append("BYTEPS_PLACEMENT=ps without servers: expected DMLC_NUM_SERVER of at least 1")
        if found is not None and not self._is_given("scheduler_host"):
            self._set_scheduler_by_launcher(found)
        else:
            self._require_scheduler()

    def _set_one_machine(self) -> None:
        """Ignores scheduler and servers of a single worker machine, like the original BytePS."""
        if self.values["num_servers"] > 0:
            self.warnings.append(
                f"DMLC_NUM_SERVER={self.values['num_servers']} has no effect: a single worker machine uses no "
                "scheduler and servers; set BYTEPS_FORCE_DISTRIBUTED=1 to use them nevertheless"
            )
            self._set("num_servers", 0, _DERIVED)
            self._set("placement", "auto", _DERIVED)
        if self.values["size"] > 1:
            self._set("host_scheduler", True, _DERIVED)
            self._set("scheduler_host", LOOPBACK, _DERIVED)
        elif self.values["scheduler_host"]:
            self._set("scheduler_host", "", _DERIVED)

    def _set_scheduler_by_launcher(self, found: Detected) -> None:
        if self.values["num_servers"] > 0:
            self.faults.append(
                f"DMLC_NUM_SERVER={self.values['num_servers']} under {found.launcher}: expected DMLC_PS_ROOT_URI and "
                "DMLC_PS_ROOT_PORT, too: the address of the scheduler"
            )
        if found.host == "" and not found.one_machine:
            self.faults.append(
                f"{found.launcher} has started ranks on several machines without the address of rank 0: "
                "expected MASTER_ADDR, the host of rank 0"
            )
        own_job_id = self.values["job_id"] if self._is_given("job_id") else ""
        if not self._is_given("scheduler_ports"):
            self._set("scheduler_ports", ports_of(found, own_job_id), found.launcher)
        self._set("scheduler_host", LOOPBACK if found.one_machine else found.host, found.launcher)
        self._set("host_scheduler", True, found.launcher)
        self._set("job_id", job_id_of(found, own_job_id), self.sources["job_id"] if own_job_id else found.launcher)

    def _require_scheduler(self) -> None:
        for field, what in (("scheduler_host", "the scheduler's host"), ("scheduler_ports", "the scheduler's port")):
            if not self.values[field] and not self._is_given(field):
                self.faults.append(f"{self._knobs[field].names[0]} is not set: expected {what}")

    def _check_coordinator(self) -> None:
        values = self.values
        least, most = values["min_workers"], values["max_workers"]
        if values["initial_workers"] == 0:
            self._set("initial_workers", least, _DERIVED)
        if 0 < most < max(least, values["initial_workers"]):
            self.faults.append(
                f"BYTEPS_MAX_WORKERS={most}: expected 0, or at least BYTEPS_MIN_WORKERS={least} and "
                f"BYTEPS_INITIAL_WORKERS={values['initial_workers']}"
            )
        self._require_scheduler()

    def _check_server_or_scheduler(self) -> None:
        values = self.values
        if values["num_machines"] > 0 and values["local_size"] > 0:
            self._set("size", values["num_machines"] * values["local_size"], _DERIVED)
        if values["num_machines"] != 1 or self._wants_scheduler():
            self._require_scheduler()
        else:
            self._set("scheduler_host", "", _DERIVED)  # not used

    def _wants_scheduler(self) -> bool:
        return bool(self.values["host_scheduler"] or self.values["force_distributed"])

    def _check_number_of_processes(self) -> None:
        size, servers = self.values["size"], self.values["num_servers"]
        if size <= _MAX_SIZE < size + servers:
            self.faults.append(
                f"{size} workers and DMLC_NUM_SERVER={servers}: more than {_MAX_SIZE} processes together"
            )

    def _check_secret(self) -> None:
        secret, host = self.values["secret"], self.values["scheduler_host"]
        if secret and len(secret) < MIN_SECRET_CHARS:
            self.faults.append(f"the secret has {len(secret)} characters: expected at least {MIN_SECRET_CHARS}")
        if not secret and not self.faults and self._is_remote(host):
            self.faults.append(
                f"no secret, and the scheduler is on {host}: expected BYTEPS_SECRET_FILE, a private file with the same "
                "random text on every machine; without a secret only loopback addresses are accepted"
            )

    def _is_remote(self, host: str) -> bool:
        """Whether `host` is certainly not the loopback of this machine.

        The core resolves names later.
        """
        try:
            return not ipaddress.ip_address(host).is_loopback
        except ValueError:
            several = self.values["role"] == "worker" and 0 < self.values["local_size"] < self.values["size"]
            return several and host != "localhost" and self.sources["scheduler_host"] != "environment DMLC_PS_ROOT_URI"
