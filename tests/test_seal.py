"""Sealed folders: whatever happens to a byte of one is noticed."""

import pytest

from runner.run.seal import SEAL, damage_of, put_down, seal, sealed_hashes


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


def test_each_process_seals_the_files_that_it_wrote(tmp_path):
    names = {
        "rng_state_0.pth": 0,
        "rng_state_1.pth": 1,
        "optimizer_0/__1_0.distcp": 1,
        "optimizer_0/__0_1.distcp": 0,
    }
    names |= {
        "trainer_state.json": 0,
        "step_1.bin": 0,
        "global_step1/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt": 1,
    }
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    shares = [put_down(tmp_path, process, 2) for process in range(2)]
    assert {name: process for process, share in enumerate(shares) for name in share} == names
    seal(tmp_path, shares[1] | shares[0])
    assert sealed_hashes(tmp_path).keys() == {*names, SEAL}
    assert not damage_of(tmp_path)


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
