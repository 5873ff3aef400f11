"""How much of what a model misses on one GPU it misses on another."""
