"""The benchmarks that a calibration runs."""
