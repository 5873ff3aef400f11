"""Well-known models as data."""
