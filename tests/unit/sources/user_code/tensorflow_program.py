"""A program of a user. test_user_types.py checks its types with mypy and pyright in strict mode. It is not run."""

import perseus_like.keras
import perseus_like.tensorflow as hvd

hvd.init()
print(hvd.SyncBatchNormalization, perseus_like.keras.SyncBatchNormalization)

# A misspelt name is an error.
print(hvd.alreduce)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
print(perseus_like.keras.alreduce)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

try:
    hvd.barrier()
except hvd.PeerLostError as error:
    print(error)
