"""byteps env and byteps doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from byteps.cli import doctor, main
from byteps.cli.env import markdown
from byteps.config import Config

ROOT = Path(__file__).resolve().parents[2]
SECRET = "0123456789abcdef"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("BYTEPS_", "DMLC_")):
            monkeypatch.delenv(name)


def test_env_shows_values_and_origins(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BYTEPS_TIMEOUT_S", "7.5")
    monkeypatch.setenv("BYTEPS_TIMEOUTS", "1")
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("BYTEPS_TIMEOUT_S"))
    assert row.split()[1:5] == ["7.5", "s", "environment", "BYTEPS_TIMEOUT_S"]
    assert "warning: BYTEPS_TIMEOUTS is not a setting of byteps: did you mean BYTEPS_TIMEOUT_S?" in out


@pytest.mark.parametrize("program", [["-m", "byteps"], ["-m", "byteps.cli"]])
def test_the_version_is_told(program: list[str]) -> None:
    said = subprocess.run(
        [sys.executable, *program, "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout == f"byteps {metadata.version('byteps')}\n"


def test_bench_knows_its_data_types(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "push_pull", "--dtype", "float99"])
    err = capsys.readouterr().err
    assert "--dtype: 'float99': expected one of " in err and "float32" in err


def test_env_never_shows_the_secret(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BYTEPS_SECRET", SECRET)
    for form in ([], ["--json"]):
        assert main(["env", *form]) == 0
        out = capsys.readouterr().out
        assert SECRET not in out
        assert "(16 characters)" in out


def test_env_json_has_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)
    assert settings.keys() == Config.knobs().keys()
    assert settings["timeout_s"] == {
        "variable": "BYTEPS_TIMEOUT_S",
        "value": 30.0,
        "source": "default",
        "unit": "s",
        "meaning": settings["timeout_s"]["meaning"],
    }


def test_env_says_all_that_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BYTEPS_TIMEOUT_S", "soon")
    monkeypatch.setenv("DMLC_ROLE", "boss")
    assert main(["env"]) == 1
    err = capsys.readouterr().err
    assert "BYTEPS_TIMEOUT_S='soon'" in err
    assert "DMLC_ROLE='boss'" in err


def test_the_page_of_settings_is_up_to_date() -> None:
    assert (ROOT / "docs/env.md").read_text() == markdown(), "run: byteps env --markdown > docs/env.md"


def test_doctor_finds_nothing_wrong_here() -> None:
    findings = doctor.examine({})
    assert [finding for finding in findings if finding.state == "wrong"] == []
    assert {"cores", "instructions", "transport tcp", "torch", "settings", "address"} <= {f.topic for f in findings}


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({"DMLC_WORKER_ID": "3"}, "DMLC_WORKER_ID=3: expected less than 1"),
        ({"DMLC_INTERFACE": "nosuch0"}, "nosuch0"),
    ],
)
def test_doctor_says_what_is_wrong(environ: dict[str, str], fault: str) -> None:
    wrong = [finding.text for finding in doctor.examine(environ) if finding.state == "wrong"]
    assert len(wrong) == 1
    assert fault in wrong[0]


def test_doctor_exits_with_1_if_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BYTEPS_TIMEOUT_S", "soon")
    assert main(["doctor", "--json"]) == 1
    assert {"topic": "settings", "state": "wrong"}.items() <= json.loads(capsys.readouterr().out)[-1].items()


def test_env_into_a_closed_pipe_says_nothing() -> None:
    command = f"{sys.executable} -m byteps.cli env | true; exit ${{PIPESTATUS[0]}}"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in finished.stderr
