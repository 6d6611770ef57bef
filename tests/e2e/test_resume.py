"""A run that is killed and resumed writes what an uninterrupted one writes, bit for bit (on a CPU, synchronously)."""

import hashlib
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TINY = Path(__file__).parents[1] / "data/tiny.toml"
DEADLINE = 180.0
Start = Callable[..., subprocess.Popen]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


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


def finish(process: subprocess.Popen) -> None:
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err


def weights(run: Path) -> dict[str, str]:
    newest = max((run / "checkpoints").glob("step_*"))
    files = ["model.safetensors", "trainer/optimizer.safetensors"]
    return {name: hashlib.sha256((newest / name).read_bytes()).hexdigest() for name in files}


def assert_same(run: Path, whole: Path) -> None:
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (run / name).read_text() == (whole / name).read_text(), name
    assert weights(run) == weights(whole)
    summaries = [json.loads((r / "summary.json").read_text()) for r in (run, whole)]
    for summary in summaries:
        del summary["wall_seconds"]
    assert summaries[0] == summaries[1]


def test_killed_again_and_again(start: Start, whole_run: Path) -> None:
    """kill -9 in the warm start, at its end, and in policy training: right before, at and after a checkpoint."""
    run = whole_run.parent / "killed"
    process = start("train", str(TINY), "--runs", str(run.parent), "--name", run.name, "--quiet")
    for count in (2, 5, 8, 9, 10, 13):
        stop_at(process, run / "metrics.jsonl", count, signal.SIGKILL)
        process.communicate(timeout=DEADLINE)
        process = start("train", "--resume", str(run), "--quiet")
    finish(process)
    assert_same(run, whole_run)


def test_asked_to_stop(start: Start, whole_run: Path) -> None:
    """Ctrl-C saves at the end of the update, exits 130 and says how to go on; no update is lost."""
    run = whole_run.parent / "asked"
    process = start("train", str(TINY), "--runs", str(run.parent), "--name", run.name, "--quiet")
    stop_at(process, run / "metrics.jsonl", 11, signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert f"--resume {run}" in err
    done = lines(run / "metrics.jsonl")
    process = start("train", "--resume", str(run), "--quiet")
    finish(process)
    assert done >= 11
    assert_same(run, whole_run)
