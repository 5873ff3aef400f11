"""What every rank does in one training step: plain data, without a single duration."""
