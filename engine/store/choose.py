"""Which files of a store are collected next: pure functions of the file summary (design note 003, section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from warren.engine.kernel.formats import FILE_HEADER_BYTES, FRAME_BYTES_MIN
from warren.engine.store.file_summary import FileRow
from warren.ipc.layout import PAGE_BYTES

#: neighbours that one collection combines at most: the job has to fit into a message
SOURCES_MAX = 40
#: a run is worth copying when so much of the threshold's share of its bytes is won
GAIN_SHARE = 0.5


def triggered(files_n: int, valid: int, total: int, file_bytes: int, fraction: float) -> bool:
    """Rule S15: two files or more besides the current one, and too much of them is garbage."""
    return files_n > 2 and total > 2 * file_bytes and total - valid > fraction * total


def pressed(valid: int, total: int, file_bytes: int) -> bool:
    """So much garbage that it is collected without a pause."""
    return total > 4 * valid + 4 * file_bytes


def disk_most(valid: int, file_bytes: int) -> int:
    """Rule S24: the most bytes that all data files of a store take while nothing is written."""
    return 2 * valid + 2 * file_bytes


def choose(
    files: Sequence[FileRow],
    *,
    pinned: Iterable[int],
    file_bytes: int,
    fraction: float,
    floors: Mapping[int, int] | None = None,
    suspects: Iterable[int] = (),
    crowded: bool = False,
    refused: Iterable[int] = (),
    controls_share: float = 0.25,
) -> list[FileRow]:
    """The neighbours to be collected into one file, eldest first; empty: nothing is worth it.

    `pinned`: files whose control frames are needed; the core says so (wr_store_pinned), for it lets files go by that.
    `floors`: bytes of a collected file that were needed without being live (its control frames), while it is pinned.
    `suspects`: files with damage, collected as they are. `crowded`: too many files, so small ones are combined even
    when that wins nothing. `refused`: files that cannot be collected. `controls_share`: what is taken to be control
    frames that are needed, of the dead bytes of a pinned file that was never collected.
    """
    room = file_bytes - FILE_HEADER_BYTES - FRAME_BYTES_MIN
    known, left_out, pins = floors or {}, set(refused), set(pinned)
    ordered = sorted(files, key=lambda row: (row.position_low, row.file))

    def needed(row: FileRow) -> int:
        most = max(0, row.file_size - FILE_HEADER_BYTES)
        if row.file not in pins:
            return min(row.valid_total_size, most)
        guess = int((most - row.valid_total_size) * controls_share)
        return min(row.valid_total_size + known.get(row.file, max(0, guess)), most)

    def fit(row: FileRow) -> bool:
        alive = row.valid_total_size > 0 or row.file in pins
        return bool(row.replay_free and not row.locked and alive and row.file not in left_out)

    wanted = set(suspects)
    for row in ordered:
        if row.file in wanted and fit(row):
            return [row]
    for first, row in enumerate(ordered):
        if not fit(row):
            continue
        run, sum_needed = [row], needed(row)
        for neighbour in ordered[first + 1 : first + SOURCES_MAX]:
            more = needed(neighbour)
            if not fit(neighbour) or sum_needed + more > room:
                break
            run.append(neighbour)
            sum_needed += more
        if _worth(run, sum_needed, fraction, crowded):
            return run
        if needed(row) < (1 - fraction) * row.file_size and row.file_size > 2 * PAGE_BYTES + needed(row):
            return [row]
    return []


def _worth(run: Sequence[FileRow], needed: int, fraction: float, crowded: bool) -> bool:
    if len(run) < 2:
        return False
    size = sum(row.file_size for row in run)
    return size - needed - 2 * PAGE_BYTES >= fraction * GAIN_SHARE * size or (crowded and len(run) >= 4)
