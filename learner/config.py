"""Settings of the model, the optimizers and the update (no torch here: `tandem --help` reads this file)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SETTINGS = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class LoraSettings(BaseModel):
    """Low-rank adapters (arXiv 2106.09685) on a frozen checkpoint: W x + alpha / rank * B A x, with B = 0 at the start."""

    model_config = SETTINGS

    rank: int = Field(default=16, ge=1)
    """Inner dimension of A and B."""
    alpha: float = Field(default=32.0, gt=0)
    """Numerator of the adapters' scale."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the linear layers that get an adapter; `all-linear`: every one except the output head."""
    trained_modules: tuple[str, ...] = ()
    """Names of further modules that are trained in full, such as `embed_tokens` or `norm`."""


class ModelConfig(BaseModel):
    """A Llama causal language model made from scratch, or any Hugging Face causal LM in a local folder."""

    model_config = SETTINGS

    path: str | None = None
    """Folder of a Hugging Face checkpoint to start from; the sizes below are then the checkpoint's own."""
    width: int = Field(default=96, ge=1)
    """Hidden size of the residual stream."""
    layers: int = Field(default=3, ge=1)
    """Decoder layers."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; each is `width / heads` wide."""
    mlp: int = Field(default=288, ge=1)
    """Hidden size of the gated MLP."""
    rope_theta: float = Field(default=10_000.0, gt=0)
    """Base of the rotary position frequencies."""
    max_positions: int = Field(default=1024, ge=1)
    """Longest sequence, in tokens."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights. The optimizers of bfloat16 weights step float32 copies of them; adapters are float32."""
    gradient_checkpointing: bool = False
    """Keep the layers' inputs alone and run each layer again in the backward pass: less memory, one more forward pass."""
    lora: LoraSettings | None = None
    """Train adapters on the checkpoint at `path`; None: train all weights, or the adapters that `path` holds."""

    @model_validator(mode="after")
    def _adapters_have_a_base(self) -> "ModelConfig":
        if self.lora is not None and self.path is None:
            raise ValueError("lora trains adapters on a checkpoint: set `path` to its folder")
        return self

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelConfig":
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} is not a multiple of 2 * heads = {2 * self.heads}: "
                "rotary positions turn pairs of channels within each head"
            )
        return self


class OptimizerConfig(BaseModel):
    """Optimizer and learning-rate schedule of one phase of training."""

    model_config = SETTINGS

    name: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon (arXiv 2502.16982) on matrices except embeddings, AdamW on the rest; `adamw`: AdamW on everything."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate. Muon's steps are scaled to AdamW's root mean square, so one rate serves both."""
    betas: tuple[Probability, Probability] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moments."""
    momentum: Probability = 0.95
    """Muon's Nesterov momentum."""
    weight_decay: float = Field(default=0.05, ge=0)
    """Decoupled weight decay on matrices except embeddings; everything else decays by 0."""
    warmup_updates: int = Field(default=8, ge=0)
    """Updates over which the rate climbs linearly to its peak."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Shape of the decay over all updates of the phase; it multiplies the warm-up."""
    final_fraction: float = Field(default=0.1, ge=0, le=1)
    """Share of the peak that `linear` and `cosine` decay to at the last update."""


class CriticConfig(BaseModel):
    """The critic: built where an advantage estimator or an objective asks for values, else not at all."""

    model_config = SETTINGS

    kind: Literal["head", "model"] = "head"
    """head: one more output of the policy's own trunk, which gets the value loss's gradient too; model: a copy of the model's
    decoder with a head of its own, about the cost of a second policy update, that leaves the policy's gradient alone."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate of what the critic owns (the head; of a `model` all of it), under the phase's schedule. A head
    starts at 0 and wants a larger rate than a pretrained trunk (the papers: critic 1e-5, policy 1e-6)."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Global norm that the gradient of what the critic owns is clipped to, apart from the policy's **[default]**: it grows
    with the returns, and would leave the policy little of a norm that they share."""


class LearnerConfig(BaseModel):
    """How one update is split into optimizer steps, and what guards each step."""

    model_config = SETTINGS

    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer and schedule of the phase."""
    critic: CriticConfig = CriticConfig()
    """The critic of advantage estimators that use one."""
    minibatches: int = Field(default=2, ge=1)
    """Optimizer steps an epoch, of about equal numbers of transitions."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the rows of an update, each cut in minibatches anew; what was sampled and looked up before stays as it is."""
    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Tokens, padding included, of one forward pass: small enough that rows of like length share it."""
    token_budget: int = Field(default=16_384, ge=1)
    """Tokens, padding included, whose activations may be alive at once: the bound on the memory of an update.

    Micro-batches are run forward until the budget is full, then backward together. Raise it where memory allows when
    `wm_max_grad_ratio` is set: a minibatch beyond the budget then costs one more forward pass.
    """
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Global norm that the gradient of an optimizer step is clipped to."""
    wm_max_grad_ratio: float | None = Field(default=None, gt=0)
    """Bound on the world-model gradient relative to the policy's, each optimizer step; None: no bound (the papers).

    See `learner.gradients`. A step in which the policy has no gradient leaves the world-model term out altogether.
    """
    gradient_statistics_every: int = Field(default=25, ge=0)
    """Updates between two measurements of cos(g_wm, g_rl) and the norm ratio, each one more backward pass; 0: never."""

    @model_validator(mode="after")
    def _budget_holds_a_micro_batch(self) -> "LearnerConfig":
        if self.token_budget < self.micro_batch_tokens:
            raise ValueError(
                f"token_budget {self.token_budget} is below micro_batch_tokens {self.micro_batch_tokens}: "
                "the budget must hold at least one micro-batch"
            )
        return self
