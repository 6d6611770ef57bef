"""Everything that acts: environments, prompts, engines and the rollout that joins them."""
