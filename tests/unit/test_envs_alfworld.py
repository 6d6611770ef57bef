"""What the real engine's module says without the engine: it needs no extra to name, order and compare games."""

from actors.envs import alfworld, household


def test_a_held_out_game_is_known_by_what_it_is_not_by_its_name() -> None:
    """The check for leaked games compares fingerprints: a module without them compares mere names."""
    for task_id in alfworld.task_ids(alfworld.Config(), "seen", 0, 0, 3):
        game = household.game_of(household.Config(), task_id)
        assert alfworld.game_fingerprint(alfworld.Config(), task_id) == game.fingerprint != task_id
