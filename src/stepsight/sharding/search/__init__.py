"""Search for the plan with the least simulated step time."""
