"""One dataset with its splits, of files or of the hub, and the rows of its slices."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape

import datasets
import numpy as np
from datasets import DatasetBuilder, Features, IterableDataset, Value
from datasets.exceptions import DatasetGenerationError

from runner.dataset.convert import RowRequest
from runner.dataset.converted_rows import convert_rows, convert_stream, narrow
from runner.dataset.exact import build_exact, prepare
from runner.dataset.loaded_rows import Rows, cache_key
from runner.dataset.request import Use, check_cut, no_row
from runner.dataset.scan import MAX_BYTES_READ, check_files, read_columns
from runner.dataset.source_files import Files
from runner.errors import DataError, EnvironmentFault, Fault, describe
from runner.io.hub import is_of_network


@dataclass(frozen=True)
class RowSource:
    """One dataset with its splits, on disk, or as streams."""

    path: str
    builder: DatasetBuilder
    splits: tuple[str, ...]
    streams: Mapping[str, IterableDataset] | None = None

    def read(
        self, use: Use, cut: str, limit: int | None, seed: int | None, request: RowRequest
    ) -> Rows:
        """The rows of one slice, in the form that ``request`` asks for.

        With a ``seed`` the rows are shuffled before the first ``limit`` are taken.
        """
        self.check(use, cut)
        label = f"{self.path} {cut}"
        if self.streams is not None:
            stream = narrow(self.streams[cut], request)
            return convert_stream(stream, request, label, limit, seed)
        with translate_dataset_errors(self.path, f"dataset.split.{use}"):
            if not any(self.slices(cut)):
                raise DataError(no_row(use, cut, label))
            rows = narrow(self.builder.as_dataset(split=cut), request)
        count = min(limit or len(rows), len(rows))
        if seed is None:
            return convert_rows(rows.select(range(count)), request, label)
        numbers = np.random.default_rng(seed).permutation(len(rows))[:count]
        key = cache_key(rows._fingerprint, "shuffled", seed, count)
        shuffled = rows.select(numbers, new_fingerprint=key)
        return convert_rows(shuffled, request, label, numbers, seed)

    @property
    def lengths(self) -> dict[str, int]:
        """The number of rows of each split, 0 where nobody has counted them."""
        splits = self.builder.info.splits or {}
        return {name: split.num_examples for name, split in splits.items()}

    def slices(self, cut: str) -> list[range]:
        """The rows of each part of a slice, by their number in the part's split."""
        instruction = datasets.ReadInstruction.from_spec(cut)
        return [range(part.from_, part.to) for part in instruction.to_absolute(self.lengths)]

    def check(self, use: Use, cut: str) -> None:
        """Raise DataError for splits that are not there, and for slices of a stream."""
        where = f"dataset.split.{use}"
        check_cut(where, cut, self.splits, self.path, streaming=self.streams is not None)


def open_source(
    path: str, files: Files | None, config: str | None, revision: str | None, streaming: bool
) -> RowSource:
    """The dataset of some files, or of the hub; raises DataError for files that cannot be read."""
    with translate_dataset_errors(path):
        if files:
            options = dict(files.options)
            columns = read_columns(files) if files.reader == "csv" else []
            if columns:  # without types, and what is text must not become numbers
                types = {name: Value("string") for name in columns}
                options["features"] = Features(types)
            data_files = {}
            for split, names in files.splits.items():
                # The library takes the names of files for patterns.
                data_files[split] = [escape(file) for file in names]
            builder = datasets.load_dataset_builder(files.reader, data_files=data_files, **options)
        else:
            builder = datasets.load_dataset_builder(path, config, revision=revision)
        if streaming:
            if files:
                check_files(files, 4 * MAX_BYTES_READ // len(files.paths))
            streams = builder.as_streaming_dataset()
            # JSON comes in exact types, which are known before it flows.
            if builder.name == "json" and (files or "timestamp" in repr(builder.info.features)):
                builder = build_exact(builder)
                streams = builder.as_streaming_dataset()
            return RowSource(path, builder, tuple(streams), streams)
        # What is in the cache was checked before, and is unchanged.
        if files and not os.path.exists(builder.cache_dir):
            check_files(files)
        builder = prepare(builder)
    return RowSource(path, builder, tuple(builder.info.splits))


@contextmanager
def translate_dataset_errors(path: str, where: str = "dataset.path") -> Iterator[None]:
    """Inside, errors of datasets are raised as faults of the config or of the connection."""
    try:
        yield
    except FileNotFoundError as error:
        fault = Fault(
            where="dataset.path",
            found=describe(error),
            expected="a file or folder here, or a name on the hub that you may read",
        )
        raise DataError(fault) from error
    except DatasetGenerationError as error:
        fault = Fault(
            where=path,
            found=describe(error.__cause__ or error),
            expected="rows",
        )
        raise DataError(fault) from error
    except (ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        fix = "dataset.config=<name>" if "Config name" in text else ""
        raise DataError(
            Fault(
                where=where,
                found=text,
                fix=fix,
            )
        ) from error
    except Exception as error:
        if not is_of_network(error):
            raise
        fault = Fault(
            where="dataset.path",
            found=f"neither a file or folder here nor in the cache; {describe(error)}",
            expected="a connection to the hub",
            fix="a local copy with dataset.path=<folder>, or unset HF_HUB_OFFLINE",
        )
        raise EnvironmentFault(fault) from error
