"""The choice of a plan against what plans really take."""
