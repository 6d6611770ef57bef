"""Clipped policy gradient (PPO, arXiv 1707.06347) on action tokens, with the options of its descendants.

    loss = - sum over tokens of  share x w x min(r A, clip(r) A)   + entropy and KL terms

A comes from `learner/advantages/`; the shares are `learner.aggregation`'s; r and w, `learner.ratios`:

    proximal = "behaviour"     r = learner / behaviour,  w = 1                        PPO on the sampled log-probabilities
    proximal = "recomputed"    r = learner / proximal,   w = proximal / behaviour     decoupled PPO
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from learner.aggregation import Aggregation, spread_groups, token_shares
from learner.batch import rows_with, token_weights
from learner.core import Need, Objective, Rows, Scores, Stream, Update
from learner.ratios import (
    Importance,
    clipped_surrogate,
    importance_weights,
    kl_estimates,
    ratio_of,
    reply_means,
    sequence_log_ratios,
)
from learner.rewards import KlEstimator
from learner.selection import without_empty
from protos.telemetry import Metric, Metrics, maximum, mean, total

if TYPE_CHECKING:
    from torch import Tensor


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    coefficient: float = Field(1.0, ge=0)
    """Weight of the whole term."""
    ratio: Literal["token", "sequence"] = "token"
    """token: a ratio for each token (PPO); sequence: the geometric mean of a reply's (GSPO, arXiv 2507.18071, eq. 7, as
    GSPO-token, eq. 14), clipped as one: its clips are much tighter, 3e-4 and 4e-4 in the paper. **[default]** The sequence
    is a reply, not an episode: s_i stays a mean over tokens that were chosen together."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """A ratio below 1 - clip_low has no gradient where it would fall further (arXiv 1707.06347, eq. 7)."""
    clip_high: float = Field(0.28, ge=0)
    """A ratio above 1 + clip_high has no gradient where it would rise further (clip-higher: DAPO, arXiv 2503.14476, eq. 10;
    PPO has clip_high = clip_low)."""
    dual_clip: float | None = Field(None, gt=1)
    """c: where A < 0 the term is at most c |A|, whatever the ratio (dual-clip PPO, arXiv 1912.09729; 3 in the paper)."""
    proximal: Literal["behaviour", "recomputed"] = "behaviour"
    """What the ratio is taken to. behaviour: the log-probabilities as sampled; recomputed: those of the model as the update
    began, one more forward pass (decoupled PPO, arXiv 2505.24298, section 5.2)."""
    importance: Importance = "full"
    """What becomes of the weight w = proximal / behaviour of `recomputed`, a constant. full: as it stands; truncate: at
    most `importance_cap` (truncated importance sampling); mask: 0 above the cap, the token stays in the denominators; none:
    1 in its place, the mismatch ignored. With `ratio = "sequence"` w is the geometric mean of the reply's."""
    importance_cap: float = Field(2.0, gt=0)
    """Bound on w of `truncate` and `mask` **[default]**."""
    entropy_bonus: float = Field(0.0, ge=0)
    """Coefficient of the entropy (nats), under the same shares as the policy term."""
    kl: float = Field(0.0, ge=0)
    """Coefficient of KL(learner || reference); above 0 the learner keeps a frozen reference model (GRPO, arXiv 2402.03300,
    eq. 3). A KL in the reward is an option of the advantage estimators."""
    kl_estimator: KlEstimator = "k3"
    """With d = log(learner / reference): k1 = d, whose expected gradient on-policy is 0, of no use as a loss; k2 = d^2 / 2,
    whose gradient on-policy is exactly that of KL(learner || reference); k3 = exp(-d) - 1 + d (GRPO's, eq. 4), the best
    estimate of the value, whose gradient is that of KL(reference || learner)."""
    aggregation: Aggregation = "group"
    """The mean over tokens. group: a group's action tokens, then all groups; token: all action tokens of the update (DAPO,
    arXiv 2503.14476, eq. 12); sequence: an episode's tokens, then its group's episodes, then groups (GRPO, arXiv 2402.03300,
    eq. 3); reply: the same with replies for episodes (GSPO with a reply as its sequence); constant: an episode's *sum* over
    `episode_tokens`, then episodes and groups (Dr.GRPO, arXiv 2503.20783, section 3.2)."""
    episode_tokens: int | None = Field(None, ge=1)
    """The divisor of `aggregation = "constant"`: one number for all episodes, such as the most action tokens that one may
    have, so that length neither dilutes nor inflates a token's gradient."""
    drop_uniform_groups: bool = False
    """Groups whose episodes all have the same task return leave this term and its denominators (dynamic sampling: DAPO,
    arXiv 2503.14476, eq. 11, without sampling others in their place). World-model terms keep them."""
    mask_cut_replies: bool = False
    """Replies cut by the reply limit leave this term and its denominators (overlong filtering: DAPO, section 3.4)."""
    skip_zero_advantage: bool = True
    """Leave out rows whose advantages are all 0 (groups all failed or all won), which saves their forward pass. The
    denominators still count them; entropy bonus and KL then act on the other rows only."""

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if (self.aggregation == "constant") != (self.episode_tokens is not None):
            raise ValueError('episode_tokens is the divisor of aggregation = "constant": set both or neither')
        if self.importance != "full" and self.proximal == "behaviour":
            raise ValueError(
                f'importance = "{self.importance}" bounds the weight proximal / behaviour, which is 1 here: '
                'set proximal = "recomputed"'
            )
        return self


