"""A measured step against its prediction: is it slower than it should be, and why."""
