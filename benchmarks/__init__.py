"""Measures of byteps beside its bounds and its peers; README.md explains each."""
