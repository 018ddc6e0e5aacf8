"""Sealed folders: whatever happens to a byte of one is noticed."""

import pytest

from runner.run.seal import SEAL, damage_of, seal


@pytest.fixture
def sealed(tmp_path):
    folder = tmp_path / "checkpoint-1"
    (folder / "inner").mkdir(parents=True)
    (folder / "weights").write_bytes(bytes(range(256)))
    (folder / "inner" / "state").write_text("state")
    seal(folder)
    return folder


def test_a_sealed_folder_verifies(sealed):
    assert not damage_of(sealed)


def flip(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "delete": lambda path: path.unlink(),
    "truncate": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zero": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flip a bit": flip,
}


@pytest.mark.parametrize("name", ["weights", "inner/state", SEAL])
@pytest.mark.parametrize("kind", DAMAGE)
def test_every_damage_to_every_file_is_noticed(sealed, name, kind):
    DAMAGE[kind](sealed / name)
    assert [*damage_of(sealed)] == [name]


def test_a_bit_of_a_seal_that_makes_another_seal_is_the_seals_own_damage(sealed):
    text = (sealed / SEAL).read_bytes()
    for place in range(len(text)):
        (sealed / SEAL).write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        assert [*damage_of(sealed)] == [SEAL], place
