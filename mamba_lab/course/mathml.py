"""LaTeX to MathML, which browsers draw without a script; what the converter does not know is an error, not a gap."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from latex2mathml.converter import convert

# latex2mathml lays out "split", and takes "aligned", which means the same, for the letters of its name.
_SAME = (("{aligned}", "{split}"),)
_NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"


class FormulaError(ValueError):
    """A formula that cannot be shown on a page."""


def to_mathml(latex: str, *, block: bool = False) -> str:
    """A ``<math>`` element for ``latex``, with the source as its annotation for screen readers and copying.

    Raises FormulaError with the formula and the command that latex2mathml does not know, or its own complaint.
    """
    source = latex.strip()
    text = source
    for ours, theirs in _SAME:
        text = text.replace(ours, theirs)
    try:
        markup = convert(text, display="block" if block else "inline")
        tree = ElementTree.fromstring(markup)
    except Exception as error:  # latex2mathml raises a dozen unrelated classes, and StopIteration
        raise FormulaError(f"the formula {source!r} does not convert ({type(error).__name__}: {error})") from error
    for element in tree.iter():
        content = element.text or ""
        if element.tag == f"{_NAMESPACE}mtext":
            element.text = content.replace("\\_", "_")
        elif "\\" in content:
            raise FormulaError(f"the formula {source!r} has a command unknown to latex2mathml: {content.strip()!r}")
    if source.count("{") - source.count("\\{") != source.count("}") - source.count("\\}"):
        raise FormulaError(f"the formula {source!r} has an unbalanced brace")
    tree.set("alttext", source)
    ElementTree.register_namespace("", _NAMESPACE.strip("{}"))
    return ElementTree.tostring(tree, encoding="unicode")
