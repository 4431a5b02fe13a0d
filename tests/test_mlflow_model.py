"""An MLflow model answers as `lineage predict` does, and refuses bad requests in one sentence."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from mlflow.exceptions import MlflowException

from lineage import __version__
from lineage.answers.annotations import spans_to_iob2
from lineage.answers.spans import extract_spans
from lineage.language import is_blank, normalize_text
from lineage.results import PUBLIC_FAMILY
from lineage.serving import server
from lineage.serving.mlflow_model import LoadedSystem, build_example, save_system
from lineage.serving.predict import open_exported, predict_file
from lineage.serving.requests import REQUEST_LIMITS
from lineage.serving.server import HOST, MAX_BODY_BYTES, ServedModel, build_app, describe_server
from tests.helpers.kept_systems import ALL_WORDS, CASES, Packaged, package_case
from tests.helpers.tasks import write_jsonl


def as_strings(table: pd.DataFrame) -> pd.DataFrame:
    """Join lists of words into texts, as the signature asks for; choices stay lists."""
    return table.assign(
        **{
            name: [" ".join(cell) for cell in table[name]]
            for name in table
            if isinstance(table[name].iloc[0], list) and name != "options"
        }
    )


@pytest.mark.parametrize("name", CASES)
def test_a_model_of_every_kind_answers_as_predict_does(name: str, tmp_path: Path) -> None:
    packaged = package_case(name, tmp_path)
    new = as_strings(packaged.test)
    file = write_jsonl(tmp_path / "new.jsonl", new)
    predict_file(file, tmp_path / "out.jsonl", task=None, system=str(packaged.exported))
    expected = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    # Other columns and the order of columns make no difference.
    answers = packaged.model.predict(new[new.columns[::-1]].assign(note="?"))
    assert len(answers) == len(new) and list(answers) == [
        column.name for column in packaged.model.metadata.get_output_schema()
    ]
    for column in answers:
        assert answers[column].tolist() == [row[column] for row in expected], column
    example = packaged.model.input_example
    assert len(packaged.model.predict(example)) == 1


def test_a_model_holds_code_arrays_and_json_and_asks_for_this_version(
    packaged_texts: Packaged,
) -> None:
    assert packaged_texts.suffixes == {"", ".json", ".md", ".py", ".safetensors", ".txt", ".yaml"}
    requirements = (packaged_texts.folder / "requirements.txt").read_text().split()
    assert f"lineage-pretraining=={__version__}" in requirements
    assert (packaged_texts.folder / "artifacts/exported/README.md").is_file(), "the model card"
    signature = packaged_texts.model.metadata.signature
    assert [(column.name, str(column.type)) for column in signature.inputs] == [
        ("review", "DataType.string")
    ]
    assert [(column.name, str(column.type)) for column in signature.outputs] == [
        ("prediction", "DataType.string"),
        *((f"p {label}", "DataType.double") for label in ("bad", "good", "odd")),
    ]


def test_a_public_checkpoint_asks_for_the_extra_that_reads_it(
    packaged_texts: Packaged, tmp_path: Path
) -> None:
    exported = tmp_path / "public"
    exported.mkdir()
    for path in packaged_texts.exported.iterdir():
        (exported / path.name).write_bytes(path.read_bytes())
    record = json.loads((exported / "system.json").read_text())
    (exported / "system.json").write_text(json.dumps(record | {"family": PUBLIC_FAMILY}))
    save_system(exported, tmp_path / "model")
    requirements = (tmp_path / "model/requirements.txt").read_text().split()
    assert f"lineage-pretraining[formats]=={__version__}" in requirements


def test_the_example_holds_no_text_of_the_user(packaged_texts: Packaged) -> None:
    example = build_example(open_exported(packaged_texts.exported))
    assert example.to_dict(orient="records") == [{"review": "an example of review"}]


def test_rows_without_text_get_no_answer(packaged_texts: Packaged) -> None:
    answers = packaged_texts.model.predict(pd.DataFrame({"review": ["a b", None, "  "]}))
    assert answers["prediction"].isna().tolist() == [False, True, True]
    assert answers["p good"].tolist()[1:] == [None, None], "NaN is no JSON"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["a"] * (REQUEST_LIMITS.rows + 1), "it has 1,001 rows, and at most 1,000 are answered"),
        (["a" * (REQUEST_LIMITS.characters + 1)], "it has 1,000,001 characters, and at most"),
        (["", None], "no row has a value in review"),
        (["a", ["b", "c"]], "row 2: column 'review': a text is expected, not list"),
        (["a", {"b": "c"}], "row 2: column 'review': a text is expected, not dict"),
        (["a", 7], "row 2: column 'review': a text is expected, not int"),
    ],
)
def test_a_request_that_cannot_be_answered_is_a_bad_request(
    cells: list[Any], message: str, packaged_texts: Packaged
) -> None:
    table = pd.DataFrame({"review": np.array([*cells, None], dtype=object)[:-1]})
    with pytest.raises(MlflowException, match=message) as caught:
        packaged_texts.model.predict(table)
    assert caught.value.get_http_status_code() == 400
    assert "\n" not in caught.value.message


@pytest.fixture(scope="module")
def client(packaged_texts: Packaged) -> Iterator[TestClient]:
    """Return a client of the server; an error that nobody handles becomes an answer."""
    app = build_app(LoadedSystem(packaged_texts.exported))
    with TestClient(app, base_url=f"http://{HOST}", raise_server_exceptions=False) as one:
        yield one


def post(client: TestClient, body: str | bytes) -> Any:
    return client.post("/invocations", content=body, headers={"Content-Type": "application/json"})


def records(*texts: Any) -> str:
    return json.dumps({"dataframe_records": [{"review": text} for text in texts]})


def test_the_server_answers_as_the_model_does(client: TestClient, packaged_texts: Packaged) -> None:
    texts = [*packaged_texts.test["review"].tolist(), None]
    expected = packaged_texts.model.predict(pd.DataFrame({"review": texts}))
    answer = post(client, records(*texts))
    assert answer.status_code == 200
    assert answer.json() == {"predictions": expected.to_dict(orient="records")}


def test_spans_are_those_of_the_text_as_given_in_every_format(tmp_path: Path) -> None:
    packaged = package_case("spans", tmp_path)
    a, b, c = ALL_WORDS[:3]
    texts = [
        f"{a}\u00a0{b}  --  {c}",
        f"\ufeff{a} \ufb01ne {b}",
        f"\U0001f600 {a}\U0001f469\u200d\U0001f467 {b}",
        f"e\u0301 {a}\u0301 {b}",
        f"{a}\r\n{b}\r{c}\n",
        f"  {a}\t{b}  ",
        f"\u4e2d\u56fd {a}\u00ad {b} \u200b {c} \u2060",
        " ".join([a, b] * 40),  # longer than max_words
    ]
    table = pd.DataFrame({"words": texts})
    write_jsonl(tmp_path / "new.jsonl", table)
    table.to_csv(tmp_path / "new.csv", index=False)
    table.to_parquet(tmp_path / "new.parquet")
    with TestClient(build_app(LoadedSystem(packaged.exported)), base_url=f"http://{HOST}") as one:
        answer = post(one, json.dumps({"dataframe_records": table.to_dict(orient="records")}))
    expected = answer.json()["predictions"]
    for text, row in zip(texts, expected, strict=True):
        words = row["prediction_words"].split()
        tagged = [words[span.start : span.end] for span in extract_spans(row["prediction"].split())]
        assert tagged
        parts = [text[span["start"] : span["end"]] for span in row["prediction_spans"]]
        split_parts = [map(normalize_text, spans_to_iob2(part, [], "en")[0]) for part in parts]
        assert [[word for word in part if not is_blank(word)] for part in split_parts] == tagged
    spans = [row["prediction_spans"] for row in expected]
    assert packaged.model.predict(table)["prediction_spans"].tolist() == spans
    for suffix in ("csv", "jsonl", "parquet"):
        out = tmp_path / f"out.{suffix}"
        file = tmp_path / f"new.{suffix}"
        predict_file(file, out, task=None, system=str(packaged.exported))
        assert read_spans(out) == spans, suffix


def read_spans(path: Path) -> list[Any]:
    if path.suffix == ".parquet":
        return pq.read_table(path)["prediction_spans"].to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line)["prediction_spans"] for line in path.read_text().splitlines()]
    return [json.loads(cell) for cell in pd.read_csv(path)["prediction_spans"]]


BAD_REQUESTS: dict[str, tuple[str | bytes, int, str]] = {
    "a long text": (records("secret " * 200_000), 400, "1,400,000 characters"),
    "a huge body": (b" " * (MAX_BODY_BYTES + 1), 413, "bytes, of at most"),
    "a number": (records(7), 400, "a text is expected, not int"),
    "a missing column": ('{"dataframe_records": [{}]}', 400, "no column 'review'"),
    "another column": (
        '{"dataframe_records": [{"review": "secret", "x": 1}]}',
        400,
        "the task does not read a column 'x'; send review only",
    ),
    "no rows": (records(), 400, "no column 'review'"),
    "no JSON": ("{secret", 400, "is not JSON"),
    "no UTF-8": (b"\xff\xfe", 400, "is not JSON"),
    "half a character": ('{"dataframe_records": [{"review": "\\ud800"}]}', 400, "its other half"),
    "nested lists": ("[" * 100_000 + "]" * 100_000, 400, "nested too deeply"),
    "nested objects": ('{"a":' * 100_000 + "1" + "}" * 100_000, 400, "nested too deeply"),
    "nested texts": (f'{{"inputs": {{"review": {"[" * 900}{"]" * 900}}}}}', 400, ""),
    "a huge number": ('{"dataframe_records": [{"review": ' + "9" * 5000 + "}]}", 400, "not JSON"),
    "a list of rows": ('[{"review": "secret"}]', 400, "must be an object with one of"),
    "two formats": ('{"inputs": {"review": ["a"]}, "instances": []}', 400, "with one of"),
    "rows that are no list": ('{"dataframe_records": 5}', 400, "must be a list"),
    "a column twice": (
        '{"dataframe_split": {"columns": ["review", "review"], "data": [["secret", "b"]]}}',
        400,
        "",
    ),
    "a chat": ('{"messages": [{"role": "user", "content": "secret"}]}', 400, "with one of"),
    "null": ("null", 400, "must be an object"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_is_refused_in_one_sentence_and_the_server_lives(
    name: str, client: TestClient
) -> None:
    body, status, message = BAD_REQUESTS[name]
    answer = post(client, body)
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert set(told) == {"error_code", "message"}
    assert message in told["message"] and "\n" not in told["message"]
    assert told["message"] and len(told["message"]) < 300
    assert "secret" not in answer.text and "Traceback" not in answer.text
    assert post(client, records("x")).status_code == 200


def test_the_text_for_the_user_has_the_address_and_a_request_that_works(
    packaged_texts: Packaged, client: TestClient
) -> None:
    system = LoadedSystem(packaged_texts.exported)
    text = describe_server(ServedModel(system, "tfidf"), 5051)
    assert text.startswith("tfidf, answers at http://127.0.0.1:5051/invocations; Ctrl-C ends it")
    request = text.rpartition(" -d '")[2].removesuffix("'")
    assert post(client, request).status_code == 200


def test_a_port_that_is_taken_is_refused() -> None:
    with server.listen(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(server.InputError, match=f"--port {port}: nothing can listen there"):
            server.listen(port)
