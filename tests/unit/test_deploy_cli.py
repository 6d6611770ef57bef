"""The command `tandem`: what it passes on, and how failures end."""

import errno
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, Field
from typer.testing import CliRunner, Result

from deploy.cli import app, before_and_after, split_arguments, summary_rows
from deploy.console import Console
from deploy.runs import RunFolder
from protos.errors import CollapseError, ConfigError


class Training(BaseModel, extra="forbid", frozen=True):
    updates: int = Field(3, ge=0)


class RunConfig(BaseModel, extra="forbid", frozen=True):
    name: str = "tiny"
    seed: int = 0
    training: Training = Training()


Job = Callable[..., dict[str, Any]]


@pytest.fixture
def tandem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a command line in an empty folder; `job` stands in for training, evaluation or a benchmark."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, job: Job | None = None) -> Result:
        for name in ("config", "train", "evaluate", "bench.env"):
            module = ModuleType(f"deploy.{name}")
            module.__dict__.update(RunConfig=RunConfig, train=job, evaluate=job, run=job)
            monkeypatch.setitem(sys.modules, f"deploy.{name}", module)
        return CliRunner().invoke(app, list(arguments))

    return call


def trained(config: RunConfig, run: RunFolder, console: Console) -> dict[str, Any]:
    assert isinstance(console, Console)
    success = {"mean": 0.5, "low": 0.4, "high": 0.6, "episodes": 64}
    return {
        "success_before": {"mean": 0.25},
        "success_after": success,
        "seed": config.seed,
        "updates": config.training.updates,
        "nll": float("nan"),
    }


def failing(error: BaseException) -> Job:
    def job(*_: Any) -> dict[str, Any]:
        raise error

    return job


def test_the_command_line_is_light() -> None:
    heavy = ("torch", "ray", "transformers", "plotly", "numpy", "pydantic", "rich.console", "jinja2", "tensorboardX")
    code = f"import sys, deploy.cli, deploy.__main__; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_names_every_command(tandem: Callable[..., Result]) -> None:
    assert all(word in tandem("--help").output for word in ("train", "eval", "bench", "report", "config"))
    assert all(word in tandem("bench", "--help").output for word in ("env", "rollout", "learner"))


def test_train_leaves_a_run_folder(tandem: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "quick.toml").write_text("seed = 4\n")
    result = tandem("train", "training.updates=7", "quick.toml", job=trained)
    assert result.exit_code == 0, result.output
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("-quick-s4")
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["seed"], summary["updates"], summary["nll"]) == (4, 7, None)
    assert "updates = 7" in (run / "config.toml").read_text()
    assert "50%" in (run / "report.html").read_text()
    assert re.search(r"success +0\.250 +0\.500 \[0\.400, 0\.600\] of 64", result.stdout)
    assert f"runs/{run.name}/report.html" in result.stderr


def test_names_and_folders_are_the_users(tandem: Callable[..., Result], tmp_path: Path) -> None:
    for _ in range(2):
        assert tandem("train", "--runs", "elsewhere", "--name", "mine", "-q", job=trained).exit_code == 0
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == ["mine", "mine-2"]


