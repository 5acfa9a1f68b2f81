"""Tests of command lines as users of python, torchrun and accelerate type them, of colours, and of shell completion."""

from __future__ import annotations

import functools
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perseus_like import _core
from perseus_like.launch.command_line import make_parser
from perseus_like.protocol.nearest import LAUNCHER_VARIABLES, core_variables
from tests.job import LIMIT_SECONDS

from .conftest import LAUNCHER, Perseusrun, Script
from .test_output import on_terminal

ROOT = Path(__file__).parents[2]
SHOW = "print(sys.argv[1:], *(os.environ.get(name) for name in ('PERSEUS_RANK', 'PERSEUS_SIZE')))"


def test_a_script_needs_no_python(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun("-np", "2", script(SHOW), "--lr", "0.1")
    assert sorted(result.stdout.splitlines()) == [f"[{rank}]<stdout>:['--lr', '0.1'] {rank} 2" for rank in (0, 1)]


def test_a_script_without_a_folder_in_its_name(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun("-np", "1", Path(script("print(sys.executable)")).name)
    assert result.stdout == f"[0]<stdout>:{sys.executable}\n", result.stderr


def test_many_ranks_and_few_descriptors(perseusrun: Perseusrun) -> None:
    """The launcher needs some descriptors for each rank. It raises its own soft limit, but not that of the ranks."""

    def allow(hard: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))

    # The ranks run at the same time: each waits until the last one has been started.
    program = "ulimit -Sn; [ $PERSEUS_RANK = 39 ] && touch last; until [ -e last ]; do sleep 0.01; done"
    args = ("-np", "40", "--oversubscribe", "sh", "-c", program)
    result = perseusrun(*args, preexec_fn=functools.partial(allow, 64))
    assert result.returncode == 126
    assert "cannot run 'sh': Too many open files; raise the limit of open files (ulimit -Hn)" in result.stderr
    result = perseusrun(*args, preexec_fn=functools.partial(allow, 1024))
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 40), result.stderr
    assert {line.partition(":")[2] for line in result.stdout.splitlines()} == {"64"}


def test_no_process_is_left_for_the_launcher(perseusrun: Perseusrun) -> None:
    """The launcher forks a guard first. Here the system allows no further process to it."""
    program = (
        "import errno, os, sys\nfrom perseus_like.launch import main\n"
        "def fork(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "os.fork = fork\nsys.exit(main(['-np', '1', 'true']))"
    )
    result = perseusrun(launcher=[sys.executable, "-c", program])
    assert result.returncode == 126
    expected = "perseusrun: cannot run 'perseusrun': Resource temporarily unavailable; raise the limit of processes"
    assert result.stderr.startswith(expected), result.stderr


