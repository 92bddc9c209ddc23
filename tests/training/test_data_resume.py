"""Stop after any batch, of any scheme, and go on in another process: the same batches, to the bit, places included."""

from __future__ import annotations

import json
from typing import Any

import pytest
from data_help import SCHEMES, Settings, contents, settings, texts

from mamba_lab.document import Document
from mamba_lab.training.data import TrainingData

__all__ = ["settings"]

# More documents than a buffer, more bins than whole steps, a document of several rows.
LENGTHS = [5, 30, 1, 12, 23, 24, 60, 7, 9, 2, 18, 3, 40, 11]
WEIGHED: dict[str, Any] = {"loss": {"weighting": "sequence"}}


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
def test_after_every_batch(settings: Settings, scheme: str, rank: int, world_size: int) -> None:
    def data() -> TrainingData:
        return settings.data(texts(LENGTHS), scheme, rank=rank, world_size=world_size, **WEIGHED)

    for epoch in (0, 3):
        whole = [contents(batch) for batch in data().epoch(epoch)]
        assert len(whole) > 2
        for k, content in enumerate(whole, 1):
            resumed = data()
            resumed.load_state_dict(through_json(content[-1]))
            assert [contents(batch) for batch in resumed.epoch(epoch)] == whole[k:]
            # The next epoch begins at its start.
            assert [contents(b) for b in resumed.epoch(epoch + 1)] == [contents(b) for b in data().epoch(epoch + 1)]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_after_every_step(settings: Settings, scheme: str, accumulation: int) -> None:
    def data() -> TrainingData:
        return settings.data(texts(LENGTHS), scheme)

    whole = [[contents(batch) for batch in step] for step in data().steps(1, accumulation)]
    assert len(whole) == -(-(data().micro_batches(1) or 0) // accumulation)
    assert [c[0] for step in whole for c in step] == [contents(batch)[0] for batch in data().epoch(1)]
    for k, step in enumerate(whole, 1):
        resumed = data()
        resumed.load_state_dict(through_json(step[-1][-1]))
        assert [[contents(batch) for batch in step] for step in resumed.steps(1, accumulation)] == whole[k:]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_with_other_threads(settings: Settings, scheme: str) -> None:
    whole = [contents(batch) for batch in settings.data(texts(LENGTHS), scheme).epoch(0)]
    resumed = settings.data(texts(LENGTHS), scheme, packing={"workers": 3, "prefetch": 1})
    resumed.load_state_dict(whole[1][-1])
    assert [contents(batch) for batch in resumed.epoch(0)] == whole[2:]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_reader_that_stops_early_leaves_no_thread(settings: Settings, scheme: str) -> None:
    import threading

    data = settings.data(texts(LENGTHS), scheme, packing={"workers": 2, "prefetch": 1})
    for reader in (data.epoch(0), data.steps(0, 2)):
        next(reader)
        reader.close()
    assert [thread.name for thread in threading.enumerate() if "mamba_lab" in thread.name] == []


@pytest.mark.parametrize("scheme", ["packed-greedy", "one-at-a-time", "packed-sequential"])
def test_a_stream_of_documents(settings: Settings, tmp_path: Any, scheme: str) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join(json.dumps({"text": document.text}) for document in texts(LENGTHS)))
    sections: dict[str, Any] = {
        "data": {"corpus": str(file), "streaming": True, "validation_share": 0.3},
        "training": {"max_steps": 1},
    }

    def data(**more: Any) -> TrainingData:
        return settings.data(None, scheme, **{name: sections[name] | more.pop(name, {}) for name in sections}, **more)

    whole = [contents(batch) for batch in data().epoch(0)]
    for k, content in enumerate(whole, 1):
        resumed = data(packing={"workers": 1})
        resumed.load_state_dict(through_json(content[-1]))
        assert [contents(batch) for batch in resumed.epoch(0)] == whole[k:]
    with pytest.raises(ValueError, match=r"max_documents is None in the state and 9 here"):
        data(data={"max_documents": 9}).load_state_dict(whole[0][-1])


