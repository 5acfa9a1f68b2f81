"""perseusrun's own options, by the groups of `perseusrun --help`."""

from __future__ import annotations

import argparse
import shlex

from ..program import MODULE_FLAGS
from .completion import SHELLS, Completion
from .explain import Explain
from .option_actions import Bind, Forward, ForwardMca, ForwardPair, MapBy, ShortHelp, WithoutMpi


def add_main_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-h", "--help", action=ShortHelp, nargs=0, default=argparse.SUPPRESS, help="print a short help and exit")
    add("--help-all", action="help", help="print all options and exit")
    add(
        "--explain",
        dest="_",
        action=Explain,
        default=argparse.SUPPRESS,
        metavar="TEXT",
        help="print what the documents say about an error text, and exit",
    )
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
        "-H",
        "-host",
        "-hosts",
        "--hosts",
        dest="hosts",
        metavar="a:4,b:4",
        help="hosts and their slots (default: this host)",
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
        action=Forward,
        default=argparse.SUPPRESS,
        metavar="NAME[=VALUE]",
        help="set or forward an environment variable on all ranks; may be repeated",
    )
    add(
        "-genv",
        dest="forward",
        nargs=2,
        action=ForwardPair,
        default=argparse.SUPPRESS,
        metavar=("NAME", "VALUE"),
        help="the same as -x NAME=VALUE, in the syntax of Intel's mpirun",
    )
    add(
        "--oversubscribe",
        action="store_true",
        help="allow more than 128 ranks per core of this host, and omit the note about two or more",
    )
    add("--as-horovod", action="store_true", help="make the program's `import horovod` find perseus_like")
    add("--as-gloo", action="store_true", help="make torch.distributed's backend `gloo` mean perseus for CPU tensors")
    add(
        "--torch",
        action=argparse.BooleanOptionalAction,
        help="start torch.distributed over perseus before the program (default: only if the program uses Hugging "
        "Face's Trainer or accelerate)",
    )
    add(
        *("-bind-to", "--bind-to"),
        action=Bind,
        default=argparse.SUPPRESS,
        metavar="WHAT",
        help="give each rank of this host its share of cores (core), or a NUMA node (numa) or socket; none: no binding "
        "(default). Through mpirun: the word for mpirun's own option",
    )
    add("--cpu-list", metavar="0-3,8", help="processors of this host for the job; without --bind-to, it binds to cores")
    add("--report-bindings", action="store_true", help="print the processors of each rank")
    add(
        "--start-timeout",
        type=int,
        metavar="SECONDS",
        help="longest time until all ranks have started (default 60)",
    )
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


def add_output_options(parser: argparse.ArgumentParser) -> None:
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
        help="print the whole traceback of every rank, also if it is equal to another rank's, or if a rank has only "
        "lost another rank",
    )


def add_elastic_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("elastic jobs, whose workers join and leave").add_argument
    add(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=int,
        metavar="N",
        help="fewest workers that the job needs (default: -np)",
    )
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
    add(
        "--reset-limit",
        type=int,
        metavar="N",
        help="end the job if its workers change more often than N times (default: no limit)",
    )
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        nargs=2,
        type=int,
        metavar=("MIN", "MAX"),
        help="seconds for which a host gets no new worker after a failure; the time doubles with each failure "
        "(default: for the rest of the job)",
    )


def add_mpi_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("MPI and remote hosts")
    add = group.add_argument
    add(
        "--mpi",
        dest="use_mpi",
        action="store_true",
        help="use mpirun, also if all ranks are on this host, or if UCX is installed",
    )
    add(
        "--gloo",
        dest="_",
        action=WithoutMpi,
        nargs=0,
        default=argparse.SUPPRESS,
        help="use no MPI: start the ranks of several hosts over ssh, and connect them over UCX (default if UCX is "
        "installed)",
    )
    add("--mpirun", metavar="PATH", help="the mpirun to use (default: in this Python's prefix, then in PATH)")
    add("--mpi-args", type=_words, default=[], metavar="'ARGS'", help="additional options for mpirun")
    add("--binding-args", type=_words, metavar="'ARGS'", help="mpirun's binding options, instead of no binding")
    add(
        *("-map-by", "--map-by"),
        action=MapBy,
        default=argparse.SUPPRESS,
        metavar="slot",
        help="accepted for compatibility with mpirun; ranks are always assigned to hosts in their order",
    )
    add(
        *("-mca", "--mca"),
        dest="forward",
        nargs=2,
        action=ForwardMca,
        default=argparse.SUPPRESS,
        metavar=("NAME", "VALUE"),
        help="set a parameter of Open MPI; other MPIs ignore it",
    )
    add(
        "--network-interfaces",
        "--network-interface",
        dest="nics",
        metavar="eth0,ib0",
        help="network interfaces to use (default: all)",
    )
    add("--tcp", action="store_true", help="use only TCP between hosts")
    add("--remote-shell", metavar="PATH", help="program that runs a command on another host (default: ssh)")
    add(
        "--check-hosts",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="before the launch, check that all hosts can be reached and have this version installed (default)",
    )
    add(
        "-p",
        "--ssh-port",
        type=int,
        metavar="PORT",
        help="ssh port of the hosts (default: that of ssh's configuration)",
    )
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _words(text: str) -> list[str]:
    return shlex.split(text)
