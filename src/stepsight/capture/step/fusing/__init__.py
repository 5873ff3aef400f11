"""What torch.compile makes of a compiled region: fewer kernels that move less memory, approximated."""
