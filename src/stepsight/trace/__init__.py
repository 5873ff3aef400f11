"""A profiler trace as a `Job`: read (kineto), linked (link), sized (calls), cut into steps (program, job)."""
