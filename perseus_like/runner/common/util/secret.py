"""horovod.runner.common.util.secret: keys, and digests of messages (HMAC with SHA-256)."""

from __future__ import annotations

import hashlib
import hmac
import secrets

SECRET_LENGTH = 32  # bytes of a key
DIGEST_LENGTH = 32  # bytes of a digest
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"  # Horovod's environment variable; perseusrun does not set it


def make_secret_key() -> bytes:
    """Returns a new random key."""
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """Returns the digest of `message` under `key`."""
    return hmac.digest(key, message, hashlib.sha256)


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Returns whether `digest` is that of `message`. The comparison takes the same time for all digests."""
    return hmac.compare_digest(compute_digest(key, message), digest)


__all__ = [
    "DIGEST_LENGTH",
    "HOROVOD_SECRET_KEY",
    "SECRET_LENGTH",
    "check_digest",
    "compute_digest",
    "make_secret_key",
]
