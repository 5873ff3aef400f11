"""Collectives: from measured curves to any message, group and topology."""

from stepsight.collectives.curve import Curve

__all__ = ["Curve"]
