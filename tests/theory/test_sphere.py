"""Features uniform on a sphere."""

from __future__ import annotations

import numpy as np
import pytest

from sifting.theory import rho_gaussian, rho_sphere
from sifting.theory.sphere import largest_residual_square


@pytest.mark.parametrize("R", [2, 5, 100])
def test_rho_on_spheres_against_closed_forms(R):
    assert rho_sphere(R, 1) == 1
    assert rho_sphere(R, 3) == pytest.approx(3 * R / (R + 2), abs=1e-10)  # U is uniform
    assert rho_sphere(R, 10**7) == pytest.approx(rho_gaussian(R, 0, 1), rel=1e-5)
    assert np.all(np.diff(rho_sphere(R, [1, 2, 3, 5, 10, 100])) > 0)


def test_residuals_with_label_noise_meet_both_limits():
    R, d = 4, 5
    only_noise = largest_residual_square([0.0], [1.0], 2.0, d, R)
    assert only_noise == pytest.approx(4 * rho_gaussian(R, 0, 1), rel=1e-9)
    none = largest_residual_square([1.0], [1.0], 0.0, d, R)
    little = [largest_residual_square([1.0], [1.0], s, d, R) for s in (1e-4, 4e-3, 1e-2)]
    assert little[0] == pytest.approx(none, rel=1e-6)
    assert little[1] == pytest.approx(none, rel=1e-3)
    assert none < little[0] < little[1] < little[2]
    assert largest_residual_square([0.0, 0.0], [0.5, 0.5], 0.0, d, R) == 0
