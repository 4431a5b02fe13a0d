"""Stage corpus@C: the sources of a corpus -> train, valid and test of clean documents."""

from pathlib import Path

from lineage import artifacts
from lineage.config.params import read_recorded_params
from lineage.data.prepare_corpus import (
    corpus_fingerprint,
    locate_prepared_corpus,
    prepare_corpus,
)
from lineage.data.prepared import Measures
from lineage.errors import InputError
from lineage.runtime.provenance import SOURCES_DIR
from lineage.runtime.settings import resolve_data_root
from lineage.runtime.stage import Stage, run_stage


def work(stage: Stage) -> None:
    """Take the corpus that the sources stage has read, or read it if that is gone."""
    (name,) = stage.arguments
    params = read_recorded_params()
    root = resolve_data_root()
    corpus = params.corpora[name]
    where = f"params.yaml: corpora.{name}"
    record = artifacts.read_json(SOURCES_DIR / "corpora" / f"{name}.json")
    fingerprint = corpus_fingerprint(corpus, root, where)
    if fingerprint != record["sources"]:
        raise InputError(
            f"{where}: its data changed after the sources stage had read it; run again"
        )

    def build(folder: Path) -> Measures:
        with stage.show_progress("documents", record["documents"]) as report:
            return prepare_corpus(
                corpus, folder, seed=params.seed, root=root, where=where, report_progress=report
            )

    code_digests = artifacts.read_json(SOURCES_DIR / "code" / "corpus.json")
    prepared = locate_prepared_corpus(
        name, corpus, fingerprint, seed=params.seed, code_digests=code_digests
    )
    with artifacts.create_artifact(Path("artifacts/corpora") / name, "corpus", name=name) as folder:
        prepared.take(folder, build)


if __name__ == "__main__":
    run_stage("corpus", work)
