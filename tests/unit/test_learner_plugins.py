import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from learner import plugins
from learner.core import Need
from protos.errors import ConfigError


@pytest.mark.parametrize("kind", ["advantages", "objectives"])
def test_every_module_is_a_plugin_that_loads_on_its_defaults(kind: str):
    assert plugins.names(kind)
    for name in plugins.names(kind):
        built = plugins.load(kind, {"name": name})
        members = ["compute", "check"] if kind == "advantages" else ["weigh", "keep", "loss", "replay_rows"]
        assert all(callable(getattr(built, member)) for member in members)
        assert built.needs <= ({"reference", "values"} if kind == "advantages" else set(get_args(Need)))
        config = plugins.find(kind, name).Config
        assert all(field.description for field in config.model_fields.values())


def test_settings_reach_the_object():
    assert plugins.load("objectives", {"name": "paw", "alpha": 0.5}).config.alpha == 0.5
    assert plugins.load("advantages", {"name": "learner.advantages.gigpo", "omega": 2}).config.omega == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "pwa"}, "there is no 'pwa'; did you mean 'paw'"),
        ({"name": "zzz"}, "there is no 'zzz'; there are next_observation, paw"),
        ({}, "there is no ''"),
        ({"name": "paw", "alhpa": 0.5}, "there is no setting 'alhpa'; did you mean 'alpha'"),
        ({"name": "policy_gradient", "importance": "mask"}, 'set proximal = "recomputed"'),
        ({"name": "policy_gradient", "clip_hihg": 0.2}, "did you mean 'clip_high'"),
        ({"name": "paw", "alpha": 2}, "objectives, paw: alpha: Input should be less than or equal to 1"),
        ({"name": "no_such_package.objective"}, "no module 'no_such_package.objective'"),
        ({"name": "learner..paw"}, "no module 'learner..paw'"),
        ({"name": "json.decoder"}, "lacks Config and build"),
        ({"name": "placebo", "of": {"name": "paw", "rows": "episode"}}, "leave out `rows`"),
        ({"name": "placebo", "of": {"name": "supervised"}}, "not 'supervised'"),
        ({"name": "placebo", "of": {"name": "paw", "alhpa": 1}}, "did you mean 'alpha'"),
    ],
)
def test_mistakes_are_named_on_one_line(spec: dict, message: str):
    with pytest.raises(ConfigError, match=r"^[^\n]*$") as caught:
        plugins.load("objectives", spec)
    assert message in str(caught.value)


def test_a_module_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_terms").mkdir()
    (tmp_path / "my_terms" / "half.py").write_text(
        "from pydantic import BaseModel\n\n"
        "class Config(BaseModel):\n    size: int = 1\n\n"
        "def build(config):\n    return config.size / 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.load("objectives", {"name": "my_terms.half", "size": 3}) == 1.5


def test_configs_are_checked_without_torch():
    program = (
        "import sys; from learner import plugins\n"
        "[plugins.load(kind, {'name': n}) for kind in ('advantages', 'objectives') for n in plugins.names(kind)]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
