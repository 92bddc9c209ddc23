"""`mamba-lab pack FILE`: how long the documents of a file are, what each scheme makes of them, and a packing plan.

Only lengths are kept, so a file may be larger than the memory. What is needed is imported when the command runs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mamba_lab.outputs import require_writable_file

if TYPE_CHECKING:
    from mamba_lab.batching.advice import Recommendation, SchemeCost
    from mamba_lab.batching.plan import Int64Array, PackingPlan
    from mamba_lab.corpus import CorpusStream
    from mamba_lab.document import Document, Skipped
    from mamba_lab.tokenizer import Tokenizer

SCHEMES = ("greedy", "sequential", "best-fit")
_CHUNK_DOCUMENTS, _CHUNK_CHARACTERS = 512, 1 << 22
_BAR = 44
_LARGEST_CAPACITY = 2**31 - 1


def add_pack(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `mamba-lab pack`."""
    parser = subparsers.add_parser(
        "pack",
        help="what each batching scheme makes of your documents, and which packing to take",
        description="Reads documents, keeps their lengths, and compares padding, buckets, chunks and packs. Recommends "
        "a capacity and a buffer with the reason; --capacity, --buffer and --scheme choose otherwise.",
    )
    parser.add_argument(
        "file", metavar="FILE", help="a .jsonl, .parquet or .txt file, a folder of them, a hub id, or docs, code, chat"
    )
    parser.add_argument("--text-field", default="text", metavar="NAME", help="the field that holds the text (text)")
    parser.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise", help="skip: leave out what cannot be read, counted"
    )
    parser.add_argument(
        "--max-line-bytes", type=_positive, default=16 << 20, metavar="N", help="a longer line is an error (16777216)"
    )
    parser.add_argument("--tokenizer", metavar="PATH", help="another tokenizer.json (the course's)")
    parser.add_argument("--capacity", type=_capacity, metavar="N", help="tokens of a row (recommended)")
    parser.add_argument("--scheme", choices=SCHEMES, default="greedy", help="of the plan (greedy)")
    parser.add_argument("--buffer", type=_positive, metavar="N", help="documents in greedy's buffer (recommended)")
    parser.add_argument(
        "--overflow",
        choices=("split", "truncate", "error"),
        default="split",
        help="what becomes of a document longer than the capacity (split)",
    )
    parser.add_argument("--plan", type=Path, metavar="OUT.npz", help="write the plan of the whole file here")
    parser.add_argument("--picture", type=Path, metavar="OUT.png", help="draw lengths and padding here")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Read, compare, recommend; write what was asked for. Returns 0.

    Raises:
        ValueError, OSError: a document, a file or an argument is wrong; the message says which.
        ModuleNotFoundError: a picture is wanted and matplotlib is not installed.
    """
    if args.buffer is not None and args.scheme != "greedy":
        raise ValueError(f"--buffer goes with --scheme greedy; {args.scheme} has none.")
    _check_output(args.plan, "--plan", ".npz")
    _check_output(args.picture, "--picture", ".png")
    if args.picture is not None:
        import matplotlib  # noqa: F401  # what is missing is said before an hour of reading
    lengths, skipped = _read(args)
    from mamba_lab.batching.advice import recommend, scheme_costs
    from mamba_lab.lengths import length_stats

    print(f"{args.file}: {length_stats(lengths)}")
    if skipped.count:
        print(skipped)
    print("\n" + "\n".join(histogram(lengths, _bar_sign())))
    try:
        advice = recommend(lengths, capacity=args.capacity, overflow=args.overflow)
        name, plan = _plan(lengths, advice, args)
        costs = _print_table(scheme_costs(lengths, advice.capacity, overflow=args.overflow), advice.capacity, name)
    except ValueError as error:
        raise ValueError(_as_options(str(error))) from error
    print(f"\n{_choice(plan, name, advice, args)}\n{_savings(plan, costs)}")
    if args.plan is not None:
        plan.save(args.plan)
        print(f"\n{args.plan}: {_figures(plan)}, {_n(plan.dropped, 'token')} dropped")
    if args.picture is not None:
        _draw(lengths, costs, advice.capacity, args.picture)
        print(f"\n{args.picture}: the picture")
    return 0


def count_lengths(stream: CorpusStream, tokenizer: Tokenizer) -> Int64Array:
    """The number of tokens of every document of ``stream``, int64 [n], holding few documents at a time."""
    import numpy as np

    from mamba_lab.corpus import Corpus

    parts, count = [np.empty(0, np.int64)], 0
    for chunk in _chunks(stream):
        parts.append(Corpus(chunk, stream.name).lengths(tokenizer))
        count += len(chunk)
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"\r{count:,} documents read", end="", file=sys.stderr, flush=True)
    if sys.stderr is not None and sys.stderr.isatty():
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    return np.concatenate(parts)


def histogram(lengths: Int64Array, sign: str = "#") -> list[str]:
    """One line for each power of two: how many documents are that long, as a bar of ``sign`` and a number."""
    import numpy as np

    lines = []
    if empty := int((lengths == 0).sum()):
        lines.append(("0", empty))
    positive = lengths[lengths > 0]
    powers = np.frexp(positive)[1] - 1  # exact: 2**k has exponent k
    for power in range(int(powers.min()), int(powers.max()) + 1):
        low, high = 2**power, 2 ** (power + 1) - 1
        lines.append((f"{low:,} to {high:,}" if high > low else f"{low:,}", int((powers == power).sum())))
    width = max(len(name) for name, _ in lines)
    most = max(count for _, count in lines)
    bars = [sign * -(-_BAR * count // most) for _, count in lines]
    titled = [f"{'tokens':>{width}}  documents"]
    return titled + [f"{name:>{width}}  {bar} {count:,}" for (name, count), bar in zip(lines, bars, strict=True)]


def _read(args: argparse.Namespace) -> tuple[Int64Array, Skipped]:
    from mamba_lab.corpus import CORPORA, load_corpus
    from mamba_lab.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(args.tokenizer) if args.tokenizer else load_tokenizer()
        if args.file in CORPORA:
            corpus = load_corpus(args.file)
            return corpus.lengths(tokenizer), corpus.skipped
        stream = load_corpus(
            args.file,
            on_error=args.on_error,
            text_field=args.text_field,
            streaming=True,
            max_line_bytes=args.max_line_bytes,
        )
        lengths = count_lengths(stream, tokenizer)
    except ModuleNotFoundError:
        raise
    except ImportError as error:  # a library that only this kind of file needs; the message says which
        raise ValueError(str(error)) from error
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(_as_options(str(error))) from error
    if not (lengths > 0).any():
        raise ValueError(f"{args.file}: there is no document with a token in it ({stream.skipped}).")
    return lengths, stream.skipped


def _as_options(message: str) -> str:
    """A message of the package with this command's names for the arguments."""
    message = message.removeprefix("name_or_path: ").replace("name_or_path is ", "FILE is ")
    for ours, theirs in (
        ('pass on_error="skip"', "say --on-error skip"),
        ("Choose one with text_field", "Choose one with --text-field"),
        ("max_line_bytes sets", "--max-line-bytes sets"),
        ("path: there is no file", "--tokenizer: there is no file"),
        ("overflow='split'", "--overflow split"),
        ("overflow='truncate'", "--overflow truncate"),
    ):
        message = message.replace(ours, theirs)
    return message


