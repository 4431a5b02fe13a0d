"""Compare pretraining methods of language models on your own text."""

__version__ = "0.2.0"
