"""byteps plan: its numbers are the core's, its words follow from them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from byteps.cli import main
from byteps.cli.plan_cluster import Cluster, server_table
from byteps.cli.plan_model import Gradient, Model
from byteps.cli.plan_text import verdict
from byteps.errors import InvalidArgumentError

PAGE = (Path(__file__).parents[2] / "docs/plan.md").read_text()

PAYLOAD = 1448 / 1514
ONE_GPU = ("--gpus-per-machine", "1", "--sum-gbytes", "1e6")  # the network is the limit


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 1
    return capsys.readouterr().err


def test_equal_cards_give_the_papers_formula(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, "--workers", "8", "--servers", "4", "--nic-gbps", "100", "--model-mb", "1300", *ONE_GPU)
    d = 8 * 8 + 4 * 8 - 2 * 4
    assert report["shares"] == pytest.approx([4 / d] * 8 + [14 / d] * 4)
    seconds = 1.3e9 * 8 / (100e9 * PAYLOAD)
    assert report["predicted_s"] == pytest.approx(
        {"allreduce": 1.75 * seconds, "ps": 2 * seconds, "auto": 112 / d * seconds}
    )
    assert report["by_servers_s"]["4"] == pytest.approx(report["predicted_s"]["auto"])
    assert report["by_servers_s"]["8"] == pytest.approx(seconds)
    assert report["useful_servers"] == 8
    assert report["gpus"] == 8


def test_unequal_cards(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, "--worker-gbps", "12,12,18,24", "--server-gbps", "12", "--model-mb", "12", *ONE_GPU)
    assert report["shares"] == pytest.approx([0, 0, 0.25, 0.5, 0.25])
    assert report["predicted_s"]["auto"] == pytest.approx(0.008 / PAYLOAD)
    assert report["servers_mbps"] == [12000]


def test_slow_servers_go_on_helping_beyond_the_number_of_machines(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--workers", "4", "--nic-gbps", "100", "--server-gbps", "10,10", "--model-mb", "1300", *ONE_GPU)
    report = plan(capsys, *arguments)
    assert report["useful_servers"] == 40
    by_servers = report["by_servers_s"]
    assert by_servers["0"] / by_servers["40"] == pytest.approx(1.5)
    assert main(["plan", *arguments]) == 0
    assert "Up to 40 servers make it faster, by 1.50x in total" in capsys.readouterr().out


def test_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    def assumed(*arguments: str) -> str:
        return "; ".join(plan(capsys, "--model-mb", "1", *arguments)["assumptions"])

    assert "worker machines have cards of 100 Gbit/s" in assumed("--workers", "2")
    assert "servers have cards of 15 Gbit/s" in assumed("--worker-gbps", "10,20", "--servers", "1")
    assert "cards" not in assumed("--workers", "2", "--servers", "1", "--nic-gbps", "10")
    assert "further servers have cards of 15 Gbit/s" in assumed("--worker-gbps", "10,10", "--server-gbps", "10,20")
    everything = ("--workers", "2", "--nic-gbps", "10", "--threads", "1", "--sum-gbytes", "4")
    assert assumed(*everything) == "the model has 50 equal layers (--layers, --torch)"


def test_servers_of_unknown_speed_are_as_fast_as_the_machines(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, "--worker-gbps", "10,10,10,10", "--servers", "2", "--model-mb", "1")
    assert report["servers_mbps"] == [10_000, 10_000]


def test_the_simulation_is_near_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, "--workers", "6", "--servers", "3", "--nic-gbps", "1", "--model-mb", "600", *ONE_GPU)
    for placement, result in report["simulation"]["placements"].items():
        assert result["predicted_s"] == pytest.approx(report["predicted_s"][placement])
        assert result["predicted_s"] <= result["summed_s"] <= 1.05 * result["predicted_s"]
        assert result["step_s"] == pytest.approx(result["summed_s"])


def test_very_many_machines_are_near_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/plan.md says."""
    arguments = ("--workers", "1024", "--servers", "512", "--nic-gbps", "100", "--model-mb", "1300")
    for gpus, ratio in (("1", 1.05), ("8", 1.14)):
        assert f"{ratio} times" in PAGE
        result = plan(capsys, *arguments, "--gpus-per-machine", gpus)["simulation"]["placements"]["auto"]
        assert result["summed_s"] / result["predicted_s"] == pytest.approx(ratio, abs=0.005)


