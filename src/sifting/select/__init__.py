"""From scores to indices and weights: pure."""

from sifting.select.policies import Percentile, Policy, Proportional, Random, Top

__all__ = ["Percentile", "Policy", "Proportional", "Random", "Top"]
