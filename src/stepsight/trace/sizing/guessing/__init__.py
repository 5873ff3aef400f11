"""Sizes where a trace recorded none: read off grids, names and neighbours."""
