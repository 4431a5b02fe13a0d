"""Measure the memory of the stages that read a whole corpus, by the size of the corpus.

    python -m benchmarks.memory TEXT.parquet [--sizes 1 10 100]

TEXT.parquet has a column `text`. For each size in MB, a study is made of the first documents, and
its stages sources, corpus and tokenizer run one after the other, each in a process of its own.
Prints a Markdown table: the most memory that each process held, and the slope between the two
largest sizes, in bytes of memory for each byte of text.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from flows.study import create_study
from lineage.runtime.stage import BYTES_PER_MAXRSS

MB = 1_000_000
STAGES = {
    "sources": ("sources",),
    "corpus": ("corpus", "general"),
    "tokenizer, word2vec": ("tokenizer", "word2vec"),
    "tokenizer, ELMo": ("tokenizer", "elmo"),
    "tokenizer, GPT": ("tokenizer", "gpt"),
    "tokenizer, BERT": ("tokenizer", "bert"),
}
PARAMS = """
corpora:
  general:
    language: en
    sources:
      - {files: text.parquet, text: text}
budget: {corpus: general, text_bytes: TEXT_BYTES, max_epochs: 1, body_parameters: 1_000_000}
tasks:
  sentiment: {kind: text_classification, generated: synthetic}
grid:
  models: [word2vec, elmo, gpt, bert] # one for each type of tokenizer
  pretrain_seeds: [0]
  tasks: [sentiment]
  adapt_models: []
  adapt_tasks: []
  target_only_models: []
  join_models: []
  join_tasks: []
  join_static_model: word2vec
  finetune_seeds: [0]
  label_counts: [all]
  tfidf_C: [1.0]
models: {word2vec: {}, elmo: {}, gpt: {}, bert: {}}
"""


def iter_texts(path: Path) -> Iterator[str]:
    """Yield the texts of a parquet file."""
    for batch in pq.ParquetFile(path).iter_batches(batch_size=500, columns=["text"]):
        yield from batch["text"].to_pylist()


def write_text(path: Path, source: Path, num_bytes: int) -> int:
    """Write the first documents of a parquet file; return their bytes, at most `num_bytes`."""
    documents = []
    written = 0
    for text in iter_texts(source):
        size = len(text.encode())
        if written + size > num_bytes:
            break
        documents.append(text)
        written += size
    pd.DataFrame({"text": documents}).to_parquet(path, row_group_size=500)
    return written


# A process inherits the peak of the one that forks it, so a small one starts the stage.
LAUNCHER = """
import os, subprocess, sys
stage = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(stage.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_memory(words: Sequence[str], study: Path) -> int:
    """Run a stage, and return the most memory in bytes that its process held."""
    stage = [sys.executable, "-m", f"stages.{words[0]}", *words[1:]]
    launched = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *stage],
        cwd=study,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return int(launched.stdout) * BYTES_PER_MAXRSS


def measure_size(source: Path, num_bytes: int) -> tuple[int, dict[str, int]]:
    """Return the bytes of text, and the memory of each stage in bytes."""
    with tempfile.TemporaryDirectory(prefix="lineage-memory-") as scratch:
        study = Path(scratch, "study")
        create_study(study, PARAMS.replace("TEXT_BYTES", str(num_bytes // 2)))
        written = write_text(study / "text.parquet", source, num_bytes)
        return written, {name: peak_memory(words, study) for name, words in STAGES.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="a parquet file with a column `text`")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100], help="in MB")
    options = parser.parse_args()
    measured = [measure_size(options.text, size * MB) for size in sorted(options.sizes)]
    titles = [f"{written / MB:.1f} MB" for written, _ in measured]
    print(f"| stage | {' | '.join(titles)} | slope |")
    print(f"|---|{'---|' * len(titles)}---|")
    for name in STAGES:
        cells = [f"{memory[name] / MB:.0f} MB" for _, memory in measured]
        (small, small_memory), (large, large_memory) = measured[-2:]
        slope = (large_memory[name] - small_memory[name]) / (large - small)
        print(f"| {name} | {' | '.join(cells)} | {slope:.2f} |")


if __name__ == "__main__":
    main()
