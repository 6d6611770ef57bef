"""A run that is killed and resumed writes what an uninterrupted one writes, bit for bit (on a CPU, synchronously)."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests/data/tiny.toml"
DEADLINE = 120.0


def start(*arguments: str, cwd: Path) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "deploy", "train", "--runs", str(cwd), "--quiet", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    return out


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def stop_at(process: subprocess.Popen, file: Path, count: int, number: signal.Signals) -> None:
    """Send `number` as soon as `file` holds `count` lines."""
    end = time.monotonic() + DEADLINE
    while lines(file) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, f"{file} never reached {count} lines"
        time.sleep(0.01)
    process.send_signal(number)


def digest(folder: Path) -> dict[str, str]:
    files = ["model.safetensors", "trainer/optimizer.safetensors"]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step_*"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    finish(start(str(TINY), "--name", "whole", cwd=runs))
    return runs / "whole"


def assert_same(run: Path, whole: Path) -> None:
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (run / name).read_text() == (whole / name).read_text(), name
    assert digest(newest(run)) == digest(newest(whole))


@pytest.mark.slow
def test_killed_again_and_again(uninterrupted: Path) -> None:
    """kill -9 in the warm start, at its end, in policy training right before, at and after a checkpoint."""
    runs = uninterrupted.parent
    process = start(str(TINY), "--name", "killed", cwd=runs)
    run = runs / "killed"
    for count in (2, 5, 8, 9, 10, 13):
        stop_at(process, run / "metrics.jsonl", count, signal.SIGKILL)
        process.communicate(timeout=DEADLINE)
        process = start("--resume", str(run), cwd=runs)
    finish(process)
    assert_same(run, uninterrupted)
    summaries = [json.loads((r / "summary.json").read_text()) for r in (run, uninterrupted)]
    for summary in summaries:
        assert {"mean", "low", "high", "episodes"} <= summary["success_after"].keys()
        del summary["wall_seconds"]
    assert summaries[0] == summaries[1]


@pytest.mark.slow
def test_asked_to_stop(uninterrupted: Path) -> None:
    """Ctrl-C saves at the end of the update, exits 130 and says how to go on; no update is lost."""
    runs = uninterrupted.parent
    process = start(str(TINY), "--name", "asked", cwd=runs)
    run = runs / "asked"
    stop_at(process, run / "metrics.jsonl", 11, signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert f"--resume {run}" in err
    done = lines(run / "metrics.jsonl")
    finish(start("--resume", str(run), cwd=runs))
    assert done >= 11
    assert_same(run, uninterrupted)
