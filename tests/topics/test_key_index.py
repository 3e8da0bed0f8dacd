"""Goal: the key index finds every key that was put, newest first, while it is written, after its writer was killed, and
whatever bytes a file holds; a unit of a consume queue is there whole or not at all.

Method: random keys and times in small files against `support.topic_tables` and a list; a reader in another process that
checks every answer against what the writer must have put; writers that are killed and followed by others. The states
that a kill leaves are made one by one in tests/topics/key_index_test.c.
"""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.engine import _core
from warren.engine.topics import formats

from support import topic_tables as tables
from support.waiting import wait_until

EVER = (-(1 << 63), (1 << 63) - 1)
BEGIN = 1_700_000_000_000


def memory(slots: int, entries: int) -> bytearray:
    return bytearray(formats.key_index_bytes(slots, entries))


def offsets(found: tuple[list[tuple[int, int, int, int]], str]) -> list[int]:
    entries, word = found
    assert word in ("end", "found")
    return [offset for _, offset, _, _ in entries]


def test_sizes_of_the_files() -> None:
    assert formats.key_index_bytes() == 420_000_040
    assert formats.consume_queue_bytes() == 6_000_000
    assert formats.LOG_FILE_BYTES == 1 << 30


@given(st.data())
def test_an_index_is_written_as_the_tables_say_and_finds_what_they_find(data: st.DataObject) -> None:
    slots, entries = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 12))
    expected = tables.Index(slots, entries)
    file = memory(slots, entries)
    index = _core.KeyIndex(file, slots, entries)
    keys = st.one_of(st.integers(0, 6), st.integers(0, (1 << 31) - 1))
    for n in range(entries + 1):
        key, offset = data.draw(keys), data.draw(st.integers(0, (1 << 63) - 1))
        time = BEGIN + data.draw(st.one_of(st.integers(-5000, 5000), st.integers(-(1 << 50), 1 << 50)))
        assert index.put(key, offset, time) == expected.put(key, offset, time) == (n < entries - 1)
        assert file == expected.file
    for wanted in {*range(7), key}:
        assert offsets(index.find(wanted, *EVER, False, 100)) == expected.find(wanted)
        assert offsets(index.find(wanted, *EVER, False, 2)) == expected.find(wanted)[:2]
    index.close()


def test_the_capacity_is_one_less_than_the_entries() -> None:
    file = memory(3, 10)
    index = _core.KeyIndex(file, 3, 10)
    assert [index.put(n, n, BEGIN) for n in range(11)] == [True] * 9 + [False] * 2
    assert index.header() == (BEGIN, BEGIN, 0, 8, 3, 10)
    index.close()


def test_a_look_up_by_time_misses_nothing(seed: int) -> None:
    """Also where the clock stepped back, and where a time does not fit: what is found may have been stored within the
    range. Whole seconds are kept, so less than a second too much is found at each end.
    """
    rng = random.Random(seed)
    for _ in range(300):
        times = [BEGIN + rng.randrange(-3000, 20_000) for _ in range(15)]
        if rng.random() < 0.3:
            times[rng.randrange(1, 15)] = BEGIN + rng.choice((-(10**12), 10**14))
        file = memory(2, 16)
        index = _core.KeyIndex(file, 2, 16)
        for n, time in enumerate(times):
            index.put(5, n, time)
        since = BEGIN + rng.randrange(-5000, 22_000)
        until = since + rng.randrange(6000)
        found = offsets(index.find(5, since, until, False, 100))
        assert found == sorted(found, reverse=True)
        first = times[0]
        for n, time in enumerate(times):
            if since <= time <= until:
                assert n in found
            elif first <= time < first + 1000 * ((1 << 31) - 1):  # neither cut to 0 nor to the most
                whole = first + (time - first) // 1000 * 1000
                near = whole <= until and whole + 999 >= since
                assert (n in found) == (near or (whole == first and since <= first + 999))
        index.close()


