"""The curves of a run: which metrics are drawn together, under which title, and the split of its time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from markupsafe import Markup

from deploy.console import number
from deploy.report.charts import chart, spark
from deploy.report.read import Record, RunData
from deploy.report.scales import Point, Series

SPLIT_PARTS = 5
"""Parts of the time that are named; the rest is one part."""
LEARNER_PARTS = ("weigh", "reference", "proximal", "pack", "forward", "backward", "step")
"""Those of `learner/seconds/` that exclude each other."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line: its label and the metric names it may go by, the first that a run has."""

    label: str
    names: tuple[str, ...]
    held_out: bool = False  # read from the evaluations, not from the updates


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    curves: tuple[Curve, ...]
    caption: str = ""
    share: bool = False
    source: str = "metrics"


SECTIONS: dict[str, tuple[Plot, ...]] = {
    "Acting": (
        Plot(
            "Entropy of actions",
            (Curve("nats", ("rollout/entropy", "policy_gradient/behaviour_entropy", "*/entropy")),),
            "Nats per action token. Near 0 the policy no longer explores.",
        ),
        Plot(
            "Invalid actions",
            (
                Curve("training", ("rollout/invalid", "*/invalid*")),
                Curve("held out", ("invalid",), held_out=True),
            ),
            "Share of actions that the environment refused.",
            share=True,
        ),
        Plot(
            "Steps",
            (
                Curve("held out", ("steps_to_goal",), held_out=True),
                Curve("training, all episodes", ("rollout/steps",)),
            ),
            "Mean over solved held-out episodes; over all training episodes.",
        ),
        Plot(
            "Clipped tokens",
            (Curve("share", ("policy_gradient/clip_fraction", "*/clip_fraction")),),
            "Share of action tokens whose ratio left the clipping range.",
            share=True,
        ),
    ),
    "Predicting": (
        Plot(
            "Next-observation NLL",
            (Curve("held out", ("nll",), held_out=True),),
            "Nats per observation token on held-out games, given the true action: what the model knows of its world.",
        ),
        Plot(
            "World-model loss",
            (
                Curve("fresh", ("paw/loss/fresh", "*/loss/fresh", "paw/loss")),
                Curve("replayed", ("paw/loss/replay", "*/loss/replay")),
            ),
            "The world-model term as it enters the loss, lambda included.",
        ),
        Plot(
            "Lambda",
            (Curve("mean of groups", ("paw/lambda", "*/lambda")),),
            "1 - mean return / R_max: the weight of the world-model term, small once games are won.",
            share=True,
        ),
        Plot(
            "Mask and selection",
            (
                Curve("mask rate", ("paw/mask_rate", "*/mask_rate")),
                Curve("selected share", ("paw/selected_share", "*/selected_share")),
                Curve("mean p", ("paw/probability", "paw/mean_p", "*/mean_p")),
            ),
            "Observation tokens below rho, transitions selected by entropy, mean probability of a token.",
            share=True,
        ),
    ),
    "Optimising": (
        Plot(
            "Do the two gradients agree?",
            (Curve("cosine", ("grad/cosine", "*cosine*")),),
            "cos(g_wm, g_rl): above 0 they pull the same way.",
        ),
        Plot(
            "World-model gradient against policy gradient",
            (Curve("norm ratio", ("grad/ratio", "*norm_ratio*")),),
            "Ratio of the two gradients' norms.",
        ),
        Plot("Gradient norm", (Curve("norm", ("learner/grad_norm", "*grad_norm*")),)),
        Plot("Policy loss", (Curve("loss", ("policy_gradient/loss", "*policy*/loss")),)),
        Plot(
            "Warm-start loss",
            (Curve("actions", ("supervised/loss",)), Curve("observations", ("next_observation/loss",))),
        ),
        Plot("Learning rate", (Curve("rate", ("*/lr", "*learning_rate*", "lr")),)),
    ),
    "Speed": (
        Plot(
            "Seconds an update",
            (
                Curve("rollout", ("rollout/seconds", "time/rollout")),
                Curve("learner", ("learner/seconds/update", "time/update")),
            ),
            source="timings",
        ),
        Plot(
            "Tokens a second",
            (
                Curve("generated", ("rollout/tokens_per_s*", "*generated*_per_s*")),
                Curve("trained", ("learner/*tokens_per_s*", "*train*tokens_per_s*")),
            ),
            source="timings",
        ),
    ),
}
"""Title -> plots. A plot none of whose metrics a run has is left out."""


