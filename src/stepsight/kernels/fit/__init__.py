"""Fitting the shipped kernel models from measured tables."""
