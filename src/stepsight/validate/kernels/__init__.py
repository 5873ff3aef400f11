"""Kernel models against measurements."""
