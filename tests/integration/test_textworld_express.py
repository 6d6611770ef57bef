"""TextWorldExpress's own engine as an environment."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from actors.envs import textworld_express
from actors.envs.textworld_express import FOLDS, OVER, SEEDS, Config, TextWorldExpress
from protos.errors import ConfigError, DataError

if shutil.which("java") is None:
    pytest.skip("needs Java", allow_module_level=True)
engine = pytest.importorskip("textworld_express", reason="needs the textworld-express extra")

pytestmark = pytest.mark.java
COIN = Config()


def name(game: str, seed: int, fold: str = "train") -> str:
    return f"textworld_express:{game}:{fold}:{seed}"


def random_play(env: TextWorldExpress, task_id: str, steps: int = 12) -> list[str]:
    rng = random.Random(7)
    observation, info = env.reset(options={"task_id": task_id})
    lines = [json.dumps([observation, info])]
    for _ in range(steps):
        step = env.step(rng.choice(info["admissible_commands"]))
        info = step[4]
        lines.append(json.dumps(step))
    return lines


def test_names_and_seeds_are_the_engines_own() -> None:
    config = Config(games=tuple(engine.GAME_NAMES))
    assert len(config.games) == 8
    game = textworld_express.Game()
    game.start(config, name("coin", 0))
    own = {
        "train": game._call("getSeedsTrain"),
        "dev": game._call("getSeedsDev"),
        "test": game._call("getSeedsTest"),
    }
    assert {fold: sorted(seeds) for fold, seeds in own.items()} == {fold: list(seeds) for fold, seeds in SEEDS.items()}


def test_splits_are_disjoint_and_in_a_fixed_order() -> None:
    config = Config(games=("coin", "sorting"))
    splits = {split: textworld_express.task_ids(config, split, 1, 0, 2000) for split in FOLDS}
    assert {len(set(ids)) for ids in splits.values()} == {2000}
    assert len(set().union(*splits.values())) == 6000
    assert textworld_express.task_ids(config, "train", 1, 5, 3) == splits["train"][5:8]
    assert textworld_express.task_ids(config, "train", 2, 0, 2000) != splits["train"]
    assert sorted(textworld_express.task_ids(config, "train", 1, 2000, 2000)) == sorted(splits["train"])
    assert textworld_express.task_ids(config, "unseen", 1, 1999, 5) == splits["unseen"][1999:]


@pytest.mark.parametrize("game", ["coin", "sorting"])
def test_a_task_is_always_the_same_game(game: str) -> None:
    first, second = textworld_express.build(COIN), textworld_express.build(COIN)
    transcript = random_play(first, name(game, 3))
    random_play(first, name(game, 4))
    assert random_play(first, name(game, 3)) == transcript == random_play(second, name(game, 3))


def test_interleaved_games_are_independent() -> None:
    alone = [random_play(textworld_express.build(COIN), name("coin", seed)) for seed in (1, 2)]
    envs = [textworld_express.build(COIN) for _ in alone]
    rngs = [random.Random(7) for _ in alone]
    starts = [env.reset(options={"task_id": name("coin", seed)}) for env, seed in zip(envs, (1, 2), strict=True)]
    together, infos = [[json.dumps(start)] for start in starts], [info for _, info in starts]
    for _ in range(12):
        for number, env in enumerate(envs):
            step = env.step(rngs[number].choice(infos[number]["admissible_commands"]))
            infos[number] = step[4]
            together[number].append(json.dumps(step))
    assert together == alone


def test_two_players_of_one_task_do_not_meet() -> None:  # BC-34: sorting's objects lie in static fields of the engine
    players = [textworld_express.build(COIN) for _ in range(2)]
    transcripts = [random_play(players[0], name("sorting", 0))]
    starts = [player.reset(options={"task_id": name("sorting", 0)}) for player in players]
    game = textworld_express.Game.take()
    game.start(COIN, name("sorting", 0), gold=True)
    for command in game.gold_path():
        ends = [player.step(command if number == 0 else "look around") for number, player in enumerate(players)]
    assert [end[4]["won"] for end in ends] == [True, False]
    assert starts[0] == starts[1]
    assert random_play(players[1], name("sorting", 0)) == transcripts[0]


@pytest.mark.parametrize("game", ["coin", "twc", "sorting", "simonsays"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_expert_wins(game: str, noise: float) -> None:
    config = Config.model_validate({"games": (game,), "expert_noise": noise, "reward": 2.5})
    env = textworld_express.build(config)
    expert = textworld_express.expert(config, env, np.random.default_rng(0))
    wins = 0
    for seed in range(10):
        observation, info = env.reset(options={"task_id": name(game, seed)})
        assert observation.startswith(info["task"])
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, info = env.step(expert(observation, info))
            total, over = total + reward, terminated or truncated
        assert total == 2.5 * info["won"]
        wins += info["won"]
    assert wins >= (9 if noise == 0 else 1)  # a random command can spoil a gold path for good


def test_bad_actions_are_refused_and_counted() -> None:
    env = textworld_express.build(Config(max_steps=3))
    _, info = env.reset(options={"task_id": name("coin", 1)})
    assert info["admissible_commands"] == sorted(set(info["admissible_commands"]))
    for number, action in enumerate(("fly to the moon", "", "\u00e9\n" * 40), start=1):
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation
        assert (reward, terminated, truncated, info["won"], info["valid"]) == (0.0, False, number == 3, False, False)
    assert env.step("look around")[:4] == (OVER, 0.0, False, True)


def test_a_failure_terminates_without_a_win() -> None:
    env = textworld_express.build(COIN)
    observation, info = env.reset(options={"task_id": name("simonsays", 1)})
    wrong = next(command for command in info["admissible_commands"] if command not in observation)
    _, reward, terminated, truncated, info = env.step(wrong)
    assert (reward, terminated, truncated, info["won"]) == (0.0, True, False, False)


def test_parameters_reach_the_engine_and_bad_ones_are_one_line() -> None:
    env = textworld_express.build(Config(params={"coin": "numLocations=1,includeDoors=0"}))
    _, info = env.reset(options={"task_id": name("coin", 0)})
    assert not [command for command in info["admissible_commands"] if command.startswith("move ")]
    with pytest.raises(ConfigError, match="coin with parameters"):
        textworld_express.build(Config(params={"coin": "colour=7"})).reset(options={"task_id": name("coin", 0)})
    with pytest.raises(DataError, match="no task"):
        env.reset(options={"task_id": name("coin", 10_000)})


def test_missing_java_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="needs Java: apt-get install"):
        textworld_express._java_machine.__wrapped__(-1)


SCRIPT = """
import signal, sys
from actors.envs import textworld_express as t
envs = [t.build(t.Config()) for _ in range(5)]
for env in envs:
    env.reset(seed=1)
envs[0].close()
envs[0].close()
del envs[1]
print("ready", flush=True)
if sys.argv[1] == "wait":
    signal.pause()
"""


def children(parent: int) -> list[int]:
    """Process ids of the children, by any thread."""
    lists = [path.read_text().split() for path in Path(f"/proc/{parent}/task").glob("*/children")]
    return [int(pid) for pids in lists for pid in pids]


@pytest.mark.parametrize("end", ["wait", "exit"])
def test_no_java_outlives_its_process(end: str) -> None:  # BC-45
    with subprocess.Popen([sys.executable, "-c", SCRIPT, end], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        java = children(process.pid)
        if end == "wait":
            assert len(java) == 1
            process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=20) == (-signal.SIGKILL if end == "wait" else 0)
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in java if running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
