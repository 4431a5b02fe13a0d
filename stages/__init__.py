"""The stages, each `python -m stages.VERB ARGUMENTS`."""
