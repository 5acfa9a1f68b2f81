"""One rank of `perseus_like.run`: calls the function, leaves the result or the error in the job's folder."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

_RANK_VARIABLES = ("PERSEUS_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK")


def main(place: Path) -> int:
    import cloudpickle

    try:
        function, args, kwargs = pickle.loads((place / "call").read_bytes())
        outcome, data = "result", cloudpickle.dumps(function(*args, **kwargs))
    except Exception as error:
        outcome, data = "failed", pickle.dumps((f"{type(error).__name__}: {error}", traceback.format_exc()))
    generation, rank = _generation_and_rank()
    partial = place / f"partial.{os.getpid()}.{rank}"
    partial.write_bytes(data)
    partial.rename(place / f"{outcome}.{generation}.{rank}")
    return 0 if outcome == "result" else 1


def _generation_and_rank() -> tuple[int, int]:
    """Numbers of this rank; the generation is 0 outside elastic jobs, and in a worker that has not called `init`."""
    if "PERSEUS_ELASTIC" in os.environ:
        from perseus_like.elastic.membership import membership

        worker = membership()
        if worker and worker.assignment:
            return worker.assignment.generation, worker.assignment.rank
    return 0, next((int(os.environ[name]) for name in _RANK_VARIABLES if name in os.environ), 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
