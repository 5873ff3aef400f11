"""TorchRec's planner and plan files."""