def _chunks(stream: CorpusStream) -> Iterator[list[Document]]:
    """Documents in order, a few hundred or a few million characters at a time."""
    documents = iter(stream)
    for first in documents:
        chunk, characters = [first], len(first.text)
        for document in itertools.islice(documents, _CHUNK_DOCUMENTS - 1):
            chunk.append(document)
            characters += len(document.text)
            if characters > _CHUNK_CHARACTERS:
                break
        yield chunk


def _print_table(costs: Iterator[SchemeCost], capacity: int, marked: str) -> list[SchemeCost]:
    """Print each scheme's line when it is measured; the plan's own is marked."""
    shown: list[SchemeCost] = []
    for cost in costs:
        if not shown:
            print(f"\nrows of {_n(capacity, 'token')}")
            print(f"  {'scheme':<22}{'padding':>9}{'rows':>12}{'documents cut':>15}{'plan time':>12}")
        mark = "  *" if cost.name == marked else ""
        seconds = f"{cost.seconds:.2f} s" if cost.seconds >= 0.1 else f"{1000 * cost.seconds:.1f} ms"
        print(
            f"  {cost.name:<22}{cost.padding_rate:>9.2%}{cost.rows:>12,}{cost.documents_cut:>15,}{seconds:>12}{mark}",
            flush=True,
        )
        shown.append(cost)
    return shown