def curve_sections(data: RunData) -> list[tuple[str, list[Markup]]]:
    sections = []
    for title, plots in SECTIONS.items():
        drawn = [picture for plot in plots if (picture := _draw(plot, data)) is not None]
        if drawn:
            sections.append((title, drawn))
    return sections


def find_points(records: Sequence[Record], names: Sequence[str]) -> list[Point]:
    """The points of the first name that any record has; nulls are gaps."""
    present = sorted({key for record in records for key in record})
    matches = (key for name in names for key in present if fnmatchcase(key, name))
    for key in matches:
        points = [
            Point(str(record.get("phase", "policy")), float(record.get("update", 0)), float(record[key]))
            for record in records
            if is_number(record.get(key))
        ]
        if points:
            return points
    return []


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _draw(plot: Plot, data: RunData) -> Markup | None:
    records = data.timings if plot.source == "timings" else data.metrics
    held_out = [e for e in data.evaluations if e.get("mode", "sampled") == "sampled"]
    series = []
    for colour, curve in enumerate(plot.curves, start=1):
        points = find_points(held_out if curve.held_out else records, curve.names)
        series.append(Series(curve.label, points, colour, dots=curve.held_out))
    series = [s for s in series if s.points]
    return chart(plot.title, series, share=plot.share, caption=plot.caption) if series else None


def time_split(timings: Sequence[Record]) -> list[dict[str, Any]]:
    """Where the seconds went: parts that exclude each other, summed over all updates, largest first."""
    totals: dict[str, float] = {}
    for record in timings:
        for name, value in _parts(record).items():
            totals[name] = totals.get(name, 0.0) + value
    whole = sum(totals.values())
    if whole <= 0:
        return []
    parts = sorted(totals.items(), key=lambda part: -part[1])
    parts = [*parts[:SPLIT_PARTS], *([("other", rest)] if (rest := sum(v for _, v in parts[SPLIT_PARTS:])) else [])]
    return [
        {"name": name, "seconds": f"{number(value)} s", "share": value / whole * 100, "colour": i + 1}
        for i, (name, value) in enumerate(parts)
    ]


def _parts(timing: Record) -> dict[str, float]:
    """One update's seconds by part. The rollout's hold the environment's; the learner's are also booked by source."""
    seconds = {name: float(value) for name, value in timing.items() if is_number(value)}
    parts = {name.removeprefix("time/"): value for name, value in seconds.items() if name.startswith("time/")}
    parts |= {f"learner: {name}": seconds.get(f"learner/seconds/{name}", 0.0) for name in LEARNER_PARTS}
    environment = seconds.get("rollout/env_seconds", 0.0)
    parts["rollout: environment"] = environment
    parts["rollout: model"] = seconds.get("rollout/seconds", environment) - environment
    return {name: value for name, value in parts.items() if value > 0 and "/" not in name}


def metric_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Every metric of the run, with first, last and a small curve."""
    values: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for key, value in record.items():
            if key not in ("phase", "update") and is_number(value):
                values.setdefault((str(record.get("phase", "policy")), key), []).append(float(value))
    return [
        {
            "phase": phase,
            "name": name,
            "first": number(v[0]),
            "last": number(v[-1]),
            "spark": spark(_thinned(v)),
            "n": len(v),
        }
        for (phase, name), v in sorted(values.items())
    ]


def _thinned(values: Sequence[float], limit: int = 60) -> list[float]:
    stride = math.ceil(len(values) / limit)
    return [*values[:-1:stride], values[-1]]
