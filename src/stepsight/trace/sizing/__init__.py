"""Which kernel with which sizes a launch was."""
