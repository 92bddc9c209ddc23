"""The sections of a run's settings, but for the model's: data, packing, loss, training, logging."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from pydantic import model_validator

from mamba_lab.batching._checks import INT32_MAX

from .config_errors import Problem
from .config_types import Ahead, Below1, Count, Device, Folder, Positive, Section, Seed, Share, Text, Threads, Whole

Scheme = Literal[
    "fixed", "padded", "bucketed", "packed-sequential", "packed-greedy", "packed-best-fit", "one-at-a-time", "concat"
]
SCHEMES: tuple[str, ...] = Scheme.__args__  # type: ignore[attr-defined]
_NO_TURNS = ("docs", "code", "code-modules")


class DataConfig(Section):
    """Which documents, and which of their tokens teach.

    Attributes:
        corpus: a name (docs, code, code-modules, chat), a file, a folder, or a hub id, as ``load_corpus`` takes.
        text_field: the field that holds the text or the conversation.
        on_error: "skip" leaves out what cannot be read, counted.
        max_line_bytes: a longer line of jsonl cannot be read.
        streaming: read documents one after another, for files larger than the memory. Not for fixed, padded, bucketed.
        tokenizer: a tokenizer.json; None is the course's.
        add_end: an end-of-text token after each document, a target like the others: so a model learns to stop.
        min_seq_len: shorter sequences are left out, counted.
        max_seq_len: longer sequences lose their end, counted; None keeps them whole.
        max_documents: take the first so many only.
        validation_share: share of the documents that are kept for validation, whole ones, chosen by seed and number
            alone.
        teach: which tokens are targets: "whole" (all), or, of conversations, "assistant" (what the assistant says) or
            "prompt" (all but the prompt, which ends where the assistant's first turn begins).
        seed: of the validation documents and of the order; None is ``training.seed``.
    """

    section: ClassVar[str] = "data"
    corpus: Text = "docs"
    text_field: Text = "text"
    on_error: Literal["raise", "skip"] = "raise"
    max_line_bytes: Count = 16 << 20
    streaming: bool = False
    tokenizer: Text | None = None
    add_end: bool = True
    min_seq_len: Count = 2
    max_seq_len: Count | None = None
    max_documents: Count | None = None
    validation_share: Below1 = 0.05
    teach: Literal["whole", "assistant", "prompt"] = "whole"
    seed: Seed | None = None

    @model_validator(mode="after")
    def _possible(self) -> DataConfig:
        if self.max_seq_len is not None and self.max_seq_len < self.min_seq_len:
            raise Problem(
                "data.max_seq_len",
                f"is {self.max_seq_len}, below data.min_seq_len {self.min_seq_len}: no sequence would be left.",
            )
        if self.teach != "whole" and self.corpus in _NO_TURNS:
            raise Problem(
                "data.teach",
                f'is "{self.teach}", but {self.corpus} has no conversations. Say "whole", or data.corpus = "chat"; for '
                f"documents given in Python, any name of your own.",
            )
        return self


class PackingConfig(Section):
    """How sequences become batches.

    Attributes:
        scheme: one of ``SCHEMES``. "concat" joins documents and lets the state leak: for the lesson.
        capacity: tokens of a row: of a pack, or of a fixed chunk.
        rows: rows of a micro-batch.
        buffer_size: documents that are packed together.
        overflow: what becomes of a sequence longer than a row: "split", "truncate" (counted) or "error".
        max_tokens: padded and bucketed: the positions of a micro-batch; None is rows * capacity.
        n_buckets, max_spread: bucketed: how many buckets, and how many tokens apart two lengths of one may be.
        max_padding: bucketed: the padding rate that no micro-batch exceeds; 1 switches the guard off. Padded has none.
        sort: padded and bucketed: "sorted" forms batches from the whole epoch sorted by length (LongAlign's sorted
            batching), their order shuffled.
        shuffle: a new order each epoch.
        pad_to_multiple_of: make row lengths a multiple of this.
        workers: threads that tokenise; 0 does it between the steps.
        prefetch: micro-batches made ahead, with workers.
    """

    section: ClassVar[str] = "packing"
    scheme: Scheme = "packed-greedy"
    capacity: Count = 2048
    rows: Count = 1
    buffer_size: Count = 1024
    overflow: Literal["split", "truncate", "error"] = "split"
    max_tokens: Count | None = None
    n_buckets: Count = 8
    max_spread: Whole = 128
    max_padding: Share = 0.2
    sort: Literal["random", "sorted"] = "random"
    shuffle: bool = True
    pad_to_multiple_of: Count | None = None
    workers: Threads = 1
    prefetch: Ahead = 4

    @property
    def budget(self) -> int:
        """Positions that a micro-batch may have."""
        return self.max_tokens if self.max_tokens is not None else self.rows * self.capacity

    @property
    def width(self) -> int:
        """Positions of a row of ``capacity`` tokens."""
        multiple = self.pad_to_multiple_of or 1
        return -(-self.capacity // multiple) * multiple

    @model_validator(mode="after")
    def _possible(self) -> PackingConfig:
        if self.rows * self.width > INT32_MAX:
            raise Problem(
                "packing.capacity",
                f"is {self.capacity} and packing.rows is {self.rows}: a micro-batch has at most {INT32_MAX} positions. "
                f"Use fewer rows and more training.gradient_accumulation_steps.",
            )
        if self.max_tokens is not None and self.max_tokens < self.capacity:
            raise Problem(
                "packing.max_tokens",
                f"is {self.max_tokens}, below packing.capacity {self.capacity}: a sequence of that length would fit no "
                f"micro-batch.",
            )
        if self.sort == "sorted" and self.scheme not in ("padded", "bucketed"):
            raise Problem(
                "packing.sort",
                f'is "sorted", but packing.scheme is "{self.scheme}". Sorted batching goes with padded and bucketed.',
            )
        if self.sort == "sorted" and not self.shuffle:
            raise Problem(
                "packing.sort",
                'is "sorted", but packing.shuffle is false. Sorted batches in their own order would teach short '
                "sequences first. Set shuffle = true.",
            )
        return self


class LossConfig(Section):
    """What the loss is a mean over.

    Attributes:
        weighting: "token": every target of the global step counts the same. "sequence": every sequence does, by
            1 / its targets.
    """

    section: ClassVar[str] = "loss"
    weighting: Literal["token", "sequence"] = "token"


class TrainingConfig(Section):
    """How long, how fast, where, and what is kept.

    Attributes:
        output_dir: the run's folder: settings, metrics.jsonl, checkpoints. None writes nothing.
        num_train_epochs: passes over the documents.
        max_steps: stop after so many steps, even if an epoch is not over.
        learning_rate: the highest, after warm-up.
        weight_decay, adam_beta1, adam_beta2, adam_epsilon: of AdamW.
        warmup_ratio, warmup_steps: the learning rate rises over this share of all steps, or over so many. At most one
            of the two.
        lr_scheduler_type: what follows: "cosine", "linear" or "constant".
        min_lr_ratio: where cosine and linear end, as a share of ``learning_rate``.
        max_grad_norm: a step's gradient is scaled down to this norm; 0 does not clip.
        gradient_accumulation_steps: micro-batches of a step.
        bf16: autocast to bfloat16, with float32 weights; "auto" does so on GPUs that have it.
        gradient_checkpointing: keep only each block's input: less memory, a third slower.
        torch_compile: compile the model.
        seed: of weights, order and validation documents.
        deterministic: refuse operations whose result differs from run to run.
        device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:N".
        eval_steps: validate after every so many steps; None at the end only.
        save_steps: write a checkpoint after every so many steps; None at the end only, and when stopped.
        save_total_limit: checkpoints that are kept.
        on_nonfinite: a step whose loss or gradient is not finite: "skip" leaves the weights as they were, counted;
            "stop" ends the run.
    """

    section: ClassVar[str] = "training"
    output_dir: Folder | None = None
    num_train_epochs: Count = 1
    max_steps: Count | None = None
    learning_rate: Positive = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 0.1
    adam_beta1: Below1 = 0.9
    adam_beta2: Below1 = 0.95
    adam_epsilon: Positive = 1e-8
    warmup_ratio: Share | None = None
    warmup_steps: Whole | None = None
    lr_scheduler_type: Literal["cosine", "linear", "constant"] = "cosine"
    min_lr_ratio: Share = 0.1
    max_grad_norm: Annotated[float, Ge(0)] = 1.0
    gradient_accumulation_steps: Count = 1
    bf16: bool | Literal["auto"] = "auto"
    gradient_checkpointing: bool = False
    torch_compile: bool = False
    seed: Seed = 0
    deterministic: bool = False
    device: Device = "auto"
    eval_steps: Count | None = None
    save_steps: Count | None = None
    save_total_limit: Count = 3
    on_nonfinite: Literal["skip", "stop"] = "skip"

    def warmup(self, total_steps: int) -> int:
        """Steps over which the learning rate rises, of ``total_steps``."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return round((self.warmup_ratio or 0.0) * total_steps)

    @model_validator(mode="after")
    def _possible(self) -> TrainingConfig:
        if self.warmup_ratio is not None and self.warmup_steps is not None:
            raise Problem(
                "training.warmup_ratio",
                f"is {self.warmup_ratio} and training.warmup_steps is {self.warmup_steps}: expected one of the two.",
            )
        if self.save_steps is not None and self.output_dir is None:
            raise Problem(
                "training.save_steps",
                f"is {self.save_steps}, but training.output_dir is not set: there is no place for a checkpoint.",
            )
        return self


class LoggingConfig(Section):
    """What is shown and written while it runs.

    Attributes:
        logging_steps: a line in metrics.jsonl, and a point in TensorBoard, every so many steps.
        progress: a bar; None where the terminal can show one.
        tensorboard: event files in the run's folder.
        gradient_report_steps: each layer's gradient norm every so many steps.
        run_name: what the run is called in bar, log and TensorBoard; None is the folder's name.
    """

    section: ClassVar[str] = "logging"
    logging_steps: Count = 1
    progress: bool | None = None
    tensorboard: bool = False
    gradient_report_steps: Count | None = None
    run_name: Text | None = None
