"""Rollouts: scripted engines whose replies are known, and the real engine on a tiny model."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from actors import plugins
from actors.core import Info, Reply, build_prompt
from actors.engines.transformers import TransformersEngine
from actors.prompts.append import AppendPrompt, Config
from actors.rollout import play
from actors.sampling import Sampling
from protos.errors import ConfigError, DataError, EnvironmentFailure
from protos.records import Episode, GroupKey, Kind, Lease, Stop, Version
from protos.seeding import derive_seed
from protos.telemetry import reduce_metrics

V5, V6 = Version(0, 5), Version(0, 6)


class Scripted:
    """An engine and its session in one: `script(row, turn)` gives (ids, stop); log-probs count up from -1."""

    def __init__(self, script: Callable[[int, int], tuple[Sequence[int], Stop]], max_reply_tokens: int = 32) -> None:
        self.script, self.version = script, V5
        self.sampling = Sampling(max_reply_tokens=max_reply_tokens)
        self.turns: dict[int, int] = {}
        self.fed: dict[int, list[int]] = {}
        self.shorten_log_probs = 0

    def session(self, seeds: Sequence[int], *, sampling: Any = None) -> "Scripted":
        self.seeds, self.turns, self.fed = list(seeds), {}, {}
        return self

    def reply(self, rows: Sequence[int], contexts: Sequence[Any], allowed: Any = None) -> list[Reply]:
        replies = []
        for row, context in zip(rows, contexts, strict=True):
            turn = self.turns[row] = self.turns.get(row, -1) + 1
            ids, stop = self.script(row, turn)
            token_ids = np.array(ids, dtype=np.int32)
            self.fed[row] = [*context.tolist(), *ids]
            log_probs = -np.arange(1, len(ids) + 1 - self.shorten_log_probs, dtype=np.float32)
            entropies = np.full(len(ids), 0.5, dtype=np.float32)
            replies.append(Reply(token_ids, log_probs, entropies, stop, ((len(ids), self.version),)))
        return replies

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def prompt(corridor_tokenizer: Any) -> AppendPrompt:
    return AppendPrompt(corridor_tokenizer)


def lease(task: str = "seed:1", size: int = 1, seed: int = 0, kind: Any = "rollout", repeat: int = 0) -> Lease:
    return Lease(GroupKey("run", task, repeat), kind, size, seed, deadline=0.0)


def walkthrough(corridor: ModuleType, task: str) -> list[str]:
    """Commands that open the door, worked out from the state key "place/door"."""
    _, info = plugins.reset(corridor.build(corridor.Config()), task)
    place, door = map(int, info["state_key"].split("/"))
    return [("walk right" if door > place else "walk left")] * abs(door - place) + ["open door"]


def run(corridor: ModuleType, prompt: AppendPrompt, engine: Any, leases: list[Lease], **kwargs: Any) -> Any:
    config = kwargs.pop("config", corridor.Config())
    groups, metrics = play(leases, lambda: corridor.build(config), prompt, engine, environment="corridor", **kwargs)
    return groups, reduce_metrics([metrics])


def says(prompt: AppendPrompt, commands: Sequence[str]) -> Callable[[int, int], tuple[Sequence[int], Stop]]:
    return lambda _, turn: (prompt.action(commands[turn % len(commands)]).tolist(), Stop.STOP)


def only(groups: Any) -> Episode:
    return groups[0].episodes[0]


def test_a_solved_episode_is_recorded_as_it_was_played(corridor: ModuleType, prompt: AppendPrompt) -> None:
    commands = walkthrough(corridor, "seed:1")
    engine = Scripted(says(prompt, commands))
    groups, metrics = run(corridor, prompt, engine, [lease(seed=9)])
    episode, tokenizer = only(groups), prompt.tokenizer
    assert (episode.environment, episode.task_id, episode.task_type) == ("corridor", "seed:1", "corridor")
    assert (episode.success, episode.task_return, episode.steps) == (True, 1.0, len(commands))
    assert episode.seed == derive_seed(9, 0) == engine.seeds[0]
    assert groups[0].lam == 0.0

    env = corridor.build(corridor.Config())
    observation, info = env.reset(seed=1)
    expected = [*tokenizer.encode(observation).tolist(), tokenizer.act_id]
    for turn, command in zip(episode.transitions(), commands, strict=True):
        assert turn.state_key == info["state_key"], "the state before the action"
        observation, reward, terminated, truncated, info = env.step(command)
        assert turn.action == (len(expected), len(expected) + len(prompt.action(command)))
        expected += prompt.action(command).tolist()
        assert turn.observation == (len(expected), len(expected) + len(tokenizer.encode(observation)))
        expected += tokenizer.encode(observation).tolist() + ([] if terminated else [tokenizer.act_id])
        assert (turn.action_text, turn.observation_text) == (command, observation)
        assert (turn.reward, turn.terminated, turn.truncated) == (reward, terminated, truncated)
        assert (turn.kind, turn.valid, turn.stop, turn.entropy) == (Kind.STEP, True, Stop.STOP, 0.5)
    assert episode.sequences[0].token_ids.tolist() == expected
    assert episode.sequences[0].token_ids.dtype == np.int32
    assert metrics["rollout/success"] == 1
    assert metrics["rollout/invalid"] == 0
    assert metrics["rollout/steps"] == len(commands)
    assert metrics["rollout/entropy"] == 0.5


def test_the_end_of_an_episode_is_not_a_success(corridor: ModuleType, prompt: AppendPrompt) -> None:
    """Only idling to the step limit: success 0, reward 0, truncated and not terminated."""
    groups, metrics = run(corridor, prompt, Scripted(says(prompt, ["dance"])), [lease()])
    episode = only(groups)
    last = episode.transitions()[-1]
    assert (episode.success, episode.task_return, episode.steps) == (False, 0.0, corridor.Config().max_steps)
    assert (last.terminated, last.truncated) == (False, True)
    assert [t.truncated for t in episode.transitions()[:-1]] == [False] * (episode.steps - 1)
    assert groups[0].lam == 1.0
    assert (metrics["rollout/invalid"], metrics["rollout/reply_text"], metrics["rollout/truncated"]) == (1, 1, 1)


def test_stored_action_ids_are_exactly_the_sampled_ids(corridor: ModuleType, prompt: AppendPrompt) -> None:
    """A split that the tokenizer would not make: one id a character, in every turn."""
    letters = [int(prompt.tokenizer.encode(c)[0]) for c in "walk left"]
    ids = [*letters, prompt.tokenizer.eoa_id]
    assert prompt.tokenizer.encode("walk left").tolist() != letters
    engine = Scripted(lambda row, turn: (ids, Stop.STOP))
    episode = only(run(corridor, prompt, engine, [lease()], config=corridor.Config(max_steps=2))[0])
    tokens = episode.sequences[0].token_ids
    assert episode.steps == 2
    for turn in episode.transitions():
        assert tokens[turn.action.start : turn.action.stop].tolist() == ids
        assert turn.log_probs.tolist() == [-i for i in range(1, len(ids) + 1)]
    fed = engine.fed[0]
    assert tokens[: len(fed)].tolist() == fed, "the record's context is what the engine saw"


def test_a_wrong_number_of_log_probs_names_the_episode(corridor: ModuleType, prompt: AppendPrompt) -> None:
    engine = Scripted(says(prompt, ["walk left"]))
    engine.shorten_log_probs = 1
    with pytest.raises(DataError, match=r"'corridor', task 'seed:1': .* sampled tokens but"):
        run(corridor, prompt, engine, [lease()])


def cut_from(prompt: AppendPrompt, first: int) -> Callable[[int, int], tuple[Sequence[int], Stop]]:
    word = int(prompt.tokenizer.encode("walk")[0])
    good = prompt.action("dance").tolist()
    return lambda _, turn: ([word], Stop.LENGTH) if turn >= first else (good, Stop.STOP)


def test_a_cut_reply_ends_the_episode_unexecuted(corridor: ModuleType, prompt: AppendPrompt) -> None:
    groups, metrics = run(corridor, prompt, Scripted(cut_from(prompt, 2)), [lease()])
    turns = only(groups).transitions()
    assert [t.truncated for t in turns] == [False, False, True]
    assert (turns[-1].stop, turns[-1].kind, turns[-1].valid) == (Stop.LENGTH, Kind.REJECTED, False)
    assert turns[-1].observation.length == 0
    assert only(groups).steps == 2, "it took no step"
    assert (metrics["rollout/cut_replies"], metrics["rollout/truncated"]) == (1, 1)


def test_cut_replies_may_go_on_but_not_to_the_step_limit(corridor: ModuleType, corridor_tokenizer: Any) -> None:
    prompt = AppendPrompt(corridor_tokenizer, Config(on_cut_reply="continue", max_cut_replies=3))
    groups, metrics = run(corridor, prompt, Scripted(cut_from(prompt, 2)), [lease()])
    turns = only(groups).transitions()
    assert [t.truncated for t in turns] == [False, False, True, True, True]
    assert [t.stop for t in turns[2:]] == [Stop.LENGTH] * 3
    assert {t.kind for t in turns} == {Kind.STEP}
    assert metrics["rollout/cut_replies"] == 3


def test_the_reply_limit_is_each_turns_own(corridor: ModuleType, prompt: AppendPrompt) -> None:
    """Four turns of 20 tokens under a reply limit of 32: all 80 action tokens are in the record."""
    word = int(prompt.tokenizer.encode("walk")[0])
    engine = Scripted(lambda row, turn: ([word] * 19 + [prompt.tokenizer.eoa_id], Stop.STOP))
    episode = only(run(corridor, prompt, engine, [lease()], config=corridor.Config(max_steps=4))[0])
    assert sum(t.action.length for t in episode.transitions()) == 80


@pytest.mark.parametrize("room", range(48, 80, 3))
def test_episodes_stay_within_the_context(corridor: ModuleType, corridor_tokenizer: Any, room: int) -> None:
    prompt = AppendPrompt(corridor_tokenizer, Config(max_tokens=room))
    groups, metrics = run(corridor, prompt, Scripted(says(prompt, ["dance"]), max_reply_tokens=12), [lease()])
    episode = only(groups)
    last = episode.transitions()[-1]
    assert len(episode.sequences[0].token_ids) <= room
    assert (last.stop, last.truncated, last.terminated) == (Stop.CONTEXT, True, False)
    assert metrics["rollout/context_ended"] == 1
    assert last.observation.stop <= len(episode.sequences[0].token_ids)


def test_an_opening_without_room(corridor: ModuleType, corridor_tokenizer: Any) -> None:
    prompt = AppendPrompt(corridor_tokenizer, Config(max_tokens=16))
    engine = Scripted(says(prompt, ["dance"]))
    with pytest.raises(ConfigError, match=r"task 'seed:1' leaves no room .* raise prompt\.max_tokens"):
        run(corridor, prompt, engine, [lease()])
    groups, metrics = run(corridor, prompt, engine, [lease(kind="eval")])
    assert only(groups).transitions() == []
    assert (only(groups).success, metrics["rollout/context_ended"]) == (False, 1)


class Failing:
    """Raises in its second step."""

    def __init__(self, module: ModuleType, how: Exception | None) -> None:
        self.env, self.how, self.steps = module.build(module.Config()), how, 0

    def reset(self, **options: Any) -> tuple[str, Info]:
        return self.env.reset(**options)

    def step(self, action: str) -> Any:
        self.steps += 1
        if self.steps == 2 and self.how:
            raise self.how
        *answer, info = self.env.step(action)
        return (*answer, info if self.how else {"won": False})

    def close(self) -> None:
        pass


def test_an_environment_that_raises_is_named(corridor: ModuleType, prompt: AppendPrompt) -> None:
    cause = KeyError("fridge 9")
    with pytest.raises(EnvironmentFailure, match=r"'corridor', task 'seed:1' raised KeyError: 'fridge 9'") as failure:
        play(
            [lease()],
            lambda: Failing(corridor, cause),
            prompt,
            Scripted(says(prompt, ["dance"])),
            environment="corridor",
        )
    assert failure.value.__cause__ is cause


def test_an_info_that_lacks_keys_is_named(corridor: ModuleType, prompt: AppendPrompt) -> None:
    with pytest.raises(EnvironmentFailure, match="info lacks admissible_commands, state_key, valid"):
        play(
            [lease()],
            lambda: Failing(corridor, None),
            prompt,
            Scripted(says(prompt, ["dance"])),
            environment="corridor",
        )


def test_versions_are_stamped_step_by_step(corridor: ModuleType, prompt: AppendPrompt) -> None:
    """Version 5 at the start, 6 from step 2 on; an update that fails before it is adopted leaves no trace."""

    def script(row: int, turn: int) -> tuple[Sequence[int], Stop]:
        engine.version = V5 if turn < 2 else V6
        return prompt.action("dance").tolist(), Stop.STOP

    engine = Scripted(script)
    groups, _ = run(corridor, prompt, engine, [lease()], config=corridor.Config(max_steps=4))
    assert [t.oldest for t in only(groups).transitions()] == [V5, V5, V6, V6]
    assert groups[0].oldest == V5


@pytest.fixture(scope="module")
def engine(tiny_model_factory: Any, corridor_tokenizer: Any) -> TransformersEngine:
    settings = Sampling(constrained=True)
    return TransformersEngine(tiny_model_factory(0, initializer_range=0.02), corridor_tokenizer, settings, V5)


def actions(groups: Any) -> list[list[list[str]]]:
    return [[[turn.action_text for turn in episode.transitions()] for episode in group.episodes] for group in groups]


def test_the_layout_of_the_work_changes_no_episode(corridor: ModuleType, prompt: AppendPrompt, engine: Any) -> None:
    """All leases in one call, or one a call, or in another order: the same tasks and actions; streams differ within a run."""
    leases = [lease(f"seed:{i}", size=2, seed=derive_seed(42, i)) for i in range(4)]
    together = actions(run(corridor, prompt, engine, leases)[0])
    assert together == actions(run(corridor, prompt, engine, leases)[0])
    assert together == [actions(run(corridor, prompt, engine, [one])[0])[0] for one in leases]
    assert together[::-1] == actions(run(corridor, prompt, engine, leases[::-1])[0])
    same_task = [lease("seed:1", size=8, seed=1), lease("seed:1", size=8, seed=2, repeat=1)]
    streams = [tuple(episode) for group in actions(run(corridor, prompt, engine, same_task)[0]) for episode in group]
    assert len(set(streams)) > 4


def test_constrained_play_is_valid_and_recorded(corridor: ModuleType, prompt: AppendPrompt, engine: Any) -> None:
    groups, metrics = run(corridor, prompt, engine, [lease(f"seed:{i}", size=4, seed=i) for i in range(4)])
    assert (metrics["rollout/invalid"], metrics["rollout/reply_admissible"]) == (0, 1)
    assert metrics["rollout/success"] > 0
    turns = [t for group in groups for episode in group.episodes for t in episode.transitions()]
    assert all(t.allowed is not None and len(t.allowed) == t.action.length for t in turns)
    returns = [[episode.task_return for episode in group.episodes] for group in groups]
    assert [group.lam for group in groups] == [1 - np.mean(r) for r in returns]
    free = run(corridor, prompt, engine, [lease()], sampling=Sampling(max_reply_tokens=2))[0]
    assert only(free).transitions()[0].allowed is None


def test_no_work_is_no_error(corridor: ModuleType, prompt: AppendPrompt, engine: Any) -> None:
    groups, metrics = run(corridor, prompt, engine, [])
    assert groups == []
    assert metrics["rollout/episodes"] == 0


@pytest.mark.parametrize("name", ["append", "window"])
def test_the_learner_scores_what_was_sampled(
    corridor: ModuleType, corridor_tokenizer: Any, tiny_model_factory: Any, name: str
) -> None:
    """The real engine, its cache kept across turns: a plain forward over each recorded sequence gives its log-probs."""
    import torch

    model = tiny_model_factory(0)
    engine = TransformersEngine(model, corridor_tokenizer, Sampling(max_reply_tokens=6), V5)
    prompt = build_prompt({"name": name, "on_cut_reply": "continue"}, corridor_tokenizer)
    groups, _ = run(corridor, prompt, engine, [lease(f"seed:{i}", size=2, seed=i, kind="eval") for i in range(3)])
    turns = 0
    for sequence in (s for group in groups for episode in group.episodes for s in episode.sequences):
        with torch.inference_mode():
            logits = model(torch.tensor(sequence.token_ids.astype(np.int64))[None]).logits[0]
        scores = torch.log_softmax(logits, dim=-1).numpy()
        for turn in sequence.transitions:
            places = np.arange(turn.action.start, turn.action.stop)
            np.testing.assert_allclose(scores[places - 1, sequence.token_ids[places]], turn.log_probs, atol=2e-4)
            turns += 1
    assert turns > 6
