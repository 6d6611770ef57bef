"""Seeds are functions of names: equal for equal names, on any machine, and unlike for unlike ones."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protos.seeding import derive_seed, generator

NAMES = st.lists(st.text(alphabet="ab\x1f1", max_size=3) | st.integers(0, 3), max_size=3)


def test_a_seed_is_the_hash_of_its_names():
    digest = hashlib.sha256(b"42\x1fstr:rollout\x1fint:12\x1fint:3").digest()
    assert derive_seed(42, "rollout", 12, 3) == int.from_bytes(digest[:8], "big") >> 1


def test_a_number_and_its_digits_are_two_names():
    assert derive_seed(0, 1) != derive_seed(0, "1")
    assert derive_seed(0, "ab") != derive_seed(0, "a", "b")
    assert derive_seed(1) != derive_seed(2)


@given(st.integers(), NAMES)
def test_seeds_fit_signed_64_bits(seed, names):
    assert 0 <= derive_seed(seed, *names) < 2**63


def test_generators_of_one_name_agree_and_of_two_do_not():
    one, same, other = (generator(0, "draw", i).random(4) for i in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_every_worker_and_episode_has_a_stream_of_its_own():
    """BC-27: the layout of the workers does not matter, for seeds follow the episode."""
    streams = {
        tuple(generator(42, "rollout", update, episode).random(3)) for update in range(3) for episode in range(8)
    }
    assert len(streams) == 24
