"""Models: TinyMamba, which notebook 01 writes out in forty lines."""

from mamba_lab.models.tiny import TinyMamba, TinyMambaBlock, batch_loss, train_tiny

__all__ = ["TinyMamba", "TinyMambaBlock", "batch_loss", "train_tiny"]
