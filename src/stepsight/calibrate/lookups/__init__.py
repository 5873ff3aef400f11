"""Embedding lookups measured on this machine."""
