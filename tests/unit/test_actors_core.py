"""Environments: how they are found, and the contract that every one of them keeps."""

import json
import sys
from typing import Any

import pytest

from actors import plugins
from actors.core import environment_names, load_environment
from protos.errors import ConfigError

EVERY = [*environment_names(), "user_package.corridor"]
BAD_ACTIONS = [
    "",
    "   ",
    "fly to the moon",
    "go to",
    "x" * 10_000,
    "gehe zum Kühlschrank 1 ☃",
    "<action>look</action>",
    "\x00\n",
]
REQUIRED = {"admissible_commands", "won", "state_key", "task_id", "task_type"}


@pytest.fixture(params=EVERY)
def module(request: pytest.FixtureRequest) -> Any:
    module = load_environment(request.param)
    try:
        module.build(module.Config())
    except (
        ConfigError
    ) as error:  # an engine of others' that is not installed here; its own tests are in tests/integration
        if "install" not in str(error):
            raise
        pytest.skip(str(error))
    return module


def transcript(module: Any, task_id: str, steps: int = 6) -> list[Any]:
    """Play the first admissible command not tried yet; everything that the environment said."""
    env = module.build(module.Config())
    said: list[Any] = [plugins.reset(env, task_id)]
    for i in range(steps):
        commands = said[-1][-1]["admissible_commands"]
        said.append(env.step(commands[i % len(commands)]))
        if said[-1][2] or said[-1][3]:
            break
    env.close()
    return said


def tasks(module: Any, count: int, split: str = "train") -> list[str]:
    return plugins.task_ids(module, module.Config(), split, 0, 0, count)


def test_same_task_same_episode(module: Any) -> None:
    for task_id in tasks(module, 3):
        assert transcript(module, task_id) == transcript(module, task_id)


def test_tasks_differ_and_keep_their_order(module: Any) -> None:
    config = module.Config()
    first = plugins.task_ids(module, config, "train", 7, 0, 6)
    assert len(set(first)) == 6
    assert plugins.task_ids(module, config, "train", 7, 2, 3) == first[2:5]


def test_info_is_complete_and_json(module: Any) -> None:
    said = transcript(module, tasks(module, 1)[0])
    assert said[0][1].keys() >= REQUIRED
    for info in (answer[-1] for answer in said):
        assert json.loads(json.dumps(info, allow_nan=False)) == info
        assert info["admissible_commands"] == sorted(info["admissible_commands"])
    for _, reward, terminated, truncated, info in said[1:]:
        assert isinstance(reward, float)
        assert {type(terminated), type(truncated), type(info["valid"]), type(info["won"])} == {bool}
        assert info["valid"]


@pytest.mark.parametrize("action", BAD_ACTIONS)
def test_bad_actions_get_a_refusal(module: Any, action: str) -> None:
    env = module.build(module.Config())
    _, before = plugins.reset(env, tasks(module, 1)[0])
    observation, reward, terminated, _, info = env.step(action)
    assert isinstance(observation, str)
    assert observation
    assert (reward, terminated, info["won"], info["valid"]) == (0, False, False, False)
    assert info["admissible_commands"] == before["admissible_commands"]


def test_instances_share_no_state(module: Any) -> None:
    """Two games stepped in turn say what each says alone (and a reset in one does not reach the other)."""
    task_ids = tasks(module, 2)
    alone = [transcript(module, task_id) for task_id in task_ids]
    envs = [module.build(module.Config()) for _ in task_ids]
    together: list[list[Any]] = [[plugins.reset(env, task_id)] for env, task_id in zip(envs, task_ids, strict=True)]
    for i in range(6):
        for env, said in zip(envs, together, strict=True):
            if i == 0 or not (said[-1][2] or said[-1][3]):
                commands = said[-1][-1]["admissible_commands"]
                said.append(env.step(commands[i % len(commands)]))
    assert together == alone


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'household'"):
        load_environment("houshold")
    with pytest.raises(ConfigError, match=r"choose one of .*household"):
        load_environment("zzz")
    with pytest.raises(ConfigError, match=r"no environment 'user_package\.nothing'"):
        load_environment("user_package.nothing")


def test_modules_that_are_no_plugin(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_plugin").mkdir()
    (tmp_path / "half_plugin" / "env.py").write_text("Config = dict\n")
    (tmp_path / "half_plugin" / "needy.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="lacks build"):
        load_environment("half_plugin.env")
    with pytest.raises(ConfigError, match="needs the module 'a_module_that_is_not_there'"):
        load_environment("half_plugin.needy")


def test_defaults_of_a_module_without_hooks(corridor: Any, corridor_tokenizer: Any) -> None:
    config = corridor.Config()
    train, test = (plugins.task_ids(corridor, config, split, 0, 0, 50) for split in ("train", "test"))
    assert all(task.startswith("seed:") for task in train)
    assert not set(train) & set(test)
    text = "You stand at place 3. Größe ☃"
    assert corridor_tokenizer.decode(corridor_tokenizer.encode(text)) == text
    with pytest.raises(ConfigError, match="has no expert"):
        plugins.expert(corridor, config, corridor.build(config), 0)


def test_acting_without_an_engine_never_imports_torch() -> None:
    import subprocess

    code = (
        "import sys, actors.core, actors.pretrained, actors.rollout, actors.demonstrations, actors.evaluation\n"
        "for name in actors.core.prompt_names(): actors.core.load_prompt(name)\n"
        "sys.exit(any(heavy in sys.modules for heavy in ('torch', 'transformers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
