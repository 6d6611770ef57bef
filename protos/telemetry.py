"""Metrics: plain dicts of name -> Metric, each carrying its own reduction; one writer in `deploy` prints them.

metrics = {"loss/policy": mean(0.3, weight=128), "rollout/invalid": total(4)}
reduce_metrics([metrics, other])   # {"loss/policy": 0.27, "rollout/invalid": 9.0}
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Reduction = Literal["mean", "total", "maximum", "minimum", "last"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured value. `weight` counts what a mean was taken over (0: nothing, the metric is left out)."""

    value: float
    reduction: Reduction
    weight: float = 1.0


Metrics = dict[str, Metric]


def mean(value: float, weight: float = 1.0) -> Metric:
    return Metric(float(value), "mean", float(weight))


def total(value: float) -> Metric:
    return Metric(float(value), "total")


def maximum(value: float) -> Metric:
    return Metric(float(value), "maximum")


def minimum(value: float) -> Metric:
    return Metric(float(value), "minimum")


def last(value: float) -> Metric:
    return Metric(float(value), "last")


def merge_metrics(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """Fold many dicts into one, each metric by its own reduction; a mean over nothing disappears."""
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            if metric.reduction == "mean" and metric.weight == 0:
                continue
            merged[name] = _combine(name, merged[name], metric) if name in merged else metric
    return merged


def reduce_metrics(parts: Iterable[Mapping[str, Metric]]) -> dict[str, float]:
    """`merge_metrics` as plain numbers."""
    return {name: metric.value for name, metric in merge_metrics(parts).items()}


def _combine(name: str, a: Metric, b: Metric) -> Metric:
    if a.reduction != b.reduction:
        raise ValueError(f"metric {name!r} is reduced as {a.reduction} and as {b.reduction}")
    match a.reduction:
        case "mean":
            weight = a.weight + b.weight
            return Metric((a.value * a.weight + b.value * b.weight) / weight, "mean", weight)
        case "total":
            return Metric(a.value + b.value, "total")
        case "maximum":
            return Metric(max(a.value, b.value), "maximum")
        case "minimum":
            return Metric(min(a.value, b.value), "minimum")
        case "last":
            return b