def test_the_page_shows_what_plan_prints(capsys: pytest.CaptureFixture[str]) -> None:
    example = re.search(r"```\n\$ byteps (plan [^\n]*)\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    command, shown = example.groups()
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown


def test_the_page_has_the_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--workers", "32", "--gpus-per-machine", "1", "--nic-gbps", "100", "--model", "vgg16")
    options = ("--compute-ms", "20", "--partition-kib", "64")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| (?:[\d.]+|as all-reduce) \| ([\d.]+) \| [\d.]+x", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for servers, all_reduce, mixed in rows:
        placements = plan(capsys, *arguments, "--servers", servers, *options)["simulation"]["placements"]
        assert f"{placements['allreduce']['step_s'] * 1e3:.1f}" == all_reduce
        assert f"{placements['auto']['step_s'] * 1e3:.1f}" == mixed


def test_computation_counts_without_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--workers", "4", "--model", "resnet50", "--compute-ms", "900")
    simulation = plan(capsys, *arguments)["simulation"]
    assert simulation["compute_s"] == pytest.approx(0.9)
    assert simulation["placements"]["auto"]["step_s"] == pytest.approx(0.9, rel=0.01)
    assert plan(capsys, *arguments, "--simulate")["simulation"] == simulation


def test_an_optimizer_that_waits_for_all_sums_takes_longer(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--workers", "8", "--nic-gbps", "10", "--model", "vgg16", *ONE_GPU)
    result = plan(capsys, *arguments)["simulation"]["placements"]["auto"]
    assert result["plain_step_s"] > 1.02 * result["step_s"]


def test_sums_take_time(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--workers", "2", "--nic-gbps", "100", "--model-mb", "100", "--threads", "1")
    eight = plan(capsys, *arguments, "--sum-gbytes", "1")["predicted_s"]["auto"]
    assert eight == pytest.approx(2 * 0.1)  # each of eight threads: what eight ranks have, in and out, of an eighth
    one = plan(capsys, *arguments, "--sum-gbytes", "1", "--gpus-per-machine", "1")["predicted_s"]["auto"]
    assert one == pytest.approx(2 * 0.1 / 2)  # each root sums two contributions of one half


def test_many_machines_need_little(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, "--workers", "8192", "--model-mb", "1", "--gpus-per-machine", "1")
    assert report["simulation"]["placements"]["auto"]["step_s"] > report["predicted_s"]["auto"]
    assert "at most 16384 processes" in refusal(capsys, "--workers", "8192", "--model-mb", "1")


def test_says_that_it_simulates_larger_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--workers", "4096", *ONE_GPU, "--partition-kib", "4"]
    assert main([*arguments, "--model-mb", "2000"]) == 0
    assert "because a job's are too many to simulate" in capsys.readouterr().out
    assert main([*arguments, "--model-mb", "1"]) == 0
    assert "too many to simulate" not in capsys.readouterr().out


def test_text_groups_sites_that_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--worker-gbps", "10,10,20,10", "--servers", "2", "--nic-gbps", "10", "--model", "vgg16")
    assert main(["plan", *arguments, "--threads", "1", "--sum-gbytes", "4", "--compute-ms", "9"]) == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert rows[3:7] == ["machine 0 to 1", "machine 2", "machine 3", "server 0 to 1"]
    assert {"all-reduce", "parameter server", "byteps"} <= set(rows)


def test_many_servers_are_a_short_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--workers", "500", "--servers", "33", "--model-mb", "100", *ONE_GPU]) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = [int(line.split()[0]) for line in lines if line[:1].isdigit() and " ms" in line]
    assert counts[0] == 0
    assert counts[-1] == 500
    assert 33 in counts
    assert len(counts) < 20


def test_the_least_number_of_servers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for enough in (0, 1, 2, 3, 7, 8, 9, 1000, 16380):
        monkeypatch.setattr(
            Cluster, "seconds", lambda self, *_, most=enough: 1.0 + max(0, most - len(self.servers_mbps))
        )
        table = server_table(Cluster([1e4] * 4, [], 1e4, 1, 1, 1e9), 1)
        assert table.useful == enough
        assert table.half == -(-enough // 2)
        assert {0, enough} <= table.seconds.keys()


def test_verdict() -> None:
    assert verdict({0: 2.0, 2: 2.0}, 0, 0, 1) == "Servers do not make it faster."
    times = {0: 2.0, 1: 1.5, 2: 1.25, 3: 1.0, 4: 1.0}
    assert verdict(times, 3, 1, 3) == (
        "Up to 3 servers make it faster, by 2.00x in total; more do not. Half of that time is saved by 1."
    )
    assert verdict(times, 3, 1, 1).endswith("Adding 2 to your 1 would make it 1.50x faster.")


def layers_file(folder: Path, text: str) -> str:
    path = folder / "layers.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_reads_a_file_of_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "name, elements, forward_ms, backward_ms\nfirst, 1000000, 10, 20\nloss, 0, 5, 5\nlast, 500000, 10, 30\n"
    arguments = ("--workers", "2", "--nic-gbps", "100", "--layers", layers_file(tmp_path, text), *ONE_GPU)
    report = plan(capsys, *arguments)
    assert report["model_bytes"] == 6_000_000
    assert report["simulation"]["compute_s"] == pytest.approx(0.08)
    assert plan(capsys, *arguments, "--compute-ms", "800")["simulation"]["compute_s"] == pytest.approx(0.8)
    assert plan(capsys, *arguments, "--fp16")["model_bytes"] == 3_000_000


def test_odd_numbers_of_elements_travel_as_fp16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = layers_file(tmp_path, "\ufeffelements\n1001\n")  # as spreadsheets write it
    assert plan(capsys, "--workers", "2", "--layers", path, "--fp16", *ONE_GPU)["model_bytes"] == 2002


def test_layers_without_times_share_the_computation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = layers_file(tmp_path, "bytes\n400\n800\n")
    report = plan(capsys, "--workers", "2", "--layers", path, "--compute-ms", "30", *ONE_GPU)
    assert report["simulation"]["compute_s"] == pytest.approx(0.03)
    assert any("all layers compute for the same time" in each for each in report["assumptions"])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "expected a header with bytes or elements"),
        ("name\nconv\n", "expected a header with bytes or elements"),
        ("bytes\n4\nmany\n", "line 3: bytes: expected a number of 0 or more, got 'many'"),
        ("bytes\nnan\n", "line 2: bytes: expected a number"),
        ("bytes,forward_ms\n4,1\n", "line 2: backward_ms: expected a number of 0 or more, got None"),
        ("bytes\n0\n", "the model has no gradients"),
    ],
)
def test_says_what_is_wrong_with_a_file(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fault in refusal(capsys, "--workers", "2", "--layers", layers_file(tmp_path, text))


def test_says_that_a_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refusal(capsys, "--workers", "2", "--layers", str(tmp_path / "none"))


def test_small_gradients_share_buckets() -> None:
    small = [Gradient(40, ready_s, needed_s) for ready_s, needed_s in ((9, 1), (8, 2), (5, 4), (4, 5))]
    large = Gradient(1 << 20, 6, 3)
    model = Model([*small[:2], large, *small[2:]], 9, 6).in_buckets(100)
    assert model.gradients == [Gradient(80, 9, 1), large, Gradient(80, 5, 4)]


def test_only_wide_gradients_become_fp16() -> None:
    model = Model([Gradient(400, 1, 0), Gradient(200, 1, 0, 2), Gradient(800, 1, 0, 8)]).as_fp16()
    assert [each.nbytes for each in model.gradients] == [200, 200, 200]


def test_buckets_are_those_of_the_reducer() -> None:
    torch = pytest.importorskip("torch")
    from byteps.torch.grouping import MOST_BYTES_COPIED, group
    from byteps.torch.options import Owner, ReducerOptions

    sizes = [1000, 3000, 50_000, 500, 32_767, 32_768, 200, 90_000]  # elements
    parameters = [torch.nn.Parameter(torch.empty(size)) for size in sizes]
    for bucket_bytes in (1 << 10, 64 << 10, 1 << 20):
        groups = group(parameters, ReducerOptions(Owner("", "", ""), bucket_bytes=bucket_bytes))
        theirs = sorted(sum(4 * sizes[position] for position in each) for each in groups)
        model = Model([Gradient(4 * size, 0, 0) for size in sizes]).in_buckets(bucket_bytes)
        assert sorted(each.nbytes for each in model.gradients) == theirs
    assert MOST_BYTES_COPIED == 128 << 10


MODULE = """
import torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 16))
    model.register_parameter("unused", torch.nn.Parameter(torch.empty(5)))
    return model, torch.randn(32, 64)

def nothing():
    return 5
"""


def test_measures_a_model_of_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "planned_model.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "planned_model", raising=False)
    arguments = ("--workers", "2", "--nic-gbps", "100", *ONE_GPU, "--torch")
    report = plan(capsys, *arguments, "planned_model:make")
    assert report["model_bytes"] == 4 * (64 * 2048 + 2048 + 2048 * 16 + 16)
    assert report["simulation"]["compute_s"] > 0
    assert plan(capsys, *arguments, "planned_model:make", "--fp16")["model_bytes"] == report["model_bytes"] // 2
    assert "returns (model, inputs)" in refusal(capsys, *arguments, "planned_model:nothing")
    assert "no attribute 'absent'" in refusal(capsys, *arguments, "planned_model:absent")
    assert "No module named" in refusal(capsys, *arguments, "absent_module:make")
    assert "expected MODULE:FUNCTION" in refusal(capsys, *arguments, "planned_model")


def test_gradients_are_measured_in_the_order_of_backward() -> None:
    torch = pytest.importorskip("torch")
    from byteps.torch.model_times import measure

    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    times = measure(lambda: (model, [torch.randn(512, 256)], lambda output: output.square().mean()))
    weights = [each for each in times.parameters if each.name.endswith("weight")]
    assert [each.name for each in weights] == [f"{i}.weight" for i in range(4)]
    ready_s = [each.ready_s for each in weights]
    assert ready_s == sorted(ready_s, reverse=True)
    assert 0 < ready_s[-1] <= ready_s[0] <= times.backward_s
    with pytest.raises(InvalidArgumentError, match="no parameter of the model gets a gradient"):
        measure(lambda: (torch.nn.Linear(2, 2).requires_grad_(False), torch.ones(2, requires_grad=True)))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--model-mb", "1"], "expected --workers or --worker-gbps"),
        (
            ["--workers", "3", "--worker-gbps", "1,2", "--model-mb", "1"],
            "--workers 3: expected 2, the number of speeds in --worker-gbps",
        ),
        (["--workers", "3", "--servers", "2", "--server-gbps", "1", "--model-mb", "1"], "--servers 2: expected 1"),
    ],
)
def test_says_what_does_not_fit(arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 1
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--workers", "0"], ["--workers", "2.5"], ["--nic-gbps", "fast"], ["--worker-gbps", "1,,2"]]
)
def test_refuses_what_is_no_number(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--model-mb", "1", *arguments])
