"""The paper's theory as functions to call, plot and check: bounds, simulation, estimation.

Read in this order: `bounds` (how fast, how far), `noise` (what approximate losses cost),
`gaussian` and `sphere` (how large ρ is), `linear` (how often an early exit keeps the order),
`problems`, `objective` and `simulation` (all of it against measurement), `pairs` and `estimation`
(all of it from a run's own log).
"""

from sifting.theory.bounds import (
    best_step_size,
    crossover_iterations,
    crossover_value,
    gsgd_bound,
    sgd_bound,
    step_size_ok,
    step_speedup,
)
from sifting.theory.estimation import Estimates, Interval, Prediction, estimate
from sifting.theory.gaussian import nu, rho_gaussian, rho_gaussian_lower
from sifting.theory.linear import DeepLinearNetwork, argmax_preservation, beta_j
from sifting.theory.noise import (
    SIGMA_LIMIT,
    h,
    h_argmax,
    h_max,
    p_noise,
    p_noise_many,
    rho_2_approx_lower,
    sigma_max,
)
from sifting.theory.objective import Objective
from sifting.theory.pairs import Pairs, read_pairs
from sifting.theory.problems import Constants, LeastSquares, LogisticRegression
from sifting.theory.simulation import Simulation, simulate
from sifting.theory.sphere import rho_sphere

__all__ = [
    "SIGMA_LIMIT",
    "Constants",
    "DeepLinearNetwork",
    "Estimates",
    "Interval",
    "LeastSquares",
    "LogisticRegression",
    "Objective",
    "Pairs",
    "Prediction",
    "Simulation",
    "argmax_preservation",
    "best_step_size",
    "beta_j",
    "crossover_iterations",
    "crossover_value",
    "estimate",
    "gsgd_bound",
    "h",
    "h_argmax",
    "h_max",
    "nu",
    "p_noise",
    "p_noise_many",
    "read_pairs",
    "rho_2_approx_lower",
    "rho_gaussian",
    "rho_gaussian_lower",
    "rho_sphere",
    "sgd_bound",
    "sigma_max",
    "simulate",
    "step_size_ok",
    "step_speedup",
]