def test_an_ordered_look_up_ends_at_the_first_that_is_older() -> None:
    file = memory(1, 20)
    index = _core.KeyIndex(file, 1, 20)
    for n in range(10):
        index.put(1, n, BEGIN + 1000 * n)
    file[40 + 4 + 20 * 2 + 16 : 40 + 4 + 20 * 2 + 20] = b"\x7f" * 4  # the second entry's previous
    assert offsets(index.find(1, BEGIN + 6000, BEGIN + 7000, True, 100)) == [7, 6]
    assert index.find(1, BEGIN + 6000, BEGIN + 7000, False, 100)[1] == "previous"
    index.close()


def entry_at(slots: int, number: int, field: str) -> int:
    return formats.KEY_INDEX_HEADER.size + 4 * slots + 20 * number + formats.KEY_INDEX_ENTRY.offset(field)


@pytest.mark.parametrize(
    ("at", "value", "found", "word"),
    [
        (40, b"\0\0\0\x0a", [], "slot"),
        (40, b"\xff\xff\xff\xff", [], "slot"),
        (40, b"\0\0\0\x07", [], "slot"),
        (36, b"\0\0\0\x0b", [], "header"),
        (36, b"\0\0\0\0", [], "header"),
        (32, b"\0\0\0\x09", [], "header"),
        (entry_at(1, 3, "previous"), b"\0\0\0\3", [4, 3], "previous"),
        (entry_at(1, 3, "previous"), b"\0\0\0\4", [4, 3], "previous"),
        (entry_at(1, 3, "previous"), b"\x80\0\0\1", [4, 3], "previous"),
        (entry_at(1, 3, "key_hash"), b"\x80", [4, 3], "entry"),
        (entry_at(1, 3, "physical_offset"), b"\x80", [4, 3], "entry"),
        (entry_at(1, 3, "time_diff"), b"\x80", [4, 3], "entry"),
        (entry_at(1, 3, "previous"), b"\0\0\0\0", [4, 3, 2], "end"),
    ],
)
def test_a_damaged_chain_ends_and_says_so(at: int, value: bytes, found: list[int], word: str) -> None:
    file = memory(1, 10)
    index = _core.KeyIndex(file, 1, 10)
    for n in range(5):
        index.put(7, n, BEGIN)
    file[at : at + len(value)] = value
    entries, said = index.find(7, *EVER, False, 100)
    assert ([offset for _, offset, _, _ in entries], said) == (found, word)
    index.close()


def test_an_entry_of_another_slot_is_damage() -> None:
    file = memory(2, 10)
    index = _core.KeyIndex(file, 2, 10)
    index.put(2, 0, BEGIN)
    index.put(3, 1, BEGIN)
    file[40:44] = b"\0\0\0\2"
    assert index.find(2, *EVER, False, 9) == ([], "entry")
    file[44:48] = b"\0\0\0\3"  # one that nobody wrote
    assert index.find(3, *EVER, False, 9) == ([], "entry")
    index.close()


@pytest.mark.parametrize(
    ("at", "value", "word"), [(36, b"\0\0\0\x0b", "header"), (entry_at(1, 5, "physical_offset"), b"\xff", "entry")]
)
def test_a_writer_does_not_go_on_in_a_damaged_file(at: int, value: bytes, word: str) -> None:
    file = memory(1, 10)
    index = _core.KeyIndex(file, 1, 10)
    for n in range(5):
        index.put(7, n, BEGIN)
    index.close()
    file[at : at + len(value)] = value
    with pytest.raises(ValueError, match=word):
        _core.KeyIndex(file, 1, 10)


def test_a_writer_notices_a_slot_that_points_too_far() -> None:
    file = memory(1, 10)
    index = _core.KeyIndex(file, 1, 10)
    index.put(7, 0, BEGIN)
    file[40:44] = b"\0\0\0\7"
    with pytest.raises(ValueError, match="slot"):
        index.put(7, 1, BEGIN)
    index.close()


def test_buffers_that_do_not_do() -> None:
    file = memory(2, 10)
    size = formats.key_index_bytes(2, 10)
    whole = memoryview(file)
    for slots, entries, buffer in (
        (0, 10, whole),
        (2, 1, whole),
        (1 << 31, 10, whole),
        (2, 1 << 40, whole),
        (2, 10, whole[: size - 1]),
        (1, 10, whole[4:]),
        (3, 10, whole[: formats.key_index_bytes(3, 10) - 1]),
    ):
        with pytest.raises(ValueError, match="too small for these counts"):
            _core.KeyIndex(buffer, slots, entries)
    reader = _core.KeyIndex(file, 2, 10, writable=False)
    assert reader.find(1, *EVER, False, 1) == ([], "end")
    with pytest.raises(ValueError, match="only reads"):
        reader.put(1, 1, 1)
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.find(1, *EVER, False, 1)


