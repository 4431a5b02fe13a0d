"""The stages, each `python -m stages.VERB ARGUMENTS`."""

from lineage.runtime.forkserver import run_in_forkserver

run_in_forkserver()
