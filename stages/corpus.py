"""Stage corpus@C: the sources of a corpus -> train, valid and test of clean documents."""

from pathlib import Path

from lineage import artifacts
from lineage.config.params import read_recorded_params
from lineage.data.corpus import locate_corpus
from lineage.runtime.provenance import SOURCES_DIR
from lineage.runtime.settings import resolve_data_root
from lineage.runtime.stage import Stage, run_stage


def work(stage: Stage) -> None:
    """Take the corpus that the sources stage has read, or read it if that is gone."""
    (name,) = stage.arguments
    params = read_recorded_params()
    where = f"params.yaml: corpora.{name}"
    record = artifacts.read_json(SOURCES_DIR / "corpora" / f"{name}.json")
    prepared = locate_corpus(
        name, params.corpora[name], seed=params.seed, root=resolve_data_root(), where=where
    )
    with artifacts.create_artifact(Path("artifacts/corpora") / name, "corpus", name=name) as folder:
        prepared.take(folder, record["sources"], where)


if __name__ == "__main__":
    run_stage("corpus", work)
