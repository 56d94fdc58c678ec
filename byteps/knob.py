"""Definition of a setting: its environment variables, parser, unit and documentation.

Pure functions. A parser returns the value, or raises a ValueError that says what it expected.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")
Parser = Callable[[str], T]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A row of the table in `byteps.config`."""

    names: tuple[str, ...]  # the first one that is set is used; empty: derived from other fields
    parse: Callable[[str], object]
    unit: str = ""
    doc: str
    default: object
    secret: bool = False  # never shown


def knob(default: T, *names: str, parse: Parser[T], doc: str, unit: str = "", secret: bool = False) -> T:
    """Returns a dataclass field that the environment variables `names` set."""
    about = Knob(names=names, parse=parse, unit=unit, doc=doc, default=default, secret=secret)
    return dataclasses.field(default=default, repr=not secret, metadata={"knob": about})


def derived(default: T, doc: str) -> T:
    """Returns a dataclass field that is derived from others."""
    return knob(default, parse=_not_parsed, doc=doc)


def integer(low: int, high: int) -> Parser[int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def port(text: str) -> tuple[int, ...]:
    return (integer(1, 65535)(text),)


def seconds(low: float, high: float) -> Parser[float]:
    def parse(text: str) -> float:
        value = float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{0,9})?", text) else -1.0
        if not low <= value <= high:
            raise ValueError(f"seconds from {low:g} to {high:g}")
        return value

    return parse


def number(low: float, high: float) -> Parser[float]:
    def parse(text: str) -> float:
        value = float(text) if re.fullmatch(r"[0-9]{1,18}(\.[0-9]{0,9})?", text) else -1.0
        if not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return value

    return parse


def size_bytes(low: int, high: int, *, clips: bool = False) -> Parser[int]:
    """Args: `clips`: larger values become `high`."""

    def parse(text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,18})\s*([KMG]?)(?:i?B)?", text, re.IGNORECASE)
        value = int(match[1]) * _UNITS[match[2].upper()] if match else -1
        if clips:
            value = min(value, high)
        if not low <= value <= high:
            raise ValueError(f"bytes from {low} to {high} (suffixes K, M, G count in 1024s)")
        return value

    return parse


def flag(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError("1 or 0")
    return text.lower() in _TRUE


def choice(*values: str, aliases: dict[str, str] | None = None) -> Parser[str]:
    def parse(text: str) -> str:
        word = (aliases or {}).get(text.lower(), text.lower())
        if word not in values:
            raise ValueError("one of " + ", ".join(values))
        return word

    return parse


def word(pattern: str, expected: str) -> Parser[str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(expected)
        return text

    return parse


def unbounded(text: str) -> float:
    if text.lower() not in {"inf", "infinity"}:
        raise ValueError("inf")
    return math.inf


def either(*parsers: Parser[T]) -> Parser[T]:
    """Returns a parser that uses the first of `parsers` that accepts the text."""

    def parse(text: str) -> T:
        expected = []
        for parser in parsers:
            try:
                return parser(text)
            except ValueError as error:
                expected.append(str(error))
        raise ValueError(", or ".join(expected))

    return parse


def _not_parsed(text: str) -> NoReturn:
    raise AssertionError(f"a derived field has no variable to read {text!r} from")
