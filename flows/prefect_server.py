"""Serve Prefect's API and pages: `python -m flows.prefect_server HOST PORT [PARENT]`.

Prefect's own command answers to every name of the machine, also one that a page in a browser has
given to it. With the id of a parent process, the server ends when that process does.
"""

import os
import sys
import threading
import time

import uvicorn
from prefect.server.api.server import create_app
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from flows.addresses import SIGN_IN_PATH

POLL_SECONDS = 1.0
# Prefect's pages keep the secret at this place in the browser. The part of an address behind # is
# not sent to a server, so the secret is in no log.
SIGN_IN_PAGE = """<!doctype html>
<title>Sign in</title>
<script>
localStorage.setItem("prefect-password", btoa(decodeURIComponent(location.hash.slice(1))));
location.replace("/");
</script>
"""


def end_with_parent(parent: int) -> None:
    """End this process when another one is its parent."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(0)


async def sign_in(request: Request) -> HTMLResponse:
    """Answer with a page that gives the secret of its address to Prefect's pages."""
    return HTMLResponse(SIGN_IN_PAGE, headers={"Cache-Control": "no-store"})


def build_app(host: str) -> TrustedHostMiddleware:
    """Return Prefect's app with the page that signs in, for requests under this name."""
    app = create_app(final=True)
    app.router.routes.insert(0, Route(SIGN_IN_PATH, sign_in))  # before Prefect's pages, at /
    # Around the app and not in it: the server sends itself requests under a name of its own.
    return TrustedHostMiddleware(app, allowed_hosts=[host, "localhost"])


def main() -> None:
    """Serve until the end."""
    host, port, *parent = sys.argv[1:]
    if parent:  # it may have been killed before this process asks for its parent
        threading.Thread(target=end_with_parent, args=(int(parent[0]),), daemon=True).start()
    uvicorn.run(build_app(host), host=host, port=int(port), log_level="warning", lifespan="on")


if __name__ == "__main__":
    main()
