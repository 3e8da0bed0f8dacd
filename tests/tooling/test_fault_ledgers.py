"""Goal: the judges of compacted topics and half messages in a fault campaign see what is wrong, and nothing else.

Method: logs of clients with one thing wrong in each, and logs that are right although something is not known.
"""

from pathlib import Path

import pytest

from warren.tools.fault import session
from warren.tools.fault.ledger import Ledger


def complaints(tmp_path: Path, lines: list[str]) -> list[str]:
    path = tmp_path / "log"
    path.write_text("\n".join([*lines, "z"]) + "\n")
    ledger = Ledger()
    assert ledger.read(path)
    return ledger.complaints


def expect(tmp_path: Path, lines: list[str], found: list[str]) -> None:
    said = complaints(tmp_path, lines)
    assert len(said) == len(found), said
    assert all(text.startswith(start) for text, start in zip(said, found, strict=True)), said


#: of keys 0 and 2, which lie in queue 0: two values each; then 2 becomes a tombstone
VALUES = ["v 0 0:10:100 2:11:100", "V 0 10:0 11:1", "v 0 0:12:100 2:13:100", "V 0 12:2 13:3"]
TOMBSTONE = ["v 0 2:14:0", "V 0 14:4"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([*VALUES, "y 0 0:12:2 2:13:3"], []),
        ([*VALUES, "y 0 0:10:0 2:11:1 0:12:2 2:13:3"], []),  # no pass has come yet
        ([*VALUES, "y 0 0:10:0 2:13:3"], ["old: the newest of key 0"]),
        ([*VALUES, "y 0 2:13:3"], ["lost: a reader got nothing of key 0"]),
        ([*VALUES, "y 0 0:12:2 2:13:3", "Y 0 0:10:0"], ["old: the newest of key 0 in compacted 0 is 12"]),
        ([*VALUES, "y 0 0:12:2 2:13:3", "Y 0 0"], ["lost: a look-up got nothing of key 0"]),
        ([*VALUES, "y 0 0:12:3 2:13:3"], ["order: ", "moved: ", "replaced: "]),
        ([*VALUES, "y 0 2:13:3 0:12:2"], ["order: a reader got the offsets [3, 2]"]),
        ([*VALUES, "y 0 0:12:2 2:13:3 4:99:4"], ["invented: a reader got 99"]),
        ([*VALUES, "y 0 0:12:2 2:13:3 0:11:4"], ["invented: a reader got 11 at 4 as one of key 0"]),
        (["v 1 1:10:100", "V 1 10:0", "y 0 1:10:0"], ["invented: a reader got 10"]),
        ([*VALUES, "y 0 0:12:2 2:13:5"], ["moved: compacted 0 has 13 at 5"]),
        ([*VALUES, *TOMBSTONE, "y 0 0:12:2 2:14:4"], []),
        ([*VALUES, *TOMBSTONE, "y 0 0:12:2"], []),  # the tombstone went, too
        ([*VALUES, *TOMBSTONE, "y 0 0:12:2 2:13:3"], ["old: the newest of key 2"]),
        ([*VALUES, *TOMBSTONE, "y 0 0:12:2", "y 0 0:12:2 2:14:4"], ["back: a reader got 14 of key 2"]),
        ([*VALUES, *TOMBSTONE, "y 0 0:12:2", "y 0 0:12:2 2:13:3"], ["old: the newest of key 2"]),
        # not confirmed: it may be there or not, and once it was seen it stays
        ([*VALUES, "v 0 0:15:100", "y 0 0:12:2 2:13:3"], []),
        ([*VALUES, "v 0 0:15:100", "y 0 2:13:3 0:15:4"], []),
        ([*VALUES, "v 0 0:15:100", "y 0 2:13:3 0:15:4", "y 0 0:12:2 2:13:3"], ["old: the newest of key 0"]),
        ([*VALUES, "v 0 0:15:0", "y 0 2:13:3"], []),  # a tombstone that may have come, and gone
        ([*VALUES, "v 0 0:15:0", "V 0 15:4", "v 0 0:16:100", "V 0 16:5", "y 0 2:13:3"], ["lost: "]),
        (["v 0 0:15:0", *VALUES, "y 0 2:13:3"], []),  # announced by who was killed, with a number above: it may come
        (["v 0 0:9:0", *VALUES, "y 0 2:13:3"], ["lost: a reader got nothing of key 0"]),  # announced before
    ],
)
def test_the_newest_of_each_key(tmp_path: Path, lines: list[str], found: list[str]) -> None:
    expect(tmp_path, lines, found)


