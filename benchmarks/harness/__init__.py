"""Measures contenders (contender.py), which speak rank.py's protocol, in turns."""
