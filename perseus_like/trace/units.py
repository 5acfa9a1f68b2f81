"""Units that fit the size of numbers, and names that fit into a column."""

from __future__ import annotations


def time_unit(seconds: float) -> tuple[float, str]:
    """Returns the factor from seconds to a unit in which `seconds` is at least 1, and the name of the unit."""
    if seconds >= 1:
        return 1.0, "seconds"
    return (1e3, "milliseconds") if seconds >= 1e-3 else (1e6, "microseconds")


def time(seconds: float) -> str:
    """Returns a time with three digits or more and its unit."""
    if seconds == 0:
        return "0 s"
    scale, name = time_unit(seconds)
    number = scale * seconds
    unit = {"seconds": "s", "milliseconds": "ms", "microseconds": "µs"}[name]
    return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f} {unit}"


def size(count: float) -> str:
    """Returns a number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def speed(bytes_per_second: float) -> str:
    """Returns a speed with its unit."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if bytes_per_second < 1000:
            return f"{bytes_per_second:.0f} {unit}"
        bytes_per_second /= 1000
    return f"{bytes_per_second:.1f} GB/s"


def shortened(name: str, width: int) -> str:
    """Returns a name that has at most `width` characters. Its end is kept, which tells tensors apart."""
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]
