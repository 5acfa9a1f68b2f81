"""Checks the options of perseusrun, and the command that follows them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseus_like.launch.command_line import explain, parse_options
from perseus_like.launch.command_line.settings import GROUPS
from perseus_like.launch.start_errors import LaunchError
from tests.job import needs, succeeded

from .conftest import Perseusrun

NASTY = ["a b", "it's", '"q"', "$HOME", "*", "", "new\nline", "back\\slash", "--np", "-np", "--", "-x", ":", "é", "%r"]


@given(st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=8))))
def test_the_command_is_untouched(args: list[str]) -> None:
    assert parse_options(["-np", "2", "python", *args]).command == ["python", *args]
    assert parse_options(["-np", "2", "--", "-odd", *args]).command == ["-odd", *args]


def test_arguments_with_special_characters_reach_the_ranks(perseusrun: Perseusrun) -> None:
    import json

    program = "import json, sys; sys.stdout.write(json.dumps(sys.argv[1:]) + chr(10))"
    result = succeeded(perseusrun("-np", "2", sys.executable, "-c", program, *NASTY))
    assert [json.loads(line.split(":", 1)[1]) for line in result.stdout.splitlines()] == [NASTY, NASTY]


def test_values_may_begin_with_a_dash() -> None:
    options = parse_options(["-np", "2", "--mpi-args", "--mca 'pml ob1' -v", "--binding-args=-bind-to core", "x"])
    assert options.mpi_args == ["--mca", "pml ob1", "-v"]
    assert options.binding_args == ["-bind-to", "core"]
    assert options.command == ["x"]


def test_the_last_of_contradictory_options_takes_effect() -> None:
    options = parse_options(["--autotune", "--no-autotune", "--no-stall-check", "--stall-check", "x"])
    assert options.settings == {"PERSEUS_AUTOTUNE": "0", "PERSEUS_STALL_CHECK_DISABLE": "0"}


def test_options_of_horovod_without_effect_are_noted_once() -> None:
    ours = ["--disable-cache", "--cycle-time-ms"]
    flags = [*ours, "5", "--num-nccl-streams", "2", "--hierarchical-allgather", "--disable-cache"]
    options = parse_options(["-np", "2", *flags, "x"])
    noted = [*ours, "--num-nccl-streams", "--hierarchical-allgather"]
    assert [note.split(" ")[0] for note in options.notes] == noted
    assert options.settings == {}
    assert options.command == ["x"]


def test_hosts_and_hostfile_exclude_each_other() -> None:
    with pytest.raises(LaunchError, match="not allowed with"):
        parse_options(["-H", "a", "--hostfile", "f", "x"])


def test_options_are_not_abbreviated() -> None:
    with pytest.raises(LaunchError, match="--verb"):
        parse_options(["-np", "2", "--verb", "x"])


def test_config_file(tmp_path: Path) -> None:
    needs("yaml")
    config = tmp_path / "config.yaml"
    config.write_text(
        """
        num_proc: 3
        verbose: true
        params: {fusion_threshold_mb: 16, cache_capacity: 9, hierarchical_allreduce: false}
        timeline: {filename: trace.json}
        stall_check: {enabled: false}
        library_options: {mpi_args: "--mca pml ob1"}
        """
    )
    options = parse_options(["--config-file", str(config), "--cache-capacity", "11", "x", "--config-file", "y"])
    assert options.num_proc == 3
    assert options.verbose
    assert options.mpi_args == ["--mca", "pml", "ob1"]
    assert options.settings == {
        "PERSEUS_FUSION_THRESHOLD": str(16 << 20),
        "PERSEUS_CACHE_CAPACITY": "11",
        "PERSEUS_TIMELINE": "trace.json",
        "PERSEUS_STALL_CHECK_DISABLE": "1",
    }
    assert [note.split(" ")[0] for note in options.notes] == ["--no-hierarchical-allreduce"]
    assert options.command == ["x", "--config-file", "y"]


HOROVODS_CONFIGURATION = """
controller: {controller}
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: true
  torus_allreduce: true
autotune:
  enabled: true
  log_file: log.csv
  warmup_samples: 5
  steps_per_sample: 20
  bayes_opt_max_samples: 50
  gaussian_process_noise: 0.9
timeline:
  filename: trace.json
  mark_cycles: true
stall_check:
  enabled: true
  warning_time_seconds: 120
  shutdown_time_seconds: 240
library_options:
  mpi_threads_disable: true
  num_nccl_streams: 2
  {affinity}: 1
  gloo_timeout_seconds: 60
logging:
  level: INFO
  {timestamp}
