from __future__ import annotations

import logging
import warnings

import pytest

from mamba_lab.log import messages_of


def test_messages_of_a_library_and_warnings_are_collected_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("some_library")
    shown = logging.StreamHandler()
    library.handlers, library.propagate = [shown], True
    with messages_of("some_library") as messages:
        library.warning("%d kernels are slow", 2)
        logging.getLogger("some_library.part").error("of a part")
        logging.getLogger("other_library").warning("not asked for")
        for _ in range(2):
            warnings.warn("old name", DeprecationWarning, stacklevel=1)
    assert messages == ["2 kernels are slow", "of a part", "old name", "old name"]
    assert "slow" not in capsys.readouterr().err
    assert library.handlers == [shown]
    assert library.propagate
    library.warning("shown again")
    assert messages[-1] == "old name"


def test_handlers_are_back_after_an_error() -> None:
    library = logging.getLogger("failing_library")
    with pytest.raises(RuntimeError), messages_of("failing_library"):
        raise RuntimeError
    assert library.handlers == []
    assert library.propagate
