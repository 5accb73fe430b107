"""The neuron problems: losses, constants, F̂_R and its envelope against plain computation."""

import itertools

import numpy as np
import pytest

from sifting.theory import Neuron, compare_rules, quasar_distance_bound, weakly_convex_bound

LINKS = ["phase", "leaky"]


@pytest.mark.parametrize("link", LINKS)
def test_gradient_smoothness_and_objective(link):
    p = Neuron(dim=4, link=link, samples=30)
    rng = np.random.default_rng(0)
    batch = p.sample(rng, (500,))
    w, v = rng.standard_normal((2, 500, 4)) * 3
    step = 1e-6 * rng.standard_normal((500, 4))
    rise = p.loss(w + step, batch) - p.loss(w - step, batch)
    assert np.allclose(rise, 2 * (p.gradient(w, batch) * step).sum(-1), rtol=1e-4, atol=1e-9)
    change = np.linalg.norm(p.gradient(w, batch) - p.gradient(v, batch), axis=1)
    assert np.all(change <= p.smoothness * np.linalg.norm(w - v, axis=1))
    assert p.objective(p.minimiser) == 0
    assert np.allclose(p.objective(w[:3]), p.losses(w[:3]).mean(-1))
    assert p.distance_to(p.start) <= p.distance + 1e-12


def test_it_is_not_convex_and_phase_retrieval_has_two_minima():
    p = Neuron(dim=3, link="phase")
    ends = np.stack([p.minimiser, -p.minimiser])
    assert np.allclose(p.objective(ends), 0)
    assert p.objective(np.zeros(3)) > 0
    assert p.distance_to(-p.minimiser) == 0
    leaky = Neuron(dim=1, link="leaky", slope=0.1, signal=4, distance=4)
    line = np.linspace(-8, 8, 2001)[:, None]
    assert np.diff(leaky.objective(line), 2).min() < 0


@pytest.mark.parametrize("link", LINKS)
def test_largest_is_the_mean_over_all_tuples_and_its_gradient_too(link):
    p = Neuron(dim=2, link=link, samples=5)
    w = np.array([0.7, -1.3])
    losses = p.losses(w)
    tuples = list(itertools.product(range(5), repeat=3))
    assert p.largest_of(3, w) == pytest.approx(np.mean([losses[list(t)].max() for t in tuples]))
    step = 1e-6 * np.array([0.3, 0.9])
    rise = p.largest_of(3, w + step) - p.largest_of(3, w - step)
    assert rise == pytest.approx(2 * p.largest_gradient(3, w) @ step, rel=1e-4)
    assert p.largest_of(1, w) == pytest.approx(p.objective(w))


def test_the_envelope_where_it_is_known():
    # one dimension and slope 1: F̂_R = h w²/2, whose envelope is Lh/(2L + h) w², ∇ = 2Lh/(2L + h) w
    p = Neuron(dim=1, link="leaky", slope=1.0, samples=1, distance=3)
    assert p.smoothness == 1
    away = p.start - p.minimiser
    value, slope = p.envelope(2, p.start)
    assert value == pytest.approx(1 / 3 * float(away @ away), rel=1e-9)
    assert slope == pytest.approx(2 / 3 * 3, rel=1e-6)


@pytest.mark.parametrize("link", LINKS)
def test_the_envelope_lies_between_its_bounds(link):
    p = Neuron(dim=3, link=link, samples=50)
    for w in p.start + np.random.default_rng(1).standard_normal((10, 3)):
        value, slope = p.envelope(4, w)
        F = p.largest_of(4, w)
        assert value <= F <= 1.5 * value * (1 + 1e-6)
        # the tangent of the strongly convex problem: |∇φ| <= 2 |subgradient at w|
        assert slope <= 2 * np.linalg.norm(p.largest_gradient(4, w)) * (1 + 1e-6)


def test_gsgd_obeys_the_bounds_in_many_dimensions():
    # 20 runs of 200 steps in 5 dimensions, seed 0
    leaky = Neuron(dim=5, link="leaky", slope=0.6)
    eta = leaky.aim / (2 * leaky.smoothness)
    steps = np.array([1, 10, 50, 200])
    run = compare_rules(leaky, K=200, B=4, eta=eta, runs=20, checkpoints=steps).arms["GSGD"]
    square = (leaky.distance_to(run.last_CSD) ** 2).mean(1)
    args = (leaky.smoothness, leaky.distance, 1.0, leaky.growth)
    assert np.all(square <= quasar_distance_bound(steps, eta, *args, c=leaky.aim))
    phase = Neuron(dim=5, link="phase")
    eta = 1 / (phase.smoothness * np.sqrt(600))
    run = compare_rules(phase, K=200, B=4, eta=eta, runs=6, checkpoints=steps).arms["GSGD"]
    F0 = phase.envelope(4, phase.start)[0]
    for k, some in zip(steps[:-1], run.last_CSD, strict=False):
        square = np.mean([phase.envelope(4, w)[1] ** 2 for w in some])
        assert square <= weakly_convex_bound(k + 1, eta, phase.smoothness, F0)


def test_the_constants_of_the_leaky_neuron():
    p = Neuron(dim=3, link="leaky", slope=0.4)
    assert p.aim == pytest.approx(0.8)
    assert p.pl_constant(2.0) == pytest.approx(p.aim**2 * 2 * p.growth / 4)
    c = p.constants(4)
    assert (c.F_star, c.Delta, c.rho_star, c.convex) == (0, 0, 1, False)
    assert np.isclose(c.D0, p.distance)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim = 0"),
        ({"samples": 0}, "samples = 0"),
        ({"link": "relu"}, "link = 'relu', but"),
        ({"slope": 0.0}, "slope = 0, but 0 < slope <= 1"),
        ({"slope": 1.1}, "slope = 1.1"),
        ({"width": 0.0}, "width = 0"),
        ({"signal": -1.0}, "signal = -1"),
        ({"distance": -1.0}, "distance = -1"),
    ],
)
def test_out_of_domain_input_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Neuron(**changes)


def test_what_only_the_leaky_neuron_has():
    for name in ("aim", "growth"):
        with pytest.raises(ValueError, match=f"{name} of link = 'phase'"):
            getattr(Neuron(), name)
    with pytest.raises(ValueError, match="R = 1"):
        Neuron().constants(1)