def test_a_script_is_run_by_the_interpreter_in_its_first_line(perseusrun: Perseusrun, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("#!/bin/sh\necho a shell\n")
    program.chmod(0o755)
    assert perseusrun("-np", "1", "./program.py").stdout == "[0]<stdout>:a shell\n"


def test_a_python_script_of_windows_is_run_by_this_python(perseusrun: Perseusrun, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_bytes(b"#!/usr/bin/env python3\r\nimport sys\r\nprint(sys.executable)\r\n")
    program.chmod(0o755)
    assert perseusrun("-np", "1", "./program.py").stdout == f"[0]<stdout>:{sys.executable}\n"


@pytest.mark.parametrize(
    ("typed", "ending"),
    [
        ("twelv.py", "did you mean twelve.py?"),
        ("./Twelve.py", "did you mean twelve.py?"),
        ("missing.py", "give the path of a file that exists"),
        ("twelve.txt/twelv.py", None),
        ("elsewhere/twelve.py", "give the path of a file that exists"),
        ("./twelv", "did you mean twelve?"),
    ],
)
def test_a_missing_script_is_an_error(perseusrun: Perseusrun, tmp_path: Path, typed: str, ending: str | None) -> None:
    for name in ("twelve.py", "twelve.txt", "twelve", "other.py"):
        (tmp_path / name).touch()
    (tmp_path / "missing1.py").mkdir()
    result = perseusrun("-np", "1", typed)
    if ending is None:
        text, code = f"cannot run '{typed}': Not a directory; give a program that this user may run", 126
    else:
        text, code = f"no such file: {tmp_path / typed}; {ending}", 127
    assert (result.returncode, result.stderr.splitlines()[0]) == (code, f"perseusrun: {text}")


@pytest.mark.parametrize("flag", ["-m", "--module"])
def test_a_module(perseusrun: Perseusrun, tmp_path: Path, flag: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "module.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    result = perseusrun("-np", "1", flag, "package.module", "-np", "3")
    assert result.stdout == "[0]<stdout>:__main__ ['-np', '3']\n", result.stderr
    assert "which module?" in perseusrun("-np", "1", flag).stderr


def test_the_package_is_the_launcher(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun("-np", "1", script("print('here')"), launcher=[sys.executable, "-m", "perseus_like"])
    assert (result.returncode, result.stdout) == (0, "[0]<stdout>:here\n")


@pytest.mark.parametrize(
    ("line", "notes"),
    [
        ("--nproc-per-node 2", []),
        ("--standalone --nproc_per_node=2", []),
        ("--nnodes 1 --node_rank 0 --nproc_per_node 2 --master_addr 127.0.0.1", []),
        ("--nnodes 1:1 --nproc-per-node 2 --rdzv_backend c10d --max-restarts 3", ["--rdzv_backend"]),
        ("--multi_gpu --num_processes 2 --num_machines 1 --machine_rank 0", []),
    ],
)
def test_command_lines_of_torchrun_and_accelerate(
    perseusrun: Perseusrun, script: Script, line: str, notes: list[str]
) -> None:
    result = perseusrun(*line.split(), script("print(size)"))
    assert sorted(result.stdout.splitlines()) == ["[0]<stdout>:2", "[1]<stdout>:2"], result.stderr
    assert re.findall(r"perseusrun: (\S+) has no effect", result.stderr) == notes


def test_options_that_become_variables(perseusrun: Perseusrun, script: Script) -> None:
    names = ["MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ACCELERATE_MIXED_PRECISION"]
    options = "--main_process_port 29517 --num_cpu_threads_per_process 3 --gpu_ids 0,1 --mixed_precision bf16"
    program = script(f"print(*(os.environ[name] for name in {names}))")
    result = perseusrun("-np", "1", *options.split(), program)
    assert result.stdout == "[0]<stdout>:127.0.0.1 29517 3 0,1 bf16\n", result.stderr


def test_ranks_for_the_devices_of_this_host(perseusrun: Perseusrun, script: Script) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1,2"}
    assert perseusrun("--nproc-per-node", "gpu", script("print(size)"), env=environment).stdout.count(":3\n") == 3
    environment["CUDA_VISIBLE_DEVICES"] = "-1"
    result = perseusrun("--nproc-per-node", "gpu", script("print(size)"), env=environment)
    assert result.stderr.startswith("perseusrun: --nproc-per-node gpu: no NVIDIA GPU"), result.stderr
    one = functools.partial(os.sched_setaffinity, 0, {min(os.sched_getaffinity(0))})
    result = perseusrun("--nproc-per-node", "auto", script("print(size)"), env=environment, preexec_fn=one)
    assert (result.returncode, result.stdout) == (0, "[0]<stdout>:1\n")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--nnodes 2 --nproc_per_node 2", "--nnodes 2: no hosts are given; perseusrun starts the ranks of all hosts"),
        ("--nnodes=2 -H localhost:2", "--nnodes 2: 1 hosts are given"),
        ("--nnodes 1:4", "--nnodes 1:4: for a number of hosts that changes, give --min-np"),
        ("--node_rank 1", "--node_rank 1: perseusrun starts the ranks of all hosts itself: name the hosts with -H"),
        ("--nproc_per_node many", "--nproc_per_node 'many': not a number, and none of gpu, cpu and auto"),
        ("--use_deepspeed", "--use_deepspeed: `accelerate launch` alone sets up this plug-in"),
        ("--fusion-treshold-mb 3", "--fusion-treshold-mb: no such option; did you mean --fusion-threshold-mb?"),
        ("--nproc_per_nod=3", "--nproc_per_nod: no such option; did you mean --nproc_per_node?"),
        ("--zzzz", "--zzzz: no such option; see perseusrun --help"),
        ("-np 1 --fusion-threshold-mb -1", "--fusion-threshold-mb '-1': not a number of at least 0"),
        ("-np 1 --thread-affinity a", "--thread-affinity 'a': not a list of cores such as 0,4"),
    ],
)
def test_errors_name_wrong_options_as_they_were_typed(perseusrun: Perseusrun, line: str, text: str) -> None:
    result = perseusrun(*line.split(), "python")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"perseusrun: {text}"), result.stderr
    assert [line.startswith("more about it: ") for line in result.stderr.splitlines()] in ([False], [False, True])


@pytest.mark.parametrize("by_option", [False, True], ids=["environment", "-x"])
def test_the_launcher_warns_about_unknown_variables(perseusrun: Perseusrun, script: Script, by_option: bool) -> None:
    variables = {} if by_option else {"PERSEUS_FUSION_TRESHOLD": "1", "HOROVOD_FUSION_TRESHOLD": "1"}
    option = ["-x", "HOROVOD_FUSION_TRESHOLD=1", "-x", "PERSEUS_FUSION_TRESHOLD=1"] if by_option else []
    environment = {**os.environ, **variables, "PERSEUS_MY_OWN": "1"}
    result = perseusrun("-np", "1", *option, script("import perseus_like.numpy as hvd; hvd.init()"), env=environment)
    assert result.stderr.splitlines() == [
        f"perseusrun: {name}_FUSION_TRESHOLD has no effect: no such variable; did you mean {name}_FUSION_THRESHOLD?"
        for name in ("HOROVOD", "PERSEUS")
    ]


def test_init_warns_about_unknown_variables_without_a_launcher() -> None:
    environment = {**os.environ, "PERSEUS_LOGLEVEL": "info"}
    program = "import perseus_like.numpy as hvd; hvd.init(); hvd.shutdown(); hvd.init()"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
    )
    found = "PERSEUS_LOGLEVEL has no effect: no such variable; did you mean PERSEUS_LOG_LEVEL?"
    assert ended.stderr == f"perseus_like: {found}\n"


