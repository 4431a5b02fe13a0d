"""Stage corpus@C: the sources of a corpus -> train, valid and test of clean documents, each once."""

from pathlib import Path

from lineage import artifacts
from lineage.config.params import read_params
from lineage.data.corpus import (
    collect_documents,
    corpus_statistics,
    source_fingerprint,
    split_corpus,
)
from lineage.errors import InputError
from lineage.runtime.settings import resolve_data_root
from lineage.runtime.stage import Stage, run_stage


def work(stage: Stage) -> None:
    """Read, clean, split, count, write."""
    (name,) = stage.arguments
    params, root = read_params(), resolve_data_root()
    corpus, where = params.corpora[name], f"params.yaml: corpora.{name}"
    sources = artifacts.read_json(Path(f"artifacts/sources/corpora/{name}.json"))
    if [
        source_fingerprint(source, root, f"{where}.sources[{i}]")
        for i, source in enumerate(corpus.sources)
    ] != sources["sources"]:
        raise InputError(
            f"{where}: its data changed after the sources stage had read it; run again"
        )
    with stage.show_progress("documents", sources["documents"]) as report:
        documents = collect_documents(
            corpus, seed=params.seed, root=root, where=where, report_progress=report
        )
    splits = split_corpus(documents, corpus, seed=params.seed, where=where)
    with stage.show_progress("counting", len(documents.table)) as report:
        count = corpus_statistics(splits, documents, report)
    with artifacts.create_artifact(Path("artifacts/corpora") / name, "corpus", name=name) as folder:
        for split_name, table in splits.items():
            artifacts.write_table(folder / f"{split_name}.parquet", table)
        artifacts.write_json(folder / "counts.json", count)


def main() -> None:
    run_stage("corpus", work)


if __name__ == "__main__":
    main()
