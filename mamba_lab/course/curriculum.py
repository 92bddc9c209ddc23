"""The sixteen notebooks: what each answers, what it needs, how long it takes; the map and the index read this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One notebook: its two-digit ``number``, what it answers, how many ``minutes`` it takes, what it ``needs``.

    ``written`` says whether the file exists; a test holds it against the folder.
    """

    number: str
    stem: str
    question: str
    minutes: int
    needs: tuple[str, ...]
    written: bool = True

    @property
    def filename(self) -> str:
        return f"{self.number}_{self.stem}.ipynb"

    @property
    def title(self) -> str:
        """The stem as words; names of operators stay as they are written in code."""
        if self.stem.startswith(("conv1d", "ssm")):
            return self.stem
        words = self.stem.replace("_", " ").capitalize()
        return words.replace("Cuda", "CUDA").replace("Fixed length", "Fixed-length")


CURRICULUM: tuple[Entry, ...] = (
    Entry("00", "start_here", "One word changes in document A. Why does the prediction in document B move?", 20, ()),
    Entry("01", "mamba_in_one_page", "What does a Mamba remember, and which of its parts carry memory?", 40, ("00",)),
    Entry("02", "fixed_length_chunking", "What do chunks of a fixed length cost?", 30, ("00",)),
    Entry("03", "bucketed_padding", "How far do buckets and token budgets get?", 35, ("02",)),
    Entry("04", "label_masking", "Which positions may teach?", 35, ("01",)),
    Entry(
        "05",
        "sequential_packing",
        "What is a pack, and why is a fifth of it still padding?",
        35,
        ("01", "03"),
    ),
    Entry("06", "greedy_packing", "How little padding can a pack have, and what does that cost?", 35, ("05",)),
    Entry("07", "state_leakage", "Why can a Mamba not be fed a pack as it is?", 55, ("05",)),
    Entry("08", "conv1d_pack", "How does a convolution stop at the start of a sequence?", 45, ("07",)),
    Entry("09", "ssm_pack", "How does a parallel scan reset?", 55, ("07",)),
    Entry("10", "ssm_pack_backward", "What must the backward pass recompute?", 60, ("09",)),
    Entry(
        "11",
        "training",
        "How is a model trained on packs, and which four numbers tell its health?",
        60,
        ("04", "07"),
    ),
    Entry("12", "loss_weighting", "What is one mean, over tokens or over sequences?", 40, ("11",)),
    Entry("13", "cuda_kernels", "What makes a packed kernel fast?", 60, ("08", "10")),
    Entry(
        "14", "cutting_sequences", "Can a sequence be cut without losing its state?", 45, ("11", "10"), written=False
    ),
    Entry("15", "scaling_out", "How do several GPUs share sequences of different lengths?", 45, ("14",), written=False),
)

TRACKS: dict[str, tuple[str, ...]] = {
    "three hours": ("00", "01", "05", "07", "11"),
    "one day": tuple(f"{n:02d}" for n in range(10)),
    "two days": tuple(entry.number for entry in CURRICULUM),
}


def entry(number: str) -> Entry:
    """The entry with this two-digit number. Raises ValueError with the known numbers otherwise."""
    for candidate in CURRICULUM:
        if candidate.number == number:
            return candidate
    raise ValueError(f"number: no notebook {number!r}; there are {CURRICULUM[0].number} to {CURRICULUM[-1].number}")
