"""Language models as they are trained on many GPUs: sizes, layout over ranks, and each stage's work."""
