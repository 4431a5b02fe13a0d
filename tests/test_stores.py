"""Where runs are kept: one place for all runs of a checkout, and an address that is of no use stops none of them."""

from pathlib import Path

import pytest

from lineage.running import tracking
from lineage.running.runtime import tracking_uri


@pytest.mark.parametrize("address", ["sqlite:///here.db", None])
def test_a_relative_store_is_one_of_the_main_checkout(address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LINEAGE_TRACKING_URI", raising=False)
    monkeypatch.setenv("LINEAGE_MAIN", str(tmp_path))
    text = f"tracking_uri: {address}\n" if address else "# tracking_uri: sqlite:///here.db\n"  # of comments alone it says nothing
    (tmp_path / "runtime.yaml").write_text(text)
    assert tracking_uri() == f"sqlite:///{tmp_path}/{'here.db' if address else 'mlflow.db'}"


@pytest.mark.parametrize("address", ["postgresql://user:secret@localhost/db", "http://[::1", "mssql://user:secret@localhost/db"])
def test_no_address_stops_a_stage(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a database whose driver is not installed, or of a misspelt one."""
    monkeypatch.setenv("LINEAGE_TRACKING_URI", address)
    monkeypatch.setenv("LINEAGE_MAIN", str(tmp_path))
    with tracking.stage_run("control@sense", parameters={}, tags={}, datasets=[]) as tracker:
        assert tracker.run_id == ""
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("tracking: control@sense goes on without MLflow: ") and "secret" not in said
