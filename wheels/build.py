"""`make wheels`: the sdist, and a wheel of it for each Python and each processor, with compilers from PyPI's ziglang.

    python wheels/build.py --to FOLDER [--processors x86_64 aarch64] [--pythons 3.10 …]

All is built from the unpacked sdist, so files that git does not know cannot get in. The core is compiled once for each
processor. setup.py makes the wheels from the compiled modules.
"""

from __future__ import annotations

import argparse
import filecmp
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import headers
import pybind11
import ziglang
from check import GLIBC, PROCESSORS, PYTHONS

ROOT = Path(__file__).parents[1].resolve()
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"


def main() -> None:
    arguments = argument_parser().parse_args()
    work = arguments.work.resolve()
    to = arguments.to.resolve()
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    os.environ["SOURCE_DATE_EPOCH"] = commit_time()
    source = unpacked(sdist(to), work)
    for processor in arguments.processors:
        folder = compile_modules(source, processor, arguments.pythons, work)
        for python in arguments.pythons:
            print(f"wheel for CPython {python} on {processor}", flush=True)
            make_wheel(source, gathered(folder, python, processor, work), to)
    for file in sorted(to.iterdir()):
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.name}")


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder of the results, emptied first")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels", help="folder of what is compiled; kept")
    parser.add_argument("--processors", nargs="+", choices=PROCESSORS, default=PROCESSORS)
    parser.add_argument("--pythons", nargs="+", choices=PYTHONS, default=PYTHONS)
    return parser


def commit_time() -> str:
    """Returns the date of all files in the archives: SOURCE_DATE_EPOCH if it is set, else that of the commit."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return os.environ.get("SOURCE_DATE_EPOCH") or done.stdout.strip() or "315532800"


def sdist(to: Path) -> Path:
    subprocess.run([sys.executable, "-c", BUILD, "sdist", to], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (archive,) = to.glob("*.tar.gz")
    normalize(archive, int(os.environ["SOURCE_DATE_EPOCH"]))
    return archive


def normalize(archive: Path, date: int) -> None:
    """Gives all members one date and owner: setuptools writes those of the working tree, so no two builds are equal."""
    with tarfile.open(archive) as opened:
        members = sorted(opened.getmembers(), key=lambda member: member.name)
        contents = [opened.extractfile(member) if member.isfile() else None for member in members]
        texts = [content.read() if content else b"" for content in contents]
    with (
        archive.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=date) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as to,
    ):
        for member, text in zip(members, texts, strict=True):
            member.mtime, member.mode = date, 0o755 if member.mode & 0o100 else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            to.addfile(member, io.BytesIO(text))


def unpacked(archive: Path, work: Path) -> Path:
    """Returns the folder of the sdist's files. A file that has changed since the last time gets a new date.

    All files in the archive have the date of the commit, by which ninja would not see that they have changed.
    """
    folder = work / "source"
    with tarfile.open(archive) as opened:
        opened.extractall(work / "unpacked", filter="data")
    made = work / "unpacked" / archive.name.removesuffix(".tar.gz")
    for file in made.rglob("*"):
        before = folder / file.relative_to(made)
        is_same = before.is_file() and file.is_file() and filecmp.cmp(before, file, shallow=False)
        date = before.stat().st_mtime if is_same else time.time()
        os.utime(file, (date, date))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(made, folder)
    return folder


def compile_modules(source: Path, processor: str, pythons: list[str], work: Path) -> Path:
    """Compiles the core, the code that lives inside frameworks, and a module for each Python."""
    folder = work / processor
    tools = write_tools(folder / "tools", processor)
    found = {python: headers.find(python, processor, work / "headers") for python in pythons}
    entries = [f"{python.replace('.', '')}={':'.join(map(str, found[python]))}" for python in pythons]
    cmake = Path(sys.executable).parent / "cmake"
    configure: list[str | Path] = [
        *(cmake, "-S", source, "-B", folder, "-GNinja", f"-DCMAKE_MAKE_PROGRAM={cmake.parent / 'ninja'}"),
        f"-DCMAKE_TOOLCHAIN_FILE={source / 'wheels' / 'zig.cmake'}",
        f"-DPERSEUS_WHEEL_PROCESSOR={processor}",
        f"-DPERSEUS_WHEEL_TOOLS={tools}",
        f"-DPERSEUS_WHEEL_PYTHONS={';'.join(entries)}",
        f"-DPERSEUS_PYBIND11={pybind11.get_include()}",
        f"-DPERSEUS_VERSION={version(source)}",
        "-DPERSEUS_BUILD_PYTHON=OFF",
    ]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", folder, "--target", "wheel_modules", "perseus_natives"], check=True)
    return folder


def write_tools(folder: Path, processor: str) -> Path:
    """Writes a program for each tool, because CMake wants a path without arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    zig = Path(ziglang.__file__).parent / "zig"
    for tool in ("c++", "ar", "ranlib"):
        options = f" -target {processor}-linux-gnu.{GLIBC} -g0" if tool == "c++" else ""
        text = f"#!/bin/sh\nexec '{zig}' {tool}{options} \"$@\"\n"
        file = folder / tool
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            file.chmod(0o755)
    return folder


def version(source: Path) -> str:
    lines = (source / "PKG-INFO").read_text().splitlines()
    return next(line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))


def gathered(folder: Path, python: str, processor: str, work: Path) -> Path:
    """Returns a folder with the modules of one wheel, by the names that setup.py knows. The wheel's tag is its name."""
    cpython = f"cp{python.replace('.', '')}"
    to = work / "modules" / f"{cpython}-{cpython}-manylinux_{GLIBC.replace('.', '_')}_{processor}"
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder / "python" / cpython.removeprefix("cp"), to)
    shutil.copytree(folder / "native", to / "native")
    return to


def make_wheel(source: Path, modules: Path, to: Path) -> None:
    environment = os.environ | {"PERSEUS_COMPILED": str(modules)}
    shutil.rmtree(source / "build", ignore_errors=True)
    command: list[str | Path] = [sys.executable, "-c", BUILD, "wheel", to]
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
