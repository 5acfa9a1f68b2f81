"""The command line of perseusrun: its options, and the command that follows them and is never parsed."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from ..protocol.nearest import unknown_option
from . import starters
from .completion import SHELLS, Completion
from .errors import LaunchError
from .program import MODULE_FLAGS, split_command
from .settings import GROUPS, IGNORED, REFUSED, Setting, parse_forward

_WITHOUT_EFFECT = IGNORED | starters.ACCEPTED
_REFUSED = REFUSED | starters.REFUSED

EPILOG = """\
examples:
  perseusrun -np 4 train.py --lr 0.1                 start 4 ranks on this host
  perseusrun -np 4 -m package.module                 the same for a module
  perseusrun -np 8 -H a:4,b:4 train.py               start 4 ranks on each of two hosts, through mpirun
  perseusrun -np 8 -H a:4,b:4 --dry-run train.py     print the mpirun command line only
  perseusrun --min-np 2 --host-discovery-script d.sh python train.py
                                                     start an elastic job on the hosts that d.sh prints
  perseusrun --check-build                           print what is installed
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
    torch: bool | None
    use_mpi: bool
    mpirun: str | None
    mpi_args: list[str]
    binding_args: list[str] | None
    remote_shell: str | None
    ssh_port: int | None
    ssh_identity_file: str | None
    nics: str | None
    tcp: bool
    per_host: int | None
    nodes: tuple[str, int] | None  # --nnodes as it was typed, and its number
    check_hosts: bool
    oversubscribe: bool
    is_batch: bool = False  # the hosts are a batch system's
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


class _Set(argparse.Action):
    """Stores an environment variable of the core."""

    def __init__(self, option_strings: Sequence[str], dest: str, setting: Setting, **kwargs: Any) -> None:
        nargs = 0 if setting.value is not None else None
        super().__init__(option_strings, dest, nargs=nargs, default=argparse.SUPPRESS, **kwargs)
        self.setting = setting

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        try:
            value = self.setting.value if self.setting.value is not None else self.setting.encode(values)
        except ValueError:
            if self.setting.choices:
                raise LaunchError(f"{option_string} {values!r}: not one of {', '.join(self.setting.choices)}") from None
            raise LaunchError(f"{option_string} {values!r}: {self.setting.expected}") from None
        namespace.settings[self.setting.variable] = value


