"""Trace files in: Kineto, execution traces, Chakra."""
