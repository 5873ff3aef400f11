"""Host overheads from published studies and traces."""
