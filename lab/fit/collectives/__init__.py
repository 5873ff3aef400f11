"""Collective curves from measured rows."""