def test_entries_behind_an_end_of_the_log_are_taken_out(seed: int) -> None:
    """What remains is found, and the same puts make the same file again."""
    rng = random.Random(seed)
    for _ in range(100):
        slots, entries = rng.randrange(1, 6), rng.randrange(3, 40)
        puts = [(rng.randrange(9), 10 * n, BEGIN + 700 * n) for n in range(entries - 1)]
        kept = rng.randrange(len(puts) + 1)
        file = memory(slots, entries)
        index = _core.KeyIndex(file, slots, entries)
        for put in puts:
            assert index.put(*put)
        whole = bytes(file)
        index.truncate(10 * kept)
        expected = tables.Index(slots, entries)
        for put in puts[:kept]:
            expected.put(*put)
        for key in range(9):
            assert offsets(index.find(key, *EVER, False, 100)) == expected.find(key)
        begin, end, *_ = header = index.header()
        assert (begin, *header[2:]) == (lambda h: (h[0], *h[2:]))(tables.INDEX_HEADER.unpack_from(expected.file))
        assert 0 <= end - (puts[kept - 1][2] if kept else 0) <= 999
        for put in puts[kept:]:
            assert index.put(*put)
        assert file == whole
        index.close()


# -- two processes -----------------------------------------------------------------------------------------------------

SLOTS, ENTRIES = 5, 200_000
KEYS = 13
#: the writer is ahead of the reader by so many at most, so that it still writes when it is killed
AHEAD = 20_000
#: what both sides know: the n-th put
KNOWN = f"""
import mmap, struct, sys, time
from warren.engine import _core
SLOTS, ENTRIES, KEYS, BEGIN, AHEAD = {SLOTS}, {ENTRIES}, {KEYS}, {BEGIN}, {AHEAD}
def key(n): return n * 7919 % KEYS
def put(n): return key(n), n * 100 + key(n), BEGIN + 1000 * n
def mapped(path):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)
file, seen = mapped(sys.argv[1]), mapped(sys.argv[2])
"""
WRITER = (
    KNOWN
    + """
index = _core.KeyIndex(file, SLOTS, ENTRIES)
begin = max(index.header()[5], 1) - 1
print("on", flush=True)
for line in sys.stdin:
    for n in range(begin, int(line)):
        while not n % 256 and struct.unpack_from("<Q", seen)[0] + AHEAD < n: time.sleep(0.0002)
        assert index.put(*put(n))
    begin = max(begin, int(line))
"""
)
READER = (
    KNOWN
    + """
index = _core.KeyIndex(file, SLOTS, ENTRIES, writable=False)
EVER = (-(1 << 63), (1 << 63) - 1)
print("on", flush=True)
count, looks = 0, 0
while count < ENTRIES - 1:
    count = max(index.header()[5], 1) - 1
    for wanted in range(KEYS):
        last = max((n for n in range(max(0, count - KEYS), count) if key(n) == wanted), default=-1)
        found, word = index.find(wanted, *EVER, False, 50)
        assert word in ("end", "found"), word
        numbers = [number - 1 for number, *_ in found]
        for (number, offset, since, until), n in zip(found, numbers):
            assert key(n) == wanted and (wanted, offset) == put(n)[:2], (number, offset)
            assert n == 0 or (since, until) == (BEGIN + 1000 * n, BEGIN + 1000 * n + 999)
        steps = {a - b for a, b in zip(numbers, numbers[1:])}
        assert steps <= {KEYS}, (numbers, "one between was missed")
        assert len(numbers) == 50 or not numbers or numbers[-1] < KEYS, (numbers, "the oldest were missed")
        assert (numbers or [-1])[0] >= last, "what was counted before is found"
    looks += 1
    struct.pack_into("<Q", seen, 0, count)
print(looks)
"""
)


