"""What the page says: a run's files turned into the values and charts that the template lays out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from deploy.console import duration, number
from deploy.report import charts
from deploy.report.curves import curve_sections, find_points, is_number, metric_rows, time_split
from deploy.report.episodes import chosen_episodes
from deploy.report.read import Record, RunData
from deploy.report.scales import WIDE, Point, Series

MODES = {"sampled": ("sampled", 1), "greedy": ("greedy", 2), "constrained": ("sampled, constrained to admissible", 4)}
"""Label and colour of an evaluation's mode."""
PHASE_WORDS = {"warm_start": "warm-start", "policy": "RL"}


def page_values(data: RunData, controls: Record) -> dict[str, Any]:
    """Everything that page.html names."""
    data, others = _by_split(data)
    main = _main_evaluations(data)
    return {
        "name": data.name,
        "subtitle": _subtitle(data.config),
        "headline": _headline(data, main),
        "tiles": _tiles(data),
        "success_chart": _success_chart(data),
        "sections": curve_sections(data),
        "time_split": time_split(data.timings),
        "tasks": _task_rows(main) + _split_rows(others),
        "pass_at_k": _pass_at_k(main),
        "controls": _control_rows(data, main, controls),
        "controls_note": controls.get("note"),
        "episodes": chosen_episodes(data.episodes),
        "metrics": metric_rows([*data.metrics, *data.timings]),
        "config": data.config_text,
        "provenance": _provenance(data),
        "flaws": data.flaws,
    }


def estimate(value: Any) -> dict[str, Any] | None:
    """A success estimate made ready to show; None where it is missing or not finite."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = {"mean": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("mean"), int | float):
        return None
    mean = float(value["mean"])
    ends = [value.get("low"), value.get("high")]
    low, high = (float(end) if isinstance(end, int | float) else mean for end in ends)
    known = low != mean or high != mean
    return {
        "mean": mean,
        "low": low,
        "high": high,
        "episodes": value.get("episodes"),
        "text": f"{mean * 100:.0f}%",
        "exact": f"{mean * 100:.1f}%",
        "interval": f"{low * 100:.1f} to {high * 100:.1f}%" if known else "",
    }


def _main_evaluations(data: RunData) -> dict[str, tuple[Record | None, Record | None]]:
    """By mode, the evaluations before RL (the warm start's last, or RL's first) and at the end."""
    pairs = {}
    for mode in MODES:
        of_mode = [e for e in data.evaluations if e.get("mode", "sampled") == mode and estimate(e.get("success"))]
        warm = [e for e in of_mode if e.get("phase") == "warm_start"]
        rest = [e for e in of_mode if e.get("phase") != "warm_start"]
        before = warm[-1] if warm else (rest[0] if rest else None)
        pairs[mode] = (before, rest[-1] if rest and rest[-1] is not before else None)
    return pairs


def _headline(data: RunData, main: Mapping[str, tuple[Record | None, Record | None]]) -> dict[str, Any] | None:
    """Sampled success before and after: the summary's, or what the evaluations have so far."""
    first, last = main["sampled"]
    before = estimate(data.summary.get("success_before") or (first or {}).get("success"))
    after = estimate(data.summary.get("success_after") or (last or {}).get("success"))
    rows = [(label, e, colour) for label, e, colour in (("before", before, 6), ("after", after, 1)) if e]
    if not rows:
        return None
    for _, e, colour in rows:
        e["bar"] = charts.interval_row(e["mean"], e["low"], e["high"], colour)
    split = (last or first or {}).get("split")
    return {
        "before": before,
        "after": after,
        "rows": [(label, e) for label, e, _ in rows],
        "gain": f"{(after['mean'] - before['mean']) * 100:+.0f} points" if before and after else None,
        "split": split,
        "greedy": [e for e in (estimate((record or {}).get("success")) for record in main["greedy"]) if e],
    }


def _tiles(data: RunData) -> list[tuple[str, str]]:
    """Small figures beside the headline: (label, value)."""
    tiles = []
    wall = data.summary.get("wall_seconds")
    if isinstance(wall, int | float):
        tiles.append(("wall time", duration(wall)))
    updates: dict[str, float] = {}
    for record in data.metrics:
        if is_number(record.get("update")):
            updates[str(record.get("phase", "policy"))] = record["update"] + 1
    tiles += [(f"{PHASE_WORDS.get(phase, phase)} updates", number(last)) for phase, last in updates.items()]
    last = next((e for e in reversed(data.evaluations) if e.get("mode", "sampled") == "sampled"), {})
    for key, label in (("steps_to_goal", "steps to goal"), ("invalid", "invalid actions"), ("nll", "observation NLL")):
        value = last.get(key)
        if isinstance(value, int | float):
            tiles.append((label, f"{value * 100:.1f}%" if key == "invalid" else number(float(value))))
    seed = data.summary.get("seed", data.config.get("seed"))
    return [*tiles, ("seed", str(seed))] if seed is not None else tiles


