"""GPUs, links and hosts as data: specifications and the catalogue."""
