"""Library calls and the GPU kernels they launch: one table for described, captured and traced steps."""
