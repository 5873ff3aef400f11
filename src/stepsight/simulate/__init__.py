"""The engine: all clocks of all ranks in one walk."""
