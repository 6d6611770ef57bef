"""Charts as inline SVG, drawn here and readable without script; the page's script adds the values under the pointer."""

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from markupsafe import Markup

from deploy.report.scales import (
    PHASE_NAMES,
    SMALL,
    Frame,
    Point,
    Series,
    Stretch,
    nice,
    phase_rank,
    stretches_of,
    thin,
    x_scale,
    y_range,
)


def chart(
    title: str, series: Sequence[Series], *, frame: Frame = SMALL, share: bool = False, caption: str = ""
) -> Markup:
    """A line chart with axes, legend and intervals. `share`: values are shares of 1, shown as per cent."""
    series = [Series(s.label, thin(s.points), s.colour, s.dots, s.faint) for s in series if s.points]
    stretches = stretches_of(series, frame)
    to_x = x_scale(stretches)
    low, high, ticks = y_range(series, share)
    frame_height = frame.floor - frame.top

    def to_y(value: float) -> float:
        return frame.floor - (min(max(value, low), high) - low) / (high - low) * frame_height

    def show(value: float) -> str:
        return f"{value * 100:.1f} %" if share else short(value)

    tick = (lambda value: f"{value * 100:g}%") if share else short
    parts = [_grid(frame, ticks, to_y, tick), _x_axis(frame, stretches)]
    parts += [_band(s, to_x, to_y) for s in series] + [_line(s, to_x, to_y) for s in series]
    hover = json.dumps(_hover(series, to_x, show), separators=(",", ":"))
    picture = Markup(
        '<svg viewBox="0 0 {w:g} {h:g}" role="img" aria-label="{title}">{body}'
        '<line class="cross" y1="{top:g}" y2="{floor:g}" visibility="hidden"></line></svg>'
    ).format(w=frame.width, h=frame.height, title=title, body=Markup("").join(parts), top=frame.top, floor=frame.floor)
    return Markup(
        '<figure class="chart" data-hover="{hover}"><figcaption><b>{title}</b>{legend}</figcaption>'
        "{picture}{caption}</figure>"
    ).format(
        hover=hover,
        title=title,
        legend=_legend(series),
        picture=picture,
        caption=Markup('<p class="caption">{}</p>').format(caption) if caption else "",
    )


def interval_row(mean: float, low: float, high: float, colour: int) -> Markup:
    """An estimate and its interval on a scale from 0 to 1."""
    low, mean, high = (min(max(v, 0.0), 1.0) * 200 for v in (low, mean, high))
    return Markup(
        '<svg class="interval" viewBox="0 0 200 16" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" x="0" y="6" width="200" height="4" rx="2"></rect>'
        '<rect class="fill c{c}" x="0" y="6" width="{mean:.1f}" height="4" rx="2"></rect>'
        '<rect class="range c{c}" x="{low:.1f}" y="1" width="{width:.1f}" height="14" rx="3"></rect>'
        '<rect class="mark c{c}" x="{at:.1f}" y="1" width="2.4" height="14"></rect></svg>'
    ).format(c=colour, low=low, mean=mean, width=max(1.0, high - low), at=max(0.0, min(mean - 1.2, 197.6)))


def spark(values: Sequence[float]) -> Markup:
    """A curve the size of a word."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = 96 / max(1, len(values) - 1)
    places = " ".join(f"{2 + i * step:.1f},{20 - (v - low) / span * 16:.1f}" for i, v in enumerate(values))
    return Markup(
        '<svg class="spark" viewBox="0 0 100 24" aria-hidden="true"><polyline points="{}"></polyline></svg>'
    ).format(places)


def short(value: float) -> str:
    """A number as an axis can carry it."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{float(mantissa):g}e{int(exponent)}"


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _grid(frame: Frame, ticks: Sequence[float], to_y: Callable[[float], float], show: Callable[[float], str]) -> Markup:
    row = Markup(
        '<line class="grid" x1="{x1:g}" x2="{x2:g}" y1="{y:.1f}" y2="{y:.1f}"></line>'
        '<text class="tick end" x="{tx:g}" y="{ty:.1f}">{text}</text>'
    )
    return Markup("").join(
        row.format(
            x1=frame.left, x2=frame.width - frame.right, y=to_y(t), tx=frame.left - 7, ty=to_y(t) + 4, text=show(t)
        )
        for t in ticks
    )


