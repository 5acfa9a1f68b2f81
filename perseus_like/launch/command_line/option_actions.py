"""The effects of perseusrun's options on the parsed options."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from typing import Any

from ..start_errors import LaunchError
from . import foreign_options
from .settings import IGNORED, REFUSED, Setting, parse_forward

# Options of other launchers, by flag: the number of arguments, and the reason.
WITHOUT_EFFECT = IGNORED | foreign_options.ACCEPTED
REFUSED_OPTIONS = REFUSED | foreign_options.REFUSED


class StoreSetting(argparse.Action):
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


class Ignore(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if reason := WITHOUT_EFFECT[self.option_strings[0]][1]:
            namespace.notes.append(f"{option_string} has no effect: {reason}")


class WithoutMpi(argparse.Action):
    """Horovod's option that overrides an earlier --mpi."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.use_mpi, namespace.without_mpi = False, True


class Refuse(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        raise LaunchError(f"{option_string}: {REFUSED_OPTIONS[self.option_strings[0]][1]}")


class Forward(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.forward.append(parse_forward(values))


class ForwardPair(argparse.Action):
    prefix = ""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.forward.append(parse_forward(self.prefix + "=".join(values)))


class ForwardMca(ForwardPair):
    """Passes a parameter of Open MPI in the environment. Other MPIs ignore it."""

    prefix = "OMPI_MCA_"


class Bind(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.bind_to = values  # for ranks that perseusrun starts itself
        if values != "none":  # mpirun's options below already say so
            namespace.binding_args = ["--bind-to", values]


class MapBy(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values.split(":")[0] != "slot":
            namespace.notes.append(f"{option_string} {values} has no effect: hosts are filled in their order")


class ShortHelp(argparse.Action):
    """Prints the usage, the options that most jobs need, and the examples."""

    shown = (
        *("-np", "-H", "--hostfile", "-x", "--as-horovod", "--bind-to", "--no-prefix", "--output-filename"),
        *("--timeline-filename", "--min-np", "--dry-run", "--explain", "--check-build", "--version", "--help-all"),
    )

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        formatter = parser._get_formatter()
        formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
        formatter.add_text(parser.description)
        formatter.start_section("options, the most frequent ones")
        for flag in self.shown:
            action = copy.copy(parser._option_string_actions[flag])
            action.option_strings = [flag]
            formatter.add_argument(action)
        formatter.end_section()
        formatter.add_text(parser.epilog)
        print(formatter.format_help(), end="")
        parser.exit()
