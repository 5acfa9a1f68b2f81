"""Tests of the helpers in Horovod's launcher and common modules that programs import."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perseus_like.common import process_sets, util
from perseus_like.data import AsyncDataLoaderMixin, BaseDataLoader
from perseus_like.launch.command_line import parse_options
from perseus_like.runner import _HorovodArgs, js_run, mpi_run
from perseus_like.runner.common.util import codec, config_parser, env, host_hash, hosts, secret, timeout
from perseus_like.runner.launch import _run, parse_args
from perseus_like.runner.launcher_options import options_of, parse_words
from perseus_like.runner.util import threads
from tests.job import LIMIT_SECONDS


@pytest.mark.parametrize(
    ("version", "target", "is_later"),
    [
        ("2.6.0", "2.6.0", True),
        ("2.6", "2.6.0", True),
        ("2.21.0", "2.6.0", True),
        ("2.5.9", "2.6.0", False),
        ("2.6.0rc1", "2.6.0", False),
        ("2.6.0.dev20230101", "2.6.0", False),
        ("2.13.0+cpu", "2.13.0", True),
        ("v3.0.1-tf", "3.0.1", True),
    ],
)
def test_versions_are_compared_by_number(version: str, target: str, is_later: bool) -> None:
    assert util.is_version_greater_equal_than(version, target) is is_later


@pytest.mark.parametrize("arguments", [(2, "2.6.0"), ("2.6.0", "2.6"), ("none", "2.6.0")])
def test_a_wrong_version_is_an_error(arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"str|major\.minor\.patch"):
        util.is_version_greater_equal_than(*arguments)


def test_a_cached_function_is_called_once() -> None:
    calls: list[int] = []
    cached = util._cache(calls.append)
    cached(1)
    cached(1)
    cached(2)
    assert calls == [1, 2]


def test_host_lists() -> None:
    assert hosts.parse_hosts("a:2, b-1.c:1") == [hosts.HostInfo("a", 2), hosts.HostInfo("b-1.c", 1)]
    assert hosts.parse_hosts_and_slots("a:2,b:1") == (["a", "b"], {"a": 2, "b": 1})
    with pytest.raises(ValueError, match="worker-0:2"):
        hosts.parse_hosts("a")


def test_host_files(tmp_path: Any) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb:3\n")
    assert hosts.parse_host_files(str(file)) == "a:2,b:3"


def test_ranks_fill_the_hosts_in_order() -> None:
    slots = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:3"), 2, 4)
    numbers = [(each.hostname, each.rank, each.local_rank, each.cross_rank) for each in slots]
    assert numbers == [("a", 0, 0, 0), ("a", 1, 1, 0), ("b", 2, 0, 1), ("b", 3, 1, 1)]
    assert {(each.size, each.local_size, each.cross_size) for each in slots} == {(4, 2, 2)}
    uneven = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:1"), 3)
    assert [each.to_response_string() for each in uneven] == ["0,3,0,2,0,2", "1,3,1,2,0,1", "2,3,0,1,1,2"]
    with pytest.raises(ValueError, match="add hosts or slots"):
        hosts.get_host_assignments(hosts.parse_hosts("a:2"), 3)


def test_keys_and_digests() -> None:
    key = secret.make_secret_key()
    assert len(key) == secret.SECRET_LENGTH
    digest = secret.compute_digest(key, b"message")
    assert len(digest) == secret.DIGEST_LENGTH
    assert secret.check_digest(key, b"message", digest)
    assert not secret.check_digest(key, b"another", digest)


def test_objects_as_text() -> None:
    text = codec.dumps_base64({"a": [1, 2]})
    assert isinstance(text, str)
    assert codec.loads_base64(text) == {"a": [1, 2]}
    assert codec.loads_base64(codec.dumps_base64(abs, to_ascii=False)) is abs


def test_deadlines() -> None:
    deadline = timeout.Timeout(1000, "Waiting for {activity}.")
    assert 0 < deadline.remaining() <= 1000
    deadline.check_time_out_for("nothing")
    with pytest.raises(timeout.TimeoutException, match=r"Waiting for a host\. Timeout after -1 seconds"):
        timeout.Timeout(-1, "Waiting for {activity}.").check_time_out_for("a host")


def test_environment_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not env.is_kubeflow_mpi()
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", env.KUBEFLOW_MPI_EXEC)
    assert env.is_kubeflow_mpi()
    assert env.is_exportable("PATH")
    assert not env.is_exportable("OLDPWD")
    assert host_hash.host_hash() == host_hash.host_hash()
    assert host_hash.host_hash() != host_hash.host_hash("salt")


def test_functions_on_threads() -> None:
    assert threads.execute_function_multithreaded(pow, [[2, 3], [3, 2]]) == {0: 8, 1: 9}
    with pytest.raises(ZeroDivisionError):
        threads.execute_function_multithreaded(divmod, [[1, 0]])
    called, event, stop = threading.Event(), threading.Event(), threading.Event()
    thread = threads.on_event(event, called.set)
    event.set()
    thread.join(LIMIT_SECONDS)
    assert called.is_set()
    never = threading.Event()
    thread = threads.on_event(threading.Event(), never.set, stop=stop, check_stop_interval_s=0.01, daemon=False)
    stop.set()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()
    assert not never.is_set()


def test_the_end_of_a_program_does_not_wait_for_functions_on_threads() -> None:
    program = (
        "import threading; from perseus_like.runner.util.threads import execute_function_multithreaded as execute; "
        "execute(threading.Event().wait, [[], []], block_until_all_done=False)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=LIMIT_SECONDS, check=True)


def test_process_sets_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_sets._basics, "_get_process_set_ids_and_ranks", lambda: {3: [0, 2]}, raising=False)
    found = process_sets._temp_process_set_object(3)
    assert (found.process_set_id, found.ranks) == (3, [0, 2])


class NumberLoader(BaseDataLoader):
    def __init__(self, count: int, fails: bool = False) -> None:
        self.count = count
        self.fails = fails

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        yield from range(self.count)
        if self.fails:
            raise OSError("the file is gone")

    def _process_batch(self, batch: int) -> int:
        return 10 * batch


class AsyncNumberLoader(AsyncDataLoaderMixin, NumberLoader):
    pass


@pytest.mark.parametrize("queue_size", [0, 1, 64])
def test_batches_come_in_order_in_every_epoch(queue_size: int) -> None:
    loader = AsyncNumberLoader(async_loader_queue_size=queue_size, count=3)
    assert [list(loader), list(loader), len(loader)] == [[0, 10, 20], [0, 10, 20], 3]
    assert list(NumberLoader(3)) == [0, 10, 20]
    loader.close_async_loader()
    if queue_size:
        assert list(loader) == []
        assert not loader.thread.is_alive()


def test_an_error_of_the_reader_is_raised_in_the_loop_over_batches() -> None:
    loader = AsyncNumberLoader(async_loader_queue_size=2, count=3, fails=True)
    batches = iter(loader)
    assert [next(batches) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(OSError, match="the file is gone"):
        next(batches)
    assert list(loader) == []


def test_options_as_attributes() -> None:
    args = _HorovodArgs()
    assert options_of(args) == ["--num-proc=1"]
    args.num_proc, args.hosts, args.nics, args.verbose = 4, "a:2,b:2", {"eth0"}, 2  # type: ignore[attr-defined]
    args.use_gloo, args.cooldown_range, args.mpi_args = True, [1, 2], "-x A"  # type: ignore[attr-defined]
    args.fusion_threshold_mb, args.no_stall_check = 32, True  # type: ignore[attr-defined]
    options = parse_options([*options_of(args), "python", "train.py"])
    assert (options.num_proc, options.hosts, options.nics, options.verbose) == (4, "a:2,b:2", "eth0", True)
    assert (options.cooldown_range, options.mpi_args) == ([1, 2], ["-x", "A"])
    assert options.settings == {"PERSEUS_FUSION_THRESHOLD": str(32 << 20), "PERSEUS_STALL_CHECK_DISABLE": "1"}
    assert options.without_mpi


def test_every_option_of_horovod_is_known() -> None:
    """The parser would refuse an option if its attribute had another name."""
    args = _HorovodArgs()
    values: dict[str, Any] = {"cooldown_range": [1, 2], "log_level": "info", "mpi_args": "", "nics": None}
    switches = {name for name in vars(args) if name.startswith(("use_", "hierarchical_", "no_", "log_with"))}
    switches |= {"autotune", "torus_allreduce", "disable_cache", "tcp_flag", "mpi_threads_disable"}
    switches |= {"check_build", "timeline_mark_cycles", "prefix_output_with_timestamp"}
    switches -= {"use_jsrun"}  # perseusrun refuses this option with an error
    for name in vars(args):
        if name not in {"use_jsrun", "config_file", "hostfile", "host_discovery_script"}:
            setattr(args, name, True if name in switches else values.get(name, "1"))
    assert parse_options(options_of(args)).num_proc == 1


COMMAND_LINES = {
    "elastic": "-np 2 --min-np 1 --max-num-proc 4 --host-discovery-script d.sh --blacklist-cooldown-range 1 2",
    "hosts": "-np 4 -H a:2,b:2 -p 22 --network-interface eth0 --mpi-args=--quiet",
    "core": "--num-proc=2 --fusion_threshold_mb 32 --cycle-time-ms 0.5 --no-stall-check --autotune --gloo",
    "without an attribute": "-npernode 2 -x A=1 -genv B 2 --no-prefix --stop-timeout=3 --no-torch",
}


@pytest.mark.parametrize("case", COMMAND_LINES)
def test_a_command_line_as_attributes(case: str) -> None:
    words = [*COMMAND_LINES[case].split(), "python", "train.py", "-np", "9"]
    args: Any = parse_words(words)
    assert args.command == words[-4:]
    again = parse_options([*options_of(args), *args.command])
    assert vars(again) == vars(parse_options(words))


def test_attributes_have_horovods_types(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("params: {fusion_threshold_mb: 32}\nautotune: {enabled: true}\n")
    words = ["-np", "2", "--network-interfaces", "a,b", "--config-file", str(file), "--slots-per-host", "2"]
    args: Any = parse_words([*words, "--blacklist-cooldown-range", "1", "2", "--reset-limit", "3", "train.py"])
    assert (args.num_proc, args.nics, args.slots, args.cooldown_range) == (2, {"a", "b"}, 2, [1, 2])
    assert (args.fusion_threshold_mb, args.autotune, args.use_mpi) == (32, True, None)
    variables = {"MINE": "1"}
    assert config_parser.set_env_from_args(variables, args) is variables
    expected = {"MINE": "1", "HOROVOD_FUSION_THRESHOLD": str(32 << 20), "HOROVOD_AUTOTUNE": "1"}
    assert variables == expected


def test_a_wrong_command_line_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["horovodrun", "--no-such-option", "train.py"])
    with pytest.raises(SystemExit) as end:
        parse_args()
    assert end.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_a_job_is_started_from_attributes(capfd: pytest.CaptureFixture[str]) -> None:
    args = _HorovodArgs()
    args.num_proc, args.command = 2, [sys.executable, "-c", "print('hello')"]  # type: ignore[attr-defined]
    assert _run(args) is None
    assert capfd.readouterr().out.count("hello") == 2
    args.command = [sys.executable, "-c", "raise SystemExit(3)"]  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="exit code 3"):
        _run(args)
    args.command, args.run_func = None, int  # type: ignore[attr-defined]
    assert _run(args) == [0, 0]
    with pytest.raises(ValueError, match=r"args\.run_func"):
        _run(SimpleNamespace(num_proc=1, command=None, run_func=None, check_build=None))


def test_the_family_of_mpirun(tmp_path: Any) -> None:
    known = [mpi_run.is_open_mpi(), mpi_run.is_mpich(), mpi_run.is_intel_mpi()]
    assert sum(known) == mpi_run.mpi_available()
    empty = {"PATH": str(tmp_path)}
    assert not mpi_run.mpi_available(empty)
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    program.chmod(0o755)
    assert mpi_run.is_open_mpi(empty)
    assert not mpi_run.is_spectrum_mpi(empty)
    assert not js_run.is_jsrun_installed()


def test_the_launcher_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "perseus_like.runner.launch", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
    assert done.stdout.strip()
