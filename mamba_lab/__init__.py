"""Train Mamba-1 on sequences of different lengths: batching, operators, model and the course that teaches them."""

__version__ = "0.1.0"
