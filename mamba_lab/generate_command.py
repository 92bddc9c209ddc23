"""`mamba-lab generate MODEL`: text from a run, a checkpoint, or a model of this form on the hub."""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mamba_lab.models import MambaLM
    from mamba_lab.tokenizer import Tokenizer
    from mamba_lab.training.config import DataConfig

EXAMPLES = """\
examples:
  mamba-lab generate runs/docs --prompt "The list"
  mamba-lab generate runs/docs --prompt "The list" --temperature 0        always the likeliest token
  mamba-lab generate runs/docs --prompt "A class" --prompt "A file"       several at once, as one pack
  mamba-lab generate runs/chat --prompt "Do you like tea?"                a run that was tuned on conversations answers
  cat start.txt | mamba-lab generate runs/docs --prompt-file -

exit codes: 0 done, 1 no such model, tokenizer or prompt, 2 wrong usage, 130 interrupted
"""


def add_generate(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `mamba-lab generate`."""
    parser = subparsers.add_parser(
        "generate",
        help="continue a text with a trained model",
        description="Reads the prompts as one pack and writes on, token by token, in constant memory. The text goes to "
        "standard output.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a run's folder, a checkpoint, a saved model, or a hub id")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="to go on from; may be repeated")
    parser.add_argument("--prompt-file", metavar="FILE", help="a file with one more prompt; - is standard input")
    parser.add_argument("--max-new-tokens", type=_count, default=200, metavar="N", help="at most so many (200)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0: the likeliest token (0.8)")
    parser.add_argument("--top-k", type=_count, metavar="K", help="choose among the K likeliest")
    parser.add_argument("--top-p", type=float, metavar="P", help="choose among the fewest whose chances reach P")
    parser.add_argument("--seed", type=_count, metavar="N", help="the same text again (another one each time)")
    parser.add_argument(
        "--chat",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="the prompt is a user's turn, and the assistant answers (as the run was tuned)",
    )
    parser.add_argument("--tokenizer", metavar="PATH", help="another tokenizer.json (the run's, or the course's)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or cuda:N (auto)")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Generate. Returns 0.

    Raises:
        ValueError, OSError: no such model, tokenizer or prompt; the message says which.
    """
    texts = _prompts(args)
    try:
        from mamba_lab.training.prepare import pick_device
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    from mamba_lab.models import MambaLM
    from mamba_lab.models.generate import stream
    from mamba_lab.tokenizer import load_tokenizer

    data = _data_of(args.model)
    path = args.tokenizer or (data.tokenizer if data is not None else None)
    try:
        device = pick_device(_device(args.device))
    except ValueError as error:
        raise ValueError(str(error).replace("training.device", "--device")) from error
    try:
        tokenizer = load_tokenizer(path) if path else load_tokenizer()
    except FileNotFoundError as error:
        name = "--tokenizer" if args.tokenizer else f"{args.model}: data.tokenizer"
        raise ValueError(f"{name}: there is no file {path}.") from error
    model = MambaLM.from_pretrained(_weights(args.model)).to(device).eval()
    _require_same_vocabulary(model, tokenizer, args.model)
    chat = args.chat if args.chat is not None else data is not None and data.teach != "whole"
    ids = [_ids(text, tokenizer, chat) for text in texts]
    try:
        steps = stream(
            model,
            ids,
            args.max_new_tokens,
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            seed=args.seed,
            stop=[tokenizer.end_id, *tokenizer.role_ids.values()],
        )
    except ValueError as error:
        raise ValueError(_as_option(str(error))) from error
    if len(ids) == 1:
        _write(b"" if chat else texts[0], (step[0] for step in steps), tokenizer)
        return 0
    written: list[list[int]] = [[] for _ in ids]
    for step in steps:
        for row, token in step.items():
            written[row].append(token)
    for number, (text, tokens) in enumerate(zip(texts, written, strict=True), 1):
        print(f"--- {number}")
        _write(b"" if chat else text, tokens, tokenizer)
    return 0


def _prompts(args: argparse.Namespace) -> list[bytes]:
    texts = [os.fsencode(text) for text in args.prompt]  # bytes: what was typed need not be UTF-8
    if args.prompt_file == "-":
        if sys.stdin is None:
            raise ValueError("--prompt-file is -, and there is no standard input.")
        texts.append(sys.stdin.buffer.read())
    elif args.prompt_file is not None:
        try:
            texts.append(Path(args.prompt_file).read_bytes())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"--prompt-file is {args.prompt_file}, which cannot be read: {why}.") from error
    if not texts:
        raise ValueError('a prompt is missing: say for example --prompt "The list".')
    if not all(texts):
        raise ValueError("a prompt is empty: give it a word, since a sequence's first token is never predicted.")
    return texts


def _data_of(model: str) -> DataConfig | None:
    """How the data of a run was read: its tokenizer, and whether it was conversations. None for any other model."""
    from mamba_lab.training.config import DataConfig, TrainConfig

    folder = Path(model)
    try:
        if (folder / "train_config.json").is_file():
            return DataConfig(**json.loads((folder / "train_config.json").read_text("utf-8"))["data"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / 'train_config.json'} is damaged: {error}.") from error
    return TrainConfig.from_toml(folder / "config.toml").data if (folder / "config.toml").is_file() else None


def _weights(model: str) -> str:
    """Where the weights lie, as ``model.from_pretrained`` of a run takes them."""
    from mamba_lab.corpus_files import is_hub_id
    from mamba_lab.training.prepare import weights_in

    if not Path(model).exists() and not is_hub_id(model):
        raise ValueError(f"there is no folder {model}. Give a run's, a checkpoint's, a saved model's, or a hub id.")
    return weights_in(model)


def _device(name: str) -> str:
    from mamba_lab.training.config import ConfigError, TrainingConfig

    try:
        return TrainingConfig(device=name).device
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _require_same_vocabulary(model: MambaLM, tokenizer: Tokenizer, source: str) -> None:
    if model.config.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"{source} has {model.config.vocab_size} ids and the tokenizer {tokenizer.vocab_size}: this is not the "
            f"tokenizer it was trained with. Name its own with --tokenizer."
        )


def _ids(text: bytes, tokenizer: Tokenizer, chat: bool) -> list[int]:
    ids = tokenizer.encode_bytes(text)
    return [tokenizer.role_ids["user"], *ids, tokenizer.role_ids["assistant"]] if chat else ids


def _write(start: bytes, tokens: Iterable[int], tokenizer: Tokenizer) -> None:
    """Print ``start`` and what follows it, each character when it is whole. Special tokens end it, unprinted."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    special = {tokenizer.end_id, tokenizer.pad_id, *tokenizer.role_ids.values()}
    print(decoder.decode(start), end="", flush=True)
    for token in tokens:
        if token not in special:
            print(decoder.decode(tokenizer.decode_bytes([token])), end="", flush=True)
    print(decoder.decode(b"", final=True), flush=True)


def _as_option(message: str) -> str:
    name = message.partition(" ")[0]
    return f"--{name.replace('_', '-')}{message.removeprefix(name)}"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
