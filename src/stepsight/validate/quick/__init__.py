"""A minute's check on measured rows that ship with the package."""
