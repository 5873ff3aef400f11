"""Changes that make a job faster, or make it fit, each applied and simulated."""
