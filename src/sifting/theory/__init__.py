"""The paper's theory as functions to call, plot and check: bounds, simulation, estimation.

Read in this order: `bounds` (how fast, how far), `noise` (what approximate losses cost),
`gaussian` (how large ρ is), `linear` (how often an early exit keeps the order), `problems` and
`simulate` (all of it against measurement), `estimate` (all of it from a run's own log).
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
from sifting.theory.problems import Constants, LeastSquares, LogisticRegression, rho_sphere
from sifting.theory.simulate import Simulation, simulate
