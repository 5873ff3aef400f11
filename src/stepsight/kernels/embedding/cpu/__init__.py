"""Lookups on a CPU, from its own measurements."""
