"""The paper's theory as functions to call, plot and check: bounds, simulation, estimation.

Read in this order: `bounds` (how fast, how far), `noise` (what approximate losses cost),
`gaussian` and `sphere` (how large ρ is), `linear` (how often an early exit keeps the order),
`problems`, `objective` and `simulation` (all of it against measurement), `pairs` and `estimation`
(all of it from a run's own log). Past the paper: `kept` and `kept_bounds` (select only while the
kept carry the loss), `weak` and `nonconvex` (without convexity), `many` and `noisy` (noise, for
any number of candidates), `adaptive` (the first two against measurement).
"""

from sifting.theory.adaptive import Course, RuleComparison, compare_rules
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
from sifting.theory.kept import (
    kept_gradient_gap,
    kept_loss_speedup,
    kept_share,
    safe_ratio,
)
from sifting.theory.kept_bounds import (
    decaying_bound,
    kept_loss_bound,
    kept_loss_floor,
    kept_slack,
    kept_smoothness,
)
from sifting.theory.linear import DeepLinearNetwork, argmax_preservation, beta_j
from sifting.theory.many import normal_max, p_noise_many, sigma_max
from sifting.theory.noise import (
    SIGMA_LIMIT,
    h,
    h_argmax,
    h_max,
    p_noise,
    rho_2_approx_lower,
)
from sifting.theory.noisy import rho_noisy, sample_rho_noisy
from sifting.theory.nonconvex import Neuron
from sifting.theory.objective import OwnObjective
from sifting.theory.pairs import Pairs, read_pairs
from sifting.theory.problems import Constants, LeastSquares, LogisticRegression
from sifting.theory.simulation import Simulation, simulate
from sifting.theory.sphere import rho_sphere
from sifting.theory.weak import (
    pl_bound,
    pl_step_size,
    quasar_bound,
    quasar_distance_bound,
    weakly_convex_bound,
)

__all__ = [
    "SIGMA_LIMIT",
    "Constants",
    "Course",
    "DeepLinearNetwork",
    "Estimates",
    "Interval",
    "LeastSquares",
    "LogisticRegression",
    "Neuron",
    "OwnObjective",
    "Pairs",
    "Prediction",
    "RuleComparison",
    "Simulation",
    "argmax_preservation",
    "best_step_size",
    "beta_j",
    "compare_rules",
    "crossover_iterations",
    "crossover_value",
    "decaying_bound",
    "estimate",
    "gsgd_bound",
    "h",
    "h_argmax",
    "h_max",
    "kept_gradient_gap",
    "kept_loss_bound",
    "kept_loss_floor",
    "kept_loss_speedup",
    "kept_share",
    "kept_slack",
    "kept_smoothness",
    "normal_max",
    "nu",
    "p_noise",
    "p_noise_many",
    "pl_bound",
    "pl_step_size",
    "quasar_bound",
    "quasar_distance_bound",
    "read_pairs",
    "rho_2_approx_lower",
    "rho_gaussian",
    "rho_gaussian_lower",
    "rho_noisy",
    "rho_sphere",
    "safe_ratio",
    "sample_rho_noisy",
    "sgd_bound",
    "sigma_max",
    "simulate",
    "step_size_ok",
    "step_speedup",
    "weakly_convex_bound",
]
