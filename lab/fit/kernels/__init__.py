"""Kernel models from the measured kernel tables."""
