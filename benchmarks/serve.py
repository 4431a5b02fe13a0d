"""Measure how fast `lineage serve` answers, beside a bare server of the same network.

    python -m benchmarks.serve [--quick] [--rounds ROUNDS]

The network is a small GPT with random weights that classifies a text. `bare` is FastAPI with the
network and its tokenizer, and nothing else: it takes a list of texts, and checks, limits and
batches nothing. `mlflow` is the scoring server of MLflow, as `mlflow models serve` runs it, with
the exported model. Each server runs in a process of its own on the first core, with one thread of
torch, and the clients on the second. A client sends a text of about twenty words, waits for the
answer, and sends the next one, on one connection. The servers take turns.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from mlflow import pyfunc
from mlflow.pyfunc import scoring_server
from pydantic import BaseModel

from benchmarks.contest import describe_machine
from lineage.answers.label import LabelAnswer
from lineage.artifacts import write_json
from lineage.config.resolve import fill_in_defaults, merge_trees
from lineage.methods.encoding import EncodedItem
from lineage.methods.finetuning import FinetunedModel, FinetuneMethod
from lineage.methods.saved import MODEL_FOLDER, SystemRecord
from lineage.methods.saved import save_system as save_network
from lineage.networks.batch import Batch
from lineage.networks.checkpoint import Checkpoint
from lineage.serving.mlflow_model import LoadedSystem, save_system
from lineage.serving.predict import TASK_FILE
from lineage.serving.server import HOST, configure_server, listen
from lineage.study.models import parse_model_config
from lineage.synthetic import grammar
from lineage.tokenizers.train import train_tokenizer
from lineage.training.devices import configure_torch

RESULTS = Path(__file__).parent / "results"
SERVERS = ("serve", "bare", "mlflow")
NUM_CLIENTS = (1, 8, 32)
LABELS = ("bad", "good")
MODEL = {
    "tokenizer": {"vocab_size": 1000},
    "architecture": {
        "num_layers": 4,
        "num_heads": 4,
        "hidden_size": 128,
        "ffn_size": 512,
        "max_positions": 256,
    },
}
SETTINGS = FinetuneMethod(learning_rate=0.001)  # only dropout and pooling matter here
WORDS_PER_TEXT = 20
SERVER_CORE = 0
CLIENT_CORE = 1


def make_texts() -> list[str]:
    """Return a thousand texts of the synthetic language."""
    documents = grammar.generate_documents(600, seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED)
    words = " ".join(documents).split()
    starts = range(0, 1000 * WORDS_PER_TEXT, WORDS_PER_TEXT)
    return [" ".join(words[start : start + WORDS_PER_TEXT]) for start in starts]


def write_exported_system(folder: Path) -> None:
    """Write the network as `lineage export` writes a fine-tuned system."""
    config = parse_model_config(
        "gpt", fill_in_defaults("gpt", merge_trees({"family": "gpt"}, MODEL)), "models.gpt"
    )
    tokenizer = train_tokenizer(
        make_texts(), config.tokenizer, tokenizer_type=config.tokenizer_type, language="en"
    )
    checkpoint = Checkpoint(
        "gpt", config.family, config.architecture, config.pretrain, tokenizer, seed=0
    )
    encoder = checkpoint.build(torch.device("cpu"), load_weights=False)
    model_folder = folder / MODEL_FOLDER
    model_folder.mkdir(parents=True)
    checkpoint.save(model_folder, encoder)
    network = build_network(Checkpoint.load(model_folder))
    record = SystemRecord(
        model="gpt", family="gpt", init="pretrained", adapt_text="none", transfer="finetuned",
        features="none", head="linear", recipe="none", task="mood", kind="text_classification",
        label_count="all", train_examples=100, pretrain_seed=0, finetune_seed=0, fold=None,
        metric="accuracy", validation_score=None, language="en", symmetric=False,
        character_spans=False, labels=LABELS, label_mean=None, label_std=None,
        settings_block="finetune", settings=asdict(SETTINGS), precision="fp32",
        max_input_positions=MODEL["architecture"]["max_positions"], model_folder=MODEL_FOLDER,
    )  # fmt: skip
    save_network(folder, record, network.state_dict())
    task = {"kind": "text_classification", "language": "en", "text": ["text"], "max_words": 256}
    write_json(folder / TASK_FILE, task | {"files": {"test": "new"}})


def build_network(checkpoint: Checkpoint) -> FinetunedModel:
    """Build the network with the weights of its encoder and the head that seed 0 draws."""
    example = EncodedItem(checkpoint.tokenizer.encode("a text"))
    encoder = checkpoint.build(torch.device("cpu"))
    network = FinetunedModel(encoder, LabelAnswer(LABELS), SETTINGS, seed=0, example_item=example)
    return network.eval()


class Texts(BaseModel):
    """A request to the bare server."""

    texts: list[str]


def build_bare_app(folder: Path) -> FastAPI:
    """Return the least that answers texts with the network."""
    checkpoint = Checkpoint.load(folder / MODEL_FOLDER)
    network = build_network(checkpoint)
    backend = checkpoint.tokenizer.backend_tokenizer
    template = checkpoint.tokenizer.special_token_template
    prefix = list(template.prefix)
    suffix = list(template.suffix)
    app = FastAPI()

    @app.post("/invocations")
    def answer(request: Texts) -> dict[str, list[list[float]]]:
        encodings = backend.encode_batch(request.texts, add_special_tokens=False)
        rows = [torch.tensor(prefix + encoding.ids + suffix) for encoding in encodings]
        ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        mask_BT = ids_BT >= 0
        with torch.inference_mode():
            scores_BK = network(Batch(ids_BT.clamp_min(0), mask_BT))
        return {"predictions": scores_BK.softmax(-1).tolist()}

    return app


def run_server(name: str, folder: Path, port: int) -> None:
    """Serve the network until the process is ended."""
    configure_torch(1)
    if name == "serve":
        with listen(port) as listener:
            uvicorn.Server(configure_server(LoadedSystem(folder))).run(sockets=[listener])
        return
    if name == "bare":
        app = build_bare_app(folder)
    else:
        save_system(folder, folder.with_name("mlflow"))
        app = scoring_server.init(pyfunc.load_model(str(folder.with_name("mlflow"))))
    uvicorn.run(app, host=HOST, port=port, log_level="warning")


def format_request(name: str, text: str) -> bytes:
    """Return the bytes of a request with one text."""
    content = {"texts": [text]} if name == "bare" else {"dataframe_records": [{"text": text}]}
    body = json.dumps(content).encode()
    head = (
        "POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> dict[str, Any]:
    """Send a request on an open connection, and return its answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = head.lower().partition(b"content-length:")[2].split()[0]
    return json.loads(await reader.readexactly(int(length)))


