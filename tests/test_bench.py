"""The benchmark runs, holds its sides equal, and says of each bar what the numbers say."""

import pytest

from benchmarks import contest, speed
from benchmarks.contest import Bar, Contest


@pytest.mark.parametrize("name", speed.CONTESTS)
def test_every_row_runs_at_toy_size_and_finds_its_sides_equal(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in speed.RESULTS.rglob("*.*")}
    speed.main([name, "--quick"])
    shown = capsys.readouterr().out
    assert "Machine: bf16" in shown and ", cpu " in shown and "| work | ours |" in shown
    if name != "awd":  # whose peer may not be here
        assert "nothing was compared" not in shown
    assert {path: path.read_bytes() for path in speed.RESULTS.rglob("*.*")} == before, (
        "toy numbers are not kept"
    )


def test_sides_that_differ_are_refused() -> None:
    with pytest.raises(AssertionError, match="loss is"):
        Contest("x", "", 1, "tokens", {}, []).alike("loss", 1.0, 1.1)


def test_a_bar_is_judged_by_the_median_and_does_not_count_without_amx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Contest(
        "x",
        "w",
        10,
        "tokens",
        {},
        [Bar("a", "b", 1.5, 2.5), Bar("a", "b", 2.5, 3.0, bf16=True), Bar("a", "absent", 1.0, 1.0)],
    )
    found = {}
    neither = "neither amx_bf16 nor avx512_bf16"
    for flags in ("amx_bf16 avx512_bf16", "avx512_bf16", neither):
        monkeypatch.setattr(contest, "machine", lambda flags=flags: {"bf16": flags})
        found[flags] = contest.outcome(made, {"a": [1.0, 1.0, 1.0], "b": [2.0, 1.0, 9.0]})[
            "compared"
        ]
    first, second = found["avx512_bf16"]
    assert (first["ratio"], first["lowest"], first["highest"], first["verdict"]) == (
        2.0,
        1.0,
        9.0,
        "must",
    )
    assert second["verdict"] == found[neither][1]["verdict"] == "missed (no AMX: does not count)"
    assert found["amx_bf16 avx512_bf16"][1]["verdict"] == "missed"


@pytest.mark.parametrize("run", ["", "bf16"])
def test_a_committed_table_is_made_of_the_committed_results(run: str) -> None:
    rows = speed.kept(speed.RESULTS / run)
    assert len(rows) >= 12 and (speed.RESULTS / run / "speed.md").read_text() == contest.markdown(
        rows
    )


def test_rows_of_two_machines_stand_in_two_tables() -> None:
    def row(name: str, cpu: str) -> dict:
        made = contest.outcome(
            Contest(name, "w", 10, "tokens", {}, [Bar("a", "b")]), {"a": [1.0], "b": [2.0]}
        )
        return made | {"machine": {"cpu": cpu}}

    said = contest.markdown([row("x", "one"), row("y", "two"), row("z", "one")])
    first, second = said.split("Machine: cpu one.")
    assert (
        "| x |" in first
        and "| z |" in first
        and "| y |" not in first
        and "| y |" in second
        and "Machine: cpu two." in second
    )
