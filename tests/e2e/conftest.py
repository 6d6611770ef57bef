"""The tiny run, made once by the command that a user types."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests/data/tiny.toml"
DEADLINE = 180.0

Start = Callable[..., subprocess.Popen]


def start_tandem(*arguments: str) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "deploy", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="session")
def start() -> Start:
    return start_tandem


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `tests/data/tiny.toml` from start to end, uninterrupted."""
    runs = tmp_path_factory.mktemp("runs")
    process = start_tandem("train", str(TINY), "--runs", str(runs), "--name", "whole", "--quiet")
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    return runs / "whole"
