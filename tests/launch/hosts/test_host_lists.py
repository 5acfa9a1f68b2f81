"""Checks how host lists and host files are read."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseus_like.launch.host_list import (
    Host,
    assign_ranks,
    is_this_machine,
    parse_hostfile,
    parse_hostfile_text,
    parse_hosts,
)
from perseus_like.launch.start_errors import LaunchError

NAMES = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,15}", fullmatch=True)
HOSTS = st.lists(st.builds(Host, NAMES, st.integers(1, 512)), min_size=1, max_size=8, unique_by=lambda host: host.name)
BLANKS = st.text(" \t", max_size=3)
DIALECTS = [
    "{0.name} slots={0.slots}",
    "{0.name}:{0.slots}",
    "{0.name}\tslots = {0.slots} max_slots=1024",
    "{0.name}:{0.slots} ifname=eth0",
]


@given(HOSTS)
def test_host_list_round_trip(hosts: list[Host]) -> None:
    assert parse_hosts(",".join(map(str, hosts))) == hosts


@given(HOSTS, st.data())
def test_hostfile_in_any_mixture_of_dialects(hosts: list[Host], data: st.DataObject) -> None:
    lines = ["# hosts", ""]
    for host in hosts:
        text = data.draw(st.sampled_from(DIALECTS)).format(host)
        lines.append(data.draw(BLANKS) + text + data.draw(BLANKS) + data.draw(st.sampled_from(["", "# note", "#a:9"])))
        lines.append(data.draw(st.sampled_from(["", "   ", "# b slots=3"])))
    assert parse_hostfile_text("\n".join(lines)) == hosts


@given(st.text(max_size=40))
def test_any_text_gives_hosts_or_a_launch_error(text: str) -> None:
    for parse in (parse_hosts, parse_hostfile_text):
        try:
            hosts = parse(text)
        except LaunchError:
            continue
        assert all(host.slots >= 1 and host.name for host in hosts)


@given(HOSTS, st.integers(1, 5000))
def test_ranks_fill_the_hosts_in_order(hosts: list[Host], size: int) -> None:
    slots = [host.name for host in hosts for _ in range(host.slots)]
    if size > len(slots):
        with pytest.raises(LaunchError, match="slots"):
            assign_ranks(hosts, size)
    else:
        placed = assign_ranks(hosts, size)
        assert [host.name for host in placed for _ in range(host.slots)] == slots[:size]


def test_a_host_without_a_number_has_one_slot_and_repeated_hosts_add_up() -> None:
    assert parse_hosts("a:2,") == [Host("a", 2)]
    assert parse_hosts("a,b:2,a") == [Host("a", 2), Host("b", 2)]
    assert parse_hostfile_text("a\nb\na\n") == [Host("a", 2), Host("b", 1)]


def test_ipv6_address() -> None:
    assert parse_hosts("[::1]:2,[fe80::1]") == [Host("[::1]", 2), Host("[fe80::1]", 1)]


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("user@a:2", "ssh/config"),
        ("a user=me", "ssh/config"),
        ("^a", "relative"),
        ("a slots=0", "at least 1"),
        ("a:x", "cannot read"),
        ("a slots=two", "not a number"),
        ("a colour=red", "cannot read"),
    ],
)
def test_errors_name_the_line(text: str, needle: str) -> None:
    with pytest.raises(LaunchError, match=needle) as caught:
        parse_hostfile_text(f"b\n{text}\n", "my.hosts")
    assert "my.hosts, line 2" in str(caught.value)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", socket.gethostname()])
def test_names_of_this_machine(name: str) -> None:
    assert is_this_machine(name)


@pytest.mark.parametrize("name", ["203.0.113.7", "no-such-host.invalid"])  # reserved for documents and tests
def test_names_of_other_machines(name: str) -> None:
    assert not is_this_machine(name)


def test_a_host_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfa:2\r\nb slots=1\r\n")
    assert parse_hostfile(str(tmp_path / "hosts")) == [Host("a", 2), Host("b", 1)]
