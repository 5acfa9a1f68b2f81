"""horovod.runner.elastic.constants."""

from ...launch.elastic import RESET_LIMIT_MESSAGE as RESET_LIMIT_EXCEEDED_MESSAGE

__all__ = ["RESET_LIMIT_EXCEEDED_MESSAGE"]
