"""Models: MambaLM, which trains on packs, and TinyMamba, which notebook 01 writes out in forty lines."""

from mamba_lab.models.config import MambaConfig
from mamba_lab.models.mamba import MambaLM
from mamba_lab.models.tiny import TinyMamba, TinyMambaBlock, batch_loss, train_tiny

__all__ = ["MambaConfig", "MambaLM", "TinyMamba", "TinyMambaBlock", "batch_loss", "train_tiny"]
