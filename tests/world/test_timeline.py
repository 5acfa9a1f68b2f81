"""Checks timelines of real ranks: Horovod's phases, one file for each rank, and files that are always readable."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perseus_like.trace.__main__ import main
from perseus_like.trace.files import read
from perseus_like.trace.summary import summarize

from .conftest import Ranks


def phases_of(path: Path) -> dict[str, Counter[str]]:
    """Returns how often each phase is on each track. Checks that every begin has its end on the same track."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    tracks = {event["tid"]: event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    counts: dict[str, Counter[str]] = {}
    depth: Counter[int] = Counter()
    for event in sorted((event for event in events if "ts" in event), key=lambda event: float(event["ts"])):
        if event["ph"] != "E":
            counts.setdefault(tracks[event["tid"]], Counter())[event["name"]] += 1
        depth[event["tid"]] += {"B": 1, "E": -1, "i": 0}[event["ph"]]
        assert depth[event["tid"]] >= 0
    assert not any(depth.values())
    return counts


def test_phases_have_horovods_names(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = """
    hvd.init()
    for step in range(3):
        handles = [hvd.allreduce_async(np.ones(1000, np.float32), name=f"gradient {i}") for i in range(4)]
        for handle in handles:
            hvd.synchronize(handle)
    hvd.allreduce(np.ones(1 << 20, np.float32), name="large")
    hvd.grouped_allreduce([np.ones(3), np.ones(4)], name="group")
    hvd.allgather(np.ones((hvd.rank() + 1, 2)), name="g")
    hvd.broadcast(np.ones(3), 0, name="b")
    hvd.alltoall(np.ones(4), name="a")
    hvd.reducescatter(np.ones(4), name="r")
    for i in range(50):
        hvd.allreduce(np.ones(2))
    if hvd.rank() == 1:
        while not os.path.exists("submitted"):
            os.sched_yield()
        time.sleep(0.3)  # rank 1 is the straggler that the trace must show
    late = hvd.allreduce_async(np.ones(3), name="late")
    open("submitted", "w").close()
    hvd.synchronize(late)
    try:
        hvd.allreduce(np.ones(3 + hvd.rank()), name="wrong")
    except hvd.HorovodInternalError:
        pass
    hvd.stop_timeline()
    hvd.allreduce(np.ones(3), name="between")
    # A second start continues the same file, or starts another file.
    hvd.start_timeline("third.json")
    hvd.start_timeline("third.json")
    hvd.allreduce(np.ones(3), name="once more")
    hvd.start_timeline("other.json", mark_cycles=False)
    hvd.allreduce(np.ones(3), name="again")
    """
    ranks(2, program, HOROVOD_TIMELINE=str(tmp_path / "trace.json"), HOROVOD_TIMELINE_MARK_CYCLES="1").succeeded()
    for name in ("trace.json", "trace.rank1.json"):
        phases = phases_of(tmp_path / name)
        for i in range(4):
            of_one = phases[f"allreduce.gradient {i}"]
            for phase in ("NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", "SHM_ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER"):
                assert of_one[phase] == 3, phase
        assert phases["allreduce.large"]["MEMCPY_OUT_FUSION_BUFFER"] <= 1
        assert phases["grouped_allreduce.group"]["ALLREDUCE"] == 1
        for track, verb in {
            "allgather.g": "ALLGATHER",
            "broadcast.b": "BROADCAST",
            "alltoall.a": "ALLTOALL",
            "reducescatter.r": "REDUCESCATTER",
        }.items():
            assert {f"NEGOTIATE_{verb}", verb, "QUEUE", f"SHM_{verb}"} <= phases[track].keys()
        assert phases["allreduce …"]["ALLREDUCE"] == 50
        # Rank 0 records the submissions of both ranks, and rank 1 its own.
        submitters = {"0", "1"} if name == "trace.json" else {"1"}
        assert phases["allreduce.wrong"].keys() == {"NEGOTIATE_ALLREDUCE", *submitters}
        assert phases["cycles"]["CYCLE_START"] > 0
        assert phases["main thread"]["SYNCHRONIZE"] > 0
        # Rank 0 may still record the submission of rank 1, which has stopped its timeline first, but nothing else.
        assert phases.get("allreduce.between", {}).keys() <= ({"1"} if name == "trace.json" else set())
    for name, track in {"other": "again", "other.rank1": "again", "third": "once more"}.items():
        phases = phases_of(tmp_path / f"{name}.json")
        assert {each for each, counts in phases.items() if counts["ALLREDUCE"]} == {f"allreduce.{track}"}
        assert phases[f"allreduce.{track}"]["ALLREDUCE"] == 1
        assert "cycles" not in phases
        assert "session" not in phases  # the program has started this timeline after init()

    summary = summarize(read([tmp_path / "trace.json"]))
    assert [rank.rank for rank in summary.ranks] == [0, 1]
    assert all(rank.total > (rank.before_init or 0.0) > 0 for rank in summary.ranks)
    assert summary.caused[1] > 0.2
    # On a busy machine, the ranks may have waited longer for another tensor.
    assert summary.tensors == sorted(summary.tensors, key=lambda each: -each.waited)
    (late,) = [each for each in summary.tensors if "allreduce.late" in each.tensors]
    assert late.waited > 0.2
    assert late.slowest == {1: 1}
    assert main(["merge", str(tmp_path / "trace.json"), "-o", str(tmp_path / "all.json")]) == 0
    assert {event["pid"] for event in json.loads((tmp_path / "all.json").read_text())} == {0, 1}


def test_files_of_killed_ranks_can_be_read(ranks: Ranks, tmp_path: Path) -> None:
    """The kernel may kill a rank in the middle of a write, so the files are read as documented, by the module."""
    program = """
    import signal, threading
    hvd.init()
    hvd.start_timeline("trace.json")
    if hvd.rank() == 1:
        hvd.allreduce_async(np.ones(3), name="never")

    def work():
        for handle in [hvd.allreduce_async(np.ones(10), name=f"x{i}") for i in range(100)]:
            hvd.synchronize(handle)

    work()
    work()
    time.sleep(0.3)  # the negotiation of "never" takes at least this long
    hvd.allreduce(np.ones(3), name="later")
    if hvd.rank() == 1:
        for name in ("trace.json", "trace.rank1.json"):
            while not (text := open(name).read()).count('"ALLREDUCE"') > 100 or "later" not in text:
                os.sched_yield()
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while True:
        work()
    """
    assert ranks(2, program).code != 0
    assert main(["merge", str(tmp_path / "trace.json"), "-o", str(tmp_path / "all.json")]) == 0
    events = json.loads((tmp_path / "all.json").read_text())
    counts = Counter(event["pid"] for event in events if event.get("name") == "ALLREDUCE")
    assert counts.keys() == {0, 1}
    assert min(counts.values()) > 100
    # The phase in which the rank was killed has a begin and no end.
    (trace,) = [trace for trace in read([tmp_path / "trace.json"]) if trace.rank == 1]
    (never,) = [phase for phase in trace.phases() if phase.track == "allreduce.never"]
    assert never.name == "NEGOTIATE_ALLREDUCE"
    assert never.end - never.begin > 0.2


def test_a_file_that_cannot_be_written_does_not_end_a_job(ranks: Ranks, tmp_path: Path) -> None:
    world = ranks(1, "hvd.init(); hvd.allreduce(np.ones(3))", HOROVOD_TIMELINE=str(tmp_path / "none" / "trace.json"))
    assert world.code == 0
    assert "the timeline cannot be written" in world.stderr
    assert ranks(1, "hvd.init(); hvd.allreduce(np.ones(3))", HOROVOD_TIMELINE="DYNAMIC").code == 0
    assert not (tmp_path / "DYNAMIC").exists()


def test_a_full_disk_does_not_end_a_job(ranks: Ranks, tmp_path: Path) -> None:
    """A limit on the size of files imitates a full disk."""
    program = """
    import resource
    hvd.init()
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    try:
        hvd.start_timeline("none.json")
    except ValueError as error:
        assert "the timeline cannot be written to none" in str(error), error
    else:
        raise AssertionError("the timeline was written nevertheless")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    hvd.start_timeline("trace.json")
    hvd.allreduce(np.ones(10), name="first")
    while "first" not in open("trace.rank1.json" if hvd.rank() else "trace.json").read():
        pass
    for step in range(100):
        for handle in [hvd.allreduce_async(np.ones(10), op=hvd.Sum, name=f"x{i}") for i in range(40)]:
            assert (hvd.synchronize(handle) == 2).all()
    """
    world = ranks(2, program).succeeded()
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["trace.json", "trace.rank1.json"]
    for name in ("trace.json", "trace.rank1.json"):
        assert f"the timeline ends here: {name} cannot be written any more" in world.stderr, world.stderr
        # Phases in progress at the end of the file may have no end.
        events = json.loads((tmp_path / name).read_text())
        tracks = {event["tid"]: event["args"]["name"] for event in events if event.get("name") == "thread_name"}
        assert "allreduce.first" in tracks.values()
        assert {event["tid"] for event in events if "ts" in event} <= tracks.keys()
