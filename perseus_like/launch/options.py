"""The command line of perseusrun. What follows the options is the command to run and is never parsed."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from .errors import LaunchError
from .settings import GROUPS, IGNORED, REFUSED, Setting

EPILOG = """\
examples:
  perseusrun -np 4 python train.py --lr 0.1          4 ranks on this host
  perseusrun -np 8 -H a:4,b:4 python train.py        two hosts, through the mpirun found
  perseusrun -np 8 -H a:4,b:4 --dry-run python x.py  show the mpirun line only
  perseusrun --min-np 2 --host-discovery-script d.sh python train.py
                                                     workers come and go with the hosts that d.sh prints
  perseusrun --check-build                           what is installed
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
    check_hosts: bool
    oversubscribe: bool
    is_batch: bool = False  # the hosts are a batch system's
    start_timeout: int | None
    stop_timeout: float
    output_filename: str | None
    prefix_output: bool
    prefix_timestamp: bool
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
            raise LaunchError(f"{option_string} {values!r}: not a number") from None
        namespace.settings[self.setting.variable] = value


class _Ignore(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.notes.append(f"{option_string} has no effect: {IGNORED[str(option_string)][1]}")


class _Gloo(_Ignore):
    """Horovod's opposite of --mpi."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        super().__call__(parser, namespace, values, option_string)
        namespace.use_mpi = False


class _Refuse(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        raise LaunchError(f"{option_string}: {REFUSED[str(option_string)][1]}")


class _Forward(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        from .environment import parse_forward

        namespace.forward.append(parse_forward(values))


class _ForwardPair(argparse.Action):
    prefix = ""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        from .environment import parse_forward

        namespace.forward.append(parse_forward(self.prefix + "=".join(values)))


class _ForwardMca(_ForwardPair):
    """Open MPI takes its parameters from the environment, too; others do not look at them."""

    prefix = "OMPI_MCA_"


class _Bind(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values != "none":  # as it is anyway
            namespace.binding_args = ["--bind-to", values]


class _Map(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values.split(":")[0] != "slot":
            namespace.notes.append(f"{option_string} {values} has no effect: hosts are filled in their order")


def parse_options(argv: Sequence[str]) -> Options:
    """Parses a command line. Raises LaunchError for one that makes no sense."""
    parser = make_parser()
    own, command = split_command(parser, argv)
    options = _parse(parser, own)
    if options.config_file:
        from .config_file import read_config

        # Given on the command line later, an option wins over the file.
        options = _parse(parser, read_config(options.config_file) + own)
    options.command = command
    options.notes = list(dict.fromkeys(options.notes))
    return options


def _parse(parser: argparse.ArgumentParser, own: Sequence[str]) -> Options:
    return parser.parse_args(own, Options(settings={}, notes=[], forward=[]))


def make_parser() -> argparse.ArgumentParser:
    """The parser of perseusrun's own options."""
    parser = _Parser(
        prog="perseusrun",
        usage="perseusrun -np N [options] command [arguments]",
        description="Starts N ranks of a program: on this host directly, on several hosts through mpirun.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_main(parser)
    _add_output(parser)
    _add_elastic(parser)
    _add_mpi(parser)
    for title, settings in GROUPS.items():
        group = parser.add_argument_group(title)
        for setting in settings:
            metavar = None if setting.value is not None else "X"
            flags = (setting.flag, *setting.aliases)
            group.add_argument(*flags, dest="_", action=_Set, setting=setting, metavar=metavar, help=setting.help)
    hidden: tuple[tuple[dict[str, tuple[int, str]], type[argparse.Action]], ...] = (
        ({flag: row for flag, row in IGNORED.items() if flag != "--gloo"}, _Ignore),
        ({"--gloo": IGNORED["--gloo"]}, _Gloo),
        (REFUSED, _Refuse),
    )
    for table, action in hidden:
        for flag, (count, _) in table.items():
            nargs = None if count == 1 else count
            parser.add_argument(
                flag, dest="_", action=action, nargs=nargs, default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )
    return parser


def _add_main(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the version and exit")
    add("-cb", "--check-build", action="store_true", help="print what is installed, with versions and paths, and exit")
    add("-np", "-n", "--num-proc", dest="num_proc", type=int, metavar="N", help="number of ranks")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H", "-host", "-hosts", "--hosts", dest="hosts", metavar="A:4,B:4", help="hosts and their slots"
    )
    where.add_argument(
        *("-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f"),
        dest="hostfile",
        metavar="FILE",
        help="lines 'a slots=4' or 'a:4'",
    )
    where.add_argument(
        "--host-discovery-script", metavar="FILE", help="elastic job: prints the hosts there are now, a line 'a:4' each"
    )
    add(
        *("-ppn", "--ppn", "-perhost", "-npernode", "--npernode"),
        dest="per_host",
        type=_positive,
        metavar="N",
        help="ranks of each host, instead of its slots",
    )
    add(
        "-x",
        dest="forward",
        action=_Forward,
        default=argparse.SUPPRESS,
        metavar="NAME[=VALUE]",
        help="hand an environment variable to all ranks; may be repeated",
    )
    add(
        "-genv",
        dest="forward",
        nargs=2,
        action=_ForwardPair,
        default=argparse.SUPPRESS,
        metavar=("NAME", "VALUE"),
        help="the same, as Intel's mpirun has it",
    )
    add("--oversubscribe", action="store_true", help="start even more than 128 ranks for each core of this host")
    add("--as-horovod", action="store_true", help="the program's `import horovod` finds perseus_like")
    add(
        "--torch",
        action=argparse.BooleanOptionalAction,
        help="start torch.distributed over perseus before the program (default: if it is one of Hugging Face's Trainer "
        "or accelerate, which keep it)",
    )
    add("--start-timeout", type=int, metavar="SECONDS", help="longest time for all ranks to come up")
    add(
        "--stop-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time that ranks have to end after a signal, before they are killed (default 10)",
    )
    add("--config-file", metavar="FILE", help="YAML file with these settings, as horovodrun reads it")
    add("--verbose", action="store_true", help="say what is done")
    add("--dry-run", action="store_true", help="print what would be started and exit")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--prefix-output",
        dest="prefix_output",
        action="store_true",
        default=True,
        help="begin each line with [rank]<stdout>: or [rank]<stderr>: (default)",
    )
    group.add_argument("--no-prefix", dest="prefix_output", action="store_false", help="leave the lines as they are")
    group.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="prefix_timestamp",
        action="store_true",
        help="begin each line with the time, too",
    )
    group.add_argument(
        "--output-filename", metavar="DIR", help="also write each rank's output to DIR/rank.N/stdout and stderr"
    )


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("elastic jobs, whose workers come and go").add_argument
    add("--min-np", "--min-num-proc", dest="min_np", type=int, metavar="N", help="fewest workers to go on with")
    add("--max-np", "--max-num-proc", dest="max_np", type=int, metavar="N", help="most workers (default: all slots)")
    add("--slots-per-host", type=int, metavar="N", help="slots of hosts that the script prints without a number")
    add(
        "--elastic-timeout",
        type=int,
        metavar="SECONDS",
        help="longest time to wait for enough workers (default 600, or PERSEUS_ELASTIC_TIMEOUT)",
    )
    add("--reset-limit", type=int, metavar="N", help="end the job when its workers would change more often than that")
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        nargs=2,
        type=int,
        metavar=("MIN", "MAX"),
        help="seconds for which a host gets no new worker after a failure, doubled with each (default: for good)",
    )


