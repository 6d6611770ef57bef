"""Probability ratios and divergences on sampled tokens: pure functions of torch tensors of shape (M,)."""

from typing import TYPE_CHECKING, Literal

from learner.rewards import KlEstimator

if TYPE_CHECKING:
    from torch import Tensor

Importance = Literal["full", "truncate", "mask", "none"]

LOG_RATIO_BOUND = 20.0  # keeps a ratio finite where the learner disowns a token; far outside any clip


def ratio_of(log_ratio: "Tensor") -> "Tensor":
    """exp, without overflow."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def reply_means(values: "Tensor", transition: "Tensor") -> "Tensor":
    """(M,) each token's value replaced by the mean over the tokens of the same transition (ids, (M,))."""
    _, index = transition.unique(return_inverse=True)
    sums = values.new_zeros(len(values)).index_add(0, index, values)
    counts = values.new_zeros(len(values)).index_add(0, index, values.new_ones(len(values)))
    return (sums / counts.clamp(min=1))[index]


def sequence_log_ratios(log_ratio: "Tensor", transition: "Tensor") -> "Tensor":
    """(M,) log of GSPO-token's s_{i,t} = sg[s_i] pi / sg[pi] (arXiv 2507.18071, eq. 14).

    s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|) is the geometric mean of the reply's token ratios (eq. 7). Every token has the
    value of s_i, and the gradient of its own log-probability alone. All tokens of a reply must be among the M, which holds
    where rows stay whole and a reply's tokens have equal weights.
    """
    constant = log_ratio.detach()
    return reply_means(constant, transition) + log_ratio - constant


def clipped_surrogate(
    ratio: "Tensor", advantages: "Tensor", clip_low: float, clip_high: float, dual_clip: float | None = None
) -> "Tensor":
    """(M,) min(r A, clip(r, 1 - low, 1 + high) A) (arXiv 1707.06347, eq. 7), and at least dual_clip A where A < 0
    (dual-clip PPO, arXiv 1912.09729)."""
    surrogate = (ratio * advantages).minimum(ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is None:
        return surrogate
    return surrogate.where(advantages >= 0, surrogate.maximum(dual_clip * advantages))


def importance_weights(weight: "Tensor", method: Importance, cap: float) -> "Tensor":
    """(M,) the weight proximal / behaviour as it is used: in full, at most `cap`, 0 above `cap`, or 1 in its place."""
    match method:
        case "full":
            return weight
        case "truncate":
            return weight.clamp(max=cap)
        case "mask":
            return weight * (weight <= cap)
        case "none":
            return weight.new_ones(len(weight))


def kl_estimates(log_probs: "Tensor", reference: "Tensor", estimator: KlEstimator) -> "Tensor":
    """(M,) of KL(learner || reference) on tokens sampled from the learner; d = log(learner / reference).

    k1 = d; k2 = d^2 / 2; k3 = exp(-d) - 1 + d. All have the KL as their value or close to it. As a loss, with the gradient
    taken through d, their expected gradients on-policy are those of: nothing (k1: it is 0), KL(learner || reference)
    exactly (k2), KL(reference || learner) (k3).
    """
    distance = (log_probs - reference).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    match estimator:
        case "k1":
            return distance
        case "k2":
            return distance.square() / 2
        case "k3":
            return (-distance).expm1() + distance
