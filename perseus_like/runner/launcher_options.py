"""Horovod's object of launcher options, as options of perseusrun, and a command line as such an object."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..launch.command_line import make_parser, parse_options, words_with_config

# horovodrun's options, by the attribute that its parser stores them in.
_ATTRIBUTES = [
    "check_build",
    "ssh_port",
    "ssh_identity_file",
    "disable_cache",
    "start_timeout",
    "nic",
    "output_filename",
    "verbose",
    "command",
    "run_func",
    "config_file",
    "nics",
    "executable",
    "fusion_threshold_mb",
    "cycle_time_ms",
    "cache_capacity",
    "hierarchical_allreduce",
    "hierarchical_allgather",
    "torus_allreduce",
    "autotune",
    "autotune_log_file",
    "autotune_warmup_samples",
    "autotune_steps_per_sample",
    "autotune_bayes_opt_max_samples",
    "autotune_gaussian_process_noise",
    "min_num_proc",
    "max_num_proc",
    "slots",
    "elastic_timeout",
    "reset_limit",
    "cooldown_range",
    "timeline_filename",
    "timeline_mark_cycles",
    "no_stall_check",
    "stall_check_warning_time_seconds",
    "stall_check_shutdown_time_seconds",
    "mpi_threads_disable",
    "mpi_args",
    "tcp_flag",
    "binding_args",
    "num_nccl_streams",
    "thread_affinity",
    "gloo_timeout_seconds",
    "log_level",
    "log_with_timestamp",
    "prefix_output_with_timestamp",
    "hosts",
    "hostfile",
    "host_discovery_script",
    "use_gloo",
    "use_mpi",
    "use_jsrun",
]

# The attribute with the words of options for which Horovod has no attribute.
_OTHERS = "other_options"

# Attributes that are no options, and options that are named otherwise.
_NO_OPTIONS = {"command", "run_func", "executable"}
_FLAGS = {
    "nic": "--network-interfaces",
    "nics": "--network-interfaces",
    "slots": "--slots-per-host",
    "cooldown_range": "--blacklist-cooldown-range",
    "tcp_flag": "--tcp",
    "use_gloo": "--gloo",
    "use_mpi": "--mpi",
    "use_jsrun": "--jsrun",
}


class _HorovodArgs:
    """The options of a job as attributes. None: the option is not given. `command` is a list of words."""

    def __init__(self) -> None:
        self.num_proc = 1
        for name in _ATTRIBUTES:
            setattr(self, name, None)


def options_of(args: Any) -> list[str]:
    """Returns the options of perseusrun for an object with attributes of _HorovodArgs."""
    options: list[str] = []
    for name, value in vars(args).items():
        if name in _NO_OPTIONS or value is None or value is False:
            continue
        flag = _flag_of(name)
        if name == _OTHERS:
            options += value
        elif value is True or name == "verbose":
            options += [flag] if value else []
        elif name == "cooldown_range":
            options += [flag, *map(str, value)]
        elif isinstance(value, list | tuple | set | frozenset):
            options.append(f"{flag}={','.join(map(str, value))}")
        else:
            options.append(f"{flag}={value}")
    return options


def _flag_of(attribute: str) -> str:
    return _FLAGS.get(attribute, f"--{attribute.replace('_', '-')}")


class _Keep(argparse.Action):
    """Appends an option without an attribute to the other options."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        getattr(namespace, _OTHERS).extend([option_string, *([values] if isinstance(values, str) else values)])


def parse_words(words: Sequence[str]) -> _HorovodArgs:
    """Returns the command line `words` of perseusrun as attributes. Raises LaunchError if it is invalid."""
    parse_options(words)  # an invalid value is an error, although the attributes keep their texts
    parser = make_parser()
    own, command = words_with_config(parser, words)
    args: Any = _HorovodArgs()
    args.num_proc, args.command = None, command
    setattr(args, _OTHERS, [])
    _with_attributes(parser).parse_args(own, args)
    if args.nics is not None:
        args.nics = set(args.nics.split(","))
    return args  # type: ignore[no-any-return]


def _with_attributes(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Returns a parser of the same options that stores their values in Horovod's attributes, without a conversion."""
    names = {_flag_of(name): name for name in ("num_proc", *_ATTRIBUTES) if name not in _NO_OPTIONS and name != "nic"}
    flags: dict[argparse.Action, list[str]] = {}
    for flag, action in parser._option_string_actions.items():
        flags.setdefault(action, []).append(flag)
    copy = argparse.ArgumentParser(prog=parser.prog, add_help=False, allow_abbrev=False)
    for action, strings in flags.items():
        attribute = next((names[flag] for flag in strings if flag in names), None)
        if attribute is None:
            copy.add_argument(*strings, dest=_OTHERS, action=_Keep, nargs=action.nargs)
        elif action.nargs == 0:
            copy.add_argument(*strings, dest=attribute, action="store_true")
        else:
            kind = getattr(action, "setting", action)
            is_number = int in (getattr(kind, "kind", None), action.type)
            copy.add_argument(*strings, dest=attribute, nargs=action.nargs, type=int if is_number else str)
    return copy


__all__ = ["_HorovodArgs", "options_of", "parse_words"]
