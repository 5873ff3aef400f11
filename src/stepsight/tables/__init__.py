"""Embedding tables, the plans that place them, and the indices that are looked up."""
