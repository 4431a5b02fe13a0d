"""Stage corpus@C: the sources of a corpus -> train, valid and test of clean documents, each once."""

from pathlib import Path

from lineage import artifacts
from lineage.errors import InputError
from lineage.loading.corpora import collect, counts, source_facts, split
from lineage.params import read_params
from lineage.running.runtime import data_root
from lineage.running.stage import Stage, run


def work(stage: Stage) -> None:
    """Read, clean, split, count, write."""
    (name,) = stage.arguments
    params, root = read_params(), data_root()
    corpus, where = params.corpora[name], f"params.yaml: corpora.{name}"
    sources = artifacts.read_json(Path(f"artifacts/sources/corpora/{name}.json"))
    if [source_facts(source, root, f"{where}.sources[{i}]") for i, source in enumerate(corpus.sources)] != sources["sources"]:
        raise InputError(f"{where}: its data changed after the sources stage had read it; run again")
    with stage.progress("documents", sources["documents"]) as report:
        documents = collect(corpus, seed=params.seed, root=root, where=where, report=report)
    splits = split(documents, corpus, seed=params.seed, where=where)
    with stage.progress("counting", len(documents.kept)) as report:
        count = counts(splits, documents, report)
    with artifacts.create(Path("artifacts/corpora") / name, "corpus", name=name) as folder:
        for split_name, table in splits.items():
            artifacts.write_table(folder / f"{split_name}.parquet", table)
        artifacts.write_json(folder / "counts.json", count)


def main() -> None:
    run("corpus", work)


if __name__ == "__main__":
    main()
