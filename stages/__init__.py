"""The stages, each `python -m stages.VERB ARGUMENTS`."""

from lineage.running.forkserver import hand_over

hand_over()
