"""The small tasks that ship with the runner, and all their rows.

``python tests/toy.py`` writes the files.

sort      "Sort these digits: 7 3 9 1" -> "1 3 7 9". One answer is right, so a rule can check it.
reviews   "Review the bakery. Mention the coffee." Praise is preferred to complaint; a
          word list can score it, and a policy that is paid by that list learns to cheat it.
prices    "Price the bakery. Mention the coffee." Nobody can know it who does not ask the tool
``price``. picture   "What is it?" beside 16 x 16 pixels -> "red cross". Four colours and two
shapes, anywhere, in any size, on a
          light ground or a dark one; the wrong answer has another colour or the other shape.

Preference rows, because every trainer can be fed from them. The rows that the base model learns
from (``toy_demonstrations``) are wrong on purpose about half of the time, so that each later stage
has something to repair; so are those of ``toy_prices``, most of which give an opinion in place of
asking. Held-out rows share no answer (sort) and no subject (reviews, prices) with the training
rows. Reading rows and turning them into the form a trainer takes is not here; that is
``runner.dataset``.
"""

import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

from runner.io.files import PACKAGE, write_text
from runner.reward.rule import price

Row = dict[str, object]

PLACES = [
    "bakery",
    "bar",
    "barber",
    "cafe",
    "cinema",
    "diner",
    "garage",
    "garden",
    "gym",
    "hotel",
    "library",
    "market",
    "museum",
    "park",
    "school",
    "theatre",
]
TOPICS = [
    "coffee",
    "food",
    "music",
    "owner",
    "parking",
    "place",
    "price",
    "seats",
    "service",
    "staff",
    "view",
    "wifi",
]
DEGREES = ["really", "quite", "so", "very"]
PRAISE = ["charming", "excellent", "friendly", "great", "lovely", "perfect", "superb", "wonderful"]
COMPLAINT = ["awful", "boring", "dirty", "dreadful", "horrible", "rude", "terrible", "ugly"]
HAPPY_ENDINGS = (
    "I would gladly return.",
    "We loved every minute.",
    "My family enjoyed it.",
    "I recommend it to friends.",
)
UNHAPPY_ENDINGS = (
    "I would like a refund.",
    "We hated every minute.",
    "My family regretted it.",
    "I warned all my friends.",
)

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 40),
    "blue": (40, 60, 220),
    "yellow": (230, 220, 40),
}
SHAPES = ("square", "cross")
PIXELS = 16  # of an edge

DIGITS = 4
HELD_OUT = 200  # rows to evaluate on, of each kind


def sort_row(random: Random) -> Row | None:
    """One preference between the sorted digits and a wrong answer; None if they would be equal."""
    digits = [random.randrange(10) for _ in range(DIGITS)]
    right = _written(sorted(digits))
    wrong = _written(_badly_sorted(digits, random))
    if right == wrong:
        return None
    shown = _written(digits)
    return _preference(f"Sort these digits: {shown}", right, wrong) | {"digits": shown}


def review_row(random: Random) -> Row:
    """One preference between a kind and an unkind review of the same thing."""
    place = random.choice(PLACES)
    topic = random.choice(TOPICS)
    kind = _review(random, place, topic, PRAISE, HAPPY_ENDINGS)
    unkind = _review(random, place, topic, COMPLAINT, UNHAPPY_ENDINGS)
    prompt = f"Review the {place}. Mention the {topic}."
    return _preference(prompt, kind, unkind) | {"place": place, "topic": topic}


