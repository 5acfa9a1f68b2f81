"""Rules for generations, without processes: the workers that form the next generation, and their ranks."""

from __future__ import annotations

from collections.abc import Sequence

from .started_worker import Worker


def members_of(workers: Sequence[Worker], generation: int) -> list[Worker]:
    """Returns the living workers of a generation."""
    return [worker for worker in workers if worker.is_alive and worker.generation == generation > 0]


def candidates_of(workers: Sequence[Worker]) -> list[Worker]:
    """Returns the workers that are ready and may join the next generation.

    If only workers that must leave have the training's state, one of them stays and gives it to the others.
    """
    ready = [worker for worker in workers if worker.is_alive and worker.is_ready and not worker.is_dismissed]
    staying = [worker for worker in ready if not worker.is_leaving]
    if any(worker.has_state for worker in staying):
        return staying
    return [*[worker for worker in ready if worker.is_leaving and worker.has_state][:1], *staying]


def in_order(candidates: Sequence[Worker]) -> list[Worker]:
    """Sorts the members of a generation by their new rank.

    Workers that have the training's state come first, since rank 0 gives it to the others; older workers come before
    newer ones. The workers of one host have consecutive ranks.
    """
    senior = sorted(
        candidates,
        key=lambda worker: (
            not worker.has_state,
            worker.joined is None,
            worker.joined or 0,
            worker.rank,
            worker.number,
        ),
    )
    hosts = list(dict.fromkeys(worker.host for worker in senior))
    return sorted(senior, key=lambda worker: hosts.index(worker.host))


def free_slots(workers: Sequence[Worker], usable: dict[str, int], most: int | None) -> list[tuple[str, int]]:
    """Returns the host and slot of each worker that may be started now."""
    living = [worker for worker in workers if worker.is_alive]
    staying = sum(not (worker.is_leaving or worker.is_dismissed) for worker in living)
    taken = {(worker.host, worker.slot) for worker in living}
    free = [(host, slot) for host, slots in usable.items() for slot in range(slots) if (host, slot) not in taken]
    return free if most is None else free[: max(0, most - staying)]


def without_a_slot(workers: Sequence[Worker], staying: dict[str, int]) -> list[Worker]:
    """Returns the living workers whose host or slot is not among `staying`."""
    return [worker for worker in workers if worker.is_alive and worker.slot >= staying.get(worker.host, 0)]


def awaited_by(workers: Sequence[Worker], generation: int) -> list[Worker]:
    """Returns the workers that the next generation waits for: current members, and newcomers that are no retries."""
    members = members_of(workers, generation)
    return [
        worker
        for worker in workers
        if worker.is_alive
        and not worker.is_ready
        and (worker in members or (worker.is_starting and not worker.is_retry))
    ]


def expected_in(workers: Sequence[Worker]) -> list[Worker]:
    """Returns the members of the next generation in the order of their ranks, if all workers that may join it do."""
    return in_order(
        [worker for worker in workers if worker.is_alive and not worker.is_leaving and not worker.is_dismissed]
    )