def _x_axis(frame: Frame, stretches: Sequence[Stretch]) -> Markup:
    parts = []
    for stretch in stretches:
        if stretch is not stretches[0]:
            parts.append(
                Markup('<line class="divide" x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{floor:g}"></line>').format(
                    x=stretch.left - 8, top=frame.top, floor=frame.floor + 20
                )
            )
        steps = 4 if stretch.right - stretch.left > 250 else 1
        parts += [
            Markup('<text class="tick mid" x="{:.1f}" y="{:g}">{}</text>').format(
                stretch.place(update), frame.floor + 15, short(update)
            )
            for update in _x_ticks(stretch, steps)
        ]
        name = PHASE_NAMES.get(stretch.phase, stretch.phase)
        label = name if len(stretches) > 1 else f"{name}, updates"
        parts.append(
            Markup('<text class="axis mid" x="{:.1f}" y="{:g}">{}</text>').format(
                (stretch.left + stretch.right) / 2, frame.floor + 29, label
            )
        )
    return Markup("").join(parts)


def _x_ticks(stretch: Stretch, steps: int) -> list[float]:
    span = stretch.last - stretch.first
    if span == 0:
        return [stretch.first]
    step = nice(span / steps)
    first = math.ceil(stretch.first / step - 1e-9)
    return [i * step for i in range(first, math.floor(stretch.last / step + 1e-9) + 1)]


def _runs(series: Series) -> list[list[Point]]:
    """The stretches that one line joins: sparse dots across phases, a dense curve within each."""
    runs: dict[str, list[Point]] = {}
    for point in series.points:
        runs.setdefault(point.phase, []).append(point)
    ordered = [sorted(runs[phase], key=lambda point: point.update) for phase in sorted(runs, key=phase_rank)]
    return [[point for run in ordered for point in run]] if series.dots else ordered


def _line(series: Series, to_x: Callable[[Point], float], to_y: Callable[[float], float]) -> Markup:
    parts = []
    for run in _runs(series):
        places = " ".join(f"{to_x(p):.1f},{to_y(p.value):.1f}" for p in run)
        kind = "line faint" if series.faint else "line"
        parts.append(Markup('<polyline class="{} c{}" points="{}"></polyline>').format(kind, series.colour, places))
        if series.dots or len(run) == 1:
            parts += [
                Markup('<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="3.2"></circle>').format(
                    series.colour, to_x(p), to_y(p.value)
                )
                for p in run
            ]
    return Markup("").join(parts)


def _band(series: Series, to_x: Callable[[Point], float], to_y: Callable[[float], float]) -> Markup:
    """The intervals of neighbouring points as one area."""
    parts = []
    for run in _runs(series):
        for a, b in pairwise(p for p in run if p.low is not None and p.high is not None):
            corners = ((a, a.low), (b, b.low), (b, b.high), (a, a.high))
            places = " ".join(f"{to_x(p):.1f},{to_y(v):.1f}" for p, v in corners if v is not None)
            parts.append(Markup('<polygon class="band c{}" points="{}"></polygon>').format(series.colour, places))
    return Markup("").join(parts)


def _legend(series: Sequence[Series]) -> Markup:
    if len(series) < 2:
        return Markup("")
    keys = (Markup('<span class="key c{}">{}</span>').format(s.colour, s.label) for s in series)
    return Markup('<span class="legend">{}</span>').format(Markup("").join(keys))


def _hover(
    series: Sequence[Series], to_x: Callable[[Point], float], show: Callable[[float], str]
) -> list[list[object]]:
    """For the script: [x, heading, [[colour, label, value], ...]] at every x that has a point, from left to right."""
    columns: dict[float, tuple[str, list[list[object]]]] = {}
    for s in series:
        for point in s.points:
            heading = f"{PHASE_NAMES.get(point.phase, point.phase)}, update {point.update:g}"
            _, rows = columns.setdefault(round(to_x(point), 1), (heading, []))
            interval = (
                f" ({show(point.low)} to {show(point.high)})"
                if point.low is not None and point.high is not None
                else ""
            )
            rows.append([s.colour, s.label, show(point.value) + interval])
    return [[x, *columns[x]] for x in sorted(columns)]
