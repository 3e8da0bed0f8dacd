"""Half messages: their snapshot (`topics/halves`), what clients ask about them, and what is said of them.

What is pending, and what became of the newest others, is in the core's memory (engine/topics/halves.h), and is what the
log says: records of half messages, and records by which they were committed or rolled back. When a snapshot of it is
written, kept.py says; control.py has the requests.

Invariant: an answer that says what became of one leaves when the record that says so is on stable storage.
Crash points: a request without an answer is asked again of the next worker. Where the log has what became of it, the
answer is the same; else it is done then, for the first time.
"""

from __future__ import annotations

from dataclasses import dataclass
from logging import WARNING
from typing import ClassVar

from warren.engine import _core
from warren.engine.errors import HalfNotFound, StoreError
from warren.engine.topics import control
from warren.engine.topics.formats import HALF_COMMITTED, HALF_ROLLED_BACK
from warren.engine.topics.kept import Copied, Kept

AGAIN_S = 1.0  #: no client that answers for half messages waits for longer until it asks which
PAGE = 256  #: half messages in one answer, at most
_ONE_BYTES = 32  #: in an answer, at most
_MARGIN = 64


@dataclass
class Halves(Kept):
    """The snapshot, the answers, and what is said of half messages."""

    after_s: float = 6.0  #: until one is asked for
    reply_bytes: int = 4096

    WHAT: ClassVar[str] = "half messages"
    LOST: ClassVar[str] = (
        "half messages that were pending are lost there, and some that were committed or rolled back may be pending "
        "again (`warren topic halves` lists those that are)"
    )

    GONE: ClassVar[str] = "what became of half messages"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._put_aside = 0

    def _take_up(self, file: bytes) -> tuple[int, int, int]:
        return self.server.halves_read(file)

    def _walk(self, anew: bool, position: int, epoch: int, number: int) -> tuple[int, int]:
        return self.server.halves_walk(anew, position, epoch, number)

    def _copy(self) -> Copied:
        return Copied(*self.server.halves_snapshot(self._epoch))

    def _encode(self, copied: Copied, _epoch: int) -> bytes:
        return copied.content

    def _lowest(self) -> int | None:
        return self.server.halves_lowest()

    def on_timer(self, now: float) -> None:
        super().on_timer(now)
        counters = self.server.counters()
        if counters["put_aside"] != self._put_aside:
            self._put_aside = counters["put_aside"]
            self.say(
                "a half message was put aside, as if rolled back: it was asked for as often as the setting "
                f"half_checks_max says, and nobody knew; it lies at position {counters['put_aside_at']:,} of the log",
                WARNING,
            )

    # -- requests -----------------------------------------------------------------------------------------------

    def finish(self, request: control.FinishHalf) -> tuple[control.Finished, int]:
        """What became of a half message, now or before; and up to where the log has to be synced. Raises NoRoom,
        HalfNotFound, StoreError, OSError.
        """
        kind = HALF_COMMITTED if request.commit else HALF_ROLLED_BACK
        try:
            found = self.server.half_decide(request.topic, request.position, kind)
        except BlockingIOError:
            raise control.NoRoom from None
        except ValueError:
            raise StoreError(
                f"the record of the half message at position {request.position:,} of the log of topics cannot be read: "
                "`warren check` says what is damaged; it can be rolled back"
            ) from None
        if found is None:
            raise HalfNotFound(
                f"the topic has no half message {_core.message_id(bytes(8), request.position)}: it was never prepared, "
                "or was committed or rolled back, and it is not kept what became of it: that is too long ago "
                "(half_outcomes_kept), or the file that had it was damaged or missing (`warren check` notes that)"
            )
        return control.Finished(*found), found[-1] + 1

    def check(self, request: control.CheckHalves) -> tuple[control.ToCheck, int]:
        """Those that the client is to answer for, now."""
        found, next_ms = self.server.halves_ask(request.topic, min(request.most, self._most))
        again = min(AGAIN_S, self.after_s, *(() if next_ms is None else (next_ms / 1000,)))
        return control.ToCheck([control.Pending(*one) for one in found], again), 0

    def listed(self, request: control.ListHalves) -> tuple[control.Halves, int]:
        """Those that are pending."""
        found = self.server.halves_of(request.topic, request.position, self._most)
        return control.Halves([control.Pending(*one) for one in found], len(found) == self._most), 0

    @property
    def _most(self) -> int:
        return max(1, min(PAGE, (self.reply_bytes - _MARGIN) // _ONE_BYTES))
