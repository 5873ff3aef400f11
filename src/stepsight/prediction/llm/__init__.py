"""Language-model training steps, composed from the priced passes of each stage."""
