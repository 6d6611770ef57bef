"""What every figure of `tandem bench` means, and the bar that it has to clear."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CONFIGS = Path(__file__).parents[1] / "configs" / "algorithms"

Figures = dict[str, float | None]
"""One benchmark's result, flat; None where a figure cannot be had on this machine."""


class Figure(NamedTuple):
    meaning: str
    least: float | None = None
    most: float | None = None

    def bar(self) -> str:
        if self.least is not None:
            return f">= {self.least:,g}"
        return f"<= {self.most:,g}" if self.most is not None else ""

    def verdict(self, value: float | None) -> str:
        """met, missed, or nothing where there is no bar or no value."""
        if value is None or (self.least is None and self.most is None):
            return ""
        above = self.least is None or value >= self.least
        below = self.most is None or value <= self.most
        return "met" if above and below else "missed"


ENV = {
    "household_steps_per_s": Figure(
        "household steps/s on one core, resets included, slower of small and full", least=50_000
    ),
    "household_small_steps_per_s": Figure("the same in small rooms (4 to 7 receptacles)"),
    "household_full_steps_per_s": Figure("the same in full rooms (7 to 26 receptacles)"),
    "household_games_per_s": Figure("full-room games generated, proven solvable and compiled a second"),
    "real_engine_steps_per_s": Figure("ALFWorld's own engine, the same commands in the same full-room games"),
    "vs_real_engine": Figure("full-room steps/s over the real engine's on those games"),
}

ROLLOUT = {
    "tokens_per_s": Figure("generated tokens/s while playing 32 games at once"),
    "read_tokens_per_s": Figure("openings and observations read meanwhile, tokens/s"),
    "steps_per_s": Figure("environment steps/s meanwhile"),
    "job_tokens_per_s": Figure("generated tokens/s at the main job's batch"),
    "generate_tokens_per_s": Figure("transformers' generate on the same games: same rows and turn lengths, cache kept"),
    "vs_generate": Figure("tokens_per_s over generate_tokens_per_s", least=0.9),
    "vs_generate_full_batch": Figure("over generate where no row ever leaves and all are of the mean length"),
    "vs_generate_one_call": Figure("over one call of generate that reads no observation"),
    "vs_generate_no_cache": Figure("over a call a turn that reads the grown context again"),
    "batch_success": Figure("share of the games won"),
    "reply_tokens": Figure("mean tokens of a reply"),
    "turns": Figure("mean turns of a game"),
}

ALGORITHMS = sorted(path.stem for path in CONFIGS.glob("*.toml") if path.stem != "grpo")

LEARNER = {
    "tokens_per_s": Figure("trained tokens/s, policy and world-model term, through RLlib"),
    "vs_bare_torch": Figure("over a bare torch loop's on the same micro-batches and losses", least=0.9),
    "paw_time_overhead": Figure("world-model term: added time over rollout + update, equal rows", most=0.02),
    "paw_update_overhead": Figure("over the update alone, logits at loss tokens only in both", most=0.05),
    "paw_update_overhead_error": Figure("standard error of that median, from the rounds' spread"),
    "paw_memory_overhead": Figure("added peak tensor memory of an update", most=0.03),
    "paw_skipping_overhead": Figure("added update time where the policy alone skips zero-advantage rows"),
    "paw_replay_overhead": Figure("added update time of the replayed rows"),
    "safeguard_overhead": Figure("added update time of wm_max_grad_ratio"),
    **{
        f"{name}_vs_grpo": Figure(
            f"an update of configs/algorithms/{name}.toml over GRPO's, everything it needs included"
        )
        for name in ALGORITHMS
    },
    "append_tokens_per_step": Figure("tokens trained on for each environment step, `append` prompt"),
    "window_tokens_per_step": Figure("the same episodes under the `window` prompt, last two steps"),
    "append_vs_window": Figure("how many times fewer tokens `append` takes"),
    "update_seconds": Figure("CPU seconds of an update, both terms"),
    "rollout_seconds": Figure("CPU seconds of the rollout that made the batch"),
    "update_peak_mib": Figure("peak tensor memory of an update, MiB"),
    "batch_tokens": Figure("tokens of the batch, without padding"),
    "batch_success": Figure("share of its games won"),
    "zero_advantage_rows": Figure("share of its rows whose advantages are all 0"),
    "mask_rate": Figure("share of selected observation tokens with a loss (p <= rho)"),
}

FIGURES: dict[str, dict[str, Figure]] = {"env": ENV, "rollout": ROLLOUT, "learner": LEARNER}
COLUMNS = ("", "measured", "bar", "", "name")


def rows(benchmark: str, result: Mapping[str, float | None]) -> list[tuple[object, ...]]:
    """A result of `benchmark` as table rows under COLUMNS, in the order above."""
    return [
        (
            figure.meaning,
            "-" if result[name] is None else result[name],
            figure.bar(),
            figure.verdict(result[name]),
            name,
        )
        for name, figure in FIGURES[benchmark].items()
        if name in result
    ]