async def measure_latencies(
    name: str, port: int, texts: list[str], *, num_clients: int, num_requests: int
) -> list[float]:
    """Return the milliseconds of so many requests, by clients that each wait for their answers."""
    requests = iter([format_request(name, texts[i % len(texts)]) for i in range(num_requests)])
    milliseconds: list[float] = []

    async def run_client() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        for request in requests:
            start = time.perf_counter()
            await send(reader, writer, request)
            milliseconds.append(1000 * (time.perf_counter() - start))
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(run_client() for _ in range(num_clients)))
    return milliseconds


async def check_equal(ports: dict[str, int], texts: list[str]) -> None:
    """Assert that all servers give the same probabilities."""
    for text in texts:
        probabilities = {}
        for name, port in ports.items():
            reader, writer = await asyncio.open_connection(HOST, port)
            (row,) = (await send(reader, writer, format_request(name, text)))["predictions"]
            writer.close()
            probabilities[name] = row if name == "bare" else [row[f"p {one}"] for one in LABELS]
        for row in probabilities.values():
            differences = [abs(a - b) for a, b in zip(row, probabilities["bare"], strict=True)]
            assert max(differences) < 1e-5, probabilities


def wait_for(port: int) -> None:
    """Wait until a server accepts connections."""
    for _ in range(600):
        try:
            socket.create_connection((HOST, port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"no server at port {port}")


def find_port() -> int:
    """Return a free port."""
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]


