"""Operator ↔ launch call ↔ kernel."""
