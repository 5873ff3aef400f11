"""Picks of `stepsight.tune` against configurations that were really run."""
