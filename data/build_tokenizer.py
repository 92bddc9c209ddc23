"""Trains ``tokenizer.json`` on the shipped corpora and counts their tokens, after build_corpus.py.

python data/build_tokenizer.py
python data/build_tokenizer.py --out my.json     # train only
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mamba_lab.corpus import CORPORA, load_corpus
from mamba_lab.tokenizer import END, PAD, ROLES, load_tokenizer, role_token

VOCABULARY = 8192
# As many from each corpus: otherwise the documentation, the largest, takes the vocabulary.
CHARACTERS = 1_250_000


def sample(name: str) -> list[str]:
    """Documents evenly spread over the corpus, about CHARACTERS characters in all. Chat gives its turns alone."""
    corpus = load_corpus(name)
    texts = [t.text for d in corpus for t in d.turns or ()] if name == "chat" else corpus.texts
    step = max(1, sum(map(len, texts)) // CHARACTERS)
    return texts[::step]


def count_lengths() -> dict[str, list[int]]:
    """The tokens of every document, so that lengths can be had without encoding five million tokens."""
    tokenizer = load_tokenizer()
    return {name: [len(ids) for ids in load_corpus(name).tokenize(tokenizer)] for name in CORPORA}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shipped = Path(__file__).resolve().parent / "tokenizer.json"
    parser.add_argument("--out", type=Path, default=shipped)
    args = parser.parse_args()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, PAD, *map(role_token, ROLES)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [text for name in ("docs", "code-modules", "chat") for text in sample(name)]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(args.out), pretty=False)
    print(f"{args.out.name}: {tokenizer.get_vocab_size()} tokens from {sum(map(len, texts)):,} characters")
    if args.out == shipped:
        counts = count_lengths()
        (shipped.parent / "corpus" / "lengths.json").write_text(
            json.dumps(counts, separators=(",", ":")) + "\n", "utf-8"
        )
        print("lengths.json:", {name: sum(found) for name, found in counts.items()})


if __name__ == "__main__":
    main()
