"""Searches and sweeps as people read them: tables, JSON, CSV and a page."""
