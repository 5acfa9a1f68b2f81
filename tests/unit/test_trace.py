"""Timelines made by hand, whose times are known, through `python -m perseus_like.trace`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perseus_like.trace.__main__ import main
from perseus_like.trace.files import TraceError, read
from perseus_like.trace.summary import overlap, subtract, summarize, union

Events = list[dict[str, Any]]


def events_of(rank: int, size: int, epoch: float, asked: float, waits: tuple[float, float], host: str = "a") -> Events:
    """One allreduce of 1000 bytes that begins 10 ms after the epoch 0 on all ranks, and takes 4 ms; milliseconds."""

    def mark(phase: str, tid: int, at: float, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "pid": rank, "tid": tid, "ts": 1000 * (at - epoch), **more}

    def track(tid: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": name}}

    about = {"rank": rank, "size": size, "host": host, "start_time_since_epoch_in_micros": 5_000_000 + 1000 * epoch}
    return [
        {"ph": "M", "pid": rank, "name": "perseus_like", "args": about},
        track(1, "allreduce.x"),
        mark("B", 1, asked, name="NEGOTIATE_ALLREDUCE"),
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


def test_where_the_time_went(tmp_path: Path) -> None:
    # Rank 0 asks at 2 and is blocked from 3 on; rank 1 asks at 8, goes on, and is blocked from 12 on.
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
    assert (tensor.tensor, tensor.count, tensor.bytes, dict(tensor.slowest)) == ("allreduce.x", 1, 1000, {1: 1})
    assert (tensor.waited, tensor.communicating) == pytest.approx((6e-3, 4e-3))


def test_clocks_of_hosts_are_put_together(tmp_path: Path) -> None:
    late = events_of(1, 2, 0, 8, (12, 14), host="b")
    late[0]["args"]["start_time_since_epoch_in_micros"] += 3_600_000_000
    traces = read(written(tmp_path, events_of(0, 2, 0, 2, (3, 14)), late))
    assert summarize(traces).ranks[0].waiting == pytest.approx(5e-3)


def test_merged_files_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert re.search(r"^rank 0 \(a\) +18.0 ms +7.00 ms +39% +5.00 ms", of_merged, re.MULTILINE)
    assert re.search(r"^rank 1 \(a\) +5.00 ms +27.8 %$", of_merged, re.MULTILINE)  # 5 of rank 0's 18 ms
    assert re.search(r"^allreduce.x +1 +1000 B +4.00 ms +250 kB/s +6.00 ms +1 \(1\)", of_merged, re.MULTILINE)


def test_rank_0_alone_knows_the_others_by_its_ticks(tmp_path: Path) -> None:
    events = events_of(0, 2, 0, 2, (3, 14))
    events.append({"ph": "i", "pid": 0, "tid": 1, "ts": 9000, "name": "1", "s": "t"})
    summary = summarize(read(written(tmp_path, events)))
    assert summary.missing == 1
    assert summary.ranks[0].waiting == pytest.approx(6e-3)
    assert summary.caused == pytest.approx({0: 0.0, 1: 6e-3})


def test_a_torn_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = ",\n".join(json.dumps(event) for event in events_of(0, 1, 0, 2, (3, 14)))
    (tmp_path / "t.json").write_text("[\n" + lines[: lines.rindex("ALLREDUCE")])
    (trace,) = read([tmp_path / "t.json"])
    assert [phase.name for phase in trace.phases()] == ["NEGOTIATE_ALLREDUCE"]


def test_other_files_than_timelines_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    ],
)
def test_a_file_that_is_no_timeline_is_an_error_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, text: str
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    for command in ("summary", "merge"):
        assert main([command, str(path)]) == 1
        said = capsys.readouterr().err
        assert f"{path} " in said
        assert text in said
        assert "--timeline-filename" in said


def test_an_unknown_format_of_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = written(tmp_path, events_of(0, 1, 0, 2, (3, 14)))
    assert main(["summary", str(path), "--draw", str(tmp_path / "picture.jpgg")]) == 1
    said = capsys.readouterr()
    assert said.err.endswith("the name of a picture ends with .png, .svg, .pdf; give such a name\n")
    assert said.out == ""


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_the_tables_fit_into_100_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: float) -> None:
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
    said = capsys.readouterr().out
    assert "who was slow" in said
    assert "layer.weight" in said
    assert {"0.001": "µs", "1.0": "ms", "10000.0": " s"}[str(scale)] in said
    assert max(map(len, said.splitlines())) <= 100, said


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_summary_is_drawn(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    paths = written(tmp_path, events_of(0, 2, 0, 2, (3, 14)), events_of(1, 2, 1, 8, (12, 14)))
    picture = tmp_path / f"picture.{ending}"
    assert main(["summary", str(paths[0]), "--draw", str(picture)]) == 0
    beginning = picture.read_bytes()[:200]
    assert beginning.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in beginning


def test_intervals() -> None:
    assert union([(3, 4), (1, 2), (2, 2.5), (5, 5)]) == [(1, 2.5), (3, 4)]
    assert overlap([(0, 2), (3, 6)], [(1, 4), (5, 7)]) == [(1, 2), (3, 4), (5, 6)]
    assert subtract([(0, 10)], [(-1, 1), (2, 3), (9, 12)]) == [(1, 2), (3, 9)]
