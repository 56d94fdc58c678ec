"""Captures byteps's warnings of ranks that would train apart."""

from __future__ import annotations

import logging
from dataclasses import replace

from byteps.runtime import current_job


class Said(logging.Handler):
    """Captures byteps's log in a context with BYTEPS_DIFFERENCES=`setting`."""

    def __init__(self, setting: str = "warn") -> None:
        super().__init__()
        self.setting, self.lines = setting, []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        job = current_job()
        self.config, job.config = job.config, replace(job.config, differences=self.setting)
        logging.getLogger("byteps").addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        current_job().config = self.config
        logging.getLogger("byteps").removeHandler(self)