class Starter:
    """Starts programs, and ends those that still run."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def __call__(self, code: str, *paths: Path) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", code, *map(str, paths)], stdin=pipe, stdout=pipe, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        return process


@pytest.fixture
def start() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    for process in starter.processes:
        process.kill()
        if process.stdin is not None and not process.stdin.closed:
            process.communicate()


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A file of the key index, and a word in which the reader says what it has seen."""
    index, seen = tmp_path / "index", tmp_path / "seen"
    index.write_bytes(bytes(formats.key_index_bytes(SLOTS, ENTRIES)))
    seen.write_bytes(bytes(8))
    return index, seen


def tell(writer: "subprocess.Popen[str]", count: int) -> None:
    assert writer.stdin is not None
    writer.stdin.write(f"{count}\n")
    writer.stdin.flush()


def seen_by(reader: "subprocess.Popen[str]", seen: Path) -> int:
    assert reader.poll() in (None, 0), "the reader found something wrong"
    return int.from_bytes(seen.read_bytes(), "little")


def expected_file() -> bytearray:
    index = tables.Index(SLOTS, ENTRIES)
    for n in range(ENTRIES - 1):
        key = n * 7919 % KEYS
        assert index.put(key, n * 100 + key, BEGIN + 1000 * n)
    return index.file


@pytest.mark.integration
def test_a_reader_in_another_process_finds_whole_entries_and_all_of_them(
    files: tuple[Path, Path], start: Starter
) -> None:
    path, seen = files
    reader, writer = start(READER, path, seen), start(WRITER, path, seen)
    for step in range(1, 11):
        count = (ENTRIES - 1) * step // 10
        tell(writer, count)
        wait_until(lambda count=count: seen_by(reader, seen) >= count, 120)  # type: ignore[misc]
    said, _ = reader.communicate()
    writer.communicate()
    assert (reader.returncode, writer.returncode) == (0, 0)
    assert int(said) >= 10
    assert path.read_bytes() == expected_file()


@pytest.mark.integration
@pytest.mark.crash
def test_writers_that_are_killed_lose_and_double_nothing_for_a_reader(
    files: tuple[Path, Path], start: Starter, seed: int
) -> None:
    path, seen = files
    rng = random.Random(seed)
    reader = start(READER, path, seen)
    for step in range(1, 9):
        writer = start(WRITER, path, seen)
        tell(writer, ENTRIES - 1)
        before = (ENTRIES - 1) * (step - 1) // 8 + rng.randrange(2000)
        if step < 8:
            wait_until(lambda before=before: seen_by(reader, seen) >= before, 120)  # type: ignore[misc]
            writer.kill()
            assert writer.wait() == -signal.SIGKILL, "it was not done"
        writer.communicate()
    said, _ = reader.communicate()
    assert reader.returncode == 0
    assert int(said) >= 8
    assert path.read_bytes() == expected_file()


# -- consume queues ----------------------------------------------------------------------------------------------------

UNITS = st.tuples(st.integers(0, (1 << 63) - 1), st.integers(1, (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1))


@given(st.lists(UNITS, max_size=8))
def test_units_are_written_as_the_tables_say(units: list[tuple[int, int, int]]) -> None:
    file = bytearray(20 * 9)
    assert [_core.unit_get(file, n) for n in range(9)] == [None] * 9
    for n, unit in enumerate(units):
        _core.unit_put(file, n, *unit)
    assert file == b"".join(tables.UNIT.pack(*unit) for unit in units).ljust(len(file), b"\0")
    assert [_core.unit_get(file, n) for n in range(len(units) + 1)] == [*units, None]


def test_units_outside_of_a_file() -> None:
    file = bytearray(20 * 2 + 19)
    for n in (2, 3, 1 << 62):
        with pytest.raises(ValueError, match="behind the buffer"):
            _core.unit_get(file, n)
        with pytest.raises(ValueError, match="behind the buffer"):
            _core.unit_put(file, n, 0, 1, 0)
    with pytest.raises(ValueError, match="size"):
        _core.unit_put(file, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="aligned to 4 bytes"):
        _core.unit_get(memoryview(file)[1:], 0)
    with pytest.raises(BufferError):
        _core.unit_put(bytes(40), 0, 0, 1, 0)
