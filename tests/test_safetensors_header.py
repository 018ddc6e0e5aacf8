"""The header of a safetensors file: read as the library reads it, refused where it is broken."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from runner.model.safetensors_header import HeaderError, read_header


def test_it_reads_what_the_library_reads(tmp_path):
    file = tmp_path / "model.safetensors"
    weights = {
        "b.weight": torch.zeros(3, 2, dtype=torch.bfloat16),
        "a.größe": torch.zeros(4, dtype=torch.int8),
        "c.scalar": torch.tensor(1.0),
        "d.empty": torch.zeros(0, 5),
    }
    save_file(weights, file, metadata={"format": "pt"})
    header = read_header(file)
    with safe_open(file, "pt") as whole:
        assert list(header) == list(whole.keys())
        for name, weight in header.items():
            stored = whole.get_slice(name)
            assert (weight.dtype, weight.shape) == (stored.get_dtype(), stored.get_shape())


def _to_file(header, numbers=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + numbers


WEIGHT = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01\x02",
        (10**9).to_bytes(8, "little") + b"{}",
        _to_file(b"{no json"),
        _to_file(b"\xff\xfe{}"),
        _to_file(["a list"]),
        _to_file({"weight": "no entry"}),
        _to_file({"weight": {"dtype": "F32", "shape": [1]}}),
        _to_file({"weight": WEIGHT}, b"123"),
        _to_file({"weight": WEIGHT}, b"12345"),
        _to_file(b"[" * 100_000),
    ],
)
def test_a_broken_file_is_refused(tmp_path, content):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(HeaderError):
        read_header(file)
