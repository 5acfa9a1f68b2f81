"""Checks the files of `make wheels`: python wheels/check.py FOLDER. Prints what is wrong; the exit code is then 1.

auditwheel, twine and check-wheel-contents judge the wheels first. This file checks what they do not: the size, the
oldest glibc, that no C++ runtime is needed, that symbols are stripped and hidden, and that all wheels have the same
files.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

# The promises of the published wheels. RHEL 8 has this glibc, and later systems have a newer one. The names of wheels
# contain it.
GLIBC = "2.28"
PROCESSORS = ("x86_64", "aarch64")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
LARGEST_BYTES = 3_000_000
EXPORTS = {"_core": re.compile("PyInit__core$"), "_native": re.compile("perseus_")}
# Part of each glibc. libpthread and libdl are parts of libc.so.6 since glibc 2.34.
NEEDED = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d+$|ld-linux-.*\.so\.\d+$")


def main(folder: Path) -> int:
    wheels = sorted(folder.glob("*.whl"))
    files = [*wheels, *folder.glob("*.tar.gz")]
    found = [f"{folder}: no wheel is there"] if not wheels else []
    found += failures("twine", "check", "--strict", *files)
    found += failures("check-wheel-contents", "--config", Path(__file__).parents[1] / "pyproject.toml", *wheels)
    for wheel in wheels:
        found += [f"{wheel.name}: {problem}" for problem in [*accepted(wheel), *checked(wheel)]]
    found += unequal(wheels)
    right = [f"{len(wheels)} wheels and {len(files) - len(wheels)} sdist are as they should be"]
    print("\n".join(found or right))
    return bool(found)


def failures(*command: str | Path) -> Iterator[str]:
    """Yields the output of a command that fails."""
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"{command[0]}: {done.stdout}{done.stderr}"


def accepted(wheel: Path) -> Iterator[str]:
    """Yields auditwheel's verdict, unless the wheel may be named for the system that its name says."""
    named = wheel.stem.rpartition("-")[2]
    program = Path(sys.executable).parent / "auditwheel"
    done = subprocess.run([program, "show", wheel], capture_output=True, text=True, check=False)
    text = " ".join(done.stdout.split())
    verdict = re.search(r'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_(\w+)"', text)
    floor = tuple(map(int, GLIBC.split(".")))
    if verdict is None or not named.endswith(verdict[3]) or (int(verdict[1]), int(verdict[2])) > floor:
        yield f"auditwheel: {done.stdout}{done.stderr}"


def checked(wheel: Path) -> Iterator[str]:
    """Yields what is wrong with the wheel's size and its libraries."""
    if wheel.stat().st_size > LARGEST_BYTES:
        yield f"it has {wheel.stat().st_size} bytes; the limit is {LARGEST_BYTES}"
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        if len(libraries) != 3:
            yield f"it should have _core and two _native.so, and has {libraries}"
        for name in libraries:
            elf = ELFFile(io.BytesIO(archive.read(name)))
            yield from (f"{name}: {problem}" for problem in problems(elf, EXPORTS[Path(name).name.partition(".")[0]]))


def problems(elf: ELFFile, exported: re.Pattern[str]) -> Iterator[str]:
    sections: dict[str, Any] = {section.name: section for section in elf.iter_sections()}
    if ".symtab" in sections or any(name.startswith(".debug") for name in sections):
        yield "it is not stripped"
    for tag in sections[".dynamic"].iter_tags():
        if tag.entry.d_tag == "DT_NEEDED" and not NEEDED.match(tag.needed):
            yield f"it needs {tag.needed}"
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            yield "it has a search path of its own"
    floor = tuple(map(int, GLIBC.split(".")))
    for library, versions in sections[".gnu.version_r"].iter_versions():
        for version in versions:
            kind, _, number = version.name.partition("_")
            if kind != "GLIBC" or tuple(map(int, number.split("."))) > floor:
                yield f"it needs {version.name} of {library.name}"
    defined = [
        symbol.name
        for symbol in sections[".dynsym"].iter_symbols()
        if symbol.entry.st_shndx != "SHN_UNDEF" and symbol.entry.st_info.bind != "STB_LOCAL"
    ]
    if not defined:
        yield "it exports nothing"
    yield from (f"it exports {name}" for name in defined if not exported.match(name))
    yield from (f"it needs {name}, which glibc {GLIBC} does not have" for name in unversioned(sections))


def unversioned(sections: dict[str, Any]) -> Iterator[str]:
    """Yields the symbols that no library had when the module was linked. Python's own are left out."""
    versions = sections[".gnu.version"]
    for number, symbol in enumerate(sections[".dynsym"].iter_symbols()):
        is_needed = symbol.entry.st_shndx == "SHN_UNDEF" and symbol.entry.st_info.bind == "STB_GLOBAL"
        without = versions.get_symbol(number).entry.ndx in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
        if is_needed and without and not re.match("_?Py", symbol.name):
            yield symbol.name


def unequal(wheels: list[Path]) -> Iterator[str]:
    """Yields each wheel whose files differ from those of the first wheel. Libraries and the tag may differ."""

    def contents(wheel: Path) -> dict[str, int]:
        with zipfile.ZipFile(wheel) as archive:
            own = re.compile(r".*\.so$|.*\.dist-info/(WHEEL|RECORD)$")
            return {each.filename: each.CRC for each in archive.infolist() if not own.match(each.filename)}

    for wheel in wheels[1:]:
        differing = contents(wheel).items() ^ contents(wheels[0]).items()
        if differing:
            yield f"{wheel.name}: {sorted({name for name, _ in differing})} differ from those of {wheels[0].name}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
