"""``python -m stepsight``."""

from stepsight.cli import main

main()
