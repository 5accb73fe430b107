"""A thousand finite-sum problems at once, for bounds that must hold on every one."""

from __future__ import annotations

import numpy as np

P = 1000  # random problems


class Problems:
    """P finite-sum problems at once: squares, or logistic losses, of n samples in D dimensions.

    Legend: P problems, n samples, D dimensions. Among them problems with a perfect fit, with
    all losses equal at the start, with a single direction, and with losses of 0.
    """

    def __init__(self, seed, n=4, D=2, logistic=False):
        rng = np.random.default_rng(seed)
        self.x = rng.standard_normal((P, n, D)) * rng.choice([0.2, 1, 3], (P, n, 1))
        self.x[: P // 20, :, 1:] = 0  # one direction only
        truth = 2 * rng.standard_normal((P, D))
        noise = rng.standard_normal((P, n)) * rng.choice([0, 0.1, 3], (P, 1))
        self.y = np.einsum("pnd,pd->pn", self.x, truth) + noise
        self.y[P // 20 : P // 10] = 0.0  # every loss equal (to 0) at w = 0
        self.w0 = truth + rng.standard_normal((P, D)) * rng.choice([0, 1, 10], (P, 1))
        self.w0[P // 20 : P // 10] = 0.0
        self.L = (self.x**2).sum(-1).max(-1)
        A = np.einsum("pnd,pne->pde", self.x, self.x) / n
        b = np.einsum("pnd,pn->pd", self.x, self.y) / n
        gap = b - np.einsum("pde,pe->pd", A, self.w0)
        # the nearest minimiser
        self.best = self.w0 + np.einsum("pde,pe->pd", np.linalg.pinv(A, rcond=1e-10), gap)
        self.L_F = np.linalg.eigvalsh(A)[:, -1]
        self.F_star = self.F(self.best)
        self.D0 = np.linalg.norm(self.w0 - self.best, axis=1)
        self.epsilon = rng.choice([0, 1e-3, 0.05, 0.3, 0.9], P) * rng.uniform(0.5, 1, P)
        self.fraction = rng.uniform(0.02, 0.98, P)  # of the longest step

    def losses(self, w):
        """(P, ..., n) for w of shape (P, ..., D)."""
        shape = (P, *[1] * (w.ndim - 2), self.x.shape[1])
        return (np.einsum("pnd,p...d->p...n", self.x, w) - self.y.reshape(shape)) ** 2 / 2

    def F(self, w):
        return self.losses(w).mean(-1)

    def gradients(self, w):
        """(P, n, D) for w of shape (P, D)."""
        return (np.einsum("pnd,pd->pn", self.x, w) - self.y)[..., None] * self.x
