"""Messages that a queue worker lost while it served: counted for the superblock, said in its log, and written down in
the quarantine's report.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from logging import ERROR

from warren.engine import _core
from warren.engine.kernel import quarantine
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.queues.helpers import IndexKeeper
from warren.engine.queues.options import Options
from warren.engine.saying import counted


class Losses:
    """What was said and counted so far."""

    def __init__(self, engine: _core.QueueEngine, options: Options, server: int, index: IndexKeeper) -> None:
        self._engine = engine
        self._options = options
        self._server = server
        self._index = index
        self._lost_said = 0
        self._lost_told = 0
        self._damaged_said = 0
        self._unreadable_said = 0
        self._spill_error_said = 0

    def look(self, counters: Mapping[str, int], lost_at_start: int) -> None:
        """Say what the engine's counters have more than before."""
        lost, damaged, unreadable = counters["lost"], counters["damaged"], counters["unreadable"]
        if (more := lost_at_start + lost + damaged + unreadable) != self._lost_told:
            self._options.superblock.server_add(self._server, "lost_n", more - self._lost_told)
            self._lost_told = more
        if lost != self._lost_said:
            more = lost - self._lost_said
            what = f"{counted(more, 'message')} dropped: the store does not have their bodies"
            self._options.say(what, ERROR)
            self._report(quarantine.Entry("store/persistent", 0, 0, what, more))
            self._lost_said = lost
        if damaged != self._damaged_said:
            what = counted(damaged - self._damaged_said, "message")
            self._options.say(
                f"{what} dropped: damaged entries in {self._options.folder.segments}; check the disk", ERROR
            )
            self._report(
                quarantine.Entry("segments", 0, 0, f"{what} dropped: damaged entries", damaged - self._damaged_said)
            )
            self._damaged_said = damaged
        if unreadable != self._unreadable_said:
            self._tell_unreadable(unreadable)
        spill_error = counters["spill_error"]
        if spill_error != self._spill_error_said:
            self._spill_error_said = spill_error
            if spill_error:
                self._options.say(
                    f"rows of transient messages stay in memory, {self._options.folder.spill} cannot be written: "
                    f"{os.strerror(spill_error)}",
                    ERROR,
                )

    def _tell_unreadable(self, n: int) -> None:
        """Name the messages that consumers found damaged, and write them down for people."""
        found = self._engine.unreadable(self._unreadable_said)
        folder, parts = self._options.folder, []
        if more := n - self._unreadable_said - len(found):
            what = f"{counted(more, 'message')} dropped as damaged; the next lines name only the last ones"
            self._options.say(what, ERROR)
            parts.append(quarantine.Entry("several files", 0, 0, what, more))
        self._unreadable_said = n
        for queue, sequence, location, file, offset, size, id in found:
            where = f"message {sequence} of queue {queue}"
            if location in (PROTOCOL["LOCATION_LARGE"], PROTOCOL["LOCATION_LARGE_TRANSIENT"]):
                path = folder.large / id.hex()
                self._options.say(f"{where} dropped: its file {path} is damaged; it was removed", ERROR)
                name = str(path.relative_to(folder.path))
                parts.append(quarantine.Entry(name, 0, 0, f"{where}, damaged: the file was removed", 1))
                continue
            if location >= PROTOCOL["LOCATION_STORE"]:
                persistent = location == PROTOCOL["LOCATION_STORE"]
                store = "store/persistent" if persistent else "store/transient"
                self._options.say(f"{where} dropped: its body in the store, {id.hex()}, is damaged", ERROR)
                parts.append(quarantine.Entry(store, 0, 0, f"{where}, damaged: its body in the store, {id.hex()}", 1))
                continue
            of_kind = {
                PROTOCOL["LOCATION_SEGMENT"]: folder.data_file,
                PROTOCOL["LOCATION_JOURNAL"]: folder.journal_file,
                PROTOCOL["LOCATION_JOURNAL_TRANSIENT"]: folder.transient_file,
            }
            path = of_kind[location](file)
            self._options.say(f"{where} dropped: its {size} bytes in {path} at {offset} are damaged", ERROR)
            name = str(path.relative_to(folder.path))
            parts.append(quarantine.Entry(name, offset, offset + size, f"{where}, damaged", 1, size))
        self._report(*parts)

    def _report(self, *parts: quarantine.Entry) -> None:
        """Write down what is counted for the status, which names the report."""
        if parts:
            self._index.ask(partial(quarantine.note, self._options.folder.path, *parts), lambda _: None)
