"""Contenders that take turns: what they are (contender.py), how they speak (rank.py), how they are timed."""
