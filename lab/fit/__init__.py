"""Makes the models that ship, from measured tables and traces."""
