"""Runs a server, the scheduler or the coordinator of a job: `python -m byteps.server`.

The environment selects the role and the job (`byteps env`). Exits with 0 when the workers have
left, and with another code and one line on standard error when the job has failed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from byteps.config import STARTED, Config
from byteps.ending import describe, report
from byteps.errors import BytePSError, InvalidArgumentError

_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130


def main() -> int:
    role = "server"
    try:
        config = Config.from_env()
        role = config.role
        if role == "worker":
            raise InvalidArgumentError(
                "DMLC_ROLE is not set to server, scheduler or coordinator: workers run the training program"
            )
        if config.is_needless:
            _say(role, "not needed for a single worker machine; set BYTEPS_FORCE_DISTRIBUTED=1 to use it nevertheless")
            return 0
        _coordinate(config) if config.role == "coordinator" else _serve(config)
    except InvalidArgumentError as error:
        _say(role, str(error))
        return _EXIT_USAGE
    except BytePSError as error:
        report(config.error_file, time.time(), describe(error), str(error))
        _say(role, str(error))
        return _EXIT_FAILED
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return 0


def _serve(config: Config) -> None:
    from byteps import _core

    node = _core.Node(config.to_node_config())
    if config.error_file:
        Path(config.error_file + STARTED).touch()
    try:
        node.wait_until_done()
    finally:
        node.shutdown()


def _coordinate(config: Config) -> None:
    from byteps import _core

    coordinator = _core.Coordinator(
        config.to_node_config(),
        min_workers=config.min_workers,
        max_workers=config.max_workers,
        initial_workers=config.initial_workers,
        shortage_timeout_s=config.elastic_timeout_s,
        gather_s=config.gather_s,
    )
    if config.error_file:
        Path(config.error_file + STARTED).touch()
    try:
        coordinator.wait()
    finally:
        coordinator.shutdown("the coordinator was stopped")


def _say(role: str, text: str) -> None:
    print(f"byteps {role}: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
