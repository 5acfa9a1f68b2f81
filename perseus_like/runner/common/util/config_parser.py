"""horovod.runner.common.util.config_parser: options of the launcher as environment variables."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from ....launch.command_line import parse_options
from ...launcher_options import options_of


def set_env_from_args(env: MutableMapping[str, str], args: Any) -> MutableMapping[str, str]:
    """Adds the variables that the options in `args` set to `env`, under Horovod's names. Returns `env`.

    `args` is an object of `parse_args` or _HorovodArgs. Options without an effect add no variable.
    """
    settings = parse_options(options_of(args)).settings
    env.update({name.replace("PERSEUS_", "HOROVOD_", 1): value for name, value in settings.items()})
    return env


__all__ = ["set_env_from_args"]
