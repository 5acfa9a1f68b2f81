"""Checks that the defects of tests/mutations can still be made, as `make test-mutations` does."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_patch_applies() -> None:
    stale = [
        patch.name
        for patch in sorted((ROOT / "tests/mutations").glob("*.patch"))
        if subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, check=False).returncode != 0
    ]
    assert stale == [], "renew them: make the change that each was, and put its `git diff` below the head"
