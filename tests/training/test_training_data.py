"""A run's data: every target once under every scheme, nothing left out uncounted, what is held out, what is refused."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_help import SCHEMES, Settings, alone, as_taught, chat, contents, settings, taught, texts
from hypothesis import HealthCheck, given, reject
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mamba_lab.corpus import load_corpus
from mamba_lab.training import sequence_maker
from mamba_lab.training.config import ConfigError, TrainingConfig
from mamba_lab.training.data import TrainingData
from mamba_lab.training.documents import validation_numbers

__all__ = ["settings"]

LENGTHS = [5, 30, 1, 12, 23, 24, 60, 7, 9, 2, 18, 3, 40]


@pytest.mark.parametrize("scheme", SCHEMES)
@hypothesis_settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 70), min_size=4, max_size=14),
    epoch=st.integers(0, 3),
    world_size=st.integers(1, 3),
    rows=st.integers(1, 3),
)
def test_every_token_and_target_is_in_one_place(
    settings: Settings, scheme: str, lengths: list[int], epoch: int, world_size: int, rows: int
) -> None:
    documents = texts(lengths)
    found, counts = [], set()
    for rank in range(world_size):
        # A few long documents cannot be buckets for every rank; the sampler says so when it is built.
        packing = {"rows": rows, "n_buckets": 2}
        try:
            data = settings.data(documents, scheme, rank=rank, world_size=world_size, packing=packing)
        except ValueError as error:
            if scheme not in ("padded", "bucketed") or "rank" not in str(error):
                raise
            reject()
        batches = list(data.epoch(epoch))
        found += batches
        steps = len(list(data.steps(epoch, 1)))
        assert data.micro_batches(epoch) == steps
        counts.add(steps)
    assert as_taught(taught(found), scheme) == as_taught(alone(settings.tokenizer, documents), scheme)
    assert len(counts) == 1, "the ranks have different numbers of steps"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_row_is_longer_than_the_capacity_and_no_batch_than_its_budget(settings: Settings, scheme: str) -> None:
    for batch in settings.data(texts(LENGTHS), scheme).epoch(0):
        assert batch.input_ids.shape[1] <= 24
        assert batch.input_ids.numel() <= 48


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_order_follows_from_seed_and_epoch_alone(settings: Settings, scheme: str) -> None:
    def order(epoch: int = 0, **sections: Any) -> list[Any]:
        return [batch.input_ids.tolist() for batch in settings.data(texts(LENGTHS), scheme, **sections).epoch(epoch)]

    assert order() == order() == order(packing={"workers": 2, "prefetch": 1})
    assert order() != order(1)
    assert order() != order(training={"seed": 1})
    assert order(training={"seed": 1}) == order(data={"seed": 1})
    assert order(packing={"shuffle": False}) == order(1, packing={"shuffle": False}, training={"seed": 5})


def test_the_sequences_have_the_numbers_of_the_corpus(settings: Settings) -> None:
    documents = texts([5, 1, 8, 0, 9, 6])
    data = settings.data(documents, data={"min_seq_len": 5, "validation_share": 0.3, "seed": 2})
    for batches in (list(data.epoch(0)), list(data.validation())):
        for number in {number for number, _, _ in taught(batches)}:
            own = [(token, target) for n, token, target in taught(batches) if n == number]
            assert own == [(token, target) for n, token, target in alone(settings.tokenizer, documents) if n == number]


def test_what_is_left_out_is_counted_and_said(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "some.jsonl"
    lines = [json.dumps({"text": "x" * n}) for n in (3, 20, 1, 40, 10)]
    file.write_text("\n".join([lines[0], "{broken", *lines[1:], json.dumps({"text": "beyond"})]))
    data_settings = {
        "corpus": str(file), "on_error": "skip", "max_documents": 5, "min_seq_len": 3, "max_seq_len": 30,
    }  # fmt: skip
    with caplog.at_level(logging.INFO, "mamba_lab"):
        data = settings.data(None, data=data_settings, packing={"overflow": "truncate", "capacity": 16})
    counts = data.counts
    assert (counts.unread, counts.beyond) == (1, 1)
    assert (counts.too_short, counts.too_short_tokens) == (1, 2)
    assert (counts.shortened, counts.shortened_tokens) == (1, 11)  # 41 tokens with the end
    assert (counts.truncated, counts.truncated_tokens) == (2, 21 - 16 + 30 - 16)
    assert (counts.training, counts.training_tokens, counts.training_targets) == (4, 4 + 16 + 16 + 11, 3 + 15 + 15 + 10)
    assert sum(batch.n_tokens for batch in data.epoch(0)) == counts.training_tokens
    assert sum(batch.n_target_tokens for batch in data.epoch(0)) == counts.training_targets
    said = "; ".join(
        [
            "data: 4 documents to train on (47 tokens, 43 targets), 0 for validation (0 targets)",
            "1 document left out: cannot be read",
            "1 document left out: beyond data.max_documents",
            "1 document left out: shorter than data.min_seq_len (2 tokens)",
            "1 document cut off at data.max_seq_len (11 tokens)",
            '2 documents cut off by packing.overflow = "truncate" (19 tokens).',
        ]
    )
    assert said in caplog.messages


def test_a_sequence_ends_where_it_was_cut_off(settings: Settings) -> None:
    documents = texts([10, 4])
    for sections in ({"data": {"max_seq_len": 6}}, {"packing": {"capacity": 6, "overflow": "truncate"}}):
        for scheme in ("fixed", "bucketed", "packed-greedy"):
            batches = list(settings.data(documents, scheme, **sections).epoch(0))
            assert taught(batches) == alone(settings.tokenizer, documents, most=6)


def test_overflow_error_names_the_document_and_spares_validation(settings: Settings) -> None:
    documents = texts([10, 30, 4, 31])
    packing = {"overflow": "error"}
    with pytest.raises(ValueError, match=r"document 1 \(d1\) has 31 tokens, above packing.capacity 24"):
        settings.data(documents, packing=packing)
    held_out = validation_numbers(range(4), 0.6, seed=0)
    assert held_out == {0, 1, 2}  # so that 1 is cut, and 3 is refused
    with pytest.raises(ValueError, match=r"document 3 \(d3\) has 32 tokens"):
        settings.data(documents, packing=packing, data={"validation_share": 0.6, "seed": 0})
    data = settings.data(documents[:3] + texts([9]), packing=packing, data={"validation_share": 0.6, "seed": 0})
    assert sum(batch.n_target_tokens for batch in data.validation()) == 10 + 30 + 4


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_validation_has_every_target_once_and_stays_the_same(settings: Settings, world_size: int) -> None:
    documents, sections = texts(LENGTHS), {"data": {"validation_share": 0.5}}
    held_out = validation_numbers(range(len(documents)), 0.5, seed=0)
    found, steps = [], set()
    for rank in range(world_size):
        data = settings.data(documents, rank=rank, world_size=world_size, **sections)
        batches = list(data.validation())
        assert [contents(batch) for batch in batches] == [contents(batch) for batch in data.validation()]
        steps.add(len(batches))
        found += batches
    assert len(steps) == 1
    assert taught(found) == [t for t in alone(settings.tokenizer, documents) if t[0] in held_out]
    train = [n for n, _, _ in taught(list(settings.data(documents, **sections).epoch(0)))]
    assert set(train) == set(range(len(documents))) - held_out


def test_who_is_held_out_depends_on_seed_and_number_alone() -> None:
    chosen = validation_numbers(range(1000), 0.05, seed=0)
    assert sorted(chosen)[:5] == [5, 16, 46, 98, 104]  # the same on every machine, and for ever
    assert 30 < len(chosen) < 70
    assert {number for number in chosen if number < 500} == validation_numbers(range(500), 0.05, seed=0)
    assert validation_numbers(range(1000), 0.05, seed=1) != chosen
    # Chance may hold out none of a few, or all: one is on each side then.
    for seed in range(40):
        assert len(validation_numbers(range(3), 0.01, seed)) == 1
        assert len(validation_numbers(range(3), 0.99, seed)) == 2
    assert validation_numbers(range(1), 0.5, 0) == validation_numbers(range(9), 0.0, 0) == frozenset()


def test_without_documents_held_out_there_is_no_validation(settings: Settings) -> None:
    assert list(settings.data(texts([5, 6])).validation()) == []
    assert list(settings.data(texts([5]), data={"validation_share": 0.5}).validation()) == []


def test_only_what_the_assistant_says_is_taught(settings: Settings) -> None:
    documents = chat("hi|yes|ok", "no", "a|b")
    encode, roles, end = settings.tokenizer.encode, settings.tokenizer.role_ids, settings.tokenizer.end_id

    def targets(teach: str, **more: Any) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        data = settings.data(documents, data={"corpus": "own", "teach": teach, **more})
        for batch in data.epoch(0):
            for number, _, target in taught_in_order(batch):
                found[number] += [target] * (target != -100)
        assert data.counts.silent == sum(not own for own in found.values())
        return found

    # What ends the assistant's turn is taught: the next role's token, or the end. The user's end is not.
    assert targets("assistant") == {0: [*encode("yes"), roles["user"]], 1: [], 2: [*encode("b"), end]}
    assert targets("assistant", add_end=False) == {0: [*encode("yes"), roles["user"]], 1: [], 2: encode("b")}
    # All that follows the prompt, which ends with the assistant's first role token.
    after = [*encode("yes"), roles["user"], *encode("ok"), end]
    assert targets("prompt") == {0: after, 1: [], 2: [*encode("b"), end]}
    assert targets("prompt", max_seq_len=6) == {0: encode("yes")[:2], 1: [], 2: [*encode("b"), end]}


def taught_in_order(batch: Any) -> list[tuple[int, int, int]]:
    cu, found = batch.boundaries.cu_seqlens.tolist(), []
    for place, number in enumerate(batch.sequence.tolist()):
        span = slice(cu[place], cu[place + 1])
        ids, targets = (x.flatten()[span].tolist() for x in (batch.input_ids, batch.targets))
        found += [(number, *pair) for pair in zip(ids, targets, strict=True) if number >= 0]
    return found


def test_teaching_the_assistant_needs_conversations(settings: Settings) -> None:
    message = (
        r"document 'd0'.*is no conversation.*data.text_field.*or train on whole documents: data.teach = \"whole\"\."
    )
    with pytest.raises(ValueError, match=message):
        settings.data(texts([5]), data={"teach": "assistant", "corpus": "own"})


def test_a_stream_that_teaches_the_assistant_needs_conversations(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("a few words")
    wanted = {"corpus": str(tmp_path / "some.txt"), "streaming": True, "teach": "assistant"}
    data = settings.data(None, data=wanted, training={"max_steps": 1})
    with pytest.raises(ValueError, match=r'or train on whole documents: data\.teach = "whole"'):
        next(data.epoch(0))


WRONG: dict[str, Any] = {
    "shifted twice": lambda ids: np.append(ids[2:], [-100, -100])[: len(ids)],
    "not shifted": lambda ids: np.array(ids),
    "all masked": lambda ids: np.full(len(ids), -100),
    "unmasked boundary": lambda ids: np.append(ids[1:], ids[0]),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_targets_are_named_before_the_first_step(
    settings: Settings, scheme: str, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_maker, "make_targets", lambda ids: WRONG[mistake](ids))
    documents = texts([20] * 40)
    with pytest.raises(ValueError, match=f"check_targets finds mistakes(.|\n)*{mistake}: "):
        next(settings.data(documents, scheme, packing={"workers": 1}).epoch(0))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_stretch_of_prompts_after_a_resume_is_no_mistake(
    settings: Settings, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[int] = Counter()

    def targets(ids: Any) -> Any:
        seen[0] += 1
        return np.append(ids[1:], -100) if seen[0] <= 20 else np.full(len(ids), -100)

    monkeypatch.setattr(sequence_maker, "make_targets", targets)
    data = settings.data(texts([23] * 40), scheme, packing={"shuffle": False, "rows": 1, "max_tokens": 24})
    first = [batch for _, batch in zip(range(22), data.epoch(0), strict=False)]
    data.load_state_dict(first[-1].stream_state)
    assert sum(batch.n_target_tokens for batch in data.epoch(0)) == 0


@pytest.mark.parametrize("scheme", ["packed-sequential", "packed-greedy", "packed-best-fit", "one-at-a-time"])
@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_documents_are_the_same_documents(
    settings: Settings, tmp_path: Path, scheme: str, workers: int
) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join(json.dumps({"text": document.text}) for document in texts([*LENGTHS, 50])))
    sections: dict[str, Any] = {
        "data": {"corpus": str(file), "validation_share": 0.4, "min_seq_len": 4, "max_documents": len(LENGTHS)},
        "loss": {"weighting": "sequence"},
        "training": {"max_steps": 1},
    }
    there = settings.data(None, scheme, **sections)
    sections["data"]["streaming"] = True
    streamed = settings.data(None, scheme, packing={"workers": workers}, **sections)
    assert (streamed.micro_batches(0), streamed.n_documents) == (None, None)
    for _ in range(2):
        assert taught(list(streamed.epoch(0))) == taught(list(there.epoch(0)))
        assert taught(list(streamed.validation())) == taught(list(there.validation()))
        weights = [sum(float(batch.weights.sum()) for batch in d.epoch(0)) for d in (there, streamed)]
        assert weights == pytest.approx([there.n_documents] * 2)
        assert str(streamed.counts) == str(there.counts).replace("; 1 document left out: beyond data.max_documents", "")


def test_what_a_stream_left_out_is_said_at_the_end_of_its_epoch(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join(["{broken", *(json.dumps({"text": "x" * n}) for n in (3, 20, 1))]))
    data_settings = {"corpus": str(file), "on_error": "skip", "streaming": True, "min_seq_len": 3, "max_seq_len": 9}
    data = settings.data(None, data=data_settings, training={"max_steps": 1})
    with caplog.at_level(logging.INFO, "mamba_lab"):
        list(data.epoch(2))
    assert caplog.messages[-1] == "data, read in epoch 2: " + "; ".join(
        [
            "2 documents to train on (13 tokens, 11 targets)",
            "1 document left out: cannot be read",
            "1 document left out: shorter than data.min_seq_len (2 tokens)",
            "1 document cut off at data.max_seq_len (12 tokens).",
        ]
    )


def test_streamed_documents_without_any_held_out(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("a few words")
    data = settings.data(None, data={"corpus": str(file), "streaming": True}, training={"max_steps": 1})
    assert list(data.validation()) == []
    assert len(list(data.epoch(0))) == 1


def test_a_shipped_corpus_by_name(settings: Settings) -> None:
    data = settings.data(None, data={"corpus": "chat", "max_documents": 20}, packing={"capacity": 512})
    assert data.n_documents == 20
    assert data.counts.beyond == len(load_corpus("chat")) - 20
    assert data.vocab_size == settings.tokenizer.vocab_size


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"corpus": "no-such"}}, "data.corpus is 'no-such': no corpus has that name"),
        ({"data": {"corpus": "no/such.txt"}}, "data.corpus: there is no file or folder no/such.txt"),
        ({"data": {"tokenizer": "no-such.json"}}, "data.tokenizer: there is no file no-such.json"),
        (
            {"data": {"corpus": "chat", "max_documents": 3, "min_seq_len": 9999}},
            "leaves no document to train on .*3 doc",
        ),
    ],
)
def test_a_setting_that_cannot_be_met_is_named(settings: Settings, sections: Any, message: str) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        settings.data(None, **sections)


def test_a_broken_file_says_where_and_what_to_set(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text('{"text": "fine"}\n{broken')
    with pytest.raises(ValueError, match=r'line 2(.|\n)*data.on_error = "skip"'):
        settings.data(None, data={"corpus": str(file)})


def test_ranks_and_schemes_that_cannot_be(settings: Settings) -> None:
    with pytest.raises(ValueError, match="rank is 2, but world_size 2 has ranks 0 to 1"):
        settings.data(texts([5]), rank=2, world_size=2)
    with pytest.raises(ConfigError):
        settings.data(texts([5]), data={"streaming": True}, training={"max_steps": 1}, packing={"scheme": "fixed"})


@pytest.mark.parametrize("value", [{"training": {"max_steps": 1}}, None, "my.toml", TrainingConfig()])
def test_settings_of_another_kind(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^config must be a TrainConfig, got {type(value).__name__}\. Make one of a"):
        TrainingData(value, documents=texts([5]))


@pytest.mark.parametrize("value", ["some text", b"", Path("my.jsonl"), {"text": "a"}, 5])
def test_documents_of_another_kind(settings: Settings, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^documents must be a list of Document\(text, id, source\), got "):
        settings.data(value)


@pytest.mark.parametrize("state", [5, {}, {"settings": {}}, dict.fromkeys(["epoch", "place", "part", "batches"], 0)])
def test_a_state_of_another_kind(settings: Settings, state: Any) -> None:
    for value in (state, {**state, "settings": 5} if isinstance(state, dict) else None):
        with pytest.raises(ValueError, match=r"^state must be the stream_state of a batch from TrainingData, got "):
            settings.data(texts([5])).load_state_dict(value)
