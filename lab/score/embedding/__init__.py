"""Lookups against measurements."""
