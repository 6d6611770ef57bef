"""Collapse is named when it happens, and only then."""

import pytest

from deploy.collapse import CollapseWatch
from deploy.config import Collapse
from protos.errors import CollapseError

HEALTHY = {"invalid": 0.1, "entropy": 0.3, "success": 0.5}


def watch(**settings: object) -> CollapseWatch:
    return CollapseWatch(Collapse.model_validate({"window": 3, **settings}))


def observe(watched: CollapseWatch, count: int, **changes: float) -> None:
    for _ in range(count):
        watched.observe(**(HEALTHY | changes))


def test_a_healthy_run_is_left_alone() -> None:
    watched = watch()
    observe(watched, 50)
    observe(watched, 50, success=1.0, entropy=0.0)  # solved, deterministic: no collapse


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"invalid": 0.95}, "collapse.invalid_share"),
        ({"entropy": 0.0, "success": 0.0}, "collapse.entropy"),
        ({"success": 0.0}, "collapse.success_drop"),
    ],
)
def test_each_kind_is_named_once_the_window_is_full(changes: dict[str, float], named: str) -> None:
    watched = watch()
    observe(watched, 3)
    with pytest.raises(CollapseError, match=named):
        observe(watched, 3, **changes)


def test_a_moment_is_no_collapse() -> None:
    watched = watch()
    for _ in range(10):
        observe(watched, 2, invalid=1.0)
        observe(watched, 1)


def test_a_low_success_may_fall_to_nothing() -> None:
    watched = watch()
    observe(watched, 3, success=0.1)
    observe(watched, 9, success=0.0)


def test_ignore_never_stops() -> None:
    watched = watch(policy="ignore")
    observe(watched, 20, invalid=1.0, success=0.0)


def test_a_restored_watch_judges_alike() -> None:
    first, second = watch(), watch()
    observe(first, 5, success=0.8)
    second.restore(first.state())
    for watched in (first, second):
        with pytest.raises(CollapseError, match=r"success fell from 0\.80"):
            observe(watched, 3, success=0.0)
