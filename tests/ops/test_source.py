from __future__ import annotations

import pytest

from mamba_lab.ops import source
from mamba_lab.ops.source import excerpt


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "csrc_dir", lambda: tmp_path)
    text = "  void f() {\n    one;\n\n    if (a) {\n      two;\n    }\n  }\n  end;\n  else_ {\n    x;\n"
    (tmp_path / "a.cpp").write_text(text, encoding="utf-8")
    (tmp_path / "a_more.cpp").write_text("if (b) {\n  three;\n}\n", encoding="utf-8")
    (tmp_path.parent / "outside.cpp").write_text("secret", encoding="utf-8")


@pytest.mark.usefixtures("files")
def test_a_block_ends_with_its_brace() -> None:
    assert excerpt("a.cpp", "void f") == "void f() {\n  one;\n\n  if (a) {\n    two;\n  }\n}"
    assert excerpt("a.cpp", "if (a)") == "if (a) {\n  two;\n}"
    assert excerpt("a.cpp", "end") == "end;"
    assert excerpt("a.cpp", "else_") == "else_ {\n  x;"


@pytest.mark.usefixtures("files")
def test_lines_from_one_text_to_another() -> None:
    assert excerpt("a.cpp", "one", "if (a)") == "one;\n\nif (a) {"
    assert excerpt("a.cpp", "one", "one") == "one;"


@pytest.mark.usefixtures("files")
def test_a_star_stands_for_several_files() -> None:
    assert excerpt("a*", "three") == "three;"
    assert excerpt("a*.cpp", "one", "one") == "one;"
    with pytest.raises(ValueError, match=r"2 lines of a\*\.cpp have it"):
        excerpt("a*.cpp", "if (")


@pytest.mark.usefixtures("files")
def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="neither csrc nor mamba_lab/ops"):
        excerpt("b.cpp", "one")
    with pytest.raises(ValueError, match="neither csrc nor mamba_lab/ops"):
        excerpt("../outside.cpp", "secret")
    with pytest.raises(ValueError, match="first is 'three': 0 lines"):
        excerpt("a.cpp", "three")
    with pytest.raises(ValueError, match=r"first is '\{': 3 lines"):
        excerpt("a.cpp", "{")
    with pytest.raises(ValueError, match=r"last is 'void': no line of a\.cpp has it from line 2 on"):
        excerpt("a.cpp", "one", "void")


def test_the_sources_of_the_operators_are_found() -> None:
    assert excerpt("reference.py", "def wide_dtype(").splitlines()[-1].startswith("    return torch.float64")
    assert excerpt("cpu/conv1d*", "inline void convolve(").endswith("}")
