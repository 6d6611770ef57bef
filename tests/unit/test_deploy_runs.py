"""The run folder: names, locks, rewinding, and writes that happen wholly or not at all."""

import errno
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from deploy import runs
from deploy.runs import RunFolder, code_commit, default_name, replace_file, storage, storage_error, strict
from protos.errors import ConfigError, DataError, StorageError


def test_a_new_run_never_takes_an_existing_folder(tmp_path: Path) -> None:
    name = default_name("household", 3, date(2026, 1, 2))
    assert name == "2026-01-02-household-s3"
    paths = []
    for _ in range(3):
        with RunFolder.create(tmp_path / "runs", name, "seed = 3\n") as run:
            paths.append(run.path.name)
    assert paths == [name, f"{name}-2", f"{name}-3"]
    assert run.config.read_text() == "seed = 3\n"
    assert run.episodes.is_dir()
    assert run.tensorboard.is_dir()
    assert run.checkpoints.is_dir()
    assert default_name("x", 0) == f"{date.today()}-x-s0"


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "/abs"])
def test_a_name_is_one_visible_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a run"):
        RunFolder.create(tmp_path, name, "")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="not a run folder"):
            RunFolder.open(path)


def test_one_process_writes_a_run(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "r", "") as run:
        RunFolder.open(run.path).close()  # reading needs no lock
        with pytest.raises(StorageError, match=f"process {os.getpid()}"):
            RunFolder.open(run.path, write=True)
    RunFolder.open(run.path, write=True).close()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from deploy.runs import RunFolder
run = RunFolder.create(Path({str(tmp_path)!r}), "r", "")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    RunFolder.open(tmp_path / "r", write=True).close()


def test_rewind_cuts_every_line_file_back(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "r", "") as run:
        run.metrics.write_text("1\n2\n")
        (run.episodes / "train.jsonl").write_text("a\n")
        cursor = run.cursor()
        assert cursor == {"metrics.jsonl": 4, "episodes/train.jsonl": 2}
        json.dumps(cursor)  # goes into a checkpoint
        for file in (
            run.metrics,
            run.timings,
            run.evaluations,
            run.episodes / "train.jsonl",
            run.episodes / "eval.jsonl",
        ):
            with file.open("a") as stream:
                stream.write("later\nand half a li")
        run.rewind(cursor)
        assert run.cursor() == cursor
        assert run.metrics.read_text() == "1\n2\n"
        assert not run.timings.exists()
        run.rewind({})
        assert run.cursor() == {}


def test_rewind_refuses_before_it_cuts(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "r", "") as run:
        run.metrics.write_text("12345\n")
        for cursor in ({"metrics.jsonl": 7}, {"metrics.jsonl": 2, "timings.jsonl": 1}):
            with pytest.raises(DataError, match="its checkpoint saw"):
                run.rewind(cursor)
        assert run.metrics.read_text() == "12345\n"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "summary.json"
    replace_file(file, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"the disk is full.*intact"):
        replace_file(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_real_full_disk_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match="the disk is full"), storage(Path("/dev/full")):
        Path("/dev/full").write_text("x")


def test_only_the_disk_is_worded() -> None:
    assert storage_error(OSError(errno.ECONNRESET, "reset")) is None
    assert "no permission for x" in str(storage_error(PermissionError(errno.EACCES, "denied", "x")))
    with pytest.raises(ConnectionResetError), storage(Path("x")):
        raise ConnectionResetError(errno.ECONNRESET, "reset")


def test_strict_json_of_numbers_that_break_readers() -> None:
    values = {
        "reward": float("nan"),
        "entropy": np.float64("inf"),
        "tenth": np.float32(0.1),
        "valid": np.bool_(True),
        "large": np.int64(2**53 + 1),
        "row": np.array([0.25, -np.inf], dtype=np.float32),
        "grid": np.arange(4).reshape(2, 2),
        "scalar": np.array(3),
        "nested": ({"x": {1}}, None, "é"),
        3: Path("a"),
    }
    text = json.dumps(strict(values), allow_nan=False)
    assert json.loads(text) == {
        "reward": None,
        "entropy": None,
        "tenth": 0.1,
        "valid": True,
        "large": 9007199254740993,
        "row": [0.25, None],
        "grid": [[0, 1], [2, 3]],
        "scalar": 3,
        "nested": [{"x": [1]}, None, "é"],
        "3": "a",
    }
    third = np.float32(1) / np.float32(3)
    assert np.float32(json.loads(json.dumps(strict(third)))) == third


def _commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "deploy").mkdir(exist_ok=True)
    monkeypatch.setattr(runs, "__file__", str(folder / "deploy" / "runs.py"))
    return code_commit()


def test_the_commit_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert _commit(tmp_path, monkeypatch) == "unknown"
    git("init", "-q")
    assert _commit(tmp_path, monkeypatch) == "unknown"  # no commit yet
    (tmp_path / "code").write_text("1")
    git("add", "code")
    git("commit", "-qm", "one")
    head = git("rev-parse", "HEAD")
    assert _commit(tmp_path, monkeypatch) == head
    (tmp_path / "notes").write_text("not tracked")
    assert _commit(tmp_path, monkeypatch) == head
    (tmp_path / "code").write_text("2")
    assert _commit(tmp_path, monkeypatch) == f"{head}-dirty"
    inner = tmp_path / "site-packages"  # installed within someone else's repository
    inner.mkdir()
    assert _commit(inner, monkeypatch) == "unknown"