def test_resume_goes_on_in_the_same_folder(tandem: Callable[..., Result], tmp_path: Path) -> None:
    tandem("train", "seed=9", "--name", "a", job=trained)
    for place in ("a", "runs/a"):  # by name or by path
        result = tandem("train", "--resume", place, "training.updates=8", job=trained)
        assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "runs/a/summary.json").read_text())
    assert (summary["seed"], summary["updates"]) == (9, 8)
    assert "updates = 8" in (tmp_path / "runs/a/config.toml").read_text()
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("train", "sed=1"), 2, "tandem: unknown setting sed: did you mean seed?"),
        (("train", "training.updates=-1"), 2, "tandem: training.updates = -1: expected a value greater than or equal to 0"),
        (("train", "nowhere.toml"), 2, "tandem: no config file nowhere.toml"),
        (("train", "a.toml", "b.toml"), 2, "tandem: 'b.toml' is neither a setting (key=value) nor the config, which is a.toml"),
        (("train", "--resume", "nowhere"), 3, "tandem: nowhere is not a run folder: it has no config.toml"),
        (("train", "--resume", "x", "--name", "y"), 2, "tandem: --resume takes its config and its name from the run"),
        (("train", "--name", "a/b"), 2, "tandem: 'a/b' cannot name a run"),
        (("eval", ".", "quick.toml"), 2, "tandem: 'quick.toml' is not a setting: write dotted.key=value"),
        (("report", "nowhere"), 3, "tandem: nowhere is not a run folder"),
        (("config", "training.update=1"), 2, "tandem: unknown setting training.update: did you mean training.updates?"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line(
    tandem: Callable[..., Result], tmp_path: Path, arguments: tuple[str, ...], code: int, line: str
) -> None:
    result = tandem(*arguments, job=trained)
    assert result.exit_code == code
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_failures_while_training(tandem: Callable[..., Result], tmp_path: Path) -> None:
    result = tandem("train", "--name", "a", job=failing(CollapseError("the policy collapsed")))
    assert (result.exit_code, result.stderr) == (5, "run runs/a\ntandem: the policy collapsed\n")
    result = tandem("train", "--name", "b", job=failing(KeyboardInterrupt()))
    assert result.exit_code == 130
    assert result.stderr.endswith("tandem: stopped; go on with: tandem train --resume runs/b\n")
    full = OSError(errno.ENOSPC, "No space left on device", "runs/c/checkpoints/x")
    result = tandem("train", "--name", "c", job=failing(full))
    assert result.exit_code == 7
    assert "tandem: the disk is full at runs/c/checkpoints/x: make room and resume the run" in result.stderr
    result = tandem("train", "--name", "d", job=lambda *_: {"x": RunConfig.model_validate({"seed": "x"})})
    assert result.exit_code == 2
    assert 'tandem: RunConfig: seed = "x": expected a valid integer' in result.stderr
    RunFolder.open(tmp_path / "runs/a", write=True).close()  # no lock is left behind


@pytest.mark.parametrize(
    "error", [RuntimeError("bug"), ValueError("bug"), OSError(errno.ECONNRESET, "bug"), KeyError("bug")]
)
def test_unexpected_errors_keep_their_traceback(tandem: Callable[..., Result], error: Exception) -> None:
    result = tandem("train", job=failing(error))
    assert result.exit_code == 1
    assert result.exception is error


def test_eval_prints_a_table_or_json(tandem: Callable[..., Result]) -> None:
    calls: list[tuple[Any, ...]] = []

    def evaluate(model: str, overrides: list[str], console: Console, settings: Path | None) -> dict[str, Any]:
        calls.append((model, overrides, settings))
        console.note("playing")
        return {"success": {"mean": 0.25}, "nll": float("inf"), "by_task": {"pick": 1}}

    result = tandem("eval", ".", "evaluation.games=8", "--json", job=evaluate)
    assert json.loads(result.stdout) == {"success": {"mean": 0.25}, "nll": None, "by_task": {"pick": 1}}
    assert result.stderr == ""
    result = tandem("eval", "org/model", "--config", "own.toml", job=evaluate)
    assert "by_task.pick" in result.stdout
    assert result.stderr == "playing\n"
    assert calls == [(".", ["evaluation.games=8"], None), ("org/model", [], Path("own.toml"))]
    result = tandem("eval", ".", job=failing(KeyboardInterrupt()))
    assert (result.exit_code, result.stderr) == (130, "tandem: interrupted\n")


def test_bench_prints_one_flat_object(tandem: Callable[..., Result]) -> None:
    result = tandem("bench", "env", "--json", job=lambda console: {"household_steps_per_s": 60000.0})
    assert json.loads(result.stdout) == {"household_steps_per_s": 60000.0}
    result = tandem("bench", "env", job=lambda console: {"household_steps_per_s": 60000.0})
    assert "60,000" in result.stdout


def test_config_prints_what_it_reads(tandem: Callable[..., Result], tmp_path: Path) -> None:
    text = tandem("config", "seed=5").stdout
    assert text == 'name = "tiny"\nseed = 5\n\n[training]\nupdates = 3\n'
    (tmp_path / "c.toml").write_text(text)
    assert tandem("config", "c.toml").stdout == text


def test_report_is_built_again(tandem: Callable[..., Result], tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "r", "").close()
    assert tandem("report", "r").stdout == "r/report.html\n"
    assert (tmp_path / "r/report.html").is_file()


def test_arguments_are_told_apart_by_the_equals_sign() -> None:
    assert split_arguments(["a=1", "c.toml", "b.c=x=y"]) == (Path("c.toml"), ["a=1", "b.c=x=y"])
    assert split_arguments(None) == (None, [])
    with pytest.raises(ConfigError):
        split_arguments(["a", "b"])


def test_summary_rows() -> None:
    rows = summary_rows({"a": {"mean": 0.5}, "b": {"c": 1, "d": {"e": None}}, "seeds": [1, 2]})
    pairs, rest = before_and_after({"x_before": {"k": 1}, "x_after": {"k": 2}, "y_before": 3, "z": 4})
    assert pairs == [("x.k", 1, 2)]
    assert rest == [("y_before", 3), ("z", 4)]
    assert rows == [("a", "0.500"), ("b.c", 1), ("b.d.e", "-"), ("seeds", "1, 2")]
