"""Efficiencies learned from measured tables, evaluated with numpy alone."""
