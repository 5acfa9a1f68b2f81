"""Checks that output lines are whole and marked with their rank, and that progress bars stay on one row."""

from __future__ import annotations

import collections
import functools
import os
import pty
import re
import resource
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseus_like.launch.output import Channel, Sink, Style
from perseus_like.launch.output.repeats import Repeats
from perseus_like.launch.processes.first_failure import RankEvidence
from tests.job import LIMIT_SECONDS, succeeded

from .conftest import Launched, Perseusrun, Script


def test_prefix_by_stream_and_rank(perseusrun: Perseusrun, script: Script) -> None:
    program = script('print("out"); print("err", file=sys.stderr)')
    result = perseusrun("-np", "2", "--oversubscribe", sys.executable, program)
    assert sorted(result.stdout.splitlines()) == ["[0]<stdout>:out", "[1]<stdout>:out"]
    assert sorted(result.stderr.splitlines()) == ["[0]<stderr>:err", "[1]<stderr>:err"]


def test_no_prefix(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun("-np", "2", "--no-prefix", sys.executable, script('print("out", rank)'))
    assert sorted(result.stdout.splitlines()) == ["out 0", "out 1"]


def test_timestamp(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun("-np", "1", "-prefix-timestamp", sys.executable, script('print("out")'))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[0\]<stdout>:out\n", result.stdout)


def test_lines_are_never_torn(perseusrun: Perseusrun, script: Script) -> None:
    # Ranks write each line in several pieces and at the same time. Some lines are longer than a pipe's buffer.
    program = script("""
        for number in range(300):
            length = 200_000 if number % 100 == 50 else number % 37
            for piece in (f"{number} ", chr(ord("a") + rank) * length, "\\n"):
                os.write(1, piece.encode())
    """)
    result = succeeded(perseusrun("-np", "4", sys.executable, program))
    seen = collections.defaultdict(list)
    for line in result.stdout.splitlines():
        match = re.fullmatch(r"\[(\d)\]<stdout>:(\d+) (.*)", line)
        assert match is not None, line[:80]
        rank, number, text = match.groups()
        length = 200_000 if int(number) % 100 == 50 else int(number) % 37
        assert text == "abcd"[int(rank)] * length
        seen[rank].append(int(number))
    assert seen == {str(rank): list(range(300)) for rank in range(4)}


def test_a_line_of_many_mebibytes_is_given_in_pieces(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun("-np", "1", sys.executable, script('os.write(1, b"x" * (5 << 20) + b"\\n")'))
    assert result.stdout.replace("[0]<stdout>:", "").replace("\n", "") == "x" * (5 << 20)


def test_bytes_that_are_not_text_are_kept(launched: Launched, script: Script, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        job = launched("-np", "1", sys.executable, script('os.write(1, bytes(range(256)) + b"\\n")'), stdout=out)
        assert job.wait(LIMIT_SECONDS) == 0
    assert sorted((tmp_path / "out").read_bytes()) == sorted(
        (bytes(range(256)) + b"\n").replace(b"\r", b"\r[0]<stdout>:").replace(b"\n\x0b", b"\n[0]<stdout>:\x0b")
        + b"[0]<stdout>:"
    )


def test_a_folder_whose_name_is_not_text(perseusrun: Perseusrun, script: Script, tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    done = perseusrun("-np", "1", "--output-filename", str(folder), sys.executable, script("print(1); sys.exit(3)"))
    assert done.returncode == 3, done.stderr
    assert "caf\\udce9" in done.stderr
    assert (folder / "rank.0" / "stdout").read_text() == "1\n"


def test_a_full_disk_does_not_end_a_job(
    perseusrun: Perseusrun, launched: Launched, script: Script, tmp_path: Path
) -> None:
    program = script('for _ in range(100 - 90 * rank): print("out", rank)')
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (300, 300))
    result = succeeded(perseusrun("-np", "2", "--output-filename", "logs", sys.executable, program, preexec_fn=limit))
    assert result.stdout.count("\n") == 110
    assert "cannot write more to 'logs/rank.0/stdout': File too large; the job continues" in result.stderr
    assert result.stderr.count("cannot write more") == 1
    assert (tmp_path / "logs/rank.1/stdout").read_text() == "out 1\n" * 10
    # The launcher's own output goes to a full disk.
    with Path("/dev/full").open("wb") as full:
        job = launched("-np", "2", sys.executable, program, stdout=full)
        assert job.wait(LIMIT_SECONDS) == 0
        assert job.communicate()[1].count("the disk of the launcher's stdout is full") == 1
        assert (
            launched("-np", "2", sys.executable, program, stdout=full, stderr=full).wait(LIMIT_SECONDS) == os.EX_IOERR
        )


def test_an_output_file_that_is_a_link_is_not_followed(perseusrun: Perseusrun, tmp_path: Path) -> None:
    (tmp_path / "logs/rank.0").mkdir(parents=True)
    (tmp_path / "valuable").write_text("of the user")
    (tmp_path / "logs/rank.0/stdout").symlink_to(tmp_path / "valuable")
    (tmp_path / "other/rank.0").parent.mkdir()
    (tmp_path / "other/rank.0").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    for folder in ("logs", "other"):
        result = perseusrun("-np", "1", "--output-filename", folder, "true")
        assert result.returncode == 2
        assert f"cannot write '{folder}/rank.0/stdout': it or its folder is a symbolic link" in result.stderr
    assert (tmp_path / "valuable").read_text() == "of the user"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_files_per_rank(perseusrun: Perseusrun, script: Script, tmp_path: Path) -> None:
    program = script('print("out", rank); print("err", rank, file=sys.stderr)')
    result = succeeded(perseusrun("-np", "11", "--output-filename", "logs/deep", sys.executable, program))
    assert result.stdout.count("\n") == 11
    for rank in range(11):
        folder = tmp_path / "logs" / "deep" / f"rank.{rank:02}"
        assert (folder / "stdout").read_text() == f"out {rank}\n"
        assert (folder / "stderr").read_text() == f"err {rank}\n"


def test_an_output_folder_that_cannot_be_created_is_an_error(perseusrun: Perseusrun, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    result = perseusrun("-np", "1", "--output-filename", "logs", "true")
    assert result.returncode == 2
    assert "--output-filename: cannot write" in result.stderr


def test_rank_0_reads_the_launchers_input(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun("-np", "2", sys.executable, script("print(repr(sys.stdin.read()))"), input="hello\nyou\n")
    assert sorted(result.stdout.splitlines()) == ["[0]<stdout>:'hello\\nyou\\n'", "[1]<stdout>:''"]


def test_a_progress_bar_in_a_file_has_its_first_and_its_last_state(perseusrun: Perseusrun, script: Script) -> None:
    program = script(r"""
        for percent in (10, 50, 100):
            os.write(2, b"\r%3d%%|" % percent)
        os.write(2, b"\n")
    """)
    result = perseusrun("-np", "1", sys.executable, program)
    assert [part for part in re.split(r"[\r\n]", result.stderr) if part] == [
        "[0]<stderr>: 10%|",
        "[0]<stderr>:100%|",
    ]


def on_terminal(args: list[str], answers: list[tuple[bytes, bytes]]) -> bytes:
    """Runs perseusrun on a terminal and returns its output.

    `answers` has pairs: a text to wait for, and what to type then.
    """
    leader, follower = pty.openpty()
    quiet = termios.tcgetattr(follower)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(follower, termios.TCSANOW, quiet)
    job = subprocess.Popen(
        [sys.executable, "-m", "perseus_like.launch", *args],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    seen = b""
    waiting = list(answers)
    try:
        while True:
            try:
                data = os.read(leader, 65536)
            except OSError:  # EIO: all descriptors of the other side are closed
                break
            seen += data
            while waiting and waiting[0][0] in seen:
                os.write(leader, waiting.pop(0)[1])
        assert job.wait(LIMIT_SECONDS) == 0
    finally:
        job.kill()
        os.close(leader)
    return seen


def test_lines_replace_the_progress_bar_on_a_terminal(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    program = script(r"""
        import socket
        name = "\0" + os.environ["PERSEUS_RENDEZVOUS"]
        if rank == 0:
            server = socket.socket(socket.AF_UNIX); server.bind(name); server.listen()
            os.write(2, b"\r 50%|\r")
            sys.stdin.readline()
            peer, _ = server.accept()
            peer.close()
            sys.stdin.readline()
            os.write(2, b"\r100%|\n")
        else:
            peer = socket.socket(socket.AF_UNIX)
            while peer.connect_ex(name) != 0:
                os.sched_yield()
            peer.recv(1)
            print("a line of its own")
    """)
    answers = [(b" 50%|", b"\n"), (b"a line of its own", b"\n")]
    monkeypatch.setenv("NO_COLOR", "1")
    seen = on_terminal(["-np", "2", "--oversubscribe", sys.executable, program], answers)
    lines = re.sub(rb"\x1b\[K", b"", seen).split(b"\r\n")
    screen = [re.sub(rb".*\r(?=.)", b"", line) for line in lines]
    *ranks, last, nothing = screen
    assert ranks == [b"[1]<stdout>:a line of its own", b"[0]<stderr>:100%|"]
    assert re.fullmatch(rb"perseusrun: 2 ranks ended after \d+\.\d s", last)
    assert nothing == b""


def test_a_long_wait_in_init_is_shown_on_a_terminal(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    program = script("""
        import perseus_like.numpy as hvd
        if rank == 0:
            sys.stdin.readline()
        hvd.init()
    """)
    line = b"perseusrun: waiting in init() for rank 0, which has not called it yet"
    seen = on_terminal(["-np", "2", sys.executable, program], [(line, b"\n")])
    assert seen.count(b"waiting in init()") == 1


def test_a_rank_that_others_wait_for_is_named_early_on_a_terminal(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    program = script("""
        import perseus_like.numpy as hvd
        print("the first note comes after", os.environ["PERSEUS_STALL_CHECK_FIRST_SECONDS"])
        hvd.init()
        if rank == 0:
            sys.stdin.readline()
        hvd.allreduce(1.0, name="evaluate")
    """)
    on_terminal(["-np", "2", sys.executable, program], [(b"the first note comes after 10", b"\n")])
    monkeypatch.setenv("PERSEUS_STALL_CHECK_FIRST_SECONDS", "1")
    seen = on_terminal(["-np", "2", sys.executable, program], [(b"has waited", b"\n")])
    assert b"submitted by rank 1, not by rank 0" in seen


def test_a_line_after_the_end_of_a_bar_is_below_it(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher finds the end of the bar and the next line in two pipes, at the same time."""
    monkeypatch.setenv("NO_COLOR", "1")
    program = script(r"""
        for epoch in range(9):
            os.write(2, b"\r%d: 50%%|" % epoch)
            os.write(2, b"\r%d: 100%%|\n" % epoch)
            os.write(1, b"loss of %d\n" % epoch)
            sys.stdin.readline()
    """)
    seen = on_terminal(["-np", "1", sys.executable, program], [(b"loss of %d\r" % epoch, b"\n") for epoch in range(9)])
    lines = re.sub(rb"\x1b\[[KA]", b"", seen).split(b"\r\n")
    ended = [re.sub(rb".*\r(?=.)", b"", line) for line in lines]
    assert [line.partition(b":")[2] for line in ended if line.startswith(b"[0]")] == [
        text for epoch in range(9) for text in (b"%d: 100%%|" % epoch, b"loss of %d" % epoch)
    ]


def test_prompt_on_a_terminal_is_shown_before_its_line_ends(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    program = script('print("got", input("name? ")) if rank == 0 else None')
    seen = on_terminal(["-np", "2", sys.executable, program], [(b"[0]<stdout>:name? ", b"Ada\n")])
    assert b"got Ada" in seen


class Memory(Sink):
    """A sink that stores its output instead of writing it."""

    def __init__(self) -> None:
        super().__init__(os.open(os.devnull, os.O_WRONLY))
        self.is_terminal = False

    @property
    def text(self) -> bytes:
        return bytes(self._waiting)


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=8).map(lambda data: data.replace(b"\r", b"")))))
def test_any_interleaving_of_pieces_keeps_lines_whole(pieces: list[tuple[int, bytes]]) -> None:
    sink = Memory()
    style = Style()
    channels = [Channel(rank, "stdout", sink, style) for rank in range(3)]
    sent = [b""] * 3
    for rank, data in pieces:
        channels[rank].feed(data)
        sent[rank] += data
    for channel in channels:
        channel.finish()
    os.close(sink.descriptor)
    got = [b""] * 3
    for line in sink.text.split(b"\n")[:-1]:
        got[line[1] - ord("0")] += line.removeprefix(b"[%c]<stdout>:" % line[1]) + b"\n"
    for before, after in zip(sent, got, strict=True):
        assert after == before if before.endswith(b"\n") or not before else after == before + b"\n"


@given(st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b"\r\n", b"d\r", b"\re"])), st.integers(1, 4))
def test_the_size_of_the_pieces_does_not_change_the_output(parts: list[bytes], step: int) -> None:
    stream = b"".join(parts)
    texts = []
    for size in (step, max(1, len(stream))):
        sink = Memory()
        channel = Channel(0, "stdout", sink, Style(prefix=False))
        for start in range(0, len(stream), size):
            channel.feed(stream[start : start + size])
        channel.finish()
        sink.close_line()
        texts.append(sink.text)
        os.close(sink.descriptor)
    assert texts[0] == texts[1]


def test_a_progress_bar_in_a_file_has_a_state_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("perseus_like.launch.output.time.monotonic", lambda: now[0])
    sink = Memory()
    one, other = (Channel(rank, "stderr", sink, Style()) for rank in range(2))
    for second in range(12):
        now[0] = float(second)
        for channel in (one, other):
            channel.feed(b"\r%3d%%|" % second)
            channel.feed(b"\r%3d%%|." % second)
        sink.write_late_bars()
    now[0] = 100.0  # the bars do not move any more
    sink.write_late_bars()
    for channel in (one, other):
        channel.finish()
    os.close(sink.descriptor)
    states = [part for part in re.split(rb"[\r\n]", sink.text) if part]
    # The launcher finds the end of a state only at the beginning of the next one.
    assert states == [
        b"[%d]<stderr>:%s" % (rank, state)
        for state in (b"  0%|", b"  4%|.", b"  9%|.", b" 11%|", b" 11%|.")
        for rank in range(2)
    ]


def test_a_removed_progress_bar_leaves_no_line_after_the_last_one() -> None:
    """A program prints its result after tqdm has removed a bar (leave=False) by blanks and a carriage return."""
    sink = Memory()
    result, bar = (Channel(0, name, sink, Style()) for name in ("stdout", "stderr"))
    bar.feed(b"\r 50%|##  |")
    bar.feed(b"\r          \r")
    result.feed(b"result\n")
    bar.finish()
    sink.close_line()
    os.close(sink.descriptor)
    assert sink.text.endswith(b"\n[0]<stdout>:result\n")


TRACEBACK = b'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nValueError: bad batch\n'


class Stderr:
    """The stderr of some ranks, and what the launcher says about it."""

    def __init__(self, size: int) -> None:
        self.sink = Memory()
        self.said: list[str] = []
        repeats = self.repeats = Repeats(self.said.append)
        self.witnesses = [RankEvidence(rank=rank) for rank in range(size)]
        self.channels = [Channel(w.rank, "stderr", self.sink, Style(), None, w, repeats) for w in self.witnesses]

    def end(self) -> dict[int, bytes]:
        """Ends all streams. Returns the lines of each rank."""
        for channel in self.channels:
            channel.close()
        os.close(self.sink.descriptor)
        lines = [line for line in self.sink.text.split(b"\n") if line]
        return {
            rank: b"".join(line.partition(b":")[2] + b"\n" for line in lines if line.startswith(b"[%d]" % rank))
            for rank in range(len(self.channels))
        }


def test_a_traceback_that_another_rank_has_printed_becomes_one_line() -> None:
    stderr = Stderr(4)
    first, *others = stderr.channels
    first.feed(TRACEBACK[:50])  # in the middle of a line
    others[2].feed(TRACEBACK.replace(b"bad", b"odd"))
    for rank in (2, 1):  # they come further than the first
        stderr.channels[rank].feed(TRACEBACK)
    first.feed(TRACEBACK[50:])
    for evidence in stderr.witnesses:
        evidence.has_ended_badly = True
    assert stderr.end() == {0: TRACEBACK, 1: b"", 2: b"", 3: TRACEBACK.replace(b"bad", b"odd")}
    assert stderr.said == ["[1-2]: the same traceback as [0]"]


@pytest.mark.parametrize("more", [b"bye\n", b"\r 50%|\rbye\n"])
def test_lines_after_a_folded_traceback_are_printed(more: bytes) -> None:
    stderr = Stderr(2)
    for channel in stderr.channels:
        channel.feed(TRACEBACK)
    stderr.witnesses[1].has_ended_badly = True
    stderr.repeats.decide(stderr.channels[1])
    stderr.channels[1].feed(more)
    assert stderr.said == ["[1]: the same traceback as [0]"]
    assert b"ValueError" not in stderr.end()[1]
    assert stderr.sink.text.endswith(b"[1]<stderr>:bye\n")


def test_the_traceback_of_a_rank_that_lives_is_printed() -> None:
    stderr = Stderr(2)
    stderr.channels[0].feed(TRACEBACK)
    stderr.channels[1].feed(TRACEBACK + b"continuing\n")
    assert stderr.sink.text.endswith(b"[1]<stderr>:continuing\n")  # at once
    assert stderr.end() == {0: TRACEBACK, 1: TRACEBACK + b"continuing\n"}
    assert stderr.said == []


PIECES = st.sampled_from([*TRACEBACK.splitlines(keepends=True), b"a\n", b"b"])


@given(st.lists(st.tuples(st.integers(0, 2), PIECES)))
def test_nothing_of_ranks_that_live_is_lost(pieces: list[tuple[int, bytes]]) -> None:
    with_fold, without = Stderr(3), Stderr(3)
    without.channels = [Channel(rank, "stderr", without.sink, Style()) for rank in range(3)]
    for rank, data in pieces:
        for stderr in (with_fold, without):
            stderr.channels[rank].feed(data)
    assert with_fold.end() == without.end()
    assert with_fold.said == []
