"""horovod.runner.common."""
