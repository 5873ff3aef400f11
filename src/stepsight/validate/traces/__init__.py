"""Traces: read, replayed, predicted."""
