"""Settings of the household environment."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from actors.envs.household.library import TaskType


class Config(BaseModel, extra="forbid", frozen=True, use_attribute_docstrings=True):
    """Which household games are played, for how long, and by which demonstrator."""

    tasks: tuple[TaskType, ...] = Field(default=("pick_and_place_simple",), min_length=1)
    """Task types of the games, drawn alike."""

    rooms: Literal["small", "full"] = "small"
    """Size of generated rooms: `small` has 4 to 7 receptacles, `full` 4 to 26."""

    max_steps: int = Field(default=12, ge=1)
    """Commands in an episode; then it is truncated. Every generated game can be won within them."""

    reward: float = 1.0
    """Paid once, at the win."""

    expert_noise: float = Field(default=0.5, ge=0, le=1)
    """Share of the demonstrator's commands that are replaced by a random admissible one (never help, look, inventory or
    examine)."""

    data: Path | None = None
    """A folder of ALFWorld's own games (`game.tw-pddl` beside `traj_data.json`) to play in place of generated ones."""
