"""Checkers for the notebooks' exercises:

``from mamba_lab.exercises.nb02 import check_targets``, then ``check_targets(f)``.
"""

from mamba_lab.exercises.checking import CheckResult, Exercise, Mistake, case

__all__ = ["CheckResult", "Exercise", "Mistake", "case"]
