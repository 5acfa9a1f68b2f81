"""A process group whose ranks change while the program runs: the interface that torchft's manager asks for.

torchft decides before each step which replicas take part. When that changes, after a replica was lost and when one has
come back, it calls `reconfigure` on all of them (`configure` up to release 0.2). Each time a group of the backend
`perseus` is made, with a session of its own.
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Backend, PrefixStore, Store

from perseus_like.errors import UnavailableError

from .backend import make_group
from .group_identity import GroupIdentity
from .numbered_group import delegates
from .process_group import PerseusGroup

_ProcessGroup: Any = dist.ProcessGroup


def _delegate(name: str, _: int) -> Callable[..., Any]:
    """Returns the method of a collective, which calls the current group."""

    def call(self: ReconfigurableGroup, *arguments: Any, **options: Any) -> Any:
        return getattr(self.group, name)(*arguments, **options)

    call.__name__ = name
    return call


_Delegates: Any = delegates(PerseusGroup, _delegate)


class _Done:
    """The work that `reconfigure` returns. The group is complete by then."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


class ReconfigurableGroup(GroupIdentity, _Delegates, _ProcessGroup):  # type: ignore[misc]
    """`torchft.Manager(pg=ReconfigurableGroup(timeout=timedelta(seconds=30)), …)`: one per process, for the CPU.

    A process has one session, so the ranks of a replica cannot be a world of `perseus` as well; use gloo among them.
    """

    supports_reconfigure = True
    is_of_perseus = False  # torch is not to make a group for the buckets of this one, whose ranks change

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(0, 1)
        self._id = uuid.uuid4().hex
        self._server: TCPStore | None = None  # serves the ranks if this one is the first of them
        self._timeout = timeout
        self._group: PerseusGroup | None = None
        self._error: Exception | None = None
        self._replica_id: str | None = None
        self._global_rank: int | None = None

    @property
    def group(self) -> PerseusGroup:
        """The group of the ranks that take part now. Errors: UnavailableError if there is none."""
        if self._group is None:
            raise UnavailableError(
                f"the process group{self._of_replica()} has no ranks: call reconfigure() first, and again after abort()"
            )
        return self._group

    def _of_replica(self) -> str:
        return f" of replica {self._replica_id}" if self._replica_id else ""

    def set_rank_info(
        self, replica_id: str, group_rank: int, group_world_size: int, global_rank: int | None = None
    ) -> None:
        """Sets the replica's name, for the texts of errors, and the rank that the handle of this process states.

        `group_rank` and `group_world_size`: this process in its replica, which torchft uses for the names of its files.
        """
        self._replica_id = replica_id
        self._global_rank = global_rank

    def register(self, name: str) -> ReconfigurableGroup:
        """Makes the group known to torch under a new `name`, for functional collectives. Returns the group.

        torch's default group must exist. To torch, this group has one rank; its collectives have all ranks that
        take part. Call this once.
        """
        backend = f"{self.getBackendName()}:{name}"
        Backend.register_backend(backend, lambda *_: self, devices=["cpu"])
        dist.new_group([dist.get_rank()], backend=backend, group_desc=backend)
        return self

    def unregister(self) -> None:
        """Makes torch forget the group, after `register`. Leaves the current group, as `shutdown` does."""
        dist.destroy_process_group(self)
        self.shutdown()

    def get_reconfigure_handle(self) -> str:
        """Returns the handle of this process, which all processes pass to `reconfigure`."""
        if self._server is None:
            self._server = TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
        store = f"{socket.gethostname()}:{self._server.port}"
        return json.dumps({"id": self._id, "store": store, "global_rank": self._global_rank})

    def reconfigure(self, options: Any) -> _Done:
        """Leaves the current group, and makes one of the processes whose handles `options.handles` lists.

        Collective over them, with the same list and `options.uuid`, which must be new. A process's rank is the place of
        its handle.
        """
        peers = [json.loads(handle) for handle in options.handles]
        rank = [peer["id"] for peer in peers].index(self._id)
        self.configure(f"{peers[0]['store']}/{options.uuid}", "", rank, len(peers))
        return _Done()

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: Sequence[int] | None = None,
    ) -> None:
        """Leaves the current group, and makes one of the ranks that call this with the same `store_addr`.

        `store_addr`: "host:port/prefix" of a TCPStore that runs; the prefix must be new. The arguments after
        `world_size` are torchft's, for its logs.
        """
        self._leave()
        self._error = None
        address, _, prefix = store_addr.partition("/")
        host, _, port = address.rpartition(":")
        store = TCPStore(host.strip("[]"), int(port), is_master=False, timeout=self._timeout, wait_for_workers=False)
        self._group = make_group(PrefixStore(prefix, store), rank, world_size, self._timeout, name="reconfigurable")
        self._group.setGroupName(store_addr)

    def abort(self) -> None:
        """Fails work in progress, on the other ranks as well. Thread-safe."""
        self._error = UnavailableError(
            f"the process group{self._of_replica()} was aborted; reconfigure() makes a new one"
        )
        self._leave()

    def shutdown(self) -> None:
        """Leaves the group. Work that all ranks have submitted before is executed."""
        group, self._group = self._group, None
        if group is not None:
            group.shutdown()

    def errored(self) -> Exception | None:
        """Returns why the group must be made again, or None. Errors of collectives are raised by their works."""
        return self._error

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the limit for the next group, and for waits of this rank from now on."""
        self._timeout = timeout
        if self._group is not None:
            self._group.set_timeout(timeout)

    def getSize(self) -> int:  # noqa: N802
        return self.group.getSize()

    def getRank(self) -> int:  # noqa: N802
        return self.group.getRank()

    size = getSize
    rank = getRank

    def get_group_store(self) -> Store:
        return self.group.get_group_store()

    def __repr__(self) -> str:
        return f"ReconfigurableGroup({self._replica_id or ''})"

    def broadcast_one(self, tensor: Any, root: int) -> Any:
        """Does the same as `broadcast`, for one tensor, as torchft calls it."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        return self.group.broadcast([tensor], options)

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.abort()
