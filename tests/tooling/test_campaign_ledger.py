"""What the kill campaign's keepers wrote down: nothing that speaks of a violation may go before it is read."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warren.tools.crash.keeper import Keeper
from warren.tools.crash.ledger import FILES_KEPT, Ledger, begin, files_of, numbered


def test_files_with_complaints_outlive_their_time(tmp_path: Path) -> None:
    base = tmp_path / "keeper-0.log"
    for number in range(FILES_KEPT + 5):
        path = begin(base, Ledger.latest(base)[0], number)
        if number == 2:
            with path.open("a") as file:
                file.write("b 1.000 wrong: an id reads other bytes\n")
    assert files_of(base) == [2, *range(5, FILES_KEPT + 5)]
    assert Ledger.read(numbered(base, 2)).complaints == ["1.000 wrong: an id reads other bytes"]


@pytest.mark.parametrize("swept", [True, False])
def test_rings_that_were_not_swept_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: bool
) -> None:
    """What was under way must not be taken for gone while a dead incarnation's command may still be executed."""
    base = tmp_path / "keeper-0.log"
    id = bytes(range(16))
    with begin(base, Ledger(), 0).open("a") as file:
        file.write(f"i 4 {id.hex()}\n")
    dead = Ledger.latest(base)[0].pids
    keeper = Keeper(str(tmp_path), str(base), random.Random(1), lambda: False)
    monkeypatch.setattr(keeper, "_swept", lambda: swept)
    keeper._resolve(cast(Any, SimpleNamespace(store=lambda: SimpleNamespace(contains=lambda *_a, **_k: False))))
    keeper.log.close()
    following = Ledger.latest(base)[0]
    assert (following.pids[:-1] == dead) is not swept
    assert (id in following.held) is not swept
    assert following.gone == ({id: 4} if swept else {})
