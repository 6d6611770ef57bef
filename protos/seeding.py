"""Seeds derived from names, so that no random state has to be carried or restored.

Every random choice takes its generator from the run's seed and the name of the choice ("rollout", update 12, episode 3).
Two choices never share a stream, the order in which processes run changes nothing, and a resumed run draws the
same numbers as an uninterrupted one.
"""

import hashlib

import numpy as np


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the choice called `names` under the run's `seed`; equal names give equal seeds."""
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A numpy generator (Philox, counter-based) for the choice called `names`."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, *names)))
