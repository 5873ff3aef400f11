"""Language models as they are trained on many GPUs: sizes, spread over ranks, and each stage's work."""
