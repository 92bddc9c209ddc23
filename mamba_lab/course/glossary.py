"""The course's own words. Where the course uses one first it is **bold**, in a sentence that says what it is."""

from __future__ import annotations

GLOSSARY: dict[str, str] = {
    "document": "A text, as it lies in the corpus.",
    "sequence": "The token ids of one document.",
    "pack": "What one row of a batch holds, one sequence after another.",
    "capacity": "The length of a pack in tokens.",
    "padding rate": "Positions that hold padding, divided by all positions.",
    "valid ratio": "One minus the padding rate.",
    "tgs": "Valid tokens per GPU per second.",
    "target": "The token that a position must predict.",
}

SYMBOLS: dict[str, str] = {
    "T": "tokens in a flattened batch",
    "B": "rows of a batch",
    "L": "length of a row",
    "S": "sequences in a batch",
    "D": "channels (d_inner)",
    "N": "states of a channel (d_state, 16)",
    "W": "width of the convolution (d_conv, 4)",
    "R": "rank of the step size (dt_rank)",
    "V": "size of the vocabulary",
}
