"""`lineage serve`: MLflow's scoring server on loopback, with plain answers to bad requests.

The server is that of `mlflow models serve`, in this process, and the same class answers. By itself
it repeats the data of a request in its messages, and answers 500 to JSON that Python cannot parse,
so a guard checks it first.
"""

import json
import socket
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from mlflow import pyfunc
from mlflow.pyfunc import PyFuncModel, scoring_server

from lineage.config.params import read_recorded_params
from lineage.errors import InputError
from lineage.serving.export import export_system
from lineage.serving.mlflow_model import REQUEST_LIMITS, SYSTEM_ARTIFACT, save_system
from lineage.serving.registry import download_system, find_champion
from lineage.serving.systems import choose_system, list_systems

HOST = "127.0.0.1"
PATH = "/invocations"
# A character takes at most six bytes of JSON, as in \u00e4; the rest is for keys and brackets.
MAX_BODY_BYTES = 8 * REQUEST_LIMITS.characters
SHUTDOWN_SECONDS = 5  # that requests may take to end after Ctrl-C


@dataclass(frozen=True)
class ServedModel:
    """A loaded model, and what it is."""

    model: PyFuncModel
    title: str


def serve(task: str, *, system: str | None, port: int) -> None:
    """Answer requests with the champion of a task, or with a system of the study.

    It returns when the process gets SIGTERM. Raises InputError.
    """
    with _listen(port) as listener:
        served = load_champion(task) if system is None else load_saved_system(task, system)
        print(describe_server(served, port), flush=True)
        config = uvicorn.Config(
            build_app(served.model),
            log_level="warning",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        uvicorn.Server(config).run(sockets=[listener])


def load_champion(task: str) -> ServedModel:
    """Load the champion of a task of the study. Raises InputError."""
    champion = find_champion(task)
    with tempfile.TemporaryDirectory(prefix="lineage-serve-") as folder:
        model = _load_exported(download_system(champion, Path(folder)), Path(folder))
    version = f"version {champion.version} of {champion.name}"
    return ServedModel(model, f"{champion.tags['system']}, {version}")


def load_saved_system(task: str, system: str) -> ServedModel:
    """Load a system that the study has kept. Raises InputError."""
    params = read_recorded_params()
    kept = choose_system(list_systems(params, task), system, None)
    with tempfile.TemporaryDirectory(prefix="lineage-serve-") as folder:
        exported = Path(folder) / SYSTEM_ARTIFACT
        export_system(kept, params.tasks[task], exported)
        model = _load_exported(exported, Path(folder))
    return ServedModel(model, f"{kept.record.name} of this study")


def _load_exported(exported: Path, folder: Path) -> PyFuncModel:
    """Load an exported system with the code of this package; code that a store has is not run."""
    save_system(exported, folder / "model")
    return pyfunc.load_model(str(folder / "model"))


def describe_server(served: ServedModel, port: int) -> str:
    """Return what a user must know of a running server."""
    address = f"http://{HOST}:{port}{PATH}"
    records = served.model.input_example.to_dict(orient="records")
    request = json.dumps({scoring_server.DF_RECORDS: records}, ensure_ascii=False)
    quoted = request.replace("'", "'\\''")
    return (
        f"{served.title}, answers at {address}; Ctrl-C ends it. For example:\n"
        f"curl {address} -H 'Content-Type: application/json' -d '{quoted}'"
    )


def build_app(model: PyFuncModel) -> FastAPI:
    """Return MLflow's scoring server with a guard before it."""
    app: FastAPI = scoring_server.init(model)

    @app.middleware("http")
    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if request.method != "POST" or request.url.path != PATH:
            return await call_next(request)
        refusal = await _check_request(request)
        if refusal is not None:
            return refusal
        response = await call_next(request)
        if response.status_code < 400:
            return response
        parts = cast(StreamingResponse, response).body_iterator
        body = b"".join([cast(bytes, part) async for part in parts])
        return _refuse(response.status_code, _shorten_message(body))

    # A page of another site cannot ask by a name that it has given to this machine.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    return app


async def _check_request(request: Request) -> Response | None:
    """Return the answer to a request that MLflow's server must not see, or None."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        return _refuse(411, "the request does not say its length; send it with Content-Length")
    if int(length) > MAX_BODY_BYTES:
        async for _ in request.stream():  # a client reads the answer after it has sent all
            pass
        return _refuse(
            413, f"the request has {int(length):,} bytes, of at most {MAX_BODY_BYTES:,}; send less"
        )
    content_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if content_type != scoring_server.CONTENT_TYPE_JSON:
        return _refuse(415, "the request is not JSON; send it with Content-Type: application/json")
    try:
        content = json.loads(await request.body())
    except RecursionError:
        return _refuse(400, "the request is nested too deeply; send rows of texts")
    except ValueError as error:
        return _refuse(400, f"the request is not JSON ({error}); correct it")
    formats = scoring_server.SUPPORTED_FORMATS
    if not isinstance(content, dict) or len(formats & content.keys()) != 1:
        return _refuse(
            400, f"the request must be an object with one of {', '.join(sorted(formats))}"
        )
    return None


def _refuse(status: int, message: str) -> Response:
    names = {411: "LENGTH_REQUIRED", 413: "CONTENT_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE"}
    error_code = names.get(status, "BAD_REQUEST" if status < 500 else "INTERNAL_ERROR")
    return JSONResponse({"error_code": error_code, "message": message}, status_code=status)


def _shorten_message(body: bytes) -> str:
    """Return the message of MLflow's server without the data of the request and without a trace.

    Where the model refuses, it writes `Failed to predict data '...'. Error: WHY`; where the
    request cannot be read, `WHY. Error: '...'`.
    """
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    message = str(answer["message"]) if isinstance(answer, dict) else str(answer)
    parts = message.split("Error: ")
    why = parts[-1] if message.startswith("Failed to predict") else parts[0]
    return " ".join(why.split())


def _listen(port: int) -> socket.socket:
    """Return a socket that listens on loopback. Raises InputError if the port is taken."""
    listener = socket.socket()
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