def test_the_place_is_kept_until_a_batch_came(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    data = settings.data(texts(LENGTHS), "fixed")
    whole = [contents(batch) for batch in data.epoch(0)]
    data.load_state_dict(whole[1][-1])
    with monkeypatch.context() as patch:
        patch.setattr("mamba_lab.training.planned.pack_collate", fails)
        with pytest.raises(RuntimeError, match="disk"):
            next(data.epoch(0))
    assert [contents(batch) for batch in data.epoch(0)] == whole[2:]
    assert [contents(batch) for batch in data.epoch(0)] == whole  # used up


def fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the disk is gone")


def test_another_epoch_begins_at_its_start_and_forgets_the_place(settings: Settings) -> None:
    data = settings.data(texts(LENGTHS))
    first = next(data.epoch(0))
    data.load_state_dict(first.stream_state)
    later = [contents(batch) for batch in data.epoch(1)]
    assert len(later) == data.micro_batches(1)
    assert len(list(data.epoch(0))) == data.micro_batches(0)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"packing": {"scheme": "padded"}}, "scheme is 'packed-greedy' in the state and 'padded' here"),
        ({"packing": {"capacity": 25}}, "capacity is 24 in the state and 25 here"),
        ({"packing": {"rows": 3}}, "rows is 2 in the state and 3 here"),
        ({"packing": {"buffer_size": 6}}, "buffer_size is 5 in the state and 6 here"),
        ({"packing": {"shuffle": False}}, "shuffle is True in the state and False here"),
        ({"packing": {"pad_to_multiple_of": 8}}, "pad_to_multiple_of is None in the state and 8 here"),
        ({"training": {"seed": 4}}, "seed is 0 in the state and 4 here"),
        ({"data": {"add_end": False}}, "(.*)checksum of token ids and targets is [0-9]+ in the state and [0-9]+ here"),
        ({"data": {"min_seq_len": 5}}, "number of training documents is 14 in the state and 11 here"),
        ({"data": {"validation_share": 0.2}}, "number of training documents is 14 in the state"),
    ],
)
def test_other_settings_are_named_and_nothing_changes(settings: Settings, sections: Any, message: str) -> None:
    state = next(settings.data(texts(LENGTHS)).epoch(0)).stream_state
    other = settings.data(texts(LENGTHS), **sections)
    with pytest.raises(ValueError, match=rf"state belongs to another run: (.*; )?(the )?{message}"):
        other.load_state_dict(state)
    assert len(list(other.epoch(0))) >= (other.micro_batches(0) or 0)


@pytest.mark.parametrize(
    ("scheme", "packing", "message"),
    [
        ("bucketed", {"max_tokens": 96}, "max_tokens is 48 in the state and 96 here"),
        ("bucketed", {"n_buckets": 2}, "n_buckets is 8 in the state and 2 here"),
        ("bucketed", {"max_spread": 5}, "max_spread is 128 in the state and 5 here"),
        ("bucketed", {"max_padding": 0.5}, "max_padding is 0.2 in the state and 0.5 here"),
        ("padded", {"sort": "sorted"}, "order is 'random' in the state and 'sorted' here"),
        ("fixed", {"rows": 1}, "rows is 2 in the state and 1 here"),
    ],
)
def test_settings_of_one_scheme(settings: Settings, scheme: str, packing: Any, message: str) -> None:
    state = next(settings.data(texts(LENGTHS), scheme).epoch(0)).stream_state
    with pytest.raises(ValueError, match=message):
        settings.data(texts(LENGTHS), scheme, packing=packing).load_state_dict(state)


def test_settings_that_a_scheme_does_not_use_may_change(settings: Settings) -> None:
    state = next(settings.data(texts(LENGTHS), "fixed").epoch(0)).stream_state
    settings.data(texts(LENGTHS), "fixed", packing={"buffer_size": 99, "n_buckets": 2, "workers": 2}).load_state_dict(
        state
    )


def test_other_texts_of_the_same_lengths(settings: Settings) -> None:
    documents = texts(LENGTHS)
    state = next(settings.data(documents).epoch(0)).stream_state
    last = documents[-1]
    changed = [*documents[:-1], Document(last.text[:-1] + "!", last.id, last.source)]
    with pytest.raises(ValueError, match="the checksum of token ids and targets is"):
        settings.data(changed).load_state_dict(state)


def test_another_number_of_ranks(settings: Settings) -> None:
    state = next(settings.data(texts(LENGTHS)).epoch(0)).stream_state
    with pytest.raises(ValueError, match="world_size is 1 in the state and 2 here"):
        settings.data(texts(LENGTHS), world_size=2).load_state_dict(state)


@pytest.mark.parametrize("state", [None, 3, {}, {"epoch": 0}])
def test_what_is_no_state(settings: Settings, state: Any) -> None:
    with pytest.raises(ValueError, match="state must be the stream_state of a batch from TrainingData, got"):
        settings.data(texts(LENGTHS)).load_state_dict(state)


def test_a_place_that_the_epoch_does_not_have(settings: Settings) -> None:
    data = settings.data(texts(LENGTHS), "fixed")
    state = next(data.epoch(0)).stream_state
    assert isinstance(state, dict)
    data.load_state_dict(state | {"place": 99})
    with pytest.raises(ValueError, match="the state is after micro-batch 99, but epoch 0 has 10 of them"):
        next(data.epoch(0))
