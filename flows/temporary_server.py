"""Serve Prefect's API until the process that started it ends: `python -m flows.temporary_server`.

The arguments are the host, the port and the number of that process, which may have been killed before
this one asks for its parent. A run that is killed can end nothing itself.
"""

import os
import sys
import threading
import time

import uvicorn

POLL_SECONDS = 1.0


def end_with_parent(parent: int) -> None:
    """End this process when another one is its parent."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(0)


def main() -> None:
    """Serve until the end."""
    host, port, parent = sys.argv[1:]
    threading.Thread(target=end_with_parent, args=(int(parent),), daemon=True).start()
    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host=host,
        port=int(port),
        log_level="error",
        lifespan="on",
    )


if __name__ == "__main__":
    main()
