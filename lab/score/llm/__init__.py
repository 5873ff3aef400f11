"""Language-model training, predicted and measured: iteration times, memory, and what fits."""
