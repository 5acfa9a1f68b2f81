"""`make test-arm64`: the C++ tests and a job of two ranks on arm64, which qemu-user emulates.

    python tests/arm64/run.py --work FOLDER --wheel FILE [--filter GTEST_FILTER]

The C library and Python come from Debian's packages for arm64, unpacked into a folder. The launcher runs on this
machine; the ranks are emulated. qemu cannot show errors of memory order: the processor of this machine keeps a stricter
order than arm64. The tests show what the instructions compute.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2].resolve()
sys.path.insert(0, str(ROOT / "wheels"))
import debian  # noqa: E402

RELEASE, PYTHON = "trixie", "3.13"
PACKAGES = (
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libbz2-1.0", "liblzma5", "libssl3t64"),
    *(f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib", "libuuid1", "libzstd1"),
)
# Tests that qemu-user cannot run, and why.
EXCLUDED = {
    "*DeathTest.*": "they start their program again, and the kernel does not start programs for arm64",
    "ShmFabric.ALimitedAddressSpaceMakesASmallerArena": "qemu does not limit the address space",
    "ShmFabric.NoAddressSpaceIsAnError": "qemu does not limit the address space",
}


def main() -> int:
    arguments = argument_parser().parse_args()
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if qemu is None:
        sys.exit("qemu-aarch64 is not found; on Debian and Ubuntu: apt install qemu-user-static")
    root = system(arguments.work)
    emulated = [qemu, "-L", str(root)]
    failed = cpp_tests(emulated, arguments.tests, arguments.filter)
    return failed or smoke_test(emulated, root, arguments.wheel, arguments.work)


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for what is downloaded; kept")
    parser.add_argument("--tests", type=Path, required=True, help="the program of the C++ tests")
    parser.add_argument("--wheel", type=Path, required=True, help="a wheel for arm64 and Python " + PYTHON)
    parser.add_argument("--filter", default="*", help="C++ tests to run, in GoogleTest's form")
    return parser


def system(work: Path) -> Path:
    """Returns the folder with the C library and Python."""
    root = work.resolve() / "root"
    if not (root / "done").exists():
        for folder in ("bin", "lib"):  # as on each merged Debian; the loader's path begins with /lib
            (root / "usr" / folder).mkdir(parents=True, exist_ok=True)
            if not (root / folder).is_symlink():
                (root / folder).symlink_to(f"usr/{folder}")
        debian.unpack(PACKAGES, RELEASE, "aarch64", work.resolve(), root)
        (root / "done").touch()
    return root


def cpp_tests(emulated: list[str], tests: Path, chosen: str) -> int:
    for name, reason in EXCLUDED.items():
        print(f"not run: {name}: {reason}")
    filtered = f"{chosen}{'-' if EXCLUDED else ''}{':'.join(EXCLUDED)}"
    command = [*emulated, str(tests.resolve()), "--gtest_brief=1", f"--gtest_filter={filtered}"]
    return subprocess.run(command, check=False, timeout=7200).returncode


def smoke_test(emulated: list[str], root: Path, wheel: Path, work: Path) -> int:
    """Starts two emulated ranks with the wheel and NumPy."""
    site = work.resolve() / "site"
    shutil.rmtree(site, ignore_errors=True)
    systems = [part for number in (17, 28) for part in ("--platform", f"manylinux_2_{number}_aarch64")]
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--target", str(site), "--only-binary=:all:", *systems]
    subprocess.run([*pip, "--python-version", PYTHON, "numpy", "cloudpickle", str(wheel)], check=True)
    python = work.resolve() / "python"
    command = f"{' '.join(emulated)} -E PYTHONPATH={site} {root}/usr/bin/python{PYTHON}"
    python.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    python.chmod(0o755)
    launcher = Path(sys.executable).parent / "perseusrun"
    ranks: list[str | Path] = [launcher, "-np", "2", "--no-prefix", python, ROOT / "wheels" / "smoke.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(ranks, cwd=work, env=environment, check=False, timeout=600).returncode


if __name__ == "__main__":
    sys.exit(main())