def _add_mpi(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("MPI and remote hosts")
    add = group.add_argument
    add("--mpi", dest="use_mpi", action="store_true", help="use mpirun also where all ranks are on this host")
    add("--mpirun", metavar="PATH", help="the mpirun to use (default: of this Python's prefix, then in PATH)")
    add("--mpi-args", type=_words, default=[], metavar="'ARGS'", help="more options for mpirun")
    add("--binding-args", type=_words, metavar="'ARGS'", help="mpirun's binding options, instead of no binding")
    add(
        "-bind-to",
        "--bind-to",
        action=_Bind,
        default=argparse.SUPPRESS,
        metavar="WHAT",
        help="the same, as mpirun has it",
    )
    add(
        *("-map-by", "--map-by"),
        action=_Map,
        default=argparse.SUPPRESS,
        metavar="slot",
        help="as mpirun has it; hosts are filled in their order anyway",
    )
    add(
        *("-mca", "--mca"),
        dest="forward",
        nargs=2,
        action=_ForwardMca,
        default=argparse.SUPPRESS,
        metavar=("NAME", "VALUE"),
        help="a parameter of Open MPI; others do not look at it",
    )
    add("--network-interfaces", "--network-interface", dest="nics", metavar="A,B", help="network interfaces to use")
    add("--tcp", action="store_true", help="use TCP between hosts, nothing faster")
    add("--remote-shell", metavar="PATH", help="program that runs a command on a host, instead of ssh")
    add(
        "--check-hosts",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="look whether all hosts can be reached and have this version, before the start (default)",
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


def split_command(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cuts `argv` at the first word that is no option of ours nor an option's value; a `--` there is dropped.

    Values are joined to their long option with `=`, so that a value may begin with a dash.
    """
    takes = {flag: _value_count(action) for action in parser._actions for flag in action.option_strings}
    own: list[str] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return own, list(argv[index + 1 :])
        if not word.startswith("-") or word == "-":
            return own, list(argv[index:])
        count = takes.get(word, 0)
        values = list(argv[index + 1 : index + 1 + count])
        own += [f"{word}={values[0]}"] if count == 1 and values and word.startswith("--") else [word, *values]
        index += 1 + count
    return own, []


def _value_count(action: argparse.Action) -> int:
    return action.nargs if isinstance(action.nargs, int) else 1
