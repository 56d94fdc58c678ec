"""A network of several hosts on one machine, with limited links: see lab.py."""

from benchmarks.lab.lab import UNLIMITED, Host, Lab, why_impossible
from benchmarks.lab.relay import Impairments

__all__ = ["UNLIMITED", "Host", "Impairments", "Lab", "why_impossible"]
