"""The estimators against enumeration of subsets, known laws, and their own coverage."""

import numpy as np
import pytest

from sifting.theory import (
    Interval,
    Pairs,
    estimate,
    estimation,
    p_noise,
    rho_gaussian,
    sigma_max,
)


def test_known_laws():
    # 200 batches of 64, seed 0: Gaussian squared errors and log-noise of 0.3; tolerance 3 %
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((200, 64)) ** 2
    early = exact * np.exp(1.5 + 0.3 * rng.standard_normal(exact.shape))
    for R in (2, 8):
        e = estimate(Pairs.of(early, exact), R=R, seed=1)
        assert e.rho.value == pytest.approx(rho_gaussian(R, 0, 1), rel=0.03)
        assert e.rho_2_approx.value >= p_noise(0.3, method="gaussian") * e.rho_2.value
    assert e.sigma.value == pytest.approx(0.3, rel=0.03)
    assert e.mu.value == pytest.approx(1.5, abs=0.01)
    assert e.slope.value == pytest.approx(1, abs=0.01)
    assert (e.batches, e.pairs, e.dropped, e.nonpositive) == (200, 12_800, 0, 0)


@pytest.mark.parametrize(("batches", "n"), [(40, 32), (1, 150), (4, 48)])
def test_intervals_cover_the_truth_about_as_often_as_they_say(batches, n):
    # 80 experiments at 90 %: 72 are expected, 61 or more are accepted (4 standard deviations)
    rng = np.random.default_rng(2)
    hits = {"rho": 0, "sigma": 0, "mu": 0, "slope": 0}
    truth = {"rho": 1 + 1 / 2 + 1 / 3, "sigma": 0.5, "mu": 0.0, "slope": 1.0}
    for seed in range(80):
        exact = rng.exponential(size=(batches, n))  # the largest of R is 1 + 1/2 + … + 1/R
        early = exact * np.exp(0.5 * rng.standard_normal(exact.shape))
        e = estimate(Pairs.of(early, exact), R=3, confidence=0.9, resamples=200, seed=seed)
        for name in hits:
            interval = getattr(e, name)
            hits[name] += interval.low <= truth[name] <= interval.high
    assert min(hits.values()) >= 61


def test_whole_batches_are_resampled_where_they_differ(monkeypatch):
    # 30 batches, of which the hard ones are uneven and the easy ones even; seed 3
    rng = np.random.default_rng(3)
    level = np.exp(rng.standard_normal((30, 1)))
    shape = np.where(level > 1, 0.3, 6.0)
    exact = level * rng.gamma(shape, 1 / shape, (30, 64))
    whole = estimate(Pairs.of(exact, exact)).kept_exact
    monkeypatch.setattr(estimation, "CLUSTERS", 31)
    within = estimate(Pairs.of(exact, exact)).kept_exact
    assert whole.value == within.value
    assert whole.high - whole.low > 2 * (within.high - within.low)


def test_a_perfect_and_a_reversed_proxy():
    exact = np.random.default_rng(4).exponential(size=(25, 32))
    perfect = estimate(Pairs.of(2 * exact, exact))
    assert perfect.sigma.value == pytest.approx(0, abs=1e-12)
    assert perfect.mu.value == pytest.approx(np.log(2))
    assert (perfect.preservation.value, perfect.recall.value) == (1, 1)
    assert perfect.rho == perfect.rho_approx
    assert perfect.kept == perfect.kept_exact
    reverse = estimate(Pairs.of(1 / exact, exact))
    assert (reverse.preservation.value, reverse.recall.value) == (0, 0)
    p = reverse.predict()
    assert p.verdict.startswith("Stop")
    assert p.noise_refuted
    assert p.break_even.value == 0 == p.kept_break_even.high
    assert p.kept_speedup.high < 1


def test_a_useless_proxy_is_told_from_nothing():
    exact, early = np.random.default_rng(5).exponential(size=(2, 60, 32))
    e = estimate(Pairs.of(early, exact))
    assert e.kept.low < 1 < e.kept.high
    assert e.recall.low < 0.5 < e.recall.high
    assert e.predict().verdict == "Selection is not told apart from keeping at random."


