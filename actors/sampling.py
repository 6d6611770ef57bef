"""How replies are drawn from the model's logits: Tandem's own settings.

They are never filled from a checkpoint's `generation_config.json`: a repetition penalty or a top-k that nobody asked
for makes the behaviour policy another one than the learner computes. The engine logs them when it opens.

Behaviour log-probabilities and entropies belong to the distribution that was sampled from: logits, restricted to the
admissible tokens where decoding is constrained, divided by the temperature, cut by top-k and top-p, renormalised.
A learner recomputes them at any temperature by dividing its logits by the same temperature; top-k and top-p are for
evaluation, because a learner cannot see which tokens they cut.
"""

from pydantic import BaseModel, Field


class Sampling(BaseModel, extra="forbid", frozen=True, use_attribute_docstrings=True):
    """Settings of reply sampling."""

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Divides the logits; 0 decodes greedily (a point mass: log-probability and entropy 0)."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the smallest set of most likely tokens that holds this mass; 1 keeps all."""

    top_k: int = Field(default=0, ge=0)
    """Keep the k most likely tokens (and those that tie with the last of them); 0 keeps all."""

    max_reply_tokens: int = Field(default=8, ge=1)
    """Tokens that a reply may have, <eoa> included; a longer one is cut and marked truncated."""

    constrained: bool = False
    """Restrict replies to the admissible commands of the environment."""

    @property
    def truncates(self) -> bool:
        """Top-k or top-p cut the distribution, so a learner cannot recompute its log-probabilities."""
        return self.top_k > 0 or self.top_p < 1
