"""byteps plan: its numbers are the core's, its words follow from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from byteps.cli import main
from byteps.cli.plan import verdict


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_equal_cards_give_the_papers_formula(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, "--workers", "8", "--servers", "4", "--nic-gbps", "100", "--model-mb", "1300")
    d = 8 * 8 + 4 * 8 - 2 * 4
    assert report["shares"] == pytest.approx([4 / d] * 8 + [14 / d] * 4)
    seconds = 1.3e9 * 8 / 100e9
    assert report["predicted_s"] == pytest.approx(
        {"allreduce": 1.75 * seconds, "ps": 2 * seconds, "auto": 112 / d * seconds}
    )
    assert report["by_servers_s"][4] == pytest.approx(report["predicted_s"]["auto"])
    assert report["by_servers_s"][8] == pytest.approx(seconds)
    assert len(report["by_servers_s"]) == 9
    assert report["gpus"] == 64


def test_unequal_cards(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, "--worker-gbps", "12,12,18,24", "--server-gbps", "12", "--model-mb", "12")
    assert report["shares"] == pytest.approx([0, 0, 0.25, 0.5, 0.25])
    assert report["predicted_s"]["auto"] == pytest.approx(0.008)
    assert report["servers_mbps"] == [12000]


def test_simulation_agrees_with_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(capsys, "--workers", "6", "--servers", "3", "--model-mb", "600", "--simulate")
    for result in report["simulation"]["placements"].values():
        assert result["predicted_s"] <= result["summed_s"] <= 1.05 * result["predicted_s"]
        assert result["step_s"] == pytest.approx(result["summed_s"])


def test_simulated_computation_hides_communication(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--workers", "4", "--model", "resnet50", "--simulate", "--compute-ms", "900")
    simulation = plan(capsys, *arguments)["simulation"]
    assert simulation["compute_s"] == 0.9
    assert simulation["placements"]["auto"]["step_s"] == pytest.approx(0.9, rel=0.01)


def test_partitions_grow_until_the_simulation_is_bearable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--workers", "2", "--model-mb", "4", "--partition-kib", "4", "--simulate")
    assert plan(capsys, *arguments)["simulation"]["partition_bytes"] == 4096
    monkeypatch.setattr("byteps.cli.plan._MAX_MESSAGES", 400)
    simulation = plan(capsys, *arguments)["simulation"]
    assert simulation["partition_bytes"] == 40_000
    assert simulation["placements"]["auto"]["messages"] <= 600  # each of 50 layers is rounded up


def test_text_groups_sites_that_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--worker-gbps", "10,10,20,10", "--servers", "2", "--nic-gbps", "10", "--model", "vgg16")
    assert main(["plan", *arguments, "--simulate"]) == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert rows[3:7] == ["machine 0 to 1", "machine 2", "machine 3", "server 0 to 1"]
    assert {"all-reduce", "parameter server", "byteps"} <= set(rows)


def test_many_servers_are_a_short_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--workers", "500", "--servers", "33", "--model-mb", "100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = [int(line.split()[0]) for line in lines if line[:1].isdigit() and " ms" in line]
    assert counts[0] == 0
    assert counts[-1] == 500
    assert 33 in counts
    assert len(counts) < 20


def test_verdict() -> None:
    assert verdict([2.0, 2.0, 2.0], 1) == "Servers do not make it faster."
    assert verdict([2.0, 1.5, 1.25, 1.0, 1.0], 3) == (
        "Up to 3 servers make it faster, by 2.00x in total; more do not. Half of that time is saved by 1."
    )
    assert verdict([2.0, 1.5, 1.25, 1.0, 1.0], 1).endswith("Adding 2 to your 1 would make it 1.50x faster.")


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
