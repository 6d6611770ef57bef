"""Checkpoints: a folder is there whole or not at all (no torch here; what is written is the caller's).

    root/
      step_00000040/                 whole: its manifest names every file with its hash, and they agree
        config.json model.safetensors tokenizer.json ... trainer/ ...        whatever `write` puts there
        manifest.json                step, incarnation, parent, {file: {sha256, bytes}}; written last
      .writing-step_00000060/        a save under way, or one that was killed: removed by the next writer
      .replaced-step_00000040/       set aside while a new folder takes its name: put back if that never came
      .deleted-step_00000020/        on its way out

Order of a save: write and fsync every file, then the manifest, then the folders; rename; fsync the root; only then prune.
A kill or a full disk at any point leaves the checkpoints before it as they were.

The newest checkpoint is the one with the highest (incarnation, step): a run resumed from step 450 starts a new
incarnation, and its 451 is newer than the 453 of the line that was given up. `parent` links make the lineage, by which
old ones are pruned.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from protos.errors import ConfigError, DataError, StorageError

MANIFEST = "manifest.json"
WRITING, REPLACED, DELETED = ".writing-", ".replaced-", ".deleted-"
_NAME = re.compile(r"step_(\d+)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint."""

    folder: Path
    step: int
    incarnation: int
    parent: str | None  # folder name of the checkpoint that it continues


class CheckpointWriter:
    """The one process that saves below `root`. Opening it clears away what a killed save left."""

    def __init__(self, root: Path, keep: int = -1) -> None:
        """`keep`: how many checkpoints of the current lineage to keep, the newest ones; -1: all, of every lineage."""
        if keep < -1 or keep == 0:
            raise ConfigError(f"keep = {keep} would delete every checkpoint: keep at least 1, or -1 for all")
        self._root, self._keep = root, keep
        _storage(f"cannot use {root} for checkpoints", self._recover)

    def save(
        self, step: int, write: Callable[[Path], None], *, incarnation: int = 0, parent: Checkpoint | None = None
    ) -> Checkpoint:
        """Call `write(folder)` to fill a folder, make it durable, and give it its name.

        `parent` is the checkpoint that this one continues: the last one saved, or the one resumed from.
        Raises StorageError where the disk refuses; earlier checkpoints are then as they were.
        """
        name = f"step_{step:08d}"
        lineage = None if parent is None else parent.folder.name
        made = Checkpoint(self._root / name, step, incarnation, lineage)
        temporary = self._root / (WRITING + name)
        try:
            _storage(f"checkpoint {name} was not saved (earlier ones are intact)", self._write, made, temporary, write)
        finally:
            with suppress(OSError):  # the save's own error, if there is one, says more
                self._recover()
        _storage(f"checkpoint {name} is saved, but old ones could not be removed", self._prune, made)
        return made

    def _write(self, made: Checkpoint, temporary: Path, write: Callable[[Path], None]) -> None:
        temporary.mkdir(parents=True)
        write(temporary)
        _seal(temporary, {"step": made.step, "incarnation": made.incarnation, "parent": made.parent})
        aside = self._root / (REPLACED + made.folder.name)
        if made.folder.exists():
            os.rename(made.folder, aside)
        os.rename(temporary, made.folder)
        _sync(self._root)

    def _recover(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._root.iterdir()):
            target = self._root / path.name.removeprefix(REPLACED)
            if path.name.startswith(REPLACED) and not target.exists():
                os.rename(path, target)
            elif path.name.startswith((WRITING, REPLACED, DELETED)):
                shutil.rmtree(path)

    def _prune(self, newest: Checkpoint) -> None:
        """Delete what is neither among the `keep` newest of the lineage nor broken or foreign."""
        if self._keep == -1:
            return
        known = {one.folder.name: one for one in _readable(self._root)}
        kept: list[str] = []
        name: str | None = newest.folder.name
        while name in known and name not in kept and len(kept) < self._keep:
            kept.append(name)
            name = known[name].parent
        for old in known.keys() - set(kept):
            gone = self._root / (DELETED + old)
            os.rename(self._root / old, gone)
            shutil.rmtree(gone)


def latest(root: Path) -> Checkpoint | None:
    """The newest whole checkpoint below `root`; broken ones are named in a warning and passed over."""
    if not root.is_dir():
        return None
    for candidate in sorted(_readable(root, warn=True), key=lambda one: (one.incarnation, one.step), reverse=True):
        try:
            return open_checkpoint(candidate.folder)
        except DataError as error:
            _log.warning("passing over a broken checkpoint: %s", error)
    return None


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, every file checked against its hash. DataError says what is wrong."""
    checkpoint, files = _read_manifest(folder)
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{folder}: {name} is missing")
        if path.stat().st_size != expected["bytes"] or _sha256(path) != expected["sha256"]:
            raise DataError(f"{folder}: {name} is not what was saved (its hash differs)")
    return checkpoint


def _readable(root: Path, *, warn: bool = False) -> list[Checkpoint]:
    """The checkpoints below `root` whose manifest can be read; their files are not looked at."""
    found = []
    for path in sorted(root.iterdir()):
        if not (_NAME.fullmatch(path.name) and path.is_dir()):
            continue
        try:
            found.append(_read_manifest(path)[0])
        except DataError as error:
            if warn:
                _log.warning("passing over a broken checkpoint: %s", error)
    return found


def _read_manifest(folder: Path) -> tuple[Checkpoint, dict[str, Any]]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        checkpoint = Checkpoint(folder, int(manifest["step"]), int(manifest["incarnation"]), manifest["parent"])
        return checkpoint, dict(manifest["files"])
    except FileNotFoundError:
        raise DataError(f"{folder} has no {MANIFEST}: not a whole checkpoint") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: {MANIFEST} cannot be read ({error})") from error


def _seal(folder: Path, identity: dict[str, Any]) -> None:
    """Make all files durable, then write the manifest that vouches for them."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {}
    for path in paths:
        _sync(path)
        files[path.relative_to(folder).as_posix()] = {"sha256": _sha256(path), "bytes": path.stat().st_size}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps(identity | {"files": files}, indent=2) + "\n")
    _sync(manifest)
    for directory in sorted({path.parent for path in paths} | {folder}):
        _sync(directory)


def _sync(path: Path) -> None:
    """fsync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _storage(what: str, action: Callable[..., None], *arguments: Any) -> None:
    """Run `action`; what the disk refuses becomes a StorageError. safetensors reports a full disk as its own error."""
    try:
        action(*arguments)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{what}: {error}") from error
