from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.paths import data_dir

pytest.importorskip("tokenizers")
from mamba_lab.tokenizer import END, PAD, ROLES, load_tokenizer, role_token

ANY_TEXT = st.text(st.characters(exclude_categories=[]))  # lone surrogates too


def test_size_and_special_tokens() -> None:
    tokenizer = load_tokenizer()
    assert tokenizer.vocab_size == len(tokenizer) == 8192
    specials = [tokenizer.end_id, tokenizer.pad_id, *tokenizer.role_ids.values()]
    assert len(set(specials)) == 5
    assert tokenizer.pad_id != 0
    assert list(tokenizer.role_ids) == list(ROLES)
    assert [tokenizer.token(i) for i in specials] == [END, PAD, "<|user|>", "<|assistant|>", "<|system|>"]


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT)
def test_any_text_comes_back(text: str) -> None:
    tokenizer = load_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_come_back(data: bytes) -> None:
    tokenizer = load_tokenizer()
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(data)) == data


def test_every_byte_alone_and_every_byte_after_every_other() -> None:
    tokenizer = load_tokenizer()
    everything = bytes(range(256))
    pairs = bytes(b for first in range(256) for second in range(256) for b in (first, second))
    for data in (everything, pairs, b"\xc3", b"ab\xff\xfe\x00cd", "é".encode()[:1] + b"x"):
        assert tokenizer.decode_bytes(tokenizer.encode_bytes(data)) == data


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  spaces  ",
        "tab\tline\r\nend\n\n",
        "e\u0301 is not \u00e9",
        "ﬁ ligature",
        "\ufeffBOM",
        "\x00\x1f\x85\xa0",
        "日本語 👩‍👩‍👧 🇺🇳",
    ],
)
def test_nothing_is_normalised(text: str) -> None:
    tokenizer = load_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text) == tokenizer.encode_bytes(text.encode())


def test_bytes_that_are_text_are_encoded_as_text() -> None:
    tokenizer = load_tokenizer()
    before, after = tokenizer.encode("a good morning"), tokenizer.encode(" to you")
    assert tokenizer.encode_bytes(b"a good morning\xff to you") == [*before, tokenizer.encode_bytes(b"\xff")[0], *after]


@pytest.mark.parametrize("token", [END, PAD, *map(role_token, ROLES)])
def test_special_tokens_in_text_stay_text(token: str) -> None:
    tokenizer = load_tokenizer()
    text = f"before{token} after {token}"
    specials = {tokenizer.end_id, tokenizer.pad_id, *tokenizer.role_ids.values()}
    (batch,) = tokenizer.encode_batch([text])
    for ids in (tokenizer.encode(text), batch.tolist(), tokenizer.encode_bytes(text.encode())):
        assert not specials.intersection(ids)
        assert tokenizer.decode(ids) == text
    turn = tokenizer.encode_turns([("user", text)])
    assert [i for i in turn if i in specials] == [tokenizer.role_ids["user"]]


def test_add_end_appends_one_token() -> None:
    tokenizer = load_tokenizer()
    ids = tokenizer.encode("Read books")
    assert tokenizer.encode("Read books", add_end=True) == [*ids, tokenizer.end_id]
    assert tokenizer.encode_batch(["Read books"], add_end=True)[0].tolist() == [*ids, tokenizer.end_id]
    assert tokenizer.decode([*ids, tokenizer.end_id]) == "Read books" + END