def measure(*, rounds: int, num_requests: int) -> dict[str, Any]:
    """Start the servers, and return the latencies of each, by round, in milliseconds."""
    texts = make_texts()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "exported"
        write_exported_system(exported)
        ports = {name: find_port() for name in SERVERS}
        try:
            for name, port in ports.items():
                words = ["--server", name, "--folder", str(exported), "--port", str(port)]
                command = [sys.executable, "-m", "benchmarks.serve", *words]
                process = subprocess.Popen(command, env=environment)
                processes.append(process)
                os.sched_setaffinity(process.pid, {SERVER_CORE})
            for port in ports.values():
                wait_for(port)
            os.sched_setaffinity(0, {CLIENT_CORE})
            asyncio.run(check_equal(ports, texts[:5]))
            return _measure_in_turns(ports, texts, rounds=rounds, num_requests=num_requests)
        finally:
            for process in processes:
                process.terminate()
                process.wait()


def _measure_in_turns(
    ports: dict[str, int], texts: list[str], *, rounds: int, num_requests: int
) -> dict[str, Any]:
    measured: dict[str, Any] = {
        str(count): {name: {"p50": [], "p95": []} for name in ports} for count in NUM_CLIENTS
    }
    for round_number in range(rounds + 1):
        for count in NUM_CLIENTS:
            for name, port in ports.items():
                milliseconds = asyncio.run(
                    measure_latencies(
                        name, port, texts, num_clients=count, num_requests=num_requests
                    )
                )
                if round_number == 0:  # warms the servers up
                    continue
                quantiles = statistics.quantiles(milliseconds, n=20)
                measured[str(count)][name]["p50"].append(statistics.median(milliseconds))
                measured[str(count)][name]["p95"].append(quantiles[-1])
    return measured


def format_markdown(results: dict[str, Any]) -> str:
    """Return the table: medians over rounds, and ratios to the bare server."""
    titles = ("clients", "server", "p50, ms", "p95, ms", "p50 to bare", "range", "p95 to bare")
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for count, servers in results["milliseconds"].items():
        for name, quantiles in servers.items():
            p50_ratios = _ratios(quantiles["p50"], servers["bare"]["p50"])
            p95_ratios = _ratios(quantiles["p95"], servers["bare"]["p95"])
            cells = (
                count,
                name,
                f"{statistics.median(quantiles['p50']):.1f}",
                f"{statistics.median(quantiles['p95']):.1f}",
                f"{statistics.median(p50_ratios):.2f}",
                f"{min(p50_ratios):.2f}-{max(p50_ratios):.2f}",
                f"{statistics.median(p95_ratios):.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    machine = ", ".join(f"{key} {value}" for key, value in sorted(results["machine"].items()))
    protocol = (
        f"Medians of {results['rounds']} rounds of {results['requests']} requests with one text "
        "each, servers in turns on one core."
    )
    lines += ["", f"{protocol} Machine: {machine}."]
    return "\n".join(lines) + "\n"


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def main(arguments: list[str]) -> None:
    """Measure the servers, print the table, and write it to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="only test that it runs; nothing is saved"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--server", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.server is not None:
        run_server(options.server, options.folder, options.port)
        return
    configure_torch(1)
    rounds = 1 if options.quick else options.rounds
    num_requests = 64 if options.quick else 600
    results = {
        "machine": describe_machine(),
        "rounds": rounds,
        "requests": num_requests,
        "milliseconds": measure(rounds=rounds, num_requests=num_requests),
    }
    table = format_markdown(results)
    print(table)
    if not options.quick:
        content = json.dumps(results, indent=1, sort_keys=True) + "\n"
        (RESULTS / "serve.json").write_text(content, encoding="utf-8")
        (RESULTS / "serve.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