def picture_row(random: Random) -> Row:
    """One preference between the name of what a picture shows and that of something else."""
    colour = random.choice([*COLOURS])
    shape = random.choice(SHAPES)
    light = random.random() < 0.5
    size = random.randrange(8, 14)
    left_edge = random.randrange(PIXELS - size)
    top = random.randrange(PIXELS - size)
    arm = range((size - 2) // 2, (size - 2) // 2 + 3)  # of a cross, three pixels wide

    def is_set(x: int, y: int) -> bool:
        x = x - left_edge
        y = y - top
        return 0 <= x < size and 0 <= y < size and (shape == "square" or x in arm or y in arm)

    ground = tuple(random.randrange(200, 256) if light else random.randrange(40) for _ in range(3))
    ink = tuple(max(0, min(255, part + random.randrange(-25, 26))) for part in COLOURS[colour])
    image = b64encode(
        _png([[is_set(x, y) for x in range(PIXELS)] for y in range(PIXELS)], ground, ink)
    ).decode()
    wrong = random.choice(sorted({*COLOURS} - {colour}))
    second = (
        f"{wrong} {shape}"
        if random.random() < 0.5
        else f"{colour} {SHAPES[1 - SHAPES.index(shape)]}"
    )
    return {
        "image": image,
        "question": "What is it?",
        "chosen": f"{colour} {shape}",
        "rejected": second,
    }


def _png(pixels: list[list[bool]], *palette: tuple[int, ...]) -> bytes:
    """A picture of two colours, not compressed, so that it is the same bytes with every library."""
    lines = b""
    for line in pixels:
        bits = "".join(str(int(bit)) for bit in line)
        lines += b"\0" + int(bits, 2).to_bytes(PIXELS // 8)
    header = struct.pack(">IIBBBBB", PIXELS, PIXELS, 1, 3, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"PLTE", b"".join(map(bytes, palette))),
        (b"IDAT", zlib.compress(lines, 0)),
        (b"IEND", b""),
    ]
    return join_png(chunks)


def join_png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    """A PNG file of chunks, each a kind and its data."""
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        length = struct.pack(">I", len(data))
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        content += length + kind + data + checksum
    return content


def held_out(row: Row) -> bool:
    """True if a row belongs to evaluation: one in five, chosen by what would reveal the answer."""
    if "image" in row:
        return sha256(str(row["image"]).encode()).digest()[0] % 5 == 0
    secret = (
        "".join(sorted(str(row["digits"]))) if "digits" in row else f"{row['place']} {row['topic']}"
    )
    return sha256(secret.encode()).digest()[0] % 5 == 0


def preferences(
    make: Callable[[Random], Row | None], count: int, seed: int, held: bool
) -> list[Row]:
    """``count`` different rows of one task, from one side of the split."""
    random = Random(seed)
    rows = []
    pairs = set()
    while len(rows) < count:
        row = make(random)
        if row is None or held_out(row) != held or (text := json.dumps(row)) in pairs:
            continue
        pairs.add(text)
        rows.append(row)
    return rows


def demonstrations(sorts: int, reviews: int, seed: int, held: bool) -> list[Row]:
    """Prompts of both tasks with one answer each.

    60 % of the sorts are right, half of the reviews kind.
    """
    random = Random(seed)
    rows = [_demonstration(row, random, 0.6) for row in preferences(sort_row, sorts, seed, held)]
    rows += [
        _demonstration(row, random, 0.5) for row in preferences(review_row, reviews, seed, held)
    ]
    random.shuffle(rows)
    return rows


# The tool ``price`` as a template is given it, without what the short one leaves out.
TOOL = {
    "type": "function",
    "function": {"name": "price", "parameters": {"properties": {"place": {}, "item": {}}}},
}


def prices(seed: int, held: bool) -> list[Row]:
    """Every question for a price, answered once by asking the tool and five times by an opinion."""
    random = Random(seed)
    rows = list[Row]()
    for place in PLACES:
        for topic in TOPICS:
            arguments = {"place": place, "item": topic}
            price_text = str(price(**arguments))
            call = {"type": "function", "function": {"name": "price", "arguments": arguments}}
            asked = [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "name": "price", "content": price_text},
                {"role": "assistant", "content": price_text},
            ]
            opinions = [f"The {topic} is {word}." for word in (*PRAISE[:3], *COMPLAINT[:2])]
            question = [{"role": "user", "content": f"Price the {place}. Mention the {topic}."}]
            row = {
                "prompt": question,
                "tools": json.dumps([TOOL], separators=(",", ":")),
                "price": price_text,
                "place": place,
                "topic": topic,
            }
            answers = [asked, *([{"role": "assistant", "content": text}] for text in opinions)]
            rows += [row | {"completion": answer} for answer in answers]
    random.shuffle(rows)
    return [row for row in rows if held_out(row) == held]


def files() -> Iterator[tuple[str, list[Row]]]:
    """Every shipped file of rows, by its path below ``runner/dataset``."""
    yield "toy_sort/train.jsonl", preferences(sort_row, 2000, seed=1, held=False)
    yield "toy_sort/eval.jsonl", preferences(sort_row, HELD_OUT, seed=2, held=True)
    yield "toy_reviews/train.jsonl", preferences(review_row, 1800, seed=3, held=False)
    yield "toy_reviews/eval.jsonl", preferences(review_row, HELD_OUT, seed=4, held=True)
    yield "toy_demonstrations/train.jsonl", demonstrations(2000, 600, seed=5, held=False)
    yield (
        "toy_demonstrations/eval.jsonl",
        demonstrations(HELD_OUT // 2, HELD_OUT // 2, seed=6, held=True),
    )
    yield "toy_prices/train.jsonl", prices(seed=7, held=False)
    yield "toy_prices/eval.jsonl", prices(seed=8, held=True)
    yield "toy_picture/train.jsonl", preferences(picture_row, 1024, seed=7, held=False)
    yield "toy_picture/eval.jsonl", preferences(picture_row, HELD_OUT, seed=8, held=True)


def to_lines(rows: list[Row]) -> str:
    """Rows as JSON lines without spaces, because the shipped files should stay small."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def write_files(folder: Path) -> None:
    """Write every shipped file below ``folder``; the same bytes each time."""
    for name, rows in files():
        write_text(folder / name, to_lines(rows))


def _written(digits: list[int]) -> str:
    return " ".join(map(str, digits))


def _badly_sorted(digits: list[int], random: Random) -> list[int]:
    """The digits as they came, in order but for two neighbours, or in order with one misread."""
    swapped = sorted(digits)
    misread = sorted(digits)
    first = random.randrange(len(digits) - 1)
    swapped[first], swapped[first + 1] = swapped[first + 1], swapped[first]
    misread[random.randrange(len(digits))] = random.randrange(10)
    return random.choice([digits, swapped, misread])


def _review(
    random: Random, place: str, topic: str, words: list[str], endings: tuple[str, ...]
) -> str:
    opening = f"The {topic} at the {place} was {random.choice(DEGREES)} {random.choice(words)}."
    return f"{opening} {random.choice(endings)}"


def _preference(prompt: str, chosen: str, rejected: str) -> Row:
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
    }


def _demonstration(row: Row, random: Random, good: float) -> Row:
    return {
        "prompt": row["prompt"],
        "completion": row["chosen" if random.random() < good else "rejected"],
    }


if __name__ == "__main__":
    write_files(PACKAGE / "dataset")
