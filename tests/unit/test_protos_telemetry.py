"""Metrics fold by their own reduction, in any grouping."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.telemetry import Metric, last, maximum, mean, merge_metrics, minimum, reduce_metrics, total


def test_the_docstring_example():
    parts = [{"loss/policy": mean(0.3, weight=128), "rollout/invalid": total(4)}]
    parts.append({"loss/policy": mean(0.24, weight=128), "rollout/invalid": total(5)})
    assert reduce_metrics(parts) == {"loss/policy": pytest.approx(0.27), "rollout/invalid": 9.0}


VALUES = st.lists(st.tuples(st.floats(-100, 100), st.integers(1, 5)), min_size=1, max_size=12)


@given(VALUES, st.integers(0, 12))
def test_each_reduction_is_what_its_name_says_however_it_is_grouped(values, cut):
    def parts(make):
        return [{"x": make(value, weight)} for value, weight in values]

    numbers = [value for value, _ in values]
    spread = [value for value, weight in values for _ in range(weight)]
    expected = {
        mean: statistics.fmean(spread),
        total: math.fsum(numbers),
        maximum: max(numbers),
        minimum: min(numbers),
        last: numbers[-1],
    }
    for make, value in expected.items():
        rows = parts(lambda v, w, make=make: make(v, w) if make is mean else make(v))
        assert reduce_metrics(rows)["x"] == pytest.approx(value, abs=1e-9)
        grouped = [merge_metrics(rows[:cut]), merge_metrics(rows[cut:])]
        assert reduce_metrics(grouped)["x"] == pytest.approx(value, abs=1e-9)


def test_a_mean_over_nothing_disappears():
    assert merge_metrics([{"x": mean(math.nan, weight=0)}]) == {}
    assert merge_metrics([{"x": mean(math.nan, weight=0)}, {"x": mean(2.0)}]) == {"x": Metric(2.0, "mean", 1.0)}


def test_one_name_with_two_reductions_is_a_mistake():
    with pytest.raises(ValueError, match="'x' is reduced as total and as last"):
        merge_metrics([{"x": total(1)}, {"x": last(1)}])
