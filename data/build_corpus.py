"""Builds the three shipped corpora from their sources. README.md in this folder says where the sources come from.

    python data/build_corpus.py docs python3.11-doc_3.11.2-6+deb12u9_all.deb
    python data/build_corpus.py code /path/to/lib/python3.11
    python data/build_corpus.py chat chitchat_dataset-0.9.0-py3-none-any.whl

The same sources give the same bytes. Each corpus is one ``corpus/NAME.jsonl.xz``, one document a line.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from build_chat import chat_records
from build_code import code_records
from clean import People, collect_people, neutralise

CORPUS = Path(__file__).resolve().parent / "corpus"


def docs_texts(package: Path) -> dict[str, str]:
    """The reStructuredText sources in the Debian package, by name."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg", "-x", str(package), folder], check=True)
        root = next(Path(folder).rglob("_sources"))
        paths = sorted(root.rglob("*.rst.txt"))
        return {p.relative_to(root).as_posix().removesuffix(".rst.txt"): p.read_text("utf-8") for p in paths}


def docs_records(texts: dict[str, str], people: People) -> list[dict[str, Any]]:
    """A record a page. The page of licences is left out: it quotes other people's; the terms lie beside the data."""
    (CORPUS / "LICENSE.docs.txt").write_bytes(_psf_licence(texts["license"]).encode())
    pages = [name for name in texts if name != "license"]
    return [{"id": f"docs/{name}", "text": neutralise(texts[name], people)} for name in pages]


def _psf_licence(source: str) -> str:
    """The terms for Python itself: everything before the notices of incorporated software."""
    start = source.index("Terms and conditions for accessing")
    end = source.index("Licenses and Acknowledgements for Incorporated Software")
    return source[start:end].rsplit("\n.. _", 1)[0].rstrip() + "\n"


def write(name: str, records: Iterable[dict[str, Any]]) -> None:
    """Writes the records and prints what was written."""
    rows = list(records)
    data = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows).encode()
    path = CORPUS / f"{name}.jsonl.xz"
    path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    print(f"{path.name}: {len(rows)} records, {len(data):,} bytes, {path.stat().st_size:,} compressed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["docs", "code", "chat"])
    parser.add_argument("source", type=Path, help="the Debian package, the library folder or the wheel")
    parser.add_argument(
        "--docs-package", type=Path, help="for code and chat: whose credits name the people to take out"
    )
    args = parser.parse_args()
    CORPUS.mkdir(exist_ok=True)
    package = args.source if args.corpus == "docs" else args.docs_package
    if package is None:
        parser.error(f"{args.corpus} also needs --docs-package: the people credited there are taken out here")
    texts = docs_texts(package)
    people = collect_people(list(texts.values()))
    if args.corpus == "docs":
        write("docs", docs_records(texts, people))
    elif args.corpus == "code":
        write("code", code_records(args.source, people, CORPUS))
    else:
        write("chat", chat_records(args.source, people, CORPUS))


if __name__ == "__main__":
    main()
