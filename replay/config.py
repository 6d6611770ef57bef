"""Settings of the replay service. Plain numbers and words: no import heavier than pydantic."""

from typing import Literal

from pydantic import BaseModel, Field


class WorldConfig(BaseModel, extra="forbid", frozen=True, use_attribute_docstrings=True):
    """The wm table: transitions that a world model may train on, read many times."""

    sampler: Literal["prioritised", "top_fraction", "uniform"] = "prioritised"
    """How transitions are drawn. prioritised: P(i) ~ p_i^exponent (arXiv 1511.05952, eq. 1) with p the action entropy;
    top_fraction: evenly among the `alpha` of highest entropy (S_alpha of arXiv 2606.02388, eq. 4); uniform: evenly."""

    exponent: float = Field(default=0.6, ge=0, le=8)
    """Exponent on the priority, applied once, when it is written **[default]** (0.6 in arXiv 1511.05952)."""

    importance_exponent: float = Field(default=0.4, ge=0, le=1)
    """Exponent of the importance weights: 1 corrects the sampling bias wholly, 0 not at all **[default]**."""

    priority_floor: float = Field(default=0.01, ge=1e-9)
    """Nats. A priority below it counts as this much: sure actions stay reachable and weights finite **[default]**."""

    alpha: float = Field(default=0.75, gt=0, le=1)
    """Share of the table that `top_fraction` draws from: ceil(alpha * items), ties to the earlier item."""

    remover: Literal["fifo", "lowest"] = "fifo"
    """What leaves when the table is full: the oldest item, or the one of lowest priority."""

    max_items: int = Field(default=50_000, ge=1)
    """Transitions held at most."""

    max_bytes: int = Field(default=1 << 30, ge=1)
    """Bytes of the distinct episodes that the table keeps alive, at most."""

    max_age: int | None = Field(default=None, ge=0)
    """Transitions sampled more than this many versions ago are evicted; absent: no bound."""


class LeaseConfig(BaseModel, extra="forbid", frozen=True, use_attribute_docstrings=True):
    """How long work is lent out, and what becomes of work that does not come back whole."""

    seconds: float = Field(default=600.0, gt=0)
    """From the lease to its deadline."""

    max_attempts: int = Field(default=3, ge=1)
    """How often one task is leased before it is given up, counted as `abandoned`."""

    partial: Literal["train", "drop"] = "train"
    """A group that lacks members when it closes: train on what finished, or drop it and try again **[default]**."""

    partial_minimum: int = Field(default=2, ge=1)
    """`partial = train` needs this many finished members: a group of one has no advantage relative to itself."""


class Config(BaseModel, extra="forbid", frozen=True, use_attribute_docstrings=True):
    """The replay service: one store, four tables, the dispatcher and its admission."""

    groups_per_update: int = Field(default=16, ge=1)
    """B: groups that one update of the learner consumes."""

    group_size: int = Field(default=8, ge=1)
    """G: episodes of one task in a group."""

    max_staleness: int = Field(default=0, ge=0)
    """Versions by which a group may lag behind the weights that train on it; 0 is the paper's on-policy loop."""

    reward_max: float = Field(default=1.0, gt=0)
    """R_max of lambda = 1 - mean return / R_max (arXiv 2606.02388, eq. 10)."""

    max_policy_bytes: int = Field(default=4 << 30, ge=1)
    """Bytes of the policy table at most. Admission bounds it already: this guards against episodes of absurd length."""

    max_demonstrations: int = Field(default=1_000_000, ge=1)
    """Rows of the demos table at most; the oldest leave first."""

    max_eval_groups: int = Field(default=100_000, ge=1)
    """Evaluated groups that wait to be taken, at most; the oldest leave first."""

    leases: LeaseConfig = LeaseConfig()
    """Deadlines, retries and partial groups."""

    world: WorldConfig = WorldConfig()
    """The wm table."""
