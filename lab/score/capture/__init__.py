"""Captured scripts against measured steps: models of libraries, traced runs, published training runs."""
