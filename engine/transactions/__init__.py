"""Transactions of sinks: rows that tasks stage, one record that commits them, and what brings them where they belong.

    folder.py    where the files of a sink lie, their names, its lock
    parts.py     parts: what a task stages; written, checked and read again
    state.py     the state of a sink: the commit record, fences, progress
    sink.py      Sink: enter, commit, finish, abort, collect, forget
    check.py     `warren check` of all that

It knows no topic and no queue: `sink.Targets` is what it wants of those, and workers/faces/transactions.py has it.
Why it is so, and what every crash leaves behind: docs/design/031-transactions.md.
"""