def test_batch_is_encode_for_each_text() -> None:
    tokenizer = load_tokenizer()
    for texts in (["The dog", "", "日本 語\n"], ["fine", "lone \ud800 surrogate"]):
        arrays = tokenizer.encode_batch(iter(texts))
        assert [a.dtype for a in arrays] == [np.dtype(np.int32)] * len(texts)
        assert [a.tolist() for a in arrays] == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []
    with pytest.raises(TypeError, match=r"texts\[1\] is a NoneType"):
        tokenizer.encode_batch(["a", None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="encode_bytes"):
        tokenizer.encode(b"bytes")  # type: ignore[arg-type]


def test_turns_carry_their_roles() -> None:
    tokenizer = load_tokenizer()
    ids = tokenizer.encode_turns([("user", "Hello"), ("assistant", "Hi")], add_end=True)
    roles = tokenizer.role_ids
    assert ids == [
        roles["user"],
        *tokenizer.encode("Hello"),
        roles["assistant"],
        *tokenizer.encode("Hi"),
        tokenizer.end_id,
    ]
    with pytest.raises(ValueError, match="'bot'"):
        tokenizer.encode_turns([("bot", "Hello")])


def test_half_a_character_decodes_to_the_replacement_character() -> None:
    tokenizer = load_tokenizer()
    ids = tokenizer.encode_bytes("é".encode()[:1])
    assert tokenizer.decode(ids) == tokenizer.token(ids[0]) == "\ufffd"


@pytest.mark.parametrize("wrong", [-1, 8192])
def test_an_id_outside_the_vocabulary_is_named(wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"ids\[1\] is {wrong}"):
        load_tokenizer().decode([5, wrong])


@pytest.mark.parametrize("wrong", [1.5, "a", None, [1], np.float32(2), np.array([1])])
def test_an_id_that_is_no_whole_number_is_named(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"ids\[1\] is .*: expected a whole number from 0 to 8191.*Pass what encode"):
        load_tokenizer().decode([5, wrong])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"token_id is .*: expected a whole number"):
        load_tokenizer().token(wrong)  # type: ignore[arg-type]


def test_ids_that_are_no_sequence_and_data_that_is_no_bytes_are_named() -> None:
    with pytest.raises(TypeError, match="ids is a int: expected a sequence"):
        load_tokenizer().decode(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"data is a str: expected bytes\. For text there is encode"):
        load_tokenizer().encode_bytes("a")  # type: ignore[arg-type]
    assert load_tokenizer().encode_bytes(bytearray(b"ab")) == load_tokenizer().encode_bytes(b"ab")


def test_a_tokenizer_without_the_special_tokens_is_refused(tmp_path: Path) -> None:
    spec = json.loads((data_dir() / "tokenizer.json").read_text("utf-8"))
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] != PAD]
    del spec["model"]["vocab"][PAD]
    path = tmp_path / "no_pad.json"
    path.write_text(json.dumps(spec), "utf-8")
    with pytest.raises(ValueError, match=r"no_pad.json has no token <\|pad\|>"):
        load_tokenizer(path)


def _changed(path: Path, **entries: object) -> Path:
    """The shipped tokenizer's file with other entries."""
    spec = json.loads((data_dir() / "tokenizer.json").read_text("utf-8"))
    path.write_text(json.dumps({**spec, **entries}), "utf-8")
    return path


def test_truncation_and_padding_in_a_file_are_off(tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": PAD,
    }
    texts = ["The dog is hungry", "a"]
    shipped = load_tokenizer().encode_batch(texts)
    for name, entries in [("cut", {"truncation": cut}), ("pad", {"padding": pad})]:
        tokenizer = load_tokenizer(_changed(tmp_path / f"{name}.json", **entries))
        assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == [ids.tolist() for ids in shipped]
        assert [tokenizer.encode(text) for text in texts] == [ids.tolist() for ids in shipped]


@pytest.mark.parametrize(
    "normalizer", [{"type": "Lowercase"}, {"type": "NFC"}, {"type": "Sequence", "normalizers": []}]
)
def test_a_normalizer_is_refused(tmp_path: Path, normalizer: dict[str, object]) -> None:
    path = _changed(tmp_path / "lower.json", normalizer=normalizer)
    with pytest.raises(ValueError, match=r'lower\.json has a normalizer \(\w+\).*Set "normalizer" to null'):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
    ],
)
def test_a_pre_tokenizer_that_changes_the_text_is_refused(tmp_path: Path, pre_tokenizer: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"pre\.json changes the text: 'A  b"):
        load_tokenizer(_changed(tmp_path / "pre.json", pre_tokenizer=pre_tokenizer))


@pytest.mark.parametrize("word", ["a", "▁a"])
def test_a_tokenizer_that_is_not_byte_level_is_refused(tmp_path: Path, word: str) -> None:
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({word: 0}, unk_token=word))
    backend.add_special_tokens([END, PAD, *map(role_token, ROLES)])
    path = tmp_path / "words.json"
    backend.save(str(path))
    with pytest.raises(ValueError, match="no byte-level tokenizer"):
        load_tokenizer(path)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match=r"broken\.json is no tokenizer.json"):
        load_tokenizer(tmp_path / "broken.json")
