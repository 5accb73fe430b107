"""How often an early exit of a deep linear network keeps the larger of two losses the larger.

Legend: d width, D_in inputs, k layers, N sampled pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from sifting.theory._checks import FloatOrArray, Floats, deviation, floats, unwrap, whole

PreservationMethod: TypeAlias = Literal["closed", "integral", "lower", "lower_sharp"]
NetworkKind: TypeAlias = Literal["residual", "gaussian", "orthogonal"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


def beta_j(A_j: ArrayLike, B_j: ArrayLike, theta: ArrayLike) -> float:
    """β_j: the cosine between what an exit and what the whole network read from the input.

    >>> beta_j(np.eye(2), [[1, 0], [1, 1]], theta=[1, 1])  # (1, 1) against (2, 1)
    0.94868329805...

    Args:
        A_j: W_j ⋯ W_1, the layers up to the exit.
        B_j: W_k ⋯ W_{j+1}, the layers after it.
        theta: the head, which the exit shares with the last layer.
    """
    theta_d = _matrix("theta", theta, 1)
    A = _matrix("A_j", A_j, 2)
    B = _matrix("B_j", B_j, 2)
    d = theta_d.size
    if B.shape != (d, d) or A.shape[0] != d:
        raise ValueError(
            f"A_j has shape {A.shape}, B_j {B.shape} and theta {theta_d.shape}, but B_j must be "
            f"({d}, {d}) and A_j ({d}, inputs): the head reads the exit and the last layer alike"
        )
    return _cosine(A.T @ theta_d, A.T @ (B.T @ theta_d), layer="this layer")


def argmax_preservation(beta: ArrayLike, *, method: PreservationMethod = "closed") -> FloatOrArray:
    """p_j: the probability that an exit with β_j ranks two samples as the whole network does.

    >>> argmax_preservation([-1, 0, 0.5, 1])
    array([0.        , 0.5       , 0.66666667, 1.        ])
    >>> argmax_preservation(0.9, method="lower"), argmax_preservation(0.9, method="lower_sharp")
    (0.43490..., 0.78205...)

    Args:
        beta: β_j between -1 and 1; negative means worse than a coin.
        method: `closed` is 1/2 + arcsin(β)/π; `integral` the paper's integral, which equals it;
            `lower` the paper's bound 1 - √((2 - 2β²)/(2 - β²)); `lower_sharp` the bound
            1 - √(1 - β²)/2 that the same proof gives with erfc(t) <= exp(-t²). The proofs of the
            last two need β >= 0; below it they give 0 and (1 + β)/2, which hold there.
    """
    beta = floats(
        "beta",
        beta,
        lambda x: np.abs(x) <= 1,
        "-1 <= beta <= 1",
        "it is a cosine; `beta_j` computes it",
    )
    sine_squared = (1 - beta) * (1 + beta)
    if method == "closed":
        # arcsin loses half of the digits near ±1; the half-angle form does not
        angle = 2 * np.arctan2(np.sqrt(1 - beta), np.sqrt(1 + beta))
        return unwrap(1 - angle / np.pi)
    if method == "integral":
        return unwrap(_integral(beta, sine_squared))
    if method == "lower":
        return unwrap(np.where(beta < 0, 0.0, 1 - np.sqrt(2 * sine_squared / (2 - beta**2))))
    if method == "lower_sharp":
        return unwrap(np.where(beta < 0, (1 + beta) / 2, 1 - np.sqrt(sine_squared) / 2))
    raise ValueError(
        f"method = {method!r}, but it must be one of 'closed', 'integral', 'lower', 'lower_sharp'"
    )


@dataclass(frozen=True)
class DeepLinearNetwork:
    """ŷ = sig(θᵀ W_k ⋯ W_1 x), whose every layer can be an exit read by the same head θ.

    >>> network = DeepLinearNetwork([np.eye(2), [[1, 0], [1, 1]]], theta=[1, 1])
    >>> network.betas()
    array([0.9486833, 1.       ])
    >>> network.preservation()
    array([0.89758362, 1.        ])

    Args:
        weights: W_1 … W_k. W_1 may take any number of inputs; the others are square.
        theta: the head.
    """

    weights: Sequence[ArrayLike]
    theta: ArrayLike

    def __post_init__(self) -> None:
        theta_d = _matrix("theta", self.theta, 1)
        if not len(self.weights):
            raise ValueError("weights is empty, but a network needs one layer or more")
        weights = [_matrix(f"weights[{i}]", W, 2) for i, W in enumerate(self.weights)]
        d = theta_d.size
        for i, W in enumerate(weights):
            if W.shape[0] != d or (i > 0 and W.shape[1] != d):
                raise ValueError(
                    f"weights[{i}] has shape {W.shape}, but must have shape "
                    f"({d}, {'inputs' if i == 0 else d}), since theta has {d} entries and reads "
                    "every layer"
                )
        object.__setattr__(self, "weights", tuple(weights))
        object.__setattr__(self, "theta", theta_d)

    @classmethod
    def random(
        cls,
        layers: int,
        width: int,
        *,
        kind: NetworkKind = "residual",
        scale: float = 0.5,
        seed: int = 0,
    ) -> DeepLinearNetwork:
        """A random network: the same seed gives the same one.

        >>> DeepLinearNetwork.random(layers=3, width=64, seed=1).betas().round(3)
        array([0.805, 0.888, 1.   ])

        Args:
            layers: k.
            width: d.
            kind: `residual` layers are I + scale·G with G of variance 1/d, as in networks whose
                blocks add to a stream; `gaussian` are G alone, `orthogonal` uniform rotations,
                both without the identity that keeps an early reading related to the last.
            scale: how much a residual layer adds.
            seed: of the generator.
        """
        k = int(whole("layers", layers, 1, "a network needs one layer or more"))
        d = int(whole("width", width, 1, "a layer needs one unit or more"))
        step = float(deviation("scale", scale))
        rng = np.random.default_rng(seed)
        G_kdd = rng.standard_normal((k, d, d)) / np.sqrt(d)
        if kind == "residual":
            G_kdd = np.eye(d) + step * G_kdd
        elif kind == "orthogonal":
            Q_kdd, R_kdd = np.linalg.qr(G_kdd)
            # the sign of R's diagonal makes the law of Q uniform
            G_kdd = Q_kdd * np.sign(np.einsum("kii->ki", R_kdd))[:, None, :]
        elif kind != "gaussian":
            raise ValueError(
                f"kind = {kind!r}, but it must be one of 'residual', 'gaussian', 'orthogonal'"
            )
        return cls(list(G_kdd), rng.standard_normal(d))

    def readings(self) -> Floats:
        """A_jᵀθ for every layer j, one in a row, scaled to length 1: what an exit there reads."""
        rows = []
        A = np.eye(np.shape(self.weights[0])[1])
        for j, W in enumerate(self.weights, start=1):
            A = np.asarray(W) @ A
            A = A / max(np.abs(A).max(), np.finfo(float).tiny)  # β does not feel the scale
            rows.append(_unit(A.T @ np.asarray(self.theta), layer=f"layer {j}"))
        return np.stack(rows)

    def betas(self) -> Floats:
        """β_1 … β_k. Since B_j A_j = A_k, each is the cosine of a reading with the last one."""
        readings_kD = self.readings()
        cosines_k: Floats = np.clip(readings_kD @ readings_kD[-1], -1.0, 1.0)
        cosines_k[-1] = 1.0  # of a vector with itself, free of rounding
        return cosines_k

    def preservation(self, *, method: PreservationMethod = "closed") -> Floats:
        """p_1 … p_k, by any `method` of `argmax_preservation`."""
        return np.asarray(argmax_preservation(self.betas(), method=method))

    def sample_preservation(
        self, pairs: int = 10_000, *, mean: ArrayLike = 0.0, seed: int = 0
    ) -> Floats:
        """p_1 … p_k as seen: draw pairs of labelled samples, compare their cross-entropies.

        >>> network = DeepLinearNetwork([np.eye(2), [[1, 0], [1, 1]]], theta=[1, 1])
        >>> network.sample_preservation(100_000)
        array([0.89..., 1.     ])

        Labels are fair coins and x = ȳ g with g ~ N(mean, I), which satisfies the theorem's
        assumption on ȳ⁽¹⁾x⁽¹⁾ - ȳ⁽²⁾x⁽²⁾ whatever the mean. The losses are computed from the
        predictions, not from the theorem's margins.

        Args:
            pairs: how many to draw.
            mean: of ȳx, a number or one for each input.
            seed: of the generator.
        """
        n = int(whole("pairs", pairs, 1, "draw one pair or more"))
        rng = np.random.default_rng(seed)
        readings_kD = self.readings()
        g_2ND = rng.standard_normal((2, n, readings_kD.shape[1])) + np.asarray(mean, float)
        y_2N: NDArray[np.int64] = rng.integers(0, 2, (2, n))
        x_2ND = (2 * y_2N - 1)[..., None] * g_2ND
        logits_2Nk = x_2ND @ readings_kD.T
        # sig(z) = 1/(1 + e^z) as in the paper: -log sig(z) = log(1 + e^z)
        loss_2Nk = np.where(
            y_2N[..., None] == 1, np.logaddexp(0, logits_2Nk), np.logaddexp(0, -logits_2Nk)
        )
        first_Nk = loss_2Nk[0] >= loss_2Nk[1]
        kept: Floats = (first_Nk == first_Nk[:, -1:]).mean(0)
        return kept


def _integral(beta: Floats, sine_squared: Floats) -> Floats:
    """The paper's integral with y = 2√(1 - β²) u, whose integrand has width 1 for every β >= 0.

    For β < 0, erfc(-t) = 2 - erfc(t) turns it into one for |β|.
    """
    u = 3.5 * (_NODES + 1)  # to 7: what is beyond is below exp(-49)
    b, s2 = np.abs(beta)[..., None], sine_squared[..., None]
    integral = (np.exp(-s2 * u**2) * special.erfc(b * u) * _WEIGHTS).sum(-1) * 3.5
    missed: Floats = np.sqrt(sine_squared / np.pi) * integral
    return np.where(beta < 0, missed, 1 - missed)


def _cosine(a: Floats, b: Floats, layer: str) -> float:
    return float(np.clip(_unit(a, layer) @ _unit(b, layer), -1.0, 1.0))


def _unit(vector: Floats, layer: str) -> Floats:
    peak = np.abs(vector).max()
    if not peak > 0:
        raise ValueError(
            f"the reading A_jᵀθ of {layer} is 0, but it must not be: every early loss is then "
            "log 2 and β is undefined"
        )
    scaled = vector / peak
    unit: Floats = scaled / np.linalg.norm(scaled)
    return unit


def _matrix(name: str, value: ArrayLike, axes: int) -> Floats:
    array = floats(name, value, np.isfinite, f"{name} finite", "check the weights for NaN")
    if array.ndim != axes or 0 in array.shape:
        raise ValueError(
            f"{name} has shape {array.shape}, but must have {axes} "
            f"{'axis' if axes == 1 else 'axes'}, none of them empty"
        )
    return array
