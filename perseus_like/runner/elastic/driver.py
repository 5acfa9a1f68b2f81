"""horovod.runner.elastic.driver: times in seconds. `_run_elastic` reads them whenever it starts a job."""

from ...launch.elastic import DEFAULT_DISCOVERY_SECONDS as DISCOVER_HOSTS_FREQUENCY_SECS
from ...launch.elastic import DEFAULT_TIMEOUT_SECONDS as ELASTIC_TIMEOUT_SECS

__all__ = ["DISCOVER_HOSTS_FREQUENCY_SECS", "ELASTIC_TIMEOUT_SECS"]
