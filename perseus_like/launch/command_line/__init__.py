"""The command line of perseusrun: its options, and the command that follows them and is never parsed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from ...protocol.nearest import unknown_option
from ..program import split_command
from ..start_errors import LaunchError
from . import foreign_options
from .option_actions import REFUSED_OPTIONS, WITHOUT_EFFECT, Ignore, Refuse, StoreSetting
from .option_groups import add_elastic_options, add_main_options, add_mpi_options, add_output_options
from .settings import GROUPS

EPILOG = """\
examples:
  perseusrun -np 4 train.py --lr 0.1               4 ranks on this host
  perseusrun -np 4 -m package.module               the same for a module
  perseusrun -np 8 -H a:4,b:4 train.py             4 ranks on each of two hosts
  perseusrun -np 8 -H a:4,b:4 --dry-run train.py   print the command lines only
  perseusrun --min-np 2 --host-discovery-script d.sh train.py
                                                   an elastic job
  perseusrun --check-build                         print what is installed
"""


class Options(argparse.Namespace):
    """The parsed options; `settings` are environment variables of the core."""

    num_proc: int | None
    hosts: str | None
    hostfile: str | None
    host_discovery_script: str | None
    min_np: int | None
    max_np: int | None
    slots_per_host: int | None
    discovery_interval: float | None
    elastic_timeout: int | None
    reset_limit: int | None
    cooldown_range: list[int] | None
    forward: list[tuple[str, str | None]]
    as_horovod: bool
    as_gloo: bool
    torch: bool | None
    use_mpi: bool
    without_mpi: bool = False  # --gloo: over ssh on several hosts, also if an mpirun would be chosen
    mpirun: str | None
    mpi_args: list[str]
    binding_args: list[str] | None
    bind_to: str | None = None
    cpu_list: str | None
    report_bindings: bool
    remote_shell: str | None
    ssh_port: int | None
    ssh_identity_file: str | None
    nics: str | None
    tcp: bool
    per_host: int | None
    max_restarts: int
    restart: int = 0  # the number of times that the job was started before
    nodes: tuple[str, int] | None  # --nnodes as it was typed, and its number
    check_hosts: bool
    oversubscribe: bool
    is_batch: bool = False  # mpirun starts its daemons through a batch system
    batch_system: str = ""  # the source of the hosts, if it is a batch system
    start_timeout: int | None
    stop_timeout: float
    output_filename: str | None
    prefix_output: bool
    prefix_timestamp: bool
    full_tracebacks: bool
    verbose: bool
    dry_run: bool
    check_build: bool
    version: bool
    config_file: str | None
    settings: dict[str, str]
    notes: list[str]
    command: list[str]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"{message}; see perseusrun --help")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise LaunchError(unknown_option(unknown[0], self._option_string_actions))
        return parsed


def parse_options(argv: Sequence[str]) -> Options:
    """Parses a command line. Raises LaunchError if it is invalid."""
    parser = make_parser()
    own, command = words_with_config(parser, argv)
    options = _parse(parser, own)
    options.command = command
    options.notes = list(dict.fromkeys(options.notes))
    return options


def words_with_config(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the options of a command line, after those of its configuration file, and the command.

    The options of the command line override those of the file. If the command line names the hosts in any way, the
    file's hosts do not count. Raises LaunchError if an option is invalid.
    """
    own, command = split_command(parser, argv)
    options = _parse(parser, own)
    if not options.config_file:
        return own, command
    from .config_file import HOST_OPTIONS, read_config

    words = read_config(options.config_file)
    if (options.hosts, options.hostfile, options.host_discovery_script) != (None, None, None):
        words = [word for word in words if word.partition("=")[0] not in HOST_OPTIONS]
    return words + own, command


def _parse(parser: argparse.ArgumentParser, own: Sequence[str]) -> Options:
    return parser.parse_args(own, Options(settings={}, notes=[], forward=[]))


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of perseusrun's own options."""
    parser = _Parser(
        prog="perseusrun",
        usage="perseusrun -np N [options] command [arguments]\n       perseusrun -np N [options] train.py [arguments]\n"
        "       perseusrun -np N [options] -m module [arguments]",
        description="Starts N ranks of a program, on several hosts over ssh or through mpirun.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add_main_options(parser)
    add_output_options(parser)
    add_elastic_options(parser)
    add_mpi_options(parser)
    foreign_options.add_starters_options(parser)
    for title, settings in GROUPS.items():
        group = parser.add_argument_group(title)
        for setting in settings:
            group.add_argument(
                *(setting.flag, *setting.aliases),
                dest="_",
                action=StoreSetting,
                setting=setting,
                metavar=setting.metavar or None,
                help=setting.help,
            )
    hidden: tuple[tuple[dict[str, tuple[int, str]], type[argparse.Action]], ...] = (
        (WITHOUT_EFFECT, Ignore),
        (REFUSED_OPTIONS, Refuse),
    )
    for table, action in hidden:
        for flag, (count, _) in table.items():
            nargs = None if count == 1 else count
            parser.add_argument(
                flag, dest="_", action=action, nargs=nargs, default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )
    _accept_underscores(parser)
    return parser


def _accept_underscores(parser: argparse.ArgumentParser) -> None:
    """Makes `--nproc_per_node` the same as `--nproc-per-node`, for every option, without naming both in the help."""
    known = parser._option_string_actions
    for flag, action in list(known.items()):
        if flag.startswith("--"):
            known.setdefault("--" + flag[2:].replace("-", "_"), action)
