"""What a plan costs: the whole simulated step."""
