"""`make rehearse`: serves dist/ as a package index on loopback, and does what README says with it in new roots.

    python release/rehearse.py dist [--releases bookworm trixie testing] [--pythons 3.10 3.12] [--frameworks torch …]

The roots are Debian's, with Python and without a compiler; `tests/debian/run.sh` makes them, which needs root and
debootstrap. `--pythons` are those of this machine, without a root. The programs are those of README and of
docs/tensorflow.md, and the smoke test of the wheels. pip gets everything else from where it gets it here.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[1].resolve()
FRAMEWORKS = ("torch", "tensorflow", "numpy")
PACKAGES = "python3 python3-venv"
ROOTS = Path("/var/tmp/perseus_like-rehearsal")


def main() -> int:
    arguments = argument_parser().parse_args()
    wheels = sorted(arguments.dist.glob("*.whl"))
    if not wheels:
        sys.exit(f"{arguments.dist} has no wheels: run `make wheels`")
    version = wheels[0].name.split("-")[1]
    with tempfile.TemporaryDirectory() as folder:
        write_programs(Path(folder))
        with serve(wheels) as index:
            words = [version, *arguments.frameworks]
            variables = {**os.environ, "PIP_EXTRA_INDEX_URL": with_others(index)}
            codes = {release: in_debian(release, Path(folder), words, variables) for release in arguments.releases}
            codes |= {python: with_python(python, Path(folder), words, variables) for python in arguments.pythons}
    failed = [name for name, code in codes.items() if code != 0]
    print(f"{version}: " + (f"FAILED with {', '.join(failed)}" if failed else f"right with {', '.join(codes)}"))
    return int(bool(failed))


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path, help="folder of the wheels")
    parser.add_argument("--releases", nargs="*", default=["bookworm", "trixie", "testing"], help="of Debian")
    parser.add_argument("--pythons", nargs="*", default=["3.10", "3.12"], help="of this machine")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    return parser


def write_programs(folder: Path) -> None:
    """Writes the programs that users see first, and what runs them."""
    for page, name in (("README.md", "with_torch.py"), ("docs/tensorflow.md", "with_tensorflow.py")):
        block = re.search(r"^```python\n(import (?:torch|tensorflow).*?)^```", (ROOT / page).read_text(), re.M | re.S)
        assert block, f"{page} has no program"
        (folder / name).write_text(block[1])
    shutil.copy(ROOT / "wheels" / "smoke.py", folder / "with_numpy.py")
    shutil.copy(ROOT / "release" / "as_readme_says.py", folder)


@contextmanager
def serve(wheels: list[Path]) -> Iterator[str]:
    """Yields the address of an index that has these wheels alone."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "simple" / "perseus-like"
        project.mkdir(parents=True)
        for wheel in wheels:
            shutil.copy(wheel, project)
        links = "".join(f'<a href="{wheel.name}">{wheel.name}</a>\n' for wheel in wheels)
        (project / "index.html").write_text(f"<!DOCTYPE html>\n{links}")
        handler = functools.partial(QuietHandler, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/simple/"
            server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def with_others(index: str) -> str:
    """Returns the index beside those that pip has here by a variable."""
    return f"{index} {os.environ.get('PIP_EXTRA_INDEX_URL', '')}".strip()


def in_debian(release: str, folder: Path, words: list[str], variables: dict[str, str]) -> int:
    """Runs the steps as an ordinary user in a root of this release. Returns the exit code."""
    print(f"==> Debian {release}", flush=True)
    debian = {"DEBIAN_FOLDER": str(ROOTS), "DEBIAN_PACKAGES": PACKAGES, "DEBIAN_FILES": str(folder)}
    run = ROOT / "tests" / "debian" / "run.sh"
    command = [str(run), release, " ".join(["python3 as_readme_says.py", *words])]
    return subprocess.run(command, env={**variables, **debian}, check=False).returncode


def with_python(version: str, folder: Path, words: list[str], variables: dict[str, str]) -> int:
    """Runs the steps with a Python of this machine. Returns the exit code."""
    print(f"==> Python {version} of this machine", flush=True)
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    python = kept[-1] if kept else shutil.which(f"python{version}")
    if python is None:
        print(f"  there is no Python {version} on this machine")
        return 1
    return subprocess.run([python, "as_readme_says.py", *words], cwd=folder, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
