"""Lookup models from measured lookups."""
