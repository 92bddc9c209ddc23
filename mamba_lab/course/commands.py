"""The commands `course`, `my` and `reset` of `mamba-lab`. What they need is imported when they run.

ValueError, OSError and a missing extra go up to ``mamba_lab.cli.main``, which says them in one line and returns 1.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .quick import import_nbformat

if TYPE_CHECKING:
    from .notebooks import Notebook


def add_course(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `mamba-lab course`."""
    parser = subparsers.add_parser(
        "course",
        help="execute every notebook in order, write pages, print a table",
        description="Execute every notebook in order on this machine. Executed copies and pages that need no network "
        "go to build/course. Stops at the first cell that fails, shows it, and exits with 1.",
    )
    parser.add_argument("--only", nargs="+", metavar="NN", help="only these notebooks (number or name)")
    parser.add_argument("--in-place", action="store_true", help="also store the outputs in notebooks/ (make notebooks)")
    parser.add_argument("--solutions", action="store_true", help="the solution notebooks too, after the others")
    parser.add_argument("--timeout", type=_seconds, default=120.0, metavar="S", help="seconds a cell may take (120)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the results (build/course)")
    parser.add_argument("--lint", action="store_true", help="execute nothing: list what breaks a notebook's rules")
    parser.set_defaults(func=_course)


def add_my(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `mamba-lab my`."""
    parser = subparsers.add_parser(
        "my",
        help="copy the notebooks to my/, where you work; never overwrites",
        description="Copy the notebooks that my/ lacks, without their stored outputs. Your files are never changed.",
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="the folder (my/ in the checkout)")
    parser.add_argument("--solutions", action="store_true", help="copy the solutions too")
    parser.set_defaults(func=_my)


def add_reset(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `mamba-lab reset`."""
    parser = subparsers.add_parser(
        "reset",
        help="restore one notebook in my/ and keep the old one beside it",
        description="Restore a notebook in my/ from the course. The old one stays beside it as NN_name.kept-1.ipynb.",
    )
    parser.add_argument("notebook", help="its number (02) or name")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="the folder (my/ in the checkout)")
    parser.set_defaults(func=_reset)


def _course(args: argparse.Namespace) -> int:
    import_nbformat()
    from .notebooks import find_notebooks, notebooks_dir, select

    folder = notebooks_dir()
    everything = find_notebooks(folder, solutions=args.solutions or args.lint)
    notebooks = select(everything, args.only) if args.only else everything
    if not notebooks:
        raise FileNotFoundError(f"there is no notebook in {_shown(folder)}")
    if args.lint:
        return _lint(notebooks, whole_course=not args.only)
    from .course import prepare, run_course, table

    output = args.output or folder.parent / "build" / "course"
    beside = [notebook for notebook in everything if notebook not in notebooks]
    outcomes = prepare(notebooks)
    try:
        run_course(outcomes, output, timeout=args.timeout, in_place=args.in_place, beside=beside)
    finally:  # after Ctrl-C too: what ran, ran
        for outcome in outcomes:
            if outcome.execution and outcome.execution.failure:
                print(f"\n{outcome.notebook} stopped in {outcome.execution.failure}\n")
        print(table(outcomes, ledger=args.in_place))
        print(f"pages: {_shown(output / 'index.html')}")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def _lint(notebooks: list[Notebook], *, whole_course: bool) -> int:
    from .rules import check_course, check_notebook

    findings = [finding for notebook in notebooks for finding in check_notebook(notebook)]
    if whole_course:
        findings += check_course([notebook for notebook in notebooks if not notebook.is_solution])
    for finding in findings:
        print(finding)
    print(f"findings: {len(findings)}, notebooks: {len(notebooks)}")
    return 1 if findings else 0


def _my(args: argparse.Namespace) -> int:
    import_nbformat()
    from .notebooks import find_notebooks, notebooks_dir
    from .readers import copy_notebooks

    folder = notebooks_dir()
    my = args.dir or folder.parent / "my"
    report = copy_notebooks(find_notebooks(folder, solutions=args.solutions), my)
    print(f"{_shown(my)}{os.sep}")
    print(report)
    return 0


def _reset(args: argparse.Namespace) -> int:
    import_nbformat()
    from .notebooks import find_notebooks, notebooks_dir
    from .readers import reset

    folder = notebooks_dir()
    done = reset(find_notebooks(folder, solutions=True), args.notebook, args.dir or folder.parent / "my")
    for name, kept in done:
        print(f"{name} is restored; yours is kept as {kept}" if kept else f"{name} is restored")
    return 0


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _shown(path: Path) -> str:
    """``path`` relative to where the user is, when it lies below."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
