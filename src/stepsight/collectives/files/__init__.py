"""Benchmark outputs and platform files that hold collective timings."""
