"""Runs an elastic job by the modules of Horovod's launcher. Takes the arguments of horovodrun.

The variables DISCOVERY_SECONDS and TIMEOUT_SECONDS replace the times in these modules.
"""

from __future__ import annotations

import json
import os

from horovod.runner.common.util import config_parser
from horovod.runner.elastic import constants, driver
from horovod.runner.launch import _run_elastic, parse_args


def main() -> None:
    driver.DISCOVER_HOSTS_FREQUENCY_SECS = float(os.environ.get("DISCOVERY_SECONDS", "1"))
    driver.ELASTIC_TIMEOUT_SECS = int(os.environ.get("TIMEOUT_SECONDS", "600"))
    args = parse_args()
    variables = config_parser.set_env_from_args({}, args)
    report("parsed", num_proc=args.num_proc, variables=variables)
    try:
        _run_elastic(args)
    except RuntimeError as error:
        limit = constants.RESET_LIMIT_EXCEEDED_MESSAGE.format(args.reset_limit)
        report("raised", text=str(error), is_limit=limit in str(error))


def report(kind: str, **content: object) -> None:
    print(json.dumps({"kind": kind, **content}), flush=True)


if __name__ == "__main__":
    main()
