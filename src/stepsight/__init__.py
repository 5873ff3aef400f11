"""How long a training step takes on GPUs you don't have, and why."""
