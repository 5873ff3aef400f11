"""Which rows a batch asks for: distributions, index files, reuse."""
