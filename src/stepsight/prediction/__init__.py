"""The prediction: a step time, its reasons, and how far to trust it."""