PREPARED = ["h 7 0", "H 7"]
COMMITTED = [*PREPARED, "f 7 commit", "F 7 committed 0:0"]
ROLLED_BACK = [*PREPARED, "f 7 rollback", "F 7 rolled-back"]
NOTHING = ["p", "u 0", "u 1"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([*PREPARED, "p 7", "u 0", "u 1"], []),
        ([*PREPARED, *NOTHING], []),  # a commit may be under way
        ([*PREPARED, *NOTHING, *NOTHING], ["lost: half message 7 was prepared, and is neither"]),
        ([*PREPARED, *NOTHING, "p 7", "u 0", "u 1", *NOTHING], []),
        ([*PREPARED, "f 7 commit", "p", "u 0 7:0", "u 1"], []),  # an answer
        ([*PREPARED, "p", "u 0 7:0", "u 1"], ["early: orders 0 has half message 7"]),
        ([*PREPARED, "f 7 rollback", "p", "u 0 7:0"], ["early: orders 0 has half message 7"]),
        ([*PREPARED, "f 7 commit", "f 7 rollback", *NOTHING, *NOTHING], []),  # either
        ([*PREPARED, "f 7 commit", "f 7 rollback", "p", "u 0 7:0"], []),
        ([*PREPARED, "f 7 commit", *NOTHING, *NOTHING], ["lost: half message 7 was prepared"]),
        ([*COMMITTED, "p", "u 0 7:0", "u 1"], []),
        ([*COMMITTED, *NOTHING], ["lost: half message 7 was committed at 0:0, and is at None"]),
        ([*COMMITTED, "p", "u 0", "u 1 7:0"], ["lost: half message 7", "invented: orders 1 has 7"]),
        ([*COMMITTED, "p 7", "u 0 7:0"], ["back: half message 7 was committed, and is pending"]),
        ([*COMMITTED, "p", "u 0 7:0 7:1"], ["doubled: orders 0", "lost: half message 7 was committed at 0:0"]),
        ([*COMMITTED, "p", "u 0 7:1"], ["hole: orders 0", "lost: half message 7"]),
        ([*COMMITTED, "f 7 rollback", "F 7 committed 0:0", "p", "u 0 7:0"], []),  # told again
        ([*COMMITTED, "f 7 commit", "F 7 committed 0:1"], ["moved: half message 7"]),
        ([*COMMITTED, "f 7 rollback", "F 7 rolled-back"], ["both: half message 7"]),
        ([*PREPARED, "f 7 commit", "F 7 rolled-back"], ["invented: half message 7 is rolled-back"]),
        ([*ROLLED_BACK, *NOTHING, *NOTHING], []),
        ([*ROLLED_BACK, "p 7", "u 0"], ["back: half message 7 was rolled back, and is pending"]),
        ([*ROLLED_BACK, "p", "u 0 7:0"], ["back: half message 7 was rolled back, and orders 0"]),
        ([*PREPARED, "f 7 rollback", *NOTHING, "f 7 commit", "p", "u 0 7:0"], ["back: half message 7"]),
        (["h 7 0", *NOTHING, *NOTHING], []),  # nobody was told that it is there
        (["h 7 0", "p 7", "u 0"], []),
        (["p 8", "u 0"], ["invented: half message 8 is pending"]),
        (["f 8 commit", "p", "u 0 8:0"], ["invented: orders 0 has 8"]),
        ([*PREPARED, "p 7 7", "u 0"], ["doubled: half messages are listed twice"]),
    ],
)
def test_half_messages(tmp_path: Path, lines: list[str], found: list[str]) -> None:
    expect(tmp_path, lines, found)


def test_where_topics_end_is_asked_of_the_next_reader(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("\n".join([*VALUES, *COMMITTED, "l 1 3", "m synced 1 3:0:100", "z"]) + "\n")
    ledger = Ledger()
    ledger.read(path)
    assert ledger.ends() == {("seats", 0): 4, ("orders", 0): 1, ("flights", 1): 1}
    assert ledger.confirmed_in_topics() == 6


def test_a_traceback_is_told_by_its_last_line_of_warren() -> None:
    frame = '  File "{}", line {}, in call\n'
    ours, library = Path(session.__file__).with_name("work.py"), "/usr/lib/python3/socket.py"
    assert session.place_of(frame.format(ours, 7) + frame.format(library, 232)) == "work.py:7 > socket.py:232"
    assert session.place_of(frame.format(library, 9) + frame.format(ours, 8)) == "work.py:8"
    assert session.place_of("nothing") == "?"
