"""`python -m byteps.server`: a server or the scheduler of a job, until the workers have left.

Which of the two, and of which job, the environment says (`byteps env`). Exits with 0 when the workers have left, with
another code and one line on standard error when the job failed.
"""

from __future__ import annotations

import sys
import time

from byteps.config import Config
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
            raise InvalidArgumentError("DMLC_ROLE is not set to server or scheduler: a worker is a training program")
        if config.is_needless:
            _say(role, "one worker machine needs none; BYTEPS_FORCE_DISTRIBUTED=1 uses it all the same")
            return 0
        _serve(config)
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
    try:
        node.wait_until_done()
    finally:
        node.shutdown()


def _say(role: str, text: str) -> None:
    print(f"byteps {role}: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