def _plan(lengths: Int64Array, advice: Recommendation, args: argparse.Namespace) -> tuple[str, PackingPlan]:
    """The plan as chosen, and its name in the table."""
    from mamba_lab.batching import pack_best_fit, pack_greedy, pack_sequential

    if args.scheme == "sequential":
        return "sequential packs", pack_sequential(lengths, advice.capacity, overflow=args.overflow)
    if args.scheme == "best-fit":
        return "best fit, everything", pack_best_fit(lengths, advice.capacity, overflow=args.overflow)
    size = args.buffer or advice.buffer_size
    return f"greedy, buffer {size:,}", pack_greedy(lengths, advice.capacity, buffer_size=size, overflow=args.overflow)


def _choice(plan: PackingPlan, name: str, advice: Recommendation, args: argparse.Namespace) -> str:
    """What the plan is and who chose it; then the reason, or the recommendation that was not followed."""
    own = args.buffer is not None or args.scheme != "greedy"
    who = "chosen" if own or args.capacity is not None else "recommended"
    lines = [f"* {who}: capacity {plan.capacity:,}, {name}: {_figures(plan)}."]
    if plan.dropped:
        total = plan.n_tokens + plan.dropped
        lines.append(
            f"--overflow truncate drops {_n(plan.dropped, 'token')} ({plan.dropped / total:.2%} of {total:,}); "
            f"split drops none."
        )
    lines.append(f"The recommendation at this capacity: {advice}" if own else advice.reason)
    return "\n".join(lines)


def _savings(plan: PackingPlan, costs: Sequence[SchemeCost]) -> str:
    positions = {cost.name: cost.positions for cost in costs}
    padded = "padded batches of 16" + (" (which keep every token)" if plan.dropped else "")
    words = []
    for name, what in (("padded, 16 at random", padded), ("sequential packs", "sequential packs")):
        share = 1 - plan.n_bins * plan.capacity / positions[name]
        words.append(f"{abs(share):.0%} {'fewer' if share >= 0 else 'more'} positions than {what}")
    return f"{words[0]}, {words[1]}."


def _figures(plan: PackingPlan) -> str:
    return f"{_n(plan.n_bins, 'row')}, {plan.padding_rate:.2%} padding"


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _draw(lengths: Int64Array, costs: Sequence[SchemeCost], capacity: int, path: Path) -> None:
    from mamba_lab.viz.figure import to_png
    from mamba_lab.viz.pack_report import pack_report

    path.write_bytes(to_png(pack_report(lengths, {cost.name: cost.padding_rate for cost in costs}, capacity)))


def _check_output(path: Path | None, option: str, suffix: str) -> None:
    if path is None:
        return
    if path.suffix != suffix:
        raise ValueError(f"{option} is {path}: expected a file that ends in {suffix}.")
    require_writable_file(path, option)


def _bar_sign() -> str:
    try:
        "█".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"


def _capacity(text: str) -> int:
    capacity = _positive(text)
    if capacity > _LARGEST_CAPACITY:
        raise argparse.ArgumentTypeError(f"{text} is above the int32 limit {_LARGEST_CAPACITY} of token positions")
    return capacity


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