def _success_chart(data: RunData) -> Markup | None:
    """Held-out success by mode with intervals, and training success faint behind it."""
    training = find_points(data.metrics, ("rollout/success", "train/success", "*/success", "success"))
    series = [Series("training games", training, 6, faint=True)]
    for mode, (label, colour) in MODES.items():
        points = [
            Point(str(e.get("phase", "policy")), float(e.get("update", 0)), s["mean"], s["low"], s["high"])
            for e in data.evaluations
            if e.get("mode", "sampled") == mode and (s := estimate(e.get("success")))
        ]
        series.append(Series(f"held out, {label}", points, colour, dots=True))
    series = [s for s in series if s.points]
    return charts.chart("Success", series, frame=WIDE, share=True) if series else None


def _task_rows(main: Mapping[str, tuple[Record | None, Record | None]]) -> list[dict[str, Any]]:
    """Sampled success of each task type before and after, hardest last."""
    before, after = ((record or {}).get("by_task") or {} for record in main["sampled"])
    rows = [_pair_row(task, before.get(task), after.get(task)) for task in sorted({*before, *after})]
    return sorted(rows, key=lambda row: -((row["after"] or row["before"] or {"mean": 0})["mean"]))


def _pair_row(name: str, before: Any, after: Any) -> dict[str, Any]:
    pair = [estimate(before), estimate(after)]
    for e, colour in zip(pair, (6, 1), strict=True):
        if e:
            e["bar"] = charts.interval_row(e["mean"], e["low"], e["high"], colour)
    return {"task": name, "before": pair[0], "after": pair[1]}


def _by_split(data: RunData) -> tuple[RunData, dict[str, RunData]]:
    """The run as its headline split saw it (the one that is evaluated first), and as each other split did."""
    splits = list(dict.fromkeys(e.get("split") for e in data.evaluations)) or [None]
    seen = {s: replace(data, evaluations=[e for e in data.evaluations if e.get("split") == s]) for s in splits}
    return seen[splits[0]], {str(split): seen[split] for split in splits[1:]}


def _split_rows(others: Mapping[str, RunData]) -> list[dict[str, Any]]:
    """Sampled success on the other held-out splits, all tasks together, as rows like those of the tasks."""
    rows = []
    for split, data in others.items():
        before, after = ((record or {}).get("success") for record in _main_evaluations(data)["sampled"])
        rows.append(_pair_row(f"{split} split", before, after))
    return rows


def _pass_at_k(main: Mapping[str, tuple[Record | None, Record | None]]) -> dict[str, Any] | None:
    """A table of pass@k before and after."""
    rows = []
    for label, record in zip(("before", "after"), main["sampled"], strict=True):
        shares = (record or {}).get("pass_at_k") or {}
        finite = {int(k): v for k, v in shares.items() if isinstance(v, int | float)}
        if finite:
            rows.append((label, finite))
    ks = sorted({k for _, shares in rows for k in shares})
    cells = [(label, [f"{shares[k] * 100:.1f}%" if k in shares else "" for k in ks]) for label, shares in rows]
    return {"ks": ks, "rows": cells} if rows else None


def _control_rows(
    data: RunData, main: Mapping[str, tuple[Record | None, Record | None]], controls: Record
) -> list[dict[str, Any]]:
    """This run first, then the committed arms."""
    arms = controls.get("arms") or []
    if not arms:
        return []
    greedy = [(record or {}).get("success") for record in main["greedy"]]
    headline = _headline(data, main) or {"before": None, "after": None}
    this = {
        "name": "this run",
        "mine": True,
        "seeds": [data.summary.get("seed", data.config.get("seed"))],
        "before": headline["before"],
        "after": headline["after"],
        "greedy_before": greedy[0],
        "greedy_after": greedy[1],
    }
    return [_control_row(arm) for arm in (this, *arms)]


def _control_row(arm: Record) -> dict[str, Any]:
    row: dict[str, Any] = {"name": arm.get("name", "?"), "description": arm.get("description", "")}
    row["mine"] = bool(arm.get("mine"))
    seeds = arm.get("seeds")
    row["seeds"] = ", ".join(str(seed) for seed in seeds if seed is not None) if isinstance(seeds, list) else ""
    for key in ("before", "after", "greedy_before", "greedy_after"):
        row[key] = estimate(arm.get(key))
    if row["after"]:
        e = row["after"]
        e["bar"] = charts.interval_row(e["mean"], e["low"], e["high"], 1 if row["mine"] else 4)
    return row


def _subtitle(config: Record) -> str:
    """What was trained by what, from the config's own words."""
    training = config.get("training")
    training = training if isinstance(training, Mapping) else {}
    objectives = training.get("objectives")
    terms = objectives if isinstance(objectives, list) else []
    parts = map(_name, (config.get("environment"), training.get("advantages"), *terms))
    return " · ".join(part for part in parts if part)


def _name(value: Any) -> str:
    return str(value.get("name", "")) if isinstance(value, Mapping) else ""


def _provenance(data: RunData) -> list[tuple[str, str]]:
    """Every plain entry of the summary, with the run's name before it."""
    wall = data.summary.get("wall_seconds")
    rows = [("run", data.name)]
    if isinstance(wall, int | float):
        rows.append(("wall time", duration(wall)))
    return rows + [(key, _shown(value)) for key, value in _flat(data.summary) if key != "wall_seconds"]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        e = estimate(value) if isinstance(value, Mapping) else None
        if e is not None:
            yield prefix + key, f"{e['exact']} ({e['interval']})" if e["interval"] else e["exact"]
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_shown, value))
    return "not finite" if value is None else (f"{value:.4g}" if isinstance(value, float) else str(value))
