"""A folder of its own for every run, with what it takes to know what ran."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import captioner

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"
RUN_FILE = "run.json"

_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "pytorch-lightning",
    "jsonargparse",
    "numpy",
    "pillow",
    "safetensors",
)


def create_run_folder(root: str | Path, name: str, now: datetime | None = None) -> Path:
    """Make a new folder ``root/name/DATE-TIME``, with ``-2``, ``-3``, .. where that exists.

    Args:
        root: Folder of all runs.
        name: Name of the experiment.
        now: Local time of the start; by default the present.

    Returns:
        The folder, new and empty, whatever other processes do at the same time.

    Raises:
        ValueError: If the name is no name of a folder.
    """
    if not name or name in (".", "..") or Path(name).name != name:
        raise ValueError(f"run_name must be the name of a folder without slashes, got {name!r}")
    start = f"{now or datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    while True:
        folder = Path(root) / name / (start if number == 1 else f"{start}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def claim_run_folder(folder: str | Path) -> Path:
    """Take a folder that the user named for a run.

    Raises:
        FileExistsError: If there is something in it; a run never overwrites.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(entry.name for entry in folder.iterdir())
    if found:
        raise FileExistsError(
            f"run_dir {folder} is not empty ({found[0]}, ..); name a new folder, or leave run_dir "
            "out for one below runs_dir"
        )
    return folder


def describe_run(arguments: Sequence[str], seed: int) -> dict[str, Any]:
    """The command, the seed and the versions of a run, as JSON values.

    Args:
        arguments: Arguments of the ``captioner`` command.
        seed: Seed of the run.
    """
    return {
        "command": shlex.join(["captioner", *arguments]),
        "folder": str(Path.cwd()),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "seed": seed,
        "versions": {
            "captioner": captioner.__version__,
            "python": platform.python_version(),
            **{package: _find_version(package) for package in _PACKAGES},
        },
        "commit": find_commit(),
    }


def find_commit() -> str | None:
    """The git commit of the checkout that captioner runs from, ``+changes`` where it was edited.

    Returns:
        None for an installed package, or where there is no git.
    """
    checkout = Path(captioner.__file__).resolve().parents[1]
    if not (checkout / ".git").exists():
        return None
    try:
        commit = _run_git(checkout, "rev-parse", "HEAD")
        changes = _run_git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changes else "")


def _run_git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(checkout), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return done.stdout.strip()


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