class PolicyGradient:
    name = "policy_gradient"
    world_model = False

    def __init__(self, config: Config) -> None:
        self.config = config
        used: dict[Need, bool] = {
            "entropy": config.entropy_bonus > 0,
            "reference": config.kl > 0,
            "proximal": config.proximal == "recomputed",
        }
        self.needs: frozenset[Need] = frozenset(need for need in used if used[need])

    def replay_rows(self, fresh: Rows) -> int:
        return 0

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        """Its share on every action token that counts."""
        rows, config = update["fresh"], self.config
        spread = spread_groups(rows)
        counted = np.ones(len(rows.row), np.bool_)
        if config.drop_uniform_groups:
            counted &= spread[rows.group]
        if config.mask_cut_replies:
            counted &= ~rows.cut
        groups = self._groups(rows, counted, spread)
        shares = token_shares(rows, config.aggregation, counted, groups, config.episode_tokens)
        weights = token_weights(rows, rows.action, config.coefficient * shares)
        live = rows_with(rows, rows.advantages != 0)
        if config.skip_zero_advantage:
            weights *= np.repeat(live, np.diff(rows.row_start))
        streams, metrics = without_empty(self.name, [Stream(rows, "fresh", weights)])
        shown = {
            "zero_advantage_rows": _share(~live),
            "uniform_groups": _share(~spread),
            "masked_replies": _share(~counted),
            "behaviour_entropy": mean(rows.entropy.mean() if len(rows.row) else 0, len(rows.row)),
        }
        return streams, metrics | {f"{self.name}/{key}": value for key, value in shown.items()}

    def keep(self, log_probs: "Tensor") -> "Tensor | None":
        return None

    def loss(self, scores: Scores, weights: "Tensor") -> "tuple[Tensor, Metrics]":
        """Sum of weights x [-w min(r A, clip(r) A) - bonus x H + kl x KL estimate]."""
        config = self.config
        policy, metrics = self._policy(scores)
        terms = -policy
        if "entropy" in self.needs:
            assert scores.entropy is not None, "the entropy bonus needs scores.entropy"
            terms = terms - config.entropy_bonus * scores.entropy
            metrics["entropy"] = _mean(scores.entropy.detach())
        if "reference" in self.needs:
            assert scores.reference is not None, "the KL term needs scores.reference"
            divergence = kl_estimates(scores.log_probs, scores.reference, config.kl_estimator)
            terms = terms + config.kl * divergence
            metrics["kl_reference"] = _mean(divergence.detach())
        loss = (weights * terms).sum()
        metrics["loss"] = total(float(loss.detach()))
        return loss, {f"{self.name}/{key}": value for key, value in metrics.items()}

    def _policy(self, scores: Scores) -> "tuple[Tensor, Metrics]":
        """(M,) the weighted surrogate, and what it was made of."""
        config = self.config
        old = scores.behaviour if config.proximal == "behaviour" else scores.proximal
        assert old is not None, "decoupled PPO needs scores.proximal"
        log_ratio = scores.log_probs - old
        if config.ratio == "sequence":
            log_ratio = sequence_log_ratios(log_ratio, scores.transition)
        ratio = ratio_of(log_ratio)
        surrogate = clipped_surrogate(ratio, scores.advantages, config.clip_low, config.clip_high, config.dual_clip)
        metrics = self._ratio_metrics(ratio.detach(), scores)
        if config.proximal == "recomputed":
            log_weight = (old - scores.behaviour).detach()
            if config.ratio == "sequence":
                log_weight = reply_means(log_weight, scores.transition)
            weight = ratio_of(log_weight)
            surrogate = surrogate * importance_weights(weight, config.importance, config.importance_cap)
            metrics |= self._importance_metrics(weight)
        return surrogate, metrics

    def _ratio_metrics(self, ratio: "Tensor", scores: Scores) -> Metrics:
        """`mismatch_kl` estimates KL(behaviour || learner) on the behaviour's own samples (k3), whatever the ratio is to."""
        config, advantages = self.config, scores.advantages
        high = ((ratio > 1 + config.clip_high) & (advantages > 0)).to(ratio.dtype)
        low = ((ratio < 1 - config.clip_low) & (advantages < 0)).to(ratio.dtype)
        drift = scores.behaviour - scores.log_probs.detach()
        metrics = {
            "clip_fraction": _mean(high + low),
            "clip_fraction_high": _mean(high),
            "clip_fraction_low": _mean(low),
            "ratio_mean": _mean(ratio),
            "mismatch_kl": _mean(ratio_of(-drift) - 1 + drift),
        }
        if config.dual_clip is not None:
            metrics["dual_clip_fraction"] = _mean(((ratio > config.dual_clip) & (advantages < 0)).to(ratio.dtype))
        if len(ratio):
            metrics["ratio_max"] = maximum(float(ratio.max()))
        return metrics

    def _importance_metrics(self, weight: "Tensor") -> Metrics:
        """Of the weights before any bound; the share beyond the cap also where it is not applied."""
        metrics = {
            "importance_mean": _mean(weight),
            "importance_capped": _mean((weight > self.config.importance_cap).to(weight.dtype)),
        }
        if len(weight):
            metrics["importance_max"] = maximum(float(weight.max()))
        return metrics

    def _groups(self, rows: Rows, counted: NDArray[np.bool_], spread: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(G,) those of the mean over groups: one whose episodes are lost adds 0 to it, one that was masked is left out."""
        masked = np.bincount(rows.group[~counted], minlength=rows.groups) > 0
        kept = np.bincount(rows.group[counted], minlength=rows.groups) > 0
        groups = kept | ~masked
        return groups & spread if self.config.drop_uniform_groups else groups


def build(config: Config) -> Objective:
    return PolicyGradient(config)


def _share(mask: NDArray[np.bool_]) -> Metric:
    return mean(mask.mean() if len(mask) else 0.0, len(mask))


def _mean(values: "Tensor") -> Metric:
    return mean(float(values.mean()) if len(values) else 0.0, len(values))
