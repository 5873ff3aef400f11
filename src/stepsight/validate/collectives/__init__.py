"""Collectives against measurements."""
