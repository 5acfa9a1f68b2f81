"""Runs each fuzzer for some time, starting from its corpus in this folder (`make fuzz`).

    python tests/fuzz/run_fuzzers.py BUILD_FOLDER SECONDS [NAME …]

CMake has built each `NAME.cc` as `BUILD_FOLDER/tests/fuzz/fuzz_NAME`. This Python runs each `fuzz_NAME.py`, which uses
atheris. Both take libFuzzer's options. `corpus/NAME.zip` contains the inputs of earlier runs that reached new code.
After a run without a finding, the inputs of this run replace them. For C++, they are the smallest set of inputs that
reaches the same code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent.resolve()
LONGEST_INPUT_BYTES = 4096
MEMORY_LIMIT_MIB = 2048
# An input that takes longer than this is a finding.
INPUT_SECONDS = 10


def commands(build: Path) -> dict[str, list[str]]:
    """Returns the command of each fuzzer by its name."""
    native = {source.stem: [str(build / "tests" / "fuzz" / f"fuzz_{source.stem}")] for source in FOLDER.glob("*.cc")}
    python = {source.stem.removeprefix("fuzz_"): [sys.executable, str(source)] for source in FOLDER.glob("fuzz_*.py")}
    return dict(sorted({**native, **python}.items()))


def unpack(archive: Path, folder: Path) -> None:
    """Adds the inputs of an archive, if there is one, to those in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if archive.exists():
        with zipfile.ZipFile(archive) as inputs:
            inputs.extractall(folder)


def pack(folder: Path, archive: Path) -> int:
    """Writes the inputs in a folder to an archive that is the same for the same inputs; returns their number."""
    inputs = sorted(folder.iterdir())
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for each in inputs:
            packed.writestr(zipfile.ZipInfo(each.name), each.read_bytes(), zipfile.ZIP_DEFLATED)
    return len(inputs)


def run(name: str, command: list[str], seconds: int, work: Path) -> str | None:
    """Fuzzes one target; returns what libFuzzer found, or None."""
    corpus, findings, log = work / name / "corpus", work / name / "findings", work / name / "log.txt"
    unpack(FOLDER / "corpus" / f"{name}.zip", corpus)
    findings.mkdir(exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST_INPUT_BYTES}",
        f"-rss_limit_mb={MEMORY_LIMIT_MIB}",
        f"-timeout={INPUT_SECONDS}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
    ]
    environment = {**os.environ, "PERSEUS_LOG_LEVEL": "fatal"}
    with log.open("wb") as file:
        code = subprocess.run(
            [*command, *options, str(corpus)], stdout=file, stderr=file, env=environment, check=False
        ).returncode
    text = log.read_text(errors="replace")
    if code != 0:
        return f"{name}: exit code {code}; the input is in {findings}, the log is {log}\n{text[-4000:]}"
    smallest = corpus
    if command[0] != sys.executable:  # libFuzzer starts its own program again to merge, which atheris cannot do
        smallest = work / name / "smallest"
        smallest.mkdir(exist_ok=True)
        for old in smallest.iterdir():
            old.unlink()
        with log.open("ab") as file:
            merge = [*command, "-merge=1", f"-max_len={LONGEST_INPUT_BYTES}", str(smallest), str(corpus)]
            subprocess.run(merge, stdout=file, stderr=file, env=environment, check=True)
    kept = pack(smallest, FOLDER / "corpus" / f"{name}.zip")
    executed = [line.split()[-1] for line in text.splitlines() if "number_of_executed_units" in line]
    print(f"{name}: no finding in {seconds} s, {executed[-1] if executed else '?'} inputs, {kept} kept", flush=True)
    return None


def main(build: Path, seconds: int, names: list[str]) -> int:
    """Runs the named fuzzers, or all; returns 1 if one of them found something."""
    known = commands(build)
    if unknown := set(names) - set(known):
        print(f"There is no fuzzer {', '.join(sorted(unknown))}. There are: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = {name: known[name] for name in names or known}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda item: run(item[0], item[1], seconds, build / "fuzz-work"), chosen.items())
        findings = [finding for finding in results if finding]
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3:]))
