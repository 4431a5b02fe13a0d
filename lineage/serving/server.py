"""`lineage serve`: the HTTP interface of MLflow's scoring server, on loopback.

MLflow's own server copies each request through several tables, answers one at a time, and repeats
the data of a bad request.
"""

import json
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse
from mlflow.version import VERSION
from starlette.requests import ClientDisconnect

from lineage.config.params import read_recorded_params
from lineage.errors import InputError
from lineage.serving.batcher import Batcher
from lineage.serving.card import describe_training
from lineage.serving.connections import MAX_REQUESTS, BoundedConnection
from lineage.serving.export import export_system
from lineage.serving.mlflow_model import SYSTEM_ARTIFACT, LoadedSystem, build_example
from lineage.serving.registry import download_system, find_champion
from lineage.serving.requests import RECORDS, REQUEST_LIMITS, read_request
from lineage.serving.systems import choose_system, list_systems

HOST = "127.0.0.1"
PATH = "/invocations"
JSON_TYPE = "application/json"
# A character takes at most six bytes of JSON, as in \u00e4; the rest is for keys and brackets.
MAX_BODY_BYTES = 8 * REQUEST_LIMITS.characters
SHUTDOWN_SECONDS = 5  # that requests may take to end after Ctrl-C
ERROR_CODES = {411: "LENGTH_REQUIRED", 413: "CONTENT_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE"}


@dataclass(frozen=True)
class ServedModel:
    """A loaded system, and what it is."""

    system: LoadedSystem
    title: str


def serve(task: str, *, system: str | None, port: int) -> None:
    """Answer requests with the champion of a task, or with a system of the study.

    It returns when the process gets SIGTERM. Raises InputError.
    """
    with listen(port) as listener:
        served = load_system(task, system)
        print(describe_server(served, port), flush=True)
        uvicorn.Server(configure_server(served.system)).run(sockets=[listener])


def configure_server(system: LoadedSystem) -> uvicorn.Config:
    """Return the settings of a server of a system."""
    return uvicorn.Config(
        build_app(system),
        http=BoundedConnection,
        ws="none",
        limit_concurrency=MAX_REQUESTS,
        log_level="warning",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def load_system(task: str, system: str | None) -> ServedModel:
    """Load the champion of a task of the study, or a system that it has kept. Raises InputError."""
    with tempfile.TemporaryDirectory(prefix="lineage-serve-") as folder:
        if system is None:
            champion = find_champion(task)
            exported = download_system(champion, Path(folder))
            version = f"version {champion.version} of {champion.name}"
            return _load_served(exported, f"{champion.tags['system']}, {version}")
        params = read_recorded_params()
        kept = choose_system(list_systems(params, task), system, None)
        exported = Path(folder) / SYSTEM_ARTIFACT
        export_system(kept, params.tasks[task], exported)
        return _load_served(exported, f"{kept.record.name} of this study")


def _load_served(exported: Path, name: str) -> ServedModel:
    system = LoadedSystem(exported)
    return ServedModel(system, f"{name} ({describe_training(system.opened.kept.record)})")


def describe_server(served: ServedModel, port: int) -> str:
    """Return what a user must know of a running server."""
    address = f"http://{HOST}:{port}{PATH}"
    records = build_example(served.system.opened).to_dict(orient="records")
    request = json.dumps({RECORDS: records}, ensure_ascii=False)
    quoted = request.replace("'", "'\\''")
    return (
        f"{served.title}, answers at {address}; Ctrl-C ends it. For example:\n"
        f"curl {address} -H 'Content-Type: application/json' -d '{quoted}'"
    )


def build_app(system: LoadedSystem) -> FastAPI:
    """Return the application that answers requests with a system."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    batcher = Batcher(system.answer_rows)

    async def answer(request: Request) -> Response:
        refusal = _check_headers(request)
        if refusal is not None:
            await _discard_body(request)
            return refusal
        try:
            columns = read_request(
                await request.body(), names=system.names, text_columns=system.text_columns
            )
            answers = await batcher.answer(columns)
        except InputError as error:
            return _refuse(400, str(error))
        # As MLflow's server writes the new columns: an object for each row.
        rows = [
            dict(zip(answers, cells, strict=True)) for cells in zip(*answers.values(), strict=True)
        ]
        return Response(json.dumps({"predictions": rows}), media_type=JSON_TYPE)

    async def answer_client(request: Request) -> Response:
        try:
            return await answer(request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it

    def ping() -> Response:
        return Response("\n", media_type=JSON_TYPE)

    def version() -> Response:
        return Response(VERSION, media_type=JSON_TYPE)

    app.add_route(PATH, answer_client, methods=["POST"])
    app.get("/ping")(ping)
    app.get("/health")(ping)
    app.get("/version")(version)
    # A page of another site cannot ask by a name that it has given to this machine.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    return app


def _check_headers(request: Request) -> Response | None:
    """Return the answer to a request whose body is not worth reading, or None."""
    length = request.headers.get("content-length", "")
    # A body in chunks may be longer than the length that its headers give.
    if not length.isdecimal() or "transfer-encoding" in request.headers:
        return _refuse(411, "the request does not say its length; send it with Content-Length")
    if int(length) > MAX_BODY_BYTES:
        return _refuse(
            413, f"the request has {int(length):,} bytes, of at most {MAX_BODY_BYTES:,}; send less"
        )
    content_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if content_type.lower() != JSON_TYPE:
        return _refuse(415, "the request is not JSON; send it with Content-Type: application/json")
    return None


async def _discard_body(request: Request) -> None:
    """Read what a client sends before it reads an answer, but no endless body."""
    num_bytes = 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > 2 * MAX_BODY_BYTES:
            return


def _refuse(status: int, message: str) -> Response:
    error_code = ERROR_CODES.get(status, "BAD_REQUEST")
    headers = {} if status == 400 else {"Connection": "close"}  # its body may not have ended
    return JSONResponse(
        {"error_code": error_code, "message": message}, status_code=status, headers=headers
    )


def listen(port: int) -> socket.socket:
    """Return a socket that listens on loopback. Raises InputError if the port is taken."""
    # asyncio sends at once only where a socket names its protocol; otherwise the second packet of an
    # answer waits 40 ms for the client's acknowledgement of the first.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError):
        listener.close()
        raise InputError(
            f"--port {port}: nothing can listen there; end what does, or give another port from "
            "1024 to 65535"
        ) from None
    listener.listen()
    return listener
