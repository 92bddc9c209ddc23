from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from mamba_lab.course.mathml import FormulaError, to_mathml


def test_a_formula_becomes_one_math_element_with_its_source_kept() -> None:
    tree = ElementTree.fromstring(to_mathml(r" h_t = a_t\,h_{t-1} ", block=True))
    assert tree.tag == "{http://www.w3.org/1998/Math/MathML}math"
    assert tree.get("display") == "block"
    assert tree.get("alttext") == r"h_t = a_t\,h_{t-1}"
    assert "".join(tree.itertext()).replace("\u2009", "") == "ht=atht−1"


def test_aligned_equations_stand_under_each_other() -> None:
    markup = to_mathml(r"\begin{aligned} a &= b \\ c &= d \end{aligned}")
    assert markup.count("<mtr") == 2
    assert "<mi>&amp;</mi>" not in markup


def test_an_underscore_inside_text_is_an_underscore() -> None:
    assert ">seq_idx<" in to_mathml(r"\text{seq\_idx}")


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        (r"\softplus(x)", r"unknown to latex2mathml: '\\\\softplus'"),
        (r"\begin{gather*} a & b", "does not convert"),
        (r"\left( x", "does not convert"),
        (r"\frac{1}{2", "unbalanced brace"),
        ("", "does not convert"),
        (r"a & b", "does not convert"),
    ],
)
def test_what_would_show_as_source_is_an_error(formula: str, said: str) -> None:
    with pytest.raises(FormulaError, match=said):
        to_mathml(formula)
