"""How long the theory's larger computations take: `python benchmarks/theory.py`.

The best of three, in one process; numpy may use both cores for what it likes.
"""

import platform
import time
from collections.abc import Callable

import numpy as np
import scipy

from sifting.theory import (
    LeastSquares,
    LogisticRegression,
    Neuron,
    Pairs,
    compare_rules,
    estimate,
    p_noise_many,
    rho_gaussian,
    rho_noisy,
    simulate,
)


def best_of_three(job: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the fastest of three, and of the processor in the one that needed least."""
    walls, cpus = [], []
    for _ in range(3):
        start, used = time.perf_counter(), time.process_time()
        job()
        walls.append(time.perf_counter() - start)
        cpus.append(time.process_time() - used)
    return min(walls), min(cpus)


def main() -> None:
    """Print a table."""
    rng = np.random.default_rng(0)
    exact = rng.exponential(size=(1000, 256))
    pairs = Pairs.of(exact * np.exp(0.3 * rng.standard_normal(exact.shape)), exact)
    squares, logistic = LeastSquares(dim=20), LogisticRegression(dim=20)
    jobs: dict[str, Callable[[], object]] = {
        "simulate least squares, 200 runs × 10,000 steps × d = 20, R = 2": lambda: simulate(
            squares, K=10_000, R=2, runs=200
        ),
        "the same with a noisy arm": lambda: simulate(squares, K=10_000, R=2, runs=200, sigma=0.3),
        "the same, R = 8": lambda: simulate(squares, K=10_000, R=8, runs=200),
        "logistic regression, R = 2": lambda: simulate(logistic, K=10_000, R=2, runs=200),
        "SGD, GSGD and kept, 200 runs × 10,000 steps × d = 20, B = 2": lambda: compare_rules(
            squares, K=10_000, B=2, runs=200
        ),
        "the same, B = 8": lambda: compare_rules(squares, K=10_000, B=8, runs=200),
        "the same in phase retrieval, B = 8": lambda: compare_rules(
            Neuron(dim=20), K=10_000, B=8, runs=200
        ),
        "worst case of Gaussian noise at 1,000 σ, R = 8": lambda: p_noise_many(
            np.linspace(0, 3, 1000), 8, method="gaussian"
        ),
        "exact ρ of the top 32 of 64 at 20 σ": lambda: rho_noisy(64, np.linspace(0, 2, 20), k=32),
        "estimate from 1,000 batches of 256, 1,000 resamples": lambda: estimate(pairs),
        "exact ρ_R at 1,000 values of R": lambda: rho_gaussian(np.arange(2, 1002), 0.5, 1),
    }
    print(f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}")
    for name, job in jobs.items():
        wall, cpu = best_of_three(job)
        print(f"{wall:7.2f} s, {cpu:6.2f} s of processor  {name}", flush=True)


if __name__ == "__main__":
    main()
