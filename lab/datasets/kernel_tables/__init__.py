"""Tables of kernels in, the same rows with their times out."""
