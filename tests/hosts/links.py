"""The rates and delays of a test bed's links, and the commands that set them in the kernel."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_FLOW_CLASSES = 2048
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class Links:
    """The rate and delay of each host's link, in the units of tc ("1gbit", "0.2ms"). An empty text sets no limit."""

    rate: str = ""  # the rate of a host in each direction
    flow_cap: str = ""  # the highest rate of one TCP connection, which clouds limit
    delay: str = ""  # the delay in one direction

    def __str__(self) -> str:
        words = [self.rate or "no limit", self.flow_cap and f"{self.flow_cap} per connection", self.delay]
        return ", ".join(filter(None, words))

    def delay_seconds(self) -> float:
        """Returns the delay in one direction, which is 0 if none is set."""
        return _number(self.delay, _UNITS) if self.delay else 0.0

    def rate_bytes(self) -> float:
        """Returns the rate in bytes per second, which is 0 if there is no limit."""
        return _number(self.rate, _BITS) / 8 if self.rate else 0.0

    def delay_by_kernel(self) -> bool:
        """Returns True if the kernel has sch_netem. Otherwise a program (delay.py) delays packets."""
        return _refusal("tc qdisc add dev try0 root netem delay 1ms") is None


def why_unsupported(links: Links | None = None) -> str | None:
    """Returns the reason why this machine allows no test bed with such links; None if it does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    links = links or Links()
    by_queue = bool(links.delay) and not links.delay_by_kernel()
    for program in ("ip", "tc", "nsenter", "unshare", *(["iptables"] if by_queue else [])):
        if shutil.which(program) is None:
            return f"there is no program {program} on this machine"
    trials = ["ip link add bridge type bridge"]
    if links.rate or links.flow_cap:
        trials += [
            "tc qdisc add dev try0 root handle 1: htb",
            "tc qdisc add dev try0 root tbf rate 1gbit burst 1m latency 1ms",
        ]
    if by_queue:
        trials.append("iptables -A INPUT -i try0 -j NFQUEUE --queue-num 0 --queue-bypass")
    for command in trials:
        if (refusal := _refusal(command)) is not None:
            return f"in a new namespace `{command}` fails: {refusal}"
    return None


@functools.cache
def _refusal(command: str) -> str | None:
    """Returns the output of a command that fails on a new host with interface try0; None if it succeeds."""
    script = f"mount -t sysfs sysfs /sys; ip link add try0 type veth peer name try1; {command}"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-ec", script],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else (tried.stderr.strip() or f"exit code {tried.returncode}")


def shape(links: Links, at_host: Sequence[str], device: str, at_switch: Sequence[str], port: str) -> None:
    """Shapes one link: the packets that the host sends on its device, and those that the switch sends to the host."""
    _tc(at_host, [f"qdisc replace dev {device} root pfifo limit 1000"])
    _tc(at_switch, [f"qdisc replace dev {port} root pfifo limit 1000"])
    if links.rate or links.flow_cap:
        _tc(at_host, _sender(links, device))
    parent = "root"
    if links.rate:
        _tc(
            at_switch,
            [f"qdisc replace dev {port} root handle 1: tbf rate {links.rate} burst {_burst(links.rate)} latency 100ms"],
        )
        parent = "parent 1:1"
    if links.delay and links.delay_by_kernel():
        _tc(at_switch, [f"qdisc replace dev {port} {parent} handle 10: netem delay {links.delay} limit 20000"])


def _sender(links: Links, device: str) -> list[str]:
    """Returns the lines for tc that limit what a host sends.

    One class has all traffic. With a cap per connection, it has one subclass for each value of a socket's random hash.
    """
    rate = links.rate or "100gbit"
    others = "1mbit" if links.flow_cap else rate
    burst = f"burst {_burst(rate)} cburst {_burst(rate)} quantum 100000"
    lines = [
        f"qdisc replace dev {device} root handle 1: htb default 2",
        f"class add dev {device} parent 1: classid 1:1 htb rate {rate} ceil {rate} {burst}",
        f"class add dev {device} parent 1:1 classid 1:2 htb rate {others} ceil {rate} {burst}",
    ]
    if not links.flow_cap:
        return lines
    first = 0x1000
    cap = f"rate 1mbit ceil {links.flow_cap} burst 70000 cburst {_burst(links.flow_cap, 131072)} quantum 70000"
    lines += [
        f"class add dev {device} parent 1:1 classid 1:{first + number:x} htb {cap}" for number in range(_FLOW_CLASSES)
    ]
    # The classic BPF program: A = the packet's hash; A &= classes - 1; A += 1:1000; return A, the class.
    steps = f"4,32 0 0 4294963232,84 0 0 {_FLOW_CLASSES - 1},4 0 0 {(1 << 16) + first},22 0 0 0"
    return [*lines, f"filter add dev {device} parent 1: protocol ip prio 1 bpf bytecode '{steps}' flowid 1:2"]


def _burst(rate: str, least: int = 262144) -> int:
    """Returns the number of bytes that may be sent at once: those of 2 ms, and at least some whole packets."""
    return max(least, int(_number(rate, _BITS) / 8 / 500))


def _number(text: str, units: dict[str, float]) -> float:
    for unit, scale in units.items():
        if text.endswith(unit) and text.removesuffix(unit).replace(".", "", 1).isdigit():
            return float(text.removesuffix(unit)) * scale
    raise ValueError(f"{text!r} is no number with one of the units {', '.join(units)}")


def _tc(at: Sequence[str], lines: Sequence[str]) -> None:
    batch = "".join(f"{line}\n" for line in lines)
    subprocess.run([*at, "tc", "-batch", "-"], input=batch, text=True, check=True)
