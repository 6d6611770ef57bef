"""The learner: batches, advantages, objectives, RLlib's learner around them, checkpoints."""
