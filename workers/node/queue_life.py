"""Which queues have to go by themselves: exclusive ones without owner, auto_delete without consumers, unused ones.

Pure judgement over what the supervisor sees: the catalog, the rows of statistics, and who is attached. Nothing is kept
on disk: after a supervisor was replaced a lease (`expires`) begins anew.

Invariants
  A queue goes only when its worker serves and its numbers are of this incarnation of the worker: one that was just
  restarted knows no consumers yet. An auto_delete queue needs a consumer that came in this incarnation, or nobody at
  all being attached.
  A declaration counts as use, so that whoever declares has time to begin to consume. A consumer that comes just as the
  queue goes gets QueueNotFound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from warren.engine.catalog.catalog import Catalog, QueueDeclaration

#: after a declaration an auto_delete queue stays at least so long
DECLARED_S = 2.0
_NOTHING: Mapping[str, int] = {}


@dataclass
class _Seen:
    used_at: float
    declared_at: float
    asked: int = 0
    consumed: bool = False


@dataclass
class Sight:
    """What is to be seen at one moment. `rows`: statistics by queue id; `serving`: workers that are ready; `clients`:
    client epochs of the clients that are attached, without the node's own.
    """

    now: float
    rows: Mapping[int, Mapping[str, int]]
    serving: Collection[int]
    clients: Collection[int]


@dataclass
class QueueLife:
    """Remembers how queues were used, and says which have to go."""

    _seen: dict[int, _Seen] = field(default_factory=dict)

    def leased(self, catalog: Catalog) -> list[QueueDeclaration]:
        """The queues that may go by themselves."""
        return list(catalog.leased.values())

    def declared(self, queue: QueueDeclaration, now: float) -> None:
        """Somebody declared the queue, perhaps not for the first time."""
        seen = self._seen.setdefault(queue.id, _Seen(now, now))
        seen.used_at = seen.declared_at = now

    def ended(self, catalog: Catalog, sight: Sight) -> dict[str, str]:
        """The names of the queues that have to go now, and why."""
        found: dict[str, str] = {}
        for id in [id for id in self._seen if id not in catalog.leased]:
            del self._seen[id]
        for queue in self.leased(catalog):
            seen = self._seen.setdefault(queue.id, _Seen(sight.now, sight.now))
            row = sight.rows.get(queue.id, _NOTHING)
            self._note(seen, row, sight.now)
            if queue.owner and queue.owner not in sight.clients:
                found[queue.name] = "its client is gone"
                continue
            if queue.worker not in sight.serving:
                seen.used_at = sight.now
                continue
            policy = queue.policy
            idle = not row.get("consuming", 0) and not row.get("unacked", 0)
            known = row.get("consumed", 0) > 0 or not sight.clients
            if policy.auto_delete and seen.consumed and idle and known and sight.now - seen.declared_at >= DECLARED_S:
                found[queue.name] = "its last consumer is gone"
            elif policy.expires is not None and sight.now - seen.used_at >= policy.expires:
                found[queue.name] = f"it was not used for {policy.expires:g} s"
        return found

    def _note(self, seen: _Seen, row: Mapping[str, int], now: float) -> None:
        asked = row.get("asked", 0)
        if row.get("consumers", 0) or row.get("unacked", 0) or asked != seen.asked:
            seen.used_at = now
        seen.asked = asked
        seen.consumed = seen.consumed or row.get("consumed", 0) > 0 or row.get("consuming", 0) > 0