def test_prediction_for_a_good_proxy():
    rng = np.random.default_rng(6)
    exact = rng.exponential(size=(60, 64))
    e = estimate(Pairs.of(exact * np.exp(0.1 * rng.standard_normal(exact.shape)), exact))
    p = e.predict()
    assert p.speedup == e.rho_approx
    assert p.kept_speedup == e.kept
    assert p.break_even.value == pytest.approx(e.rho_approx.value - 1)
    assert p.sigma_max == pytest.approx(sigma_max(e.rho_2.value))
    assert p.sigma_max_symmetric > p.sigma_max
    assert p.sigma_below is True
    assert p.rho_2_lower <= e.rho_2_approx.value
    assert not p.noise_refuted
    assert p.verdict.startswith("The bounds allow up to 1.6")
    at_break_even = p.time_ratio(e.kept.value - 1)
    assert at_break_even.value == pytest.approx(1)
    assert at_break_even.low < 1 < at_break_even.high
    assert p.time_ratio(0.1).value < 1
    with pytest.raises(ValueError, match="scoring_cost = -1"):
        p.time_ratio(-1)


def test_noise_above_and_near_the_limit():
    rng = np.random.default_rng(7)
    exact = rng.exponential(size=(60, 64))
    limit = sigma_max(estimate(Pairs.of(exact, exact)).rho_2.value)
    noise = rng.standard_normal(exact.shape)
    verdicts = [
        estimate(Pairs.of(exact * np.exp(s * noise), exact)).predict().sigma_below
        for s in (0.8 * limit, limit, 1.3 * limit)
    ]
    assert verdicts == [True, None, False]


def test_zero_losses_are_left_out_of_the_logs_only():
    exact = np.array([0.0, 1.0, 2.0, 3.0])
    e = estimate(Pairs.of([0.5, 1.0, -1.0, 6.0], exact), resamples=10)
    assert e.nonpositive == 2
    assert e.rho.value == pytest.approx((1 + 2 + 3 + 2 + 3 + 3) / 6 / 1.5)
    assert e.mu.value == pytest.approx(np.log(2) / 2)
    none = estimate(Pairs.of([0.0, 0.0, 0.0, 0.0], exact), resamples=10)
    assert np.isnan(none.sigma.value)
    assert none.preservation.value == 0.5
    assert none.predict().sigma_below is None
    assert none.rho_approx.value == pytest.approx(1)  # every pick is a random one


def test_small_batches_are_dropped_and_counted():
    pairs = Pairs.of([np.ones(2), np.arange(5.0)], [np.ones(2), np.arange(5.0)])
    e = estimate(pairs, R=4, resamples=10)
    assert (e.batches, e.dropped, e.pairs) == (1, 1, 5)


def test_a_huge_batch_is_dealt_into_blocks():
    rng = np.random.default_rng(8)
    exact = rng.exponential(size=20_000)
    e = estimate(Pairs.of(exact, exact), R=2)
    assert e.rho.value == pytest.approx(1.5, rel=0.02)
    assert (e.batches, e.pairs) == (1, 20_000)


def test_same_seed_same_intervals():
    exact, early = np.random.default_rng(9).exponential(size=(2, 5, 20))
    pairs = Pairs.of(early, exact)
    assert estimate(pairs, seed=1) == estimate(pairs, seed=1)
    assert estimate(pairs, seed=1).rho != estimate(pairs, seed=2).rho
    assert str(Interval(1.5, 1.25, 2)) == "1.5 [1.25, 2]"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"R": 1}, "R = 1"),
        ({"R": 9}, "R = 9, but no batch has so many candidates .the largest has 4."),
        ({"keep": 0}, "keep = 0, but 0 < keep <= 1"),
        ({"keep": 1.5}, "keep = 1.5"),
        ({"confidence": 1}, "confidence = 1, but confidence < 1"),
        ({"confidence": 0}, "confidence = 0"),
        ({"resamples": 0}, "resamples = 0"),
    ],
)
def test_out_of_domain_input_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        estimate(Pairs.of(np.arange(4.0), np.arange(4.0)), **changes)


def test_losses_that_are_all_zero_have_no_ratio():
    with pytest.raises(ValueError, match="every exact loss is 0"):
        estimate(Pairs.of([1.0, 2.0], [0.0, 0.0]))
