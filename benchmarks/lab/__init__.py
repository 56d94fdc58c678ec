"""A network of several hosts on one machine, with limited links: see lab.py."""

from benchmarks.lab.lab import Host, Lab, why_impossible

__all__ = ["Host", "Lab", "why_impossible"]
