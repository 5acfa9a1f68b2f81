"""Tests of `python -m perseus_like.trace` with timelines made by hand, whose times are known."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from perseus_like.trace.__main__ import main
from perseus_like.trace.files import TraceError, read
from perseus_like.trace.summary import overlap, subtract, summarize, union
from tests.job import needs

Events = list[dict[str, Any]]


def events_of(
    rank: int, size: int, epoch: float, submitted: float, waits: tuple[float, float], host: str = "a"
) -> Events:
    """Returns the timeline of a rank with one allreduce of 1000 bytes. Times are in milliseconds.

    The allreduce begins 10 ms after epoch 0 on all ranks, and takes 4 ms.
    """

    def mark(phase: str, tid: int, at: float, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "pid": rank, "tid": tid, "ts": 1000 * (at - epoch), **more}

    def track(tid: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": name}}

    about = {"rank": rank, "size": size, "host": host, "start_time_since_epoch_in_micros": 5_000_000 + 1000 * epoch}
    return [
        {"ph": "M", "pid": rank, "name": "perseus_like", "args": about},
        track(1, "allreduce.x"),
        mark("B", 1, submitted, name="NEGOTIATE_ALLREDUCE"),
        mark("E", 1, 10),
        mark("B", 1, 10, name="ALLREDUCE", args={"seq": 7, "bytes": 1000}),
        mark("B", 1, 10, name="QUEUE"),
        mark("E", 1, 11),
        mark("E", 1, 14),
        track(2, "main thread"),
        mark("B", 2, waits[0], name="SYNCHRONIZE"),
        mark("E", 2, waits[1]),
        mark("B", 2, 20, name="SYNCHRONIZE"),
        mark("E", 2, 20),
    ]


def written(folder: Path, *ranks: Events) -> list[Path]:
    paths = []
    for rank, events in enumerate(ranks):
        paths.append(folder / ("t.json" if rank == 0 else f"t.rank{rank}.json"))
        paths[-1].write_text(json.dumps(events))
    return paths


def test_the_summary_divides_the_time(tmp_path: Path) -> None:
    # Rank 0 submits at 2 ms and is blocked from 3 ms; rank 1 submits at 8 ms, continues, and is blocked from 12 ms.
    paths = written(tmp_path, events_of(0, 2, 0, 2, (3, 14)), events_of(1, 2, 1, 8, (12, 14)))
    summary = summarize(read(paths[:1]))
    first, second = summary.ranks
    assert (first.waiting, first.negotiating, first.exposed) == pytest.approx((5e-3, 2e-3, 4e-3))
    assert first.total == pytest.approx(18e-3)
    assert first.computing == pytest.approx(7e-3)
    assert (first.communicating, first.overlap) == pytest.approx((4e-3, 0.0))
    assert (second.waiting, second.negotiating, second.exposed) == pytest.approx((0, 0, 2e-3))
    assert second.overlap == pytest.approx(0.5)
    assert summary.caused == pytest.approx({0: 0.0, 1: 5e-3})
    assert summary.missing == 0
    (tensor,) = summary.tensors
    assert (tensor.tensors, tensor.count, tensor.bytes, dict(tensor.slowest)) == (["allreduce.x"], 1, 1000, {1: 1})
    assert (tensor.waited, tensor.communicating) == pytest.approx((6e-3, 4e-3))


def test_the_time_before_init_is_part_of_the_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [events_of(rank, 2, rank, 2, (3, 14)) for rank in range(2)]
    for rank, events in enumerate(ranks):
        session = {"pid": rank, "tid": 0}
        events.append({"ph": "M", **session, "name": "thread_name", "args": {"name": "session"}})
        events.append({"ph": "i", **session, "ts": 0, "name": "INIT", "args": {"seconds_before": 0.2 + rank}})
        events.append({"ph": "i", **session, "ts": 300_000, "name": "SHUTDOWN"})
    paths = written(tmp_path, *ranks)
    first, second = summarize(read(paths)).ranks
    assert (first.before_init, first.total) == pytest.approx((0.2, 0.5))
    assert (second.before_init, second.total) == pytest.approx((1.2, 1.5))
    assert first.computing == pytest.approx(0.289)  # waiting, blocked and negotiating took 11 ms
    assert main(["merge", *map(str, paths), "-o", str(tmp_path / "all.json")]) == 0
    capsys.readouterr()
    assert main(["summary", str(tmp_path / "all.json")]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^rank \(host\) +total +before init\(\) +computing", output, re.MULTILINE)
    assert re.search(r"^0 \(a\) +500 ms +200 ms +289 ms", output, re.MULTILINE)
    assert re.search(r"^1 \(a\) +1.50 s +1.20 s", output, re.MULTILINE)


def collectives_of(rank: int, allreduces: list[tuple[str, float, float, int]]) -> Events:
    """Returns the timeline of one of 2 ranks; for each allreduce its name, its submission, its begin and its bytes.

    Times are in milliseconds, and each allreduce takes 1 ms.
    """
    about = {"rank": rank, "size": 2, "host": "a", "start_time_since_epoch_in_micros": 5_000_000}
    events: Events = [{"ph": "M", "pid": rank, "name": "perseus_like", "args": about}]
    for number, (name, submitted, begin, size) in enumerate(allreduces):
        of = {"pid": rank, "tid": number}
        verb = name.partition(".")[0].upper()
        done = {"seq": number, "bytes": size}
        events.append({"ph": "M", **of, "name": "thread_name", "args": {"name": name}})
        events.append({"ph": "B", **of, "ts": 1000 * submitted, "name": f"NEGOTIATE_{verb}"})
        events.append({"ph": "E", **of, "ts": 1000 * begin})
        events.append({"ph": "B", **of, "ts": 1000 * begin, "name": verb, "args": done})
        events.append({"ph": "E", **of, "ts": 1000 * (begin + 1)})
    return events


def test_tensors_that_waited_together_and_the_start_are_one_row_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [100, 200, 300]

    def timeline(rank: int, late: float) -> Events:
        return collectives_of(
            rank,
            [
                *((f"broadcast.{number}.weight", 10 + 40 * rank, 50, 256) for number in range(5)),
                ("allreduce.gradients.digest", 60, 61, 136),
                *(("allreduce.gradients.0.changed", at + late, at + 40, 8) for at in steps),
                *(("allreduce.gradients.0.0", at + 1 + late, at + 40, 1 << 20) for at in steps),
                *(("allreduce.loss", at + 60 + rank, at + 61, 256) for at in steps),
                *(("allreduce.gradients.1.changed", at + 70 + rank, at + 71, 8) for at in [300]),
            ],
        )

    paths = written(tmp_path, timeline(0, 0), timeline(1, 30))
    summary = summarize(read(paths))
    rows = {row.label(40): row for row in summary.tensors}
    assert list(rows) == [
        "allreduce.gradients.0.0 +1",
        "start-up",
        "allreduce.loss",
        "allreduce.gradients.1.changed",
    ]
    gradients = rows["allreduce.gradients.0.0 +1"]
    assert gradients.waited == pytest.approx(3 * 31e-3)  # the two waits of a step overlap
    assert (gradients.count, gradients.bytes) == (3, 3 * (1 << 20) + 3 * 8)
    assert rows["start-up"].bytes == 5 * 256 + 136
    assert rows["start-up"].waited == pytest.approx(40e-3)
    assert main(["summary", str(paths[0])]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^allreduce.loss +3 +256 B +3.00 ms +– +3.00 ms +1$", output, re.MULTILINE)
    assert re.search(r"^allreduce.gradients.0.0 \+1 +3 +1.0 MiB +3.00 ms +1.0 GB/s", output, re.MULTILINE)
    assert "digest" not in output
    assert "….changed: ranks tell each other whether gradients are missing, each step" in output
    assert max(map(len, output.splitlines())) <= 80, output


def test_clocks_of_hosts_are_aligned(tmp_path: Path) -> None:
    late = events_of(1, 2, 0, 8, (12, 14), host="b")
    late[0]["args"]["start_time_since_epoch_in_micros"] += 3_600_000_000
    traces = read(written(tmp_path, events_of(0, 2, 0, 2, (3, 14)), late))
    assert summarize(traces).ranks[0].waiting == pytest.approx(5e-3)


def test_merged_files_have_the_same_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = written(tmp_path, events_of(0, 2, 0, 2, (3, 14)), events_of(1, 2, 1, 8, (12, 14)))
    merged = tmp_path / "all.json"
    assert main(["merge", *map(str, paths), "-o", str(merged)]) == 0
    events = json.loads(merged.read_text())
    assert {event["pid"] for event in events} == {0, 1}
    begins = {event["pid"]: event["ts"] for event in events if event.get("name") == "ALLREDUCE"}
    assert begins == {0: 10_000, 1: 10_000}
    capsys.readouterr()
    assert main(["summary", str(merged)]) == 0
    of_merged = capsys.readouterr().out
    assert main(["summary", str(paths[0])]) == 0
    assert of_merged == capsys.readouterr().out
    assert re.search(r"^0 \(a\) +18.0 ms +– +7.00 ms +5.00 ms", of_merged, re.MULTILINE)
    assert re.search(r"^ +39% +28% +22% +11%$", of_merged, re.MULTILINE)
    assert re.search(r"^1 \(a\) +5.00 ms +27.8 %$", of_merged, re.MULTILINE)  # rank 1 caused 5 of rank 0's 18 ms
    assert re.search(r"^allreduce.x +1 +1000 B +4.00 ms +– +6.00 ms +1$", of_merged, re.MULTILINE)


def test_rank_0s_file_alone_shows_the_submissions_of_the_others(tmp_path: Path) -> None:
    events = events_of(0, 2, 0, 2, (3, 14))
    events.append({"ph": "i", "pid": 0, "tid": 1, "ts": 9000, "name": "1", "s": "t"})
    summary = summarize(read(written(tmp_path, events)))
    assert summary.missing == 1
    assert summary.ranks[0].waiting == pytest.approx(6e-3)
    assert summary.caused == pytest.approx({0: 0.0, 1: 6e-3})


def test_an_incomplete_file_is_read_up_to_its_end(tmp_path: Path) -> None:
    lines = ",\n".join(json.dumps(event) for event in events_of(0, 1, 0, 2, (3, 14)))
    (tmp_path / "t.json").write_text("[\n" + lines[: lines.rindex("ALLREDUCE")])
    (trace,) = read([tmp_path / "t.json"])
    assert [phase.name for phase in trace.phases()] == ["NEGOTIATE_ALLREDUCE"]


def test_files_that_are_not_timelines_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.json").write_text("{}")
    assert main(["summary", str(tmp_path / "t.json")]) == 1
    assert "no timeline" in capsys.readouterr().err
    assert main(["summary", str(tmp_path / "none.json")]) == 1
    paths = written(tmp_path, events_of(0, 2, 0, 2, (3, 14)), events_of(0, 2, 0, 2, (3, 14)))
    with pytest.raises(TraceError, match="both of rank 0"):
        read(paths)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "has no events"),
        (b"[\n", "has no events"),
        (b"a log line\nanother\n", "it is no JSON"),
        (b"\x89PNG\xff\xfe", "it is no text"),
        (b"[1, 2]", "its entries are no events"),
        (b'[{"ph": "X", "pid": 1, "ts": 0, "name": "of another tool"}]', "it does not name its rank"),
        (b'[{"ph": "M", "pid": 0, "name": "perseus_like", "args": {"rank": 0}}]', "KeyError('size')"),
        (b'[{"ph": "M", "pid": 0, "name": "perseus_like"}]', "it does not name its rank"),
        (b'[{"ph": "X", "pid": [1], "ts": 0, "name": "of another tool"}]', "pid = [1]"),
        (b'[{"ph": "M", "pid": 0, "name": "thread_name", "args": {"name": 3}}]', "args.name = 3"),
    ],
)
def test_the_error_says_why_a_file_is_not_a_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, text: str
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    for command in ("summary", "merge"):
        assert main([command, str(path)]) == 1
        output = capsys.readouterr().err
        assert f"{path} " in output
        assert text in output
        assert "--timeline-filename" in output


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(tmp_path / "trace.json")]) == 1
    assert (
        "trace.json does not exist; give a file that --timeline-filename or HOROVOD_TIMELINE" in capsys.readouterr().err
    )


def test_a_missing_matplotlib_is_found_before_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["summary", str(tmp_path / "trace.json"), "--draw", "trace.svg"]) == 1
    assert capsys.readouterr().err.endswith("which is not installed: pip install 'perseus-like[trace]'\n")


def test_an_unknown_format_of_a_picture_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = written(tmp_path, events_of(0, 1, 0, 2, (3, 14)))
    assert main(["summary", str(path), "--draw", str(tmp_path / "picture.jpgg")]) == 1
    output = capsys.readouterr()
    assert output.err.endswith("the name of a picture ends with .png, .svg, .pdf; give such a name\n")
    assert output.out == ""


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_the_tables_fit_into_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: float) -> None:
    ranks = []
    for rank in range(12):
        events = events_of(rank, 12, 0, 2 + rank, (3, 14), host="a-host-with-a-long-name.example.org")
        for event in events:
            if "ts" in event:
                event["ts"] = scale * event["ts"]
            if event.get("name") == "thread_name" and event["tid"] == 1:
                event["args"]["name"] = "allreduce." + "module.layer." * 9 + "weight"
        ranks.append([{**event} for event in events])
    written(tmp_path, *ranks)
    assert main(["summary", str(tmp_path / "t.json")]) == 0
    output = capsys.readouterr().out
    assert "who was slow" in output
    assert "layer.weight" in output
    assert {"0.001": "µs", "1.0": "ms", "10000.0": " s"}[str(scale)] in output
    assert max(map(len, output.splitlines())) <= 80, output


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_summary_is_drawn(tmp_path: Path, ending: str) -> None:
    needs("matplotlib")
    paths = written(tmp_path, events_of(0, 2, 0, 2, (3, 14)), events_of(1, 2, 1, 8, (12, 14)))
    picture = tmp_path / f"picture.{ending}"
    assert main(["summary", str(paths[0]), "--draw", str(picture)]) == 0
    beginning = picture.read_bytes()[:200]
    assert beginning.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in beginning


def test_union_overlap_and_difference_of_intervals() -> None:
    assert union([(3, 4), (1, 2), (2, 2.5), (5, 5)]) == [(1, 2.5), (3, 4)]
    assert overlap([(0, 2), (3, 6)], [(1, 4), (5, 7)]) == [(1, 2), (3, 4), (5, 6)]
    assert subtract([(0, 10)], [(-1, 1), (2, 3), (9, 12)]) == [(1, 2), (3, 9)]


def test_files_of_an_earlier_job_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [events_of(rank, 4, 0, 2, (3, 14)) for rank in range(4)]
    written(tmp_path, *ranks)
    paths = written(tmp_path, *(events_of(rank, 2, 0, 2, (3, 14)) for rank in range(2)))
    assert main(["summary", str(paths[0])]) == 0
    text, notes = capsys.readouterr()
    assert set(re.findall(r"^\d(?= \(a\))", text, re.MULTILINE)) == {"0", "1"}
    assert "missing" not in text
    for rank in (2, 3):
        assert f"t.rank{rank}.json is left out: it is of another job" in notes
    assert "rank 0 is one of 2 ranks, rank 2 one of 4" in notes
    assert main(["merge", *map(str, sorted(tmp_path.glob("t*.json"))), "-o", str(tmp_path / "all.json")]) == 1
    assert "are of different jobs: rank 0 is one of 2 ranks, rank 2 one of 4" in capsys.readouterr().err


def test_files_of_another_time_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = events_of(1, 2, 0, 8, (12, 14))
    later[0]["args"]["start_time_since_epoch_in_micros"] += 60_000_000
    paths = written(tmp_path, events_of(0, 2, 0, 2, (3, 14)), later)
    assert main(["summary", str(paths[0])]) == 0
    text, notes = capsys.readouterr()
    assert "The files of 1 of the job's ranks are missing" in text
    assert "rank 0 and rank 1 ran at different times" in notes


@pytest.mark.parametrize(
    "foreign",
    [
        {"ph": "M", "pid": 0, "tid": 1},
        {"ph": "X", "pid": 0, "tid": 1, "dur": 3},
    ],
)
def test_foreign_events_without_a_name_are_kept(tmp_path: Path, foreign: dict[str, Any]) -> None:
    paths = written(tmp_path, [*events_of(0, 1, 0, 2, (3, 14)), foreign])
    for command in (["summary"], ["merge", "-o", str(tmp_path / "all.json")]):
        assert main([*command, str(paths[0])]) == 0


@pytest.mark.parametrize("foreign", [{"ph": "i", "pid": 0, "tid": 1, "ts": 3}, {"ph": "B", "pid": 0, "ts": 3}])
def test_foreign_events_that_cannot_be_read_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], foreign: dict[str, Any]
) -> None:
    paths = written(tmp_path, [*events_of(0, 1, 0, 2, (3, 14)), foreign])
    assert main(["summary", str(paths[0])]) == 1
    assert "an event cannot be read" in capsys.readouterr().err
