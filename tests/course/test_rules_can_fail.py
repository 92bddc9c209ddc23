"""Each rule of a notebook finds its violation, and nothing in a notebook that keeps them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from notebook_samples import card, code, figure, lesson, md, numbered, printed, shown, solved

from mamba_lab.course import cellcode, form, outputs, prose
from mamba_lab.course.findings import Sheet
from mamba_lab.course.notebooks import find_notebooks
from mamba_lab.course.rules import LESSON, SOLUTION, Rule, check_course, check_sheet

Change = Callable[[list[NotebookNode]], object]
IGNORED = ("nbval-ignore-output",)


def sheet(content: NotebookNode) -> Sheet:
    return Sheet("02_x.ipynb", "02", content, siblings=frozenset({"03_y.ipynb"}))


def text(source: str) -> Change:
    return lambda cells: cells.insert(2, md(source))


def cell(source: str, *shows: NotebookNode, tags: tuple[str, ...] = ()) -> Change:
    return lambda cells: cells.__setitem__(3, code(source, *shows, tags=tags, count=2))


def first(source: str) -> Change:
    return lambda cells: cells.__setitem__(0, md(source))


def head(
    question: str = "What do chunks of a fixed length cost?", facts: str = "30 minutes · needs: 00 · next: 03"
) -> Change:
    return first(f"# 02 Chunks\n\n> {question}\n\n{facts}")


def late_code(cells: list[NotebookNode]) -> None:
    for _ in range(5):
        cells.insert(1, md("More text."))


HTML_IMAGE = shown({"text/html": "<img src='data:image/png;base64,x'>"})
LONG = " ".join(["word"] * 33) + "."
MIDDLING = " ".join(["word"] * 30) + "."

VIOLATIONS: list[tuple[Rule, Change, str]] = [
    (form.header, lambda cells: cells.pop(0), "the first cell is not text"),
    (form.header, first("# Chunks\n\n> Why?\n\n30 minutes · needs: 00 · next: 03"), "the title is"),
    (
        form.header,
        first("# 03 Chunks\n\n> Why?\n\n30 minutes · needs: 00 · next: 03"),
        "the title says 03, the file 02",
    ),
    (form.header, head(question="They cost."), "expected '> a question?'"),
    (form.header, head(question="What is this?"), "question is 'What is this?'"),
    (form.header, head(facts="30 min · needs: 00 · next: 03"), "the third line is"),
    (form.header, head(facts="31 minutes · needs: 00 · next: 03"), "minutes is 31"),
    (form.header, head(facts="30 minutes · needs: 00, 01 · next: 03"), "needs is ('00', '01')"),
    (form.header, head(facts="30 minutes · needs: some · next: 03"), "two-digit numbers"),
    (form.header, head(facts="30 minutes · needs: 00 · next: 77"), "next is '77'"),
    (form.opens_with_code, late_code, "no code among the first 5 cells"),
    (form.text_between, lambda cells: cells.insert(6, code("2")), "a third code cell"),
    (form.ending, lambda cells: cells.append(md("Bye.")), "no heading 'Next'"),
    (form.ending, lambda cells: cells.pop(-3), "no heading 'Try your own text'"),
    (form.prediction, lambda cells: cells[5].metadata.clear(), "0 cells are tagged prediction"),
    (form.prediction, lambda cells: cells[3].metadata.update(tags=["prediction"]), "2 cells are tagged prediction"),
    (form.prediction, lambda cells: cells[5].update(source="my_prediction = 0.2"), "without the line"),
    (form.prediction, cell("my_prediction = 3"), "assigns my_prediction"),
    (form.exercises, lambda cells: cells.pop(8), "no stub directly below"),
    (form.exercises, lambda cells: cells.pop(9), "a stub without its text"),
    (form.exercises, lambda cells: cells[7].update(source="## Exercise"), "without its heading"),
    (form.exercises, lambda cells: cells[7].update(source="## Exercise: core (10 minutes)"), "Make the two agree"),
    (form.exercises, lambda cells: cells[8].update(source="_ = check_count(len)"), "without a `def`"),
    (form.exercises, lambda cells: cells[8].update(source="def count(n):\n    ..."), "does not end in its check"),
    (form.exercises, lambda cells: cells[12].update(source="count(3)"), "uses count, an exercise's stub"),
    (form.exercises, lambda cells: [cells.pop(9), cells.pop(9)], "no core exercise"),
    (form.links, text("See [03](../notebooks/03_y.ipynb)."), "leads nowhere"),
    (form.links, text("See [04](04_z.ipynb#here)."), "leads nowhere"),
    (cellcode.plain_python, cell("%timeit 1"), "not plain Python"),
    (cellcode.executed, lambda cells: cells[3].update(execution_count=None), "execution count None, expected 2"),
    (cellcode.executed, lambda cells: cells[3].update(execution_count=9), "execution count 9"),
    (cellcode.executed, lambda cells: cells.insert(3, code("")), "an empty code cell"),
    (cellcode.cell_length, cell("a = 1\n\n" * 17), "17 lines"),
    (cellcode.public_names, cell("from mamba_lab.batching._checks import x"), "private"),
    (cellcode.public_names, cell("import mamba_lab.ops._x"), "private"),
    (cellcode.public_names, cell("from mamba_lab.batching import Batch, _x"), "private"),
    (cellcode.environment_line, cell("doctor.table()", tags=IGNORED), "uses doctor.table"),
    (cellcode.environment_line, cell("from mamba_lab.doctor import table", tags=IGNORED), "uses doctor.table"),
    (cellcode.devices, cell("x.to(device)"), ".to(device)"),
    (cellcode.devices, cell("x.to('cuda:0')"), ".to('cuda:0')"),
    (cellcode.devices, cell("x.cuda()"), ".cuda()"),
    (cellcode.devices, cell("torch.zeros(3, device=device)"), "device=device"),
    (cellcode.devices, cell("torch.zeros(3, device=torch.device('cuda'))"), "device=torch.device('cuda')"),
    (cellcode.no_markers, cell("# NBVAL_SKIP\nprint(1)"), "the comment NBVAL_SKIP"),
    (cellcode.stands_alone, cell("open('../data/x.txt')"), "the path '../data/x.txt'"),
    (cellcode.stands_alone, cell("read('00_start_here.ipynb')"), "the path"),
    (outputs.known_tags, cell("print(1)", tags=("nbval-skip",)), "the tag 'nbval-skip'"),
    (outputs.known_tags, cell("print(1)", tags=("NBVAL_IGNORE_OUTPUT",)), "is not known"),
    (outputs.known_tags, cell("print(1)", tags=("gpu",)), "tagged gpu alone"),
    (outputs.ignored_for_a_reason, cell("print(1)", printed("1\n"), tags=IGNORED), "for no reason"),
    (outputs.ignored_for_a_reason, cell("assert loss == 1", printed("1\n"), tags=IGNORED), "for no reason"),
    (outputs.ignored_for_a_reason, cell("t = time.perf_counter()", printed("1\n")), "a time"),
    (outputs.ignored_for_a_reason, cell("print(t)", printed("took 1.3 ms\n")), "a time"),
    (outputs.ignored_for_a_reason, cell("doctor.one_line()", printed("1\n")), "this machine"),
    (
        outputs.ignored_for_a_reason,
        cell("box", shown({"application/vnd.jupyter.widget-view+json": "{}", "text/plain": "Box()"})),
        "a widget",
    ),
    (
        outputs.no_errors,
        cell("1/0", nbformat.v4.new_output("error", ename="E", evalue="v", traceback=[])),
        "ends in E: v",
    ),
    (outputs.no_errors, cell("1", tags=("raises-exception",)), "nothing was raised"),
    (outputs.no_machine, cell("print(p)", printed("at /home/ada/x\n")), "/home/"),
    (outputs.no_machine, cell("print(p)", printed("C:\\Users\\x\n")), "C:"),
    (outputs.no_machine, cell("print(p)", printed("lib/site-packages/torch\n")), "site-packages"),
    (outputs.no_machine, cell("f", shown({"text/plain": "<function f at 0x7f1234567890>"})), "0x7f"),
    (outputs.figures, cell("draw()", figure(alt="short")), "alt text"),
    (outputs.figures, cell("draw()", figure(caption="<Figure size 640x480 with 1 Axes>")), "without a caption"),
    (outputs.figures, cell("draw()", figure(caption="Figure 3. Late.")), "Figure 3 is the 1. figure"),
    (outputs.figures, cell("draw()", shown({"image/svg+xml": "<svg/>", "text/plain": "x"})), "image/svg+xml"),
    (outputs.figures, cell("draw()", HTML_IMAGE), "inside HTML"),
    (outputs.size, cell("draw()", printed("x" * outputs.MAX_BYTES)), "bytes"),
    (outputs.stubs_unsolved, lambda cells: cells[8].update(outputs=[card("✓")]), "does not show as unsolved"),
    (outputs.stubs_unsolved, lambda cells: cells[8].update(outputs=[]), "does not show as unsolved"),
    (prose.length, text("Word word. " * 1001), "words of prose"),
    (prose.sentence_length, text(LONG), "a sentence of 33 words"),
    (prose.sentence_length, text(f"- One.\n- {LONG}"), "a sentence of 33 words"),
    (prose.sentence_length, text(" ".join([MIDDLING] * 20).replace(". word", ". Word")), "on average"),
    (prose.headings, text("## " + " ".join(["word"] * 10)), "a heading of 10 words"),
    (prose.formulas, text("A $\\notacommand{x}$ here."), "unknown to latex2mathml"),
    (prose.formulas, text("A\n\n$$\\left( x$$\n"), "does not convert"),
    (prose.formulas, text("A $\\frac{1}{2$ here."), "unbalanced brace"),
    (prose.wording, text("It works!"), "exclamation mark"),
    *[
        (prose.wording, text(f"This {word} works."), f"the word '{word}'")
        for word in (
            "simply",
            "just",
            "obviously",
            "trivially",
            "of course",
            "clearly",
            "easy",
            "easily",
            "utilise",
            "leverage",
            "note that",
            "it is important",
            "In this notebook we",
        )
    ],
    *[
        (prose.wording, text(promise), "a promise")
        for promise in ("We will see.", "You'll see.", "The next notebook will show.", "It is going to rain.")
    ],
]


def test_a_notebook_that_keeps_the_rules_has_no_findings() -> None:
    assert check_sheet(sheet(lesson())) == []


@pytest.mark.parametrize(("rule", "change", "said"), VIOLATIONS, ids=[f"{r.__name__}-{s}" for r, _, s in VIOLATIONS])
def test_the_rule_finds_its_violation(rule: Rule, change: Change, said: str) -> None:
    notebook = lesson()
    change(notebook.cells)
    findings = list(rule(sheet(notebook)))
    assert any(said in str(finding) for finding in findings), findings
    assert all(finding.remedy and str(finding).startswith("02_x.ipynb") for finding in findings)


def test_every_rule_has_a_violation_here() -> None:
    assert {rule for rule, _, _ in VIOLATIONS} == set(LESSON)
    assert set(SOLUTION) - set(LESSON) == {form.solution}


@pytest.mark.parametrize(
    "harmless",
    [
        cell("x = y.to(torch.float64)\nz = y.to('cpu')\nw = zeros(3, device='cpu')"),
        cell("x.to(device)", tags=("gpu", "nbval-ignore-output")),
        cell("t = time.perf_counter()", printed("took 3 ms\n"), tags=IGNORED),
        text("An adjustment of code: `a != b!` and `just`. See [it](https://example.org) and [03](03_y.ipynb#top)."),
        text("$$\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}$$"),
        text("The will of a reader, e.g. Mary, is free. Easter is in April."),
        text("| a table | with simple | words |\n|---|---|---|\n| 1 | 2 | 3 |"),
    ],
)
def test_what_only_looks_like_a_violation_is_not_one(harmless: Change) -> None:
    notebook = lesson()
    harmless(notebook.cells)
    assert check_sheet(sheet(notebook)) == []


def solution_sheet(content: NotebookNode) -> Sheet:
    return replace(sheet(content), is_solution=True, partner=lesson())


def test_a_solution_that_solves_every_exercise_has_no_findings() -> None:
    assert check_sheet(solution_sheet(solved())) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda cells: cells.pop(), "the core exercise's check_add(...) is not called"),
        (lambda cells: cells[3].metadata.update(tags=["solution"]), "check_add(...) is not called"),
        (lambda cells: cells[3].update(outputs=[card("✗")]), "did not pass"),
        (lambda cells: cells[3].update(outputs=[card("✗"), card("✓")]), "did not pass"),
        (lambda cells: cells[3].update(outputs=[]), "did not pass"),
    ],
)
def test_a_solution_that_does_not_solve_is_found(change: Change, said: str) -> None:
    notebook = solved()
    change(notebook.cells)
    assert any(said in str(finding) for finding in check_sheet(solution_sheet(notebook)))


def test_a_solution_without_its_notebook_is_found() -> None:
    lonely = replace(solution_sheet(solved()), partner=None)
    assert any("no notebook of this name" in str(finding) for finding in check_sheet(lonely))


def glossary(*notebooks: list[NotebookNode]) -> list[str]:
    sheets = [Sheet(f"0{i}_x.ipynb", f"0{i}", numbered([md("# Title"), *cells])) for i, cells in enumerate(notebooks)]
    return [str(finding) for finding in prose.glossary(sheets)]


def test_a_term_is_bold_where_the_course_uses_it_first() -> None:
    assert glossary([md("A **pack** is a row of sequences.".replace("sequences", "texts"))], [md("Two packs.")]) == []
    assert "'pack' occurs" in glossary([md("Two packs here.")], [md("A **pack** is a row of texts.")])[0]
    assert glossary([md("Two packs here.")])[0].startswith("00_x.ipynb: cell 2")


def test_neither_headings_nor_tables_nor_code_use_a_term() -> None:
    before = md("## A pack\n\n| pack |\n|---|\n| pack |\n\nThe name `pack` and $pack$, packing too.")
    assert glossary([before], [md("A **pack** is a row of texts.")]) == []


def test_a_bold_word_alone_defines_nothing() -> None:
    assert len(glossary([md("**Pack**")])) == 1


def test_the_course_misses_a_solution(tmp_path: Path) -> None:
    nbformat.write(lesson(), tmp_path / "02_x.ipynb")
    found = [str(finding) for finding in check_course(find_notebooks(tmp_path))]
    assert found == ["02_x.ipynb: no solution notebook. Write solutions/02_x.ipynb."]
    (tmp_path / "solutions").mkdir()
    nbformat.write(solved(), tmp_path / "solutions" / "02_x.ipynb")
    assert check_course(find_notebooks(tmp_path)) == []
