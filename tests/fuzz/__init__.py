"""Mutated inputs: every reader answers with a finite number or a StepsightError."""
