"""Settings from the environment: values, sources, and all faults at once."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byteps.config import Config
from byteps.errors import InvalidArgumentError
from byteps.retired import RETIRED

SECRET = "0123456789abcdef"
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "BYTEPS_SECRET": SECRET,
}
TWO_MACHINES = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_WORKER_ID": "1",
    "BYTEPS_LOCAL_SIZE": "4",
    "BYTEPS_LOCAL_RANK": "2",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


def faults(environ: dict[str, str]) -> list[str]:
    with pytest.raises(InvalidArgumentError) as caught:
        Config.parse(environ)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_an_empty_environment_is_a_worker_alone() -> None:
    config = Config.parse({})
    assert (config.role, config.rank, config.size, config.num_servers) == ("worker", 0, 1, 0)
    assert config.is_single_process
    assert set(config.sources.values()) == {"default", "derived"}


def test_machines_times_local_size_is_the_number_of_workers() -> None:
    config = Config.parse(TWO_MACHINES)
    assert (config.rank, config.size, config.local_rank, config.local_size) == (6, 8, 2, 4)
    assert config.node_fields()["num_workers"] == 8
    assert not config.host_scheduler
    assert config.sources["num_machines"] == "environment DMLC_NUM_WORKER"


def test_a_given_rank_replaces_the_derived_one() -> None:
    assert Config.parse({**TWO_MACHINES, "BYTEPS_GLOBAL_RANK": "7"}).rank == 7


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("DMLC_NUM_WORKER", "0", "a whole number from 1"),
        ("DMLC_NUM_WORKER", "two", "a whole number"),
        ("DMLC_NUM_WORKER", "1_0", "a whole number"),
        ("DMLC_ROLE", "joint", "one of worker, server, scheduler"),
        ("DMLC_PS_ROOT_PORT", "65536", "from 1 to 65535"),
        ("DMLC_PS_ROOT_URI", "http://host/", "a host name or an address"),
        ("BYTEPS_TIMEOUT_S", "nan", "seconds from"),
        ("BYTEPS_TIMEOUT_S", "-1", "seconds from"),
        ("BYTEPS_PARTITION_BYTES", "4T", "bytes from"),
        ("BYTEPS_FORCE_DISTRIBUTED", "maybe", "1 or 0"),
        ("BYTEPS_PLACEMENT", "ring", "one of auto, allreduce, ps"),
        ("BYTEPS_FAILOVER", "always", "one of auto, on, off"),
        ("BYTEPS_JOB_ID", "a/../b", "letters, digits"),
        ("BYTEPS_STALENESS", "-1", "a whole number from 0 to 254, or inf"),
        ("BYTEPS_STALENESS", "nan", "a whole number from 0 to 254, or inf"),
        ("BYTEPS_SERVER_ENGINE_THREAD", "65", "a whole number from 0 to 64"),
    ],
)
def test_a_bad_value_is_a_fault_that_names_variable_value_and_expectation(name: str, text: str, expected: str) -> None:
    fault = next(fault for fault in faults({name: text}) if fault.startswith(f"{name}="))
    assert repr(text) in fault
    assert expected in fault


@pytest.mark.parametrize(
    ("text", "value", "goes_on"), [("1", "auto", True), ("on", "on", True), ("0", "off", False), ("OFF", "off", False)]
)
def test_failover_may_still_be_a_flag(text: str, value: str, goes_on: bool) -> None:
    config = Config.parse({"BYTEPS_FAILOVER": text})
    assert config.failover == value
    assert config.node_fields()["failover"] is goes_on


def test_staleness_is_a_number_of_steps_or_unbounded() -> None:
    assert Config.parse({}).staleness == math.inf
    assert Config.parse({"BYTEPS_STALENESS": "3"}).staleness == 3
    assert Config.parse({"BYTEPS_STALENESS": "inf"}).staleness == math.inf


def test_all_faults_are_reported_at_once() -> None:
    found = faults(
        {"DMLC_NUM_WORKER": "x", "BYTEPS_TIMEOUT_S": "soon", "DMLC_ROLE": "boss", "BYTEPS_LOG_LEVEL": "loud"}
    )
    for name in ("DMLC_NUM_WORKER", "BYTEPS_TIMEOUT_S", "DMLC_ROLE", "BYTEPS_LOG_LEVEL"):
        assert any(fault.startswith(name) for fault in found), name


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"DMLC_WORKER_ID": "2"}, "DMLC_WORKER_ID=2: expected less than 2"),
        ({"BYTEPS_LOCAL_RANK": "4"}, "BYTEPS_LOCAL_RANK=4: expected less than 4"),
        ({"BYTEPS_GLOBAL_RANK": "8"}, "BYTEPS_GLOBAL_RANK=8: expected less than 8"),
        ({"DMLC_WORKER_ID": ""}, "DMLC_WORKER_ID is not set"),
        ({"BYTEPS_LOCAL_RANK": ""}, "BYTEPS_LOCAL_RANK is not set"),
        ({"DMLC_PS_ROOT_URI": ""}, "DMLC_PS_ROOT_URI is not set"),
        ({"DMLC_PS_ROOT_PORT": ""}, "DMLC_PS_ROOT_PORT is not set"),
        ({"BYTEPS_PLACEMENT": "ps"}, "BYTEPS_PLACEMENT=ps without servers"),
        ({"DMLC_PS_ROOT_URI": "10.0.0.1"}, "no secret, and the scheduler is on 10.0.0.1"),
        ({"BYTEPS_SECRET": "short"}, "the secret has 5 characters"),
        ({"BYTEPS_SECRET": SECRET, "BYTEPS_SECRET_FILE": "/f"}, "BYTEPS_SECRET and BYTEPS_SECRET_FILE are both set"),
        ({"DMLC_NUM_SERVER": "16380"}, "8 workers and DMLC_NUM_SERVER=16380: more than 16384 processes together"),
    ],
)
def test_contradictions_and_gaps_are_faults(change: dict[str, str], fault: str) -> None:
    found = faults({**TWO_MACHINES, **change})
    assert len(found) == 1, found
    assert found[0].startswith(fault)


def test_a_server_may_join_a_job_that_began_without_servers() -> None:
    assert Config.parse({**TWO_MACHINES, "DMLC_ROLE": "server", "DMLC_NUM_SERVER": "0"}).num_servers == 0


def test_one_worker_machine_ignores_scheduler_and_servers_as_the_original_does() -> None:
    tutorial = {
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_WORKER_ID": "0",
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "1234",
    }
    alone = Config.parse(tutorial)
    assert alone.is_single_process
    assert "DMLC_NUM_SERVER=1 has no effect" in alone.warnings[0]
    assert Config.parse({**tutorial, "DMLC_ROLE": "server"}).is_needless
    two = Config.parse({**tutorial, "BYTEPS_LOCAL_SIZE": "2", "BYTEPS_LOCAL_RANK": "0"})
    assert two.node_fields()["host_scheduler"]
    assert two.scheduler_host == "127.0.0.1"
    forced = Config.parse({**tutorial, "BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_SECRET": SECRET})
    assert not forced.is_single_process
    assert (forced.num_servers, forced.scheduler_host, forced.host_scheduler) == (1, "10.0.0.1", False)


def test_servers_learn_the_number_of_workers_unless_it_is_told() -> None:
    server = {**TWO_MACHINES, "DMLC_ROLE": "server", "DMLC_NUM_SERVER": "1", "BYTEPS_LOCAL_SIZE": ""}
    assert Config.parse(server).node_fields()["num_workers"] == 0
    assert Config.parse({**server, "BYTEPS_LOCAL_SIZE": "4"}).node_fields()["num_workers"] == 8


def test_only_rank_0_hosts_the_scheduler_and_its_socket() -> None:
    hosted = {**TWO_MACHINES, "BYTEPS_HOST_SCHEDULER": "1", "BYTEPS_SCHEDULER_FD": "5"}
    other = Config.parse(hosted).node_fields()
    assert (other["host_scheduler"], other["scheduler_fd"], other["scheduler_by_rank_0"]) == (False, -1, True)
    first = Config.parse({**hosted, "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_RANK": "0"}).node_fields()
    assert (first["host_scheduler"], first["scheduler_fd"]) == (True, 5)


def test_torchrun_places_the_process_and_rank_0_hosts_the_scheduler() -> None:
    config = Config.parse(TORCHRUN)
    assert (config.rank, config.size, config.local_rank, config.local_size) == (3, 4, 1, 2)
    assert config.scheduler_host == "node0"
    assert config.sources["rank"] == "torchrun"
    assert not config.node_fields()["host_scheduler"]
    assert Config.parse({**TORCHRUN, "RANK": "0"}).node_fields()["host_scheduler"]


def test_ranks_of_one_launch_agree_on_ports_and_job_and_other_launches_do_not() -> None:
    def meeting(**change: str) -> tuple[Any, ...]:
        config = Config.parse({**TORCHRUN, **change})
        return config.scheduler_ports, config.job_id

    assert meeting(RANK="0") == meeting(RANK="1", LOCAL_RANK="0")
    ports, job_id = meeting()
    other_ports, other_job_id = meeting(MASTER_PORT="29501")
    assert len(ports) >= 15
    assert ports != other_ports
    assert job_id != other_job_id
    assert meeting(BYTEPS_JOB_ID="mine")[1] == "mine"


def test_one_machine_meets_on_the_loopback_and_needs_no_secret() -> None:
    config = Config.parse({**TORCHRUN, "LOCAL_WORLD_SIZE": "4", "BYTEPS_SECRET": ""})
    assert config.scheduler_host == "127.0.0.1"


def test_several_machines_under_a_launcher_need_a_secret() -> None:
    assert "expected BYTEPS_SECRET_FILE" in faults({**TORCHRUN, "BYTEPS_SECRET": ""})[0]


def test_servers_under_a_launcher_need_the_address_of_a_scheduler() -> None:
    assert "DMLC_NUM_SERVER=2 under torchrun" in faults({**TORCHRUN, "DMLC_NUM_SERVER": "2"})[0]
    by_hand = {"DMLC_NUM_SERVER": "2", "DMLC_PS_ROOT_URI": "node7", "DMLC_PS_ROOT_PORT": "9000"}
    config = Config.parse({**TORCHRUN, **by_hand})
    assert (config.scheduler_host, config.scheduler_ports, config.job_id) == ("node7", (9000,), "byteps")
    assert not config.host_scheduler


def test_byteps_variables_go_before_those_of_launchers() -> None:
    config = Config.parse({**TORCHRUN, **TWO_MACHINES})
    assert (config.rank, config.size) == (6, 8)


@pytest.mark.parametrize(
    ("text", "credit_bytes"), [("4", 4 << 16), ("1023", 1023 << 16), ("1M", 1 << 20), ("0", 256 << 10), ("4096", 4096)]
)
def test_small_credits_count_partitions(text: str, credit_bytes: int) -> None:
    config = Config.parse({"BYTEPS_SCHEDULING_CREDIT": text, "BYTEPS_PARTITION_BYTES": "64K"})
    assert config.credit_bytes == credit_bytes


def test_partitions_that_nobody_could_want_are_the_largest_there_are() -> None:
    """Scripts of BytePS say so that tensors are not to be cut."""
    assert Config.parse({"BYTEPS_PARTITION_BYTES": "2147483647"}).partition_bytes == 1 << 30


def test_secret_comes_from_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    config = Config.parse({"BYTEPS_SECRET_FILE": str(path)})
    assert config.node_fields()["secret"] == SECRET.encode()
    assert config.sources["secret"] == f"file {path}"


def test_faults_of_a_secret_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(SECRET)
    path.chmod(0o644)
    assert "chmod 600" in faults({"BYTEPS_SECRET_FILE": str(path)})[0]
    assert "No such file" in faults({"BYTEPS_SECRET_FILE": str(tmp_path / "none")})[0]
    assert "expected a regular file" in faults({"BYTEPS_SECRET_FILE": str(tmp_path)})[0]


def test_the_secret_is_not_in_the_printed_form(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(SECRET)
    path.chmod(0o600)
    for environ in ({"BYTEPS_SECRET": SECRET}, {"BYTEPS_SECRET_FILE": str(path)}):
        config = Config.parse(environ)
        assert config.secret == SECRET
        assert SECRET not in repr(config) + str(config) + f"{config}" + repr(config.to_node_config())


def test_unknown_names_are_warned_about_with_the_nearest_known(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "byteps"):
        Config.from_env(
            {"BYTEPS_PARTITON_BYTES": "1", "DMLC_NUM_WORKERS": "1", "BYTEPS_XYZ": "1", "DMLC_OTHER_TOOL": "1"}
        )
    said = "\n".join(caplog.messages)
    assert "did you mean BYTEPS_PARTITION_BYTES" in said
    assert "did you mean DMLC_NUM_WORKER?" in said
    assert "BYTEPS_XYZ is not a setting" in said
    assert "DMLC_OTHER_TOOL" not in said


def test_names_of_the_original_without_effect_are_warned_about_unless_off() -> None:
    config = Config.parse({"BYTEPS_NCCL_NUM_RINGS": "2", "BYTEPS_TRACE_ON": "0"})
    assert len(config.warnings) == 1
    assert "GPU" in config.warnings[0]


def test_warnings_are_logged_by_rank_0_only(caplog: pytest.LogCaptureFixture) -> None:
    Config.from_env({**TORCHRUN, "BYTEPS_XYZ": "1"})
    assert not caplog.messages


def test_no_name_is_both_a_setting_and_retired() -> None:
    assert not {name for knob in Config.knobs().values() for name in knob.names} & RETIRED.keys()


NAMES = sorted({name for knob in Config.knobs().values() for name in knob.names} | TORCHRUN.keys())
LAUNCHERS = ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"]
LAUNCHERS += ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"]
TEXTS = st.one_of(
    st.text(st.characters(max_codepoint=0x2FF), max_size=12),
    st.integers(-2, 70000).map(str),
    st.sampled_from(["worker", "server", "1M", "0.5", "::1", "n[1-2]"]),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(st.dictionaries(st.sampled_from(NAMES + LAUNCHERS), TEXTS, max_size=12))
def test_any_environment_gives_a_consistent_config_or_an_invalid_argument(environ: dict[str, str]) -> None:
    try:
        config = Config.parse(environ)
    except InvalidArgumentError:
        return
    assert config.role != "worker" or 0 <= config.rank < config.size
    assert config.local_size == -1 or config.local_rank < config.local_size
    assert config.is_single_process or config.is_needless or (config.scheduler_host and config.scheduler_ports)
    assert config.sources.keys() == Config.knobs().keys()


@pytest.mark.parametrize("text", ["auto", "allreduce", "weights:1", "weights:1,1,0.5,2", "weights:0,3"])
def test_placements(text: str) -> None:
    assert Config.parse({"BYTEPS_PLACEMENT": text}).placement == text


@pytest.mark.parametrize("text", ["best", "weights:", "weights:1,,2", "weights:0,0.0", "weights:1,-2", "weights:1,x"])
def test_placements_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected one of auto, allreduce, ps, or weights: with one number"):
        Config.parse({"BYTEPS_PLACEMENT": text})
