"""Whole steps against measured ones."""
