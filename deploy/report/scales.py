"""The scales of a chart: what is drawn, and where a value stands in the picture.

An x position is (phase, update): each phase has its own stretch of the axis, the last one the widest.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

PHASE_NAMES = {"warm_start": "warm start", "policy": "reinforcement learning"}
MAXIMUM_POINTS = 240
"""Points drawn of one series; longer ones are averaged in bins."""


@dataclass(frozen=True, slots=True)
class Point:
    phase: str
    update: float
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    points: Sequence[Point]
    colour: int  # 1 .. 6 of the page's palette
    dots: bool = False
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The plot area within the picture, in its units (about pixels)."""

    width: float
    height: float
    left: float = 46
    right: float = 14
    top: float = 12
    bottom: float = 34

    @property
    def inner_width(self) -> float:
        return self.width - self.left - self.right

    @property
    def floor(self) -> float:
        return self.height - self.bottom


SMALL = Frame(520, 210)
WIDE = Frame(1080, 330)


@dataclass(frozen=True, slots=True)
class Stretch:
    """One phase's part of the x axis."""

    phase: str
    first: float
    last: float
    left: float
    right: float

    def place(self, update: float) -> float:
        if self.last == self.first:
            return (self.left + self.right) / 2
        return self.left + (update - self.first) / (self.last - self.first) * (self.right - self.left)


def stretches_of(series: Iterable[Series], frame: Frame) -> list[Stretch]:
    spans: dict[str, tuple[float, float]] = {}
    for point in (point for s in series for point in s.points):
        first, last = spans.get(point.phase, (point.update, point.update))
        spans[point.phase] = (min(first, point.update), max(last, point.update))
    order = sorted(spans, key=phase_rank)
    gap = 16.0
    weights = [1.0 if phase == order[-1] else 0.3 for phase in order]
    unit = (frame.inner_width - gap * (len(order) - 1)) / (sum(weights) or 1)
    stretches, left = [], frame.left
    for phase, weight in zip(order, weights, strict=True):
        stretches.append(Stretch(phase, *spans[phase], left, left + weight * unit))
        left += weight * unit + gap
    return stretches


def x_scale(stretches: Sequence[Stretch]) -> Callable[[Point], float]:
    by_phase = {stretch.phase: stretch for stretch in stretches}
    return lambda point: by_phase[point.phase].place(point.update)


def y_range(series: Iterable[Series], share: bool) -> tuple[float, float, list[float]]:
    """Low, high and ticks: shares stand on 0, and go to 1 where they come near it."""
    values = [v for s in series for p in s.points for v in (p.value, p.low, p.high) if v is not None]
    low, high = min(values), max(values)
    if share and low >= 0:
        low, high = 0.0, 1.0 if high > 0.6 else max(high, 0.01)
    elif low >= 0 and low < 0.6 * high:
        low = 0.0
    if high == low:
        low, high = low - (abs(low) or 1) * 0.5, high + (abs(high) or 1) * 0.5
    step = nice((high - low) / 4)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    count = round((high - low) / step)
    return low, high, [low + i * step for i in range(count + 1)]


def nice(raw: float) -> float:
    """The next step of 1, 2, 2.5, 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)


def thin(points: Sequence[Point]) -> list[Point]:
    """At most MAXIMUM_POINTS, bins of neighbours averaged; phases stay apart, ends stay whole."""
    if len(points) <= MAXIMUM_POINTS:
        return list(points)
    size = math.ceil(len(points) / MAXIMUM_POINTS)
    thinned: list[Point] = []
    for phase in dict.fromkeys(point.phase for point in points):
        of_phase = [point for point in points if point.phase == phase]
        for start in range(0, len(of_phase), size):
            part = of_phase[start : start + size]
            thinned.append(Point(phase, part[-1].update, sum(p.value for p in part) / len(part)))
    return thinned


def phase_rank(phase: str) -> bool:
    """The warm start stands first."""
    return phase != "warm_start"
