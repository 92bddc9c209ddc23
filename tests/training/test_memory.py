"""Settings that no memory can hold are refused before any of it is taken, with the setting, the bytes and a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from data_help import Settings, settings, texts  # noqa: F401

from mamba_lab.training import memory, train
from mamba_lab.training.config import TrainConfig

MIB, GIB = 2**20, 2**30
LONG = {"capacity": 2**31 - 1, "rows": 1}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 8 GiB with 1 GiB free."""
    monkeypatch.setattr(memory, "memory_mib", lambda: (8192, 1024))


def config(**sections: Any) -> TrainConfig:
    return TrainConfig(**sections)


@pytest.mark.usefixtures("small")
def test_a_stream_of_a_million_rows(settings: Settings, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "my.jsonl"
    path.write_text("".join(json.dumps({"text": each.text}) + "\n" for each in texts([5, 9, 30])))
    data = {"tokenizer": settings.path, "corpus": str(path), "streaming": True}
    packing = {"rows": 1_000_000, "capacity": 2048}
    with pytest.raises(ValueError, match="rows") as caught:
        train(config(data=data, packing=packing, training={"max_steps": 3}))
    assert str(caught.value) == (
        "packing.rows is 1,000,000 and packing.capacity 2,048: a micro-batch of 2,048,000,000 positions, whose token "
        "ids and targets alone take 30.5 GiB, and 1.0 GiB of memory are free. Take fewer rows and more "
        "training.gradient_accumulation_steps."
    )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("scheme", ["packed-greedy", "packed-sequential", "one-at-a-time", "concat", "fixed"])
@pytest.mark.parametrize(
    ("packing", "remedy"),
    [
        (LONG, "Take a smaller capacity."),
        ({"pad_to_multiple_of": 2**31 - 1, "rows": 1}, "Take a smaller packing.pad_to_multiple_of."),
    ],
)
def test_a_row_that_does_not_fit(
    settings: Settings,  # noqa: F811
    scheme: str,
    packing: dict[str, int],
    remedy: str,
) -> None:
    with pytest.raises(ValueError, match=r"a micro-batch of 2,147,483,647 positions.* take 32\.0 GiB") as caught:
        settings.data(texts([5, 9]), scheme, packing=packing)
    assert str(caught.value).endswith(remedy)
    assert ("pad_to_multiple_of 2,147" in str(caught.value)) is ("pad_to_multiple_of" in packing)


@pytest.mark.parametrize("scheme", ["padded", "bucketed"])
def test_batches_that_are_as_wide_as_their_longest_may_have_any_capacity(
    settings: Settings,  # noqa: F811
    scheme: str,
) -> None:
    """Validation's packs too, which are no wider than all that is held out."""
    made = settings.data(texts([5, 9, 30, 7, 11]), scheme, packing=LONG, data={"validation_share": 0.4})
    assert max(batch.input_ids.numel() for batch in made.epoch(0)) < 1000
    assert 0 < max(batch.input_ids.shape[1] for batch in made.validation()) < 100


@pytest.mark.usefixtures("small")
def test_fixed_chunks_fill_no_more_rows_than_there_are(settings: Settings) -> None:  # noqa: F811
    made = settings.data(texts([5, 9]), "fixed", packing={"capacity": 2048, "rows": 1_000_000})
    assert [batch.input_ids.shape for batch in made.epoch(0)] == [(2, 2048)]


def test_a_capacity_that_no_document_fills(settings: Settings) -> None:  # noqa: F811
    with pytest.raises(ValueError, match=r"packing.capacity is 2,000,000, but .* 16 tokens together: .* at most 16\."):
        settings.data(texts([5, 9]), packing={"capacity": 2_000_000, "rows": 1})
    settings.data(texts([5, 9]), packing={"capacity": 1_000_000, "rows": 1})  # a trial may waste a little


@pytest.mark.parametrize(("weighting", "fits"), [("token", True), ("sequence", False)])
def test_weights_take_their_part(
    settings: Settings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    weighting: str,
    fits: bool,
) -> None:
    """16 bytes a position, and 4 for its weight: 65,536 positions fill a mebibyte without."""
    monkeypatch.setattr(memory, "memory_mib", lambda: (8, 1))
    packing, loss = {"capacity": 8192, "rows": 8}, {"weighting": weighting}
    if fits:
        memory.require_batch_fits(config(packing=packing).packing, weighted=False)
        settings.data(texts([5, 9]), packing=packing, loss=loss)
    else:
        with pytest.raises(ValueError, match=r"take 1\.2 MiB, and 1\.0 MiB of memory are free"):
            settings.data(texts([5, 9]), packing=packing, loss=loss)


@pytest.mark.usefixtures("small")
def test_a_model_that_does_not_fit() -> None:
    cpu = torch.device("cpu")
    # 3 * 2 * 1024 * 1024 in each block and 8192 * 1024: 16 bytes each.
    sizes = {"d_model": 1024, "n_layer": 10}
    memory.require_training_fits(config(model=sizes | {"n_layer": 9}, packing={"capacity": 64}), 8192, cpu)
    with pytest.raises(ValueError, match="model") as caught:
        memory.require_training_fits(config(model=sizes), 8192, cpu)
    assert str(caught.value) == (
        "model.d_model is 1,024, model.expand 2, model.n_layer 10 and the vocabulary 8,192: more than 71,303,168 "
        "parameters, which take 1.1 GiB with gradients and moments, and 1.0 GiB of memory are free. Take a smaller "
        "model."
    )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("scheme", "refused"), [("packed-greedy", True), ("padded", False), ("one-at-a-time", False)])
def test_rows_for_which_the_layers_keep_too_much(scheme: str, refused: bool) -> None:
    chosen = config(packing={"scheme": scheme, "capacity": 8192, "rows": 512}, model={"d_model": 128, "n_layer": 4})
    if not refused:
        memory.require_training_fits(chosen, 8192, torch.device("cpu"))
        return
    with pytest.raises(ValueError, match=r"packing\.rows is 512 and packing\.capacity 8,192") as caught:
        memory.require_training_fits(chosen, 8192, torch.device("cpu"))
    assert "for which 4 layers of 128 keep at least 4.0 GiB beside the 22.0 MiB of the model" in str(caught.value)
    assert str(caught.value).endswith("Take fewer rows and more training.gradient_accumulation_steps.")


def test_a_gpu_is_reckoned_by_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = GIB

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(memory, "memory_mib", lambda: None)
    with pytest.raises(ValueError, match=r"and this GPU has 1\.0 GiB"):
        memory.require_training_fits(config(model={"d_model": 1024, "n_layer": 10}), 8192, torch.device("cuda"))


def test_what_is_not_known_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_mib", lambda: None)
    chosen = config(model={"d_model": 2**31 - 1}, packing=LONG)
    memory.require_batch_fits(chosen.packing, weighted=True)
    memory.require_training_fits(chosen, 8192, torch.device("cpu"))
    there = config(model={"from_pretrained": "somewhere"})
    monkeypatch.setattr(memory, "memory_mib", lambda: (1, 1))
    memory.require_training_fits(there, 8192, torch.device("cpu"))
