"""One rank of `perseus_like.run`: calls the function and writes the result or the error into the job's folder."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

_RANK_VARIABLES = ("PERSEUS_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK")


def main() -> int:
    """Runs this rank. The arguments are the job's folder, and folders to put first on `sys.path`."""
    folder = Path(sys.argv[1])
    import cloudpickle

    from perseus_like.errors import PeerLostError
    from perseus_like.protocol.failure_record import is_consequence, write_record

    sys.path[:0] = sys.argv[2:]
    code = 0
    try:
        function, args, kwargs = pickle.loads((folder / "call").read_bytes())
        outcome, data = "result", cloudpickle.dumps(function(*args, **kwargs))
    except (Exception, SystemExit) as error:
        write_record(error, PeerLostError)
        code = 1
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) and error.code else 1
            text += " (the function has called sys.exit, so that it has no result; return from it instead)"
        failure = (text, traceback.format_exc(), is_consequence(error, PeerLostError))
        outcome, data = "failed", pickle.dumps(failure)
    generation, rank = _generation_and_rank()
    partial = folder / f"partial.{os.getpid()}.{rank}"
    partial.write_bytes(data)
    partial.rename(folder / f"{outcome}.{generation}.{rank}")
    return code


def _generation_and_rank() -> tuple[int, int]:
    """Returns generation and rank. The generation is 0 outside elastic jobs, and in a worker without a session."""
    if "PERSEUS_ELASTIC" in os.environ:
        from perseus_like.elastic.membership import membership

        worker = membership()
        if worker and worker.assignment:
            return worker.assignment.generation, worker.assignment.rank
    return 0, next((int(os.environ[name]) for name in _RANK_VARIABLES if name in os.environ), 0)
