"""Rules without processes: which workers form the next generation, and which ranks they get."""

from __future__ import annotations

from collections.abc import Sequence

from .worker import Worker


def members_of(workers: Sequence[Worker], generation: int) -> list[Worker]:
    """The workers of a generation that still live."""
    return [worker for worker in workers if worker.is_alive and worker.generation == generation > 0]


def candidates_of(workers: Sequence[Worker]) -> list[Worker]:
    """Workers that wait for a place and may have one.

    Where the training's state is only with workers that must leave, one of them stays, to hand it on.
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
    """Host and slot of each worker that may be started now."""
    living = [worker for worker in workers if worker.is_alive]
    staying = sum(not (worker.is_leaving or worker.is_dismissed) for worker in living)
    taken = {(worker.host, worker.slot) for worker in living}
    free = [(host, slot) for host, slots in usable.items() for slot in range(slots) if (host, slot) not in taken]
    return free if most is None else free[: max(0, most - staying)]


def without_a_slot(workers: Sequence[Worker], staying: dict[str, int]) -> list[Worker]:
    """Living workers whose host, or whose slot of it, is not among `staying`."""
    return [worker for worker in workers if worker.is_alive and worker.slot >= staying.get(worker.host, 0)]


def awaited_by(workers: Sequence[Worker], generation: int) -> list[Worker]:
    """Workers that the next generation waits for: members of the current one, and newcomers that are no retries."""
    members = members_of(workers, generation)
    return [
        worker
        for worker in workers
        if worker.is_alive
        and not worker.is_ready
        and (worker in members or (worker.is_starting and not worker.is_retry))
    ]


def expected_in(workers: Sequence[Worker]) -> list[Worker]:
    """The members of the next generation in the order of their ranks, if all workers that may join it do."""
    return in_order(
        [worker for worker in workers if worker.is_alive and not worker.is_leaving and not worker.is_dismissed]
    )
