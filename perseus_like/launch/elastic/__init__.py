"""Jobs whose workers come and go, and their settings, which are made of the options.

For example `perseusrun --min-np 2 --max-np 8 --host-discovery-script d.sh python train.py`.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from ..command_line import Options
from ..start_errors import LaunchError

DEFAULT_TIMEOUT_SECONDS = 600
DEFAULT_DISCOVERY_SECONDS = 1.0
# The reason for the end of a job. Programs search for it as a regular expression, so it has no special characters.
# Horovod's name for it is horovod.runner.elastic.constants.RESET_LIMIT_EXCEEDED_MESSAGE.
RESET_LIMIT_MESSAGE = "the workers changed more often than --reset-limit {} allows"
TIMEOUT_VARIABLES = ("PERSEUS_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT")


def environment_has_timeout() -> bool:
    """Returns True if a variable sets the time that a job waits for enough slots."""
    return any(os.environ.get(name) for name in TIMEOUT_VARIABLES)


@dataclass(frozen=True)
class ElasticSettings:
    """The settings. `cooldown`: see `HostManager`."""

    start_np: int  # the fewest workers of the first generation
    min_np: int  # the fewest workers of later generations
    max_np: int | None
    timeout: float  # seconds to wait for enough workers
    start_timeout: float  # the longest time in seconds from a worker's start to its `init()`
    reset_limit: int | None
    cooldown: tuple[int, int] | None
    slots_per_host: int | None
    discovery_interval: float  # seconds between two runs of the discovery script


def is_elastic(options: Options) -> bool:
    """Returns True if the options request an elastic job. Raises LaunchError for other options of elastic jobs."""
    if options.host_discovery_script is not None or options.min_np is not None or options.max_np is not None:
        return True
    lonely = {
        "--elastic-timeout": options.elastic_timeout,
        "--reset-limit": options.reset_limit,
        "--blacklist-cooldown-range": options.cooldown_range,
        "--slots-per-host": options.slots_per_host,
        "--discovery-interval": options.discovery_interval,
    }
    for flag, value in lonely.items():
        if value is not None:
            raise LaunchError(f"{flag} applies to elastic jobs only; add --min-np N or --host-discovery-script FILE")
    return False


def read_settings(options: Options) -> ElasticSettings:
    """Returns the settings. Raises LaunchError if numbers contradict each other."""
    smallest = options.min_np if options.min_np is not None else options.num_proc
    if smallest is None:
        raise LaunchError("the number of workers is missing: give --min-np N, or -np N")
    first = options.num_proc if options.num_proc is not None else smallest
    most = options.max_np
    _require(smallest >= 1, f"--min-np {smallest}: there must be at least one worker")
    _require(first >= smallest, f"-np {first} is less than --min-np {smallest}")
    _require(
        most is None or most >= first, f"--max-np {most} is less than the {first} workers that the job starts with"
    )
    limit, slots, cooldown = options.reset_limit, options.slots_per_host, options.cooldown_range
    _require(limit is None or limit >= 0, f"--reset-limit {limit} is negative")
    _require(slots is None or slots >= 1, f"--slots-per-host {slots}: there must be at least one slot")
    interval = options.discovery_interval
    is_interval = interval is None or (interval > 0 and math.isfinite(interval))
    _require(is_interval, f"--discovery-interval {interval}: give a number of seconds that is greater than 0")
    if cooldown is not None:
        _require(0 <= cooldown[0] <= cooldown[1], "--blacklist-cooldown-range takes two numbers of seconds, MIN MAX")
    return ElasticSettings(
        start_np=first,
        min_np=smallest,
        max_np=most,
        timeout=_timeout(options),
        start_timeout=options.start_timeout if options.start_timeout is not None else DEFAULT_TIMEOUT_SECONDS,
        reset_limit=limit,
        cooldown=None if cooldown is None else (cooldown[0], cooldown[1]),
        slots_per_host=slots,
        discovery_interval=DEFAULT_DISCOVERY_SECONDS if interval is None else interval,
    )


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise LaunchError(text)


def _timeout(options: Options) -> float:
    if options.elastic_timeout is not None:
        _require(options.elastic_timeout > 0, f"--elastic-timeout {options.elastic_timeout}: at least one second")
        return options.elastic_timeout
    for name in TIMEOUT_VARIABLES:
        if text := os.environ.get(name):
            _require(text.isdecimal() and int(text) > 0, f"{name}={text!r} is not a number of seconds")
            return int(text)
    return DEFAULT_TIMEOUT_SECONDS