"""
# The options without an effect in the configuration file. The launcher names each of them once, with the reason.
WITHOUT_EFFECT = {
    "--autotune-bayes-opt-max-samples": "fits no model",
    "--autotune-gaussian-process-noise": "fits no model",
    "--cycle-time-ms": "there is no cycle time",
    "--gloo-timeout-seconds": "set --start-timeout instead",
    "--hierarchical-allreduce": "ranks always reduce within their host first",
    "--hierarchical-allgather": "through shared memory",
    "--num-nccl-streams": "one stream for each process set",
    "--torus-allreduce": "the transport chooses its own algorithm",
}


@pytest.mark.parametrize(
    "release",
    [
        {"affinity": "thread_affinity", "timestamp": "with_timestamp: false"},
        {"affinity": "ccl_bgt_affinity", "timestamp": "hide_timestamp: true"},
    ],
    ids=["0.28", "0.19"],
)
def test_horovods_configuration_has_no_unknown_key(
    perseusrun: Perseusrun, tmp_path: Path, release: dict[str, str]
) -> None:
    needs("yaml")
    config = tmp_path / "config.yaml"
    config.write_text(HOROVODS_CONFIGURATION.format(controller="gloo", **release))
    names = ["FUSION_THRESHOLD", "CACHE_CAPACITY", "THREAD_AFFINITY", "LOG_LEVEL", "LOG_HIDE_TIME", "TIMELINE"]
    program = f"import os; print(*(os.environ['PERSEUS_' + name] for name in {names}))"
    result = perseusrun("-np", "1", "--config-file", str(config), "--cycle-time-ms", "1", sys.executable, "-c", program)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"[0]<stdout>:{32 << 20} 2048 1 INFO 1 trace.json\n"
    notes = [line.removeprefix("perseusrun: ").split(" has no effect: ") for line in result.stderr.splitlines()]
    assert sorted(option for option, _ in notes) == sorted(WITHOUT_EFFECT), result.stderr
    assert [(option, reason) for option, reason in notes if WITHOUT_EFFECT[option] not in reason] == []


def test_every_option_sets_a_variable_that_the_core_reads() -> None:
    from perseus_like import _core

    known = {name for name, *_ in _core.settings_table()}
    variables = {setting.variable for group in GROUPS.values() for setting in group}
    assert variables - known == set()


@pytest.mark.parametrize(
    ("controller", "line", "use_mpi"),
    [("mpi", [], True), ("MPI", ["--gloo"], False), ("gloo", ["--mpi"], True), ("gloo", [], False)],
)
def test_controller(tmp_path: Path, controller: str, line: list[str], use_mpi: bool) -> None:
    needs("yaml")
    config = tmp_path / "config.yaml"
    config.write_text(f"controller: {controller}")
    assert parse_options([*line, "--config-file", str(config), "x"]).use_mpi == use_mpi


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("controller: jsm", "must be one of gloo, mpi, not 'jsm'"),
        ("colour: red", "unknown setting colour"),
        ("params: {x: 1}", "unknown setting params: x"),
        ("params: 3", "must be a table"),
        ("- a", "expected a table"),
        ("a: [", "cannot read"),
        ("stall_check: {enabled: 7}", "must be true or false"),
        ("hosts: a:2\nhostfile: hosts", "give only one of hosts, hostfile and host_discovery_script"),
        ("hosts: {a: 2}", "hosts must be one value, not"),
        ("ssh_port: [1, 2]", "ssh_port must be one value, not"),
    ],
)
def test_config_file_errors(tmp_path: Path, text: str, needle: str) -> None:
    needs("yaml")
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(LaunchError, match=needle):
        parse_options(["--config-file", str(config), "x"])


@pytest.mark.parametrize(
    ("text", "words", "hosts", "hostfile"),
    [
        ("hosts: [a:2, b:4]", [], "a:2,b:4", None),
        ("hosts:\n- a:2\n- b", [], "a:2,b", None),
        ("hosts: a:2", ["--hostfile", "file"], None, "file"),
        ("hostfile: file", ["-H", "a:2"], "a:2", None),
        ("host_discovery_script: look", ["-H", "a:2"], "a:2", None),
        ("hosts: a:2", ["-H", "b:2"], "b:2", None),
    ],
)
def test_hosts_in_a_config_file(
    tmp_path: Path, text: str, words: list[str], hosts: str | None, hostfile: str | None
) -> None:
    needs("yaml")
    config = tmp_path / "config.yaml"
    config.write_text(text)
    options = parse_options(["--config-file", str(config), *words, "x"])
    assert (options.hosts, options.hostfile, options.host_discovery_script) == (hosts, hostfile, None)


def test_dry_run_starts_nothing_and_can_be_pasted(perseusrun: Perseusrun, tmp_path: Path) -> None:
    result = succeeded(perseusrun("-np", "2", "--dry-run", "touch", "a file", "it's"))
    assert list(tmp_path.iterdir()) == []
    lines = [shlex.split(line) for line in result.stdout.splitlines()]
    for rank, words in enumerate(lines):
        assert words[0] == "env"
        assert words[-3:] == ["touch", "a file", "it's"]
        assert f"PERSEUS_RANK={rank}" in words


def test_version_and_help(perseusrun: Perseusrun) -> None:
    assert perseusrun("--version").returncode == 0
    columns = {**os.environ, "COLUMNS": "80"}
    short, whole, word = (perseusrun(word, env=columns).stdout for word in ("--help", "--help-all", "help"))
    for text in (short, whole):
        assert "usage: perseusrun -np N [options] command" in text
        assert "perseusrun -np 4 train.py --lr 0.1" in text
    assert max(map(len, short.splitlines())) <= 80
    assert len(short.splitlines()) < 50
    assert "--cache-capacity" not in short
    assert "--cache-capacity N" in whole
    assert word == short


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--nproc", "--nproc-per-node"),
        ("--nprocs_per_node=2", "--nproc_per_node"),
        ("--timline", "--timeline-filename or --timeline-mark-cycles"),
        ("--timeline", "--timeline-filename or --timeline-mark-cycles"),
        ("--fusion-treshold", "--fusion-threshold-mb"),
        ("-V", "-v"),
    ],
)
def test_an_option_that_does_not_exist_names_similar_ones(typed: str, meant: str) -> None:
    with pytest.raises(LaunchError) as raised:
        parse_options([typed, "x"])
    assert str(raised.value).endswith(f": no such option; did you mean {meant}? see perseusrun --help")


def test_defaults_in_the_help_are_those_of_the_core() -> None:
    from perseus_like import _core

    defaults = {name: default for name, _, default, _ in _core.settings_table()}
    for setting in (setting for group in GROUPS.values() for setting in group if setting.value is None):
        assert setting.metavar, setting.flag
        default = defaults[setting.variable]
        if setting.kind is int:
            assert re.search(rf"\(default {int(default) // setting.scale}\b", setting.help), setting.flag
        elif default:
            assert f"{default} (default)" in setting.help, setting.flag


@pytest.mark.parametrize(
    "line",
    [
        "-np 8 -H h1:4,h2:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 -mca btl ^openib",
        "--allow-run-as-root -np 8 -npernode 4 -host h1,h2 -x NCCL_DEBUG=INFO --mca pml ob1 --mca btl ^openib",
        "-n 8 -ppn 4 -hosts h1,h2 -genv NCCL_DEBUG INFO -genv OMPI_MCA_pml ob1 -genv OMPI_MCA_btl ^openib",
    ],
    ids=["Horovod", "AIACC", "Intel"],
)
def test_options_of_mpirun_command_lines(line: str) -> None:
    options = parse_options([*line.split(), "python", "train.py"])
    assert options.num_proc == 8
    assert options.hosts in {"h1:4,h2:4", "h1,h2"}
    assert options.per_host == (None if "h1:4" in line else 4)
    assert options.binding_args is None
    assert options.forward == [("NCCL_DEBUG", "INFO"), ("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "^openib")]
    assert options.command == ["python", "train.py"]


def test_mpiruns_binding() -> None:
    options = parse_options(["-np", "2", "-bind-to", "core", "-map-by", "node", "x"])
    assert options.binding_args == ["--bind-to", "core"]
    assert options.notes == ["-map-by node has no effect: hosts are filled in their order"]


def test_explain_finds_the_section_of_an_error(perseusrun: Perseusrun) -> None:
    error = "broadcast 'w': rank 0 has float32[3], rank 1 has float64[3]; dtype and shape must be the same on all ranks"
    done = succeeded(perseusrun("--explain", error))
    assert done.stdout.startswith("`…; dtype and shape must be the same on all ranks`")
    assert "The ranks built different models" in " ".join(done.stdout.split())
    missing = perseusrun("--explain", "frobnicate")
    assert missing.returncode == 1
    assert "no error text has this" in missing.stderr


def test_an_error_of_the_launcher_ends_with_the_word_to_ask_for(perseusrun: Perseusrun) -> None:
    error = perseusrun("-np", "3", "-H", "localhost:2", "true").stderr
    assert error.startswith("perseusrun: -np 3, but the hosts (localhost:2) have 2 slots")
    assert error.endswith("\nmore about it: perseusrun --explain 'but the hosts'\n")
    explained = perseusrun("--explain", "but the hosts")
    assert explained.stdout.startswith("`-np …, but the hosts")


def test_every_section_is_found_by_its_word_and_by_its_error() -> None:
    for section in explain.sections():
        if section.heading.startswith("`"):
            assert section in explain.find(section.word())[:3], section.heading
            assert explain.about(section.heading.strip("`").replace("…", "something")) == section


def test_a_word_is_searched_from_its_beginning() -> None:
    found = explain.find("stall")
    assert found
    assert "_stall_" in (found[0].heading + found[0].body).lower()
