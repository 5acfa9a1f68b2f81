"""Unpacks packages of Debian into a folder, for any processor. Needs no root and changes nothing outside the folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}


class Unavailable(Exception):
    """A package cannot be had. The text is apt-get's reason."""


def unpack(packages: Sequence[str], release: str, processor: str, state: Path, root: Path) -> None:
    """Downloads packages with package lists of our own, in the folder `state`, and unpacks them into `root`."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable("this machine has no apt-get")
    state = state / f"apt-{release}-{processor}"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    sources = state / "sources.list"
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources.write_text(f"deb [signed-by={keys}] http://deb.debian.org/debian {release} main\n")
    architecture = PROCESSORS[processor]
    options = {
        "Dir::State::Lists": state / "lists",
        "Dir::Cache": state / "cache",
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "APT::Sandbox::User": "",
        "APT::Architectures::": architecture,
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "-q", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    for command in ([*apt, "update"], [*apt, "download", *(f"{name}:{architecture}" for name in packages)]):
        done = subprocess.run(command, cwd=state, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"Debian {release}: {done.stderr.strip().splitlines()[-1]}")
    root.mkdir(parents=True, exist_ok=True)
    for name in packages:
        for file in state.glob(f"{name}_*_*.deb"):
            subprocess.run(["dpkg-deb", "-x", file, root], check=True)
