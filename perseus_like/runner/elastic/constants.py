"""horovod.runner.elastic.constants."""

RESET_LIMIT_EXCEEDED_MESSAGE = "the job has ended: its workers changed more often than --reset-limit {} allows"

__all__ = ["RESET_LIMIT_EXCEEDED_MESSAGE"]
