"""Which arc this is: the distribution's version and the git revision of its code."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

UNKNOWN = "unknown"


@cache
def version() -> str:
    """The installed distribution's version; "unknown" where the code runs without being installed."""
    try:
        return metadata.version("arc-console")
    except metadata.PackageNotFoundError:
        return UNKNOWN


@cache
def revision() -> str:
    """The commit, with "-dirty" when files differ from it.

    From git when the code lies in a checkout, else from the version's local part, which the build wrote
    (setuptools-scm: +g<commit>.d<date>); "unknown" when neither knows.
    """
    root = Path(__file__).resolve().parent.parent
    if (root / ".git").exists():
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changes = _git(root, "status", "--porcelain", "--untracked-files=no")
        if commit is not None and changes is not None:
            return f"{commit}-dirty" if changes else commit
    return _revision_of(version())


def _revision_of(version: str) -> str:
    match = re.search(r"\+(?:[a-z0-9]+\.)*g([0-9a-f]{7,40})(\.d[0-9]{8})?", version)
    if match is None:
        return UNKNOWN
    return match[1] + ("-dirty" if match[2] else "")


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints, or None when git is missing or refuses (a checkout that belongs to another user)."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # reading must not write the index
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        environment.pop(name, None)  # a hook's variables would name another repository
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
