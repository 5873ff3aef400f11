"""A choice of a plan: JSON, terminal, page."""