def test_every_variable_that_python_code_reads_is_known() -> None:
    reads = re.compile(
        r"""(?:environ(?:\.get\(|\.pop\(|\[)|getenv\(|environment\.get\()["']((?:PERSEUS|HOROVOD)_\w+)"""
    )
    files = [file for folder in ("perseus_like", "adapters") for file in (ROOT / folder).rglob("*.py")]
    found = {name for file in files for name in reads.findall(file.read_text())}
    assert found - core_variables(_core) - LAUNCHER_VARIABLES == set()
    assert found


def test_each_option_is_defined_once() -> None:
    flags = [flag for action in make_parser()._actions for flag in action.option_strings]
    assert sorted(flags) == sorted(set(flags))


@pytest.mark.parametrize(
    ("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_on_a_terminal(
    script: Script, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_coloured: bool
) -> None:
    for name, value in {"TERM": "xterm", "NO_COLOR": "", **variables}.items():
        monkeypatch.setenv(name, value)
    seen = on_terminal(["-np", "1", "--disable-cache", script("print('here')")], [])
    assert (b"\x1b[36m[0]<stdout>:\x1b[0mhere" in seen) == is_coloured
    assert (b"\x1b[1mperseusrun:\x1b[0m --disable-cache" in seen) == is_coloured
    assert (b"\x1b[3" in seen) == is_coloured


def test_no_colours_in_a_file(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun("-np", "1", script("sys.exit(3)"), env={**os.environ, "TERM": "xterm"})
    assert "\x1b" not in result.stdout + result.stderr


COMPLETED = {
    "--fusion-t": {"--fusion-threshold-mb"},
    "-np 2 --log-level w": {"warning"},
    "--log-level debug here-": {"here-it-is.py"},
}


def completions(shell: str, line: str, folder: Path) -> set[str]:
    """Returns the words that the shell offers for the last word of `perseusrun LINE`."""
    printed = subprocess.run([*LAUNCHER, "--completion", shell], capture_output=True, text=True, check=True).stdout
    (folder / "completion").write_text(printed)
    words = ["perseusrun", *line.split()]
    if shell == "bash":
        ask = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _perseusrun"
        command = ["bash", "-c", f'. ./completion; {ask}; printf "%s\\n" "${{COMPREPLY[@]}}"']
    else:
        command = ["fish", "--no-config", "-c", f"source completion; complete -C '{' '.join(words)}'"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
    return {offer.split("\t")[0] for offer in ended.stdout.splitlines()}


@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize("line", COMPLETED)
def test_completion(tmp_path: Path, shell: str, line: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    (tmp_path / "here-it-is.py").touch()
    assert completions(shell, line, tmp_path) == COMPLETED[line]


def test_completion_by_zsh(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh")
    printed = subprocess.run([*LAUNCHER, "--completion", "zsh"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "completion").write_text(printed)
    program = "autoload -Uz compinit; compinit -D; . ./completion; print $_comps[perseusrun]"
    ended = subprocess.run(["zsh", "-fc", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == "_perseusrun\n"


PRINT = ["-c", "import os; print(os.environ['PERSEUS_SIZE'], os.environ.get('WORD', ''))"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["-np2", sys.executable, *PRINT], "2 \n"),
        (["-n2", sys.executable, *PRINT], "2 \n"),
        (["-np", "2", "-H", "localhost:2,", sys.executable, *PRINT], "2 \n"),
        (["-np", "2", "WORD=a b=c", "OTHER=", sys.executable, *PRINT], "2 a b=c\n"),
    ],
)
def test_forms_that_people_type(words: list[str], printed: str, perseusrun: Perseusrun) -> None:
    done = perseusrun("--no-prefix", *words)
    assert done.stdout == 2 * printed, done.stderr


def test_a_line_of_a_shell_is_named(perseusrun: Perseusrun) -> None:
    done = perseusrun("-np", "1", "true && false")
    assert "write sh -c 'true && false'" in done.stderr