class _Ignore(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if reason := _WITHOUT_EFFECT[self.option_strings[0]][1]:
            namespace.notes.append(f"{option_string} has no effect: {reason}")


class _Gloo(_Ignore):
    """Horovod's option that overrides an earlier --mpi."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        super().__call__(parser, namespace, values, option_string)
        namespace.use_mpi = False


class _Refuse(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        raise LaunchError(f"{option_string}: {_REFUSED[self.option_strings[0]][1]}")


class _Forward(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.forward.append(parse_forward(values))


class _ForwardPair(argparse.Action):
    prefix = ""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.forward.append(parse_forward(self.prefix + "=".join(values)))


class _ForwardMca(_ForwardPair):
    """Passes a parameter of Open MPI in the environment. Other MPIs ignore it."""

    prefix = "OMPI_MCA_"


class _Bind(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values != "none":  # no binding is the default
            namespace.binding_args = ["--bind-to", values]


class _Map(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values.split(":")[0] != "slot":
            namespace.notes.append(f"{option_string} {values} has no effect: hosts are filled in their order")


def parse_options(argv: Sequence[str]) -> Options:
    """Parses a command line. Raises LaunchError if it is invalid."""
    parser = make_parser()
    own, command = split_command(parser, argv)
    options = _parse(parser, own)
    if options.config_file:
        from .config_file import read_config

        # The options of the command line follow, so they override those of the file.
        options = _parse(parser, read_config(options.config_file) + own)
    options.command = command
    options.notes = list(dict.fromkeys(options.notes))
    return options


def _parse(parser: argparse.ArgumentParser, own: Sequence[str]) -> Options:
    return parser.parse_args(own, Options(settings={}, notes=[], forward=[]))


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of perseusrun's own options."""
    parser = _Parser(
        prog="perseusrun",
        usage="perseusrun -np N [options] command [arguments]\n       perseusrun -np N [options] train.py [arguments]\n"
        "       perseusrun -np N [options] -m module [arguments]",
        description="Starts N ranks of a program. On one host it starts them directly, on several through mpirun.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_main(parser)
    _add_output(parser)
    _add_elastic(parser)
    _add_mpi(parser)
    starters.add_starters_options(parser)
    for title, settings in GROUPS.items():
        group = parser.add_argument_group(title)
        for setting in settings:
            metavar = None if setting.value is not None else "X"
            flags = (setting.flag, *setting.aliases)
            group.add_argument(*flags, dest="_", action=_Set, setting=setting, metavar=metavar, help=setting.help)
    hidden: tuple[tuple[dict[str, tuple[int, str]], type[argparse.Action]], ...] = (
        ({flag: row for flag, row in _WITHOUT_EFFECT.items() if flag != "--gloo"}, _Ignore),
        ({"--gloo": IGNORED["--gloo"]}, _Gloo),
        (_REFUSED, _Refuse),
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


def _add_main(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the version and exit")
    add(
        *("-cb", "--check-build"),
        action="store_true",
        help="print the installed frameworks and libraries with versions and paths, and exit",
    )
    add(*("-np", "-n", "--num-proc", "--num-processes"), dest="num_proc", type=int, metavar="N", help="number of ranks")
    add(*MODULE_FLAGS, dest="_", default=argparse.SUPPRESS, metavar="MODULE", help="run this module with this Python")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H", "-host", "-hosts", "--hosts", dest="hosts", metavar="A:4,B:4", help="hosts and their slots"
    )
    where.add_argument(
        *("-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f"),
        dest="hostfile",
        metavar="FILE",
        help="file of hosts, with lines 'a slots=4' or 'a:4'",
    )
    where.add_argument(
        "--host-discovery-script",
        metavar="FILE",
        help="start an elastic job on the hosts that this script prints, one line 'a:4' for each host",
    )
    add(
        *("-ppn", "--ppn", "-perhost", "-npernode", "--npernode"),
        dest="per_host",
        type=_positive,
        metavar="N",
        help="number of ranks on each host, instead of its slots",
    )
    add(
        "-x",
        dest="forward",
        action=_Forward,
        default=argparse.SUPPRESS,
        metavar="NAME[=VALUE]",
        help="set or forward an environment variable on all ranks; may be repeated",
    )
    add(
        "-genv",
        dest="forward",
        nargs=2,
        action=_ForwardPair,
        default=argparse.SUPPRESS,
        metavar=("NAME", "VALUE"),
        help="the same as -x NAME=VALUE, in the syntax of Intel's mpirun",
    )
    add("--oversubscribe", action="store_true", help="allow more than 128 ranks per core of this host")
    add("--as-horovod", action="store_true", help="make the program's `import horovod` find perseus_like")
    add(
        "--torch",
        action=argparse.BooleanOptionalAction,
        help="start torch.distributed over perseus before the program (default: only if the program uses Hugging "
        "Face's Trainer or accelerate)",
    )
    add("--start-timeout", type=int, metavar="SECONDS", help="longest time until all ranks have started")
    add(
        "--stop-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time from a signal until ranks that still run are killed (default 10)",
    )
    add(
        "--completion",
        dest="_",
        action=Completion,
        choices=SHELLS,
        default=argparse.SUPPRESS,
        metavar="SHELL",
        help="print a script that completes these options in bash, zsh or fish, and exit",
    )
    add("--config-file", metavar="FILE", help="YAML file with settings, in the format of horovodrun")
    add("--verbose", action="store_true", help="print each step of the launch")
    add("--dry-run", action="store_true", help="print the command lines of the job and exit")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--prefix-output",
        dest="prefix_output",
        action="store_true",
        default=True,
        help="print [rank]<stdout>: or [rank]<stderr>: before each line (default)",
    )
    group.add_argument("--no-prefix", dest="prefix_output", action="store_false", help="print lines without a prefix")
    group.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="prefix_timestamp",
        action="store_true",
        help="also print the time before each line",
    )
    group.add_argument(
        *("--output-filename", "--log-dir"),
        dest="output_filename",
        metavar="DIR",
        help="also write each rank's output to DIR/rank.N/stdout and stderr",
    )
    group.add_argument(
        "--full-tracebacks",
        action="store_true",
        help="also print the whole traceback of ranks that have only lost another rank",
    )


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("elastic jobs, whose workers join and leave").add_argument
    add("--min-np", "--min-num-proc", dest="min_np", type=int, metavar="N", help="fewest workers that the job needs")
    add("--max-np", "--max-num-proc", dest="max_np", type=int, metavar="N", help="most workers (default: all slots)")
    add("--slots-per-host", type=int, metavar="N", help="slots of hosts that the script prints without a number")
    add(
        "--discovery-interval",
        type=float,
        metavar="SECONDS",
        help="time between two runs of the discovery script (default 1)",
    )
    add(
        "--elastic-timeout",
        type=int,
        metavar="SECONDS",
        help="longest time to wait for enough workers (default 600, or PERSEUS_ELASTIC_TIMEOUT)",
    )
    add("--reset-limit", type=int, metavar="N", help="end the job if its workers change more often than N times")
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        nargs=2,
        type=int,
        metavar=("MIN", "MAX"),
        help="seconds for which a host gets no new worker after a failure; the time doubles with each failure "
        "(default: for the rest of the job)",
    )


def _add_mpi(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("MPI and remote hosts")
    add = group.add_argument
    add("--mpi", dest="use_mpi", action="store_true", help="use mpirun even if all ranks are on this host")
    add("--mpirun", metavar="PATH", help="the mpirun to use (default: in this Python's prefix, then in PATH)")
    add("--mpi-args", type=_words, default=[], metavar="'ARGS'", help="additional options for mpirun")
    add("--binding-args", type=_words, metavar="'ARGS'", help="mpirun's binding options, instead of no binding")
    add(
        "-bind-to",
        "--bind-to",
        action=_Bind,
        default=argparse.SUPPRESS,
        metavar="WHAT",
        help="the same, in the syntax of mpirun",
    )
    add(
        *("-map-by", "--map-by"),
        action=_Map,
        default=argparse.SUPPRESS,
        metavar="slot",
        help="accepted for compatibility with mpirun; ranks are always assigned to hosts in their order",
    )
    add(
        *("-mca", "--mca"),
        dest="forward",
        nargs=2,
        action=_ForwardMca,
        default=argparse.SUPPRESS,
        metavar=("NAME", "VALUE"),
        help="set a parameter of Open MPI; other MPIs ignore it",
    )
    add("--network-interfaces", "--network-interface", dest="nics", metavar="A,B", help="network interfaces to use")
    add("--tcp", action="store_true", help="use only TCP between hosts")
    add("--remote-shell", metavar="PATH", help="program that runs a command on another host, instead of ssh")
    add(
        "--check-hosts",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="before the launch, check that all hosts can be reached and have this version installed (default)",
    )
    add("-p", "--ssh-port", type=int, metavar="PORT", help="ssh port of the hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _words(text: str) -> list[str]:
    return shlex.split(text)
