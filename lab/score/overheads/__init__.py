"""Host overheads of one workload, from the others."""
