#include "topics/key_index.h"
#include <assert.h>
#include <stdatomic.h>

#define HEADER(field) WR_KEY_INDEX_HEADER_AT_##field
#define ENTRY(field) WR_KEY_INDEX_ENTRY_AT_##field
#define SECOND_MS 1000
#define LOOKS_MAX (1u << 20) /* at a slot that changes each time */
_Static_assert(HEADER(INDEX_COUNT) == HEADER(HASH_SLOT_COUNT) + 4, "the counts are one word");
_Static_assert(HEADER(HASH_SLOT_COUNT) % 8 == 0, "the counts are one word");

const char *wr_key_word(wr_key_code code) {
    static const char *const words[WR_KEY_CODES] = {"end", "found", "full", "header", "slot", "entry", "previous", "link", "missing"};
    return (uint32_t)code < WR_KEY_CODES ? words[code] : "unknown";
}

/* ---- words of the file: big-endian ---- */

static inline uint32_t load32(const uint8_t *at, memory_order order) {
    return __builtin_bswap32(atomic_load_explicit((_Atomic uint32_t *)(uintptr_t)at, order));
}
static inline uint64_t load64(const uint8_t *at, memory_order order) {
    return __builtin_bswap64(atomic_load_explicit((_Atomic uint64_t *)(uintptr_t)at, order));
}
static inline void store32(uint8_t *at, uint32_t value, memory_order order) {
    atomic_store_explicit((_Atomic uint32_t *)(void *)at, __builtin_bswap32(value), order);
}
static inline void store64(uint8_t *at, uint64_t value, memory_order order) {
    atomic_store_explicit((_Atomic uint64_t *)(void *)at, __builtin_bswap64(value), order);
}

static inline uint8_t *slot_at(const wr_key_index *index, uint32_t slot) {
    return index->base + WR_KEY_INDEX_HEADER_SIZE + (uint64_t)slot * WR_KEY_INDEX_SLOT_SIZE;
}
static inline uint8_t *entry_at(const wr_key_index *index, uint32_t number) {
    return index->base + wr_key_index_bytes(index->slots_n, number);
}
static inline uint32_t slot_of(const wr_key_index *index, uint32_t key_hash) { return key_hash % index->slots_n; }

typedef struct {
    uint32_t key_hash, time_diff, previous;
    uint64_t physical_offset;
} a_key;

/* Entries have words of 4 bytes: they are aligned to no more. */
static inline a_key load_entry(const wr_key_index *index, uint32_t number) {
    const uint8_t *at = entry_at(index, number);
    return (a_key){
        .key_hash = load32(at + ENTRY(KEY_HASH), memory_order_relaxed),
        .physical_offset = (uint64_t)load32(at + ENTRY(PHYSICAL_OFFSET), memory_order_relaxed) << 32 |
                           load32(at + ENTRY(PHYSICAL_OFFSET) + 4, memory_order_relaxed),
        .time_diff = load32(at + ENTRY(TIME_DIFF), memory_order_relaxed),
        .previous = load32(at + ENTRY(PREVIOUS), memory_order_relaxed),
    };
}

static inline void store_entry(const wr_key_index *index, uint32_t number, const a_key *from) {
    uint8_t *at = entry_at(index, number);
    store32(at + ENTRY(KEY_HASH), from->key_hash, memory_order_relaxed);
    store32(at + ENTRY(PHYSICAL_OFFSET), (uint32_t)(from->physical_offset >> 32), memory_order_relaxed);
    store32(at + ENTRY(PHYSICAL_OFFSET) + 4, (uint32_t)from->physical_offset, memory_order_relaxed);
    store32(at + ENTRY(TIME_DIFF), from->time_diff, memory_order_relaxed);
    store32(at + ENTRY(PREVIOUS), from->previous, memory_order_relaxed);
}

/* Whether an entry can be one of `slot`. */
static inline bool may_be(const wr_key_index *index, const a_key *found, uint32_t slot) {
    return !((found->key_hash | found->time_diff) >> 31) && !(found->physical_offset >> 63) &&
           slot_of(index, found->key_hash) == slot;
}

/* The number of the next entry; 0: the header cannot be right. A file of zeros has none yet: 1. */
static inline uint32_t counted(const wr_key_index *index, uint32_t *slots_used) {
    /* SYNC index-count: pairs with store_counts */
    uint64_t counts = load64(index->base + HEADER(HASH_SLOT_COUNT), memory_order_acquire);
    uint32_t count = (uint32_t)counts;
    *slots_used = (uint32_t)(counts >> 32);
    if (!count) return *slots_used ? 0 : 1;
    return count <= index->entries_n && *slots_used <= index->slots_n && *slots_used < count ? count : 0;
}

static inline void store_counts(const wr_key_writer *w) {
    uint64_t counts = w->count > 1 ? (uint64_t)w->slots_used << 32 | w->count : 0;
    /* SYNC index-count: pairs with counted */
    store64(w->index.base + HEADER(HASH_SLOT_COUNT), counts, memory_order_release);
}

bool wr_key_index_take(wr_key_index *index, void *base, uint64_t bytes, uint32_t slots_n, uint32_t entries_n) {
    if (!base || (uintptr_t)base & 7 || !slots_n || slots_n > WR_KEY_COUNT_MAX) return false;
    if (entries_n < 2 || entries_n > WR_KEY_COUNT_MAX || bytes < wr_key_index_bytes(slots_n, entries_n)) return false;
    *index = (wr_key_index){base, slots_n, entries_n};
    return true;
}

void wr_key_index_header(const wr_key_index *index, wr_key_header *header) {
    uint64_t counts = load64(index->base + HEADER(HASH_SLOT_COUNT), memory_order_acquire);
    header->begin_timestamp = (int64_t)load64(index->base + HEADER(BEGIN_TIMESTAMP), memory_order_relaxed);
    header->end_timestamp = (int64_t)load64(index->base + HEADER(END_TIMESTAMP), memory_order_relaxed);
    header->begin_physical_offset = load64(index->base + HEADER(BEGIN_PHYSICAL_OFFSET), memory_order_relaxed);
    header->end_physical_offset = load64(index->base + HEADER(END_PHYSICAL_OFFSET), memory_order_relaxed);
    header->hash_slot_count = (uint32_t)(counts >> 32);
    header->index_count = (uint32_t)counts;
}

/* ---- the writer ---- */

static void store_begin(const wr_key_writer *w, int64_t timestamp, uint64_t physical_offset) {
    store64(w->index.base + HEADER(BEGIN_TIMESTAMP), (uint64_t)timestamp, memory_order_relaxed);
    store64(w->index.base + HEADER(BEGIN_PHYSICAL_OFFSET), physical_offset, memory_order_relaxed);
}

static void store_end(const wr_key_writer *w, int64_t timestamp, uint64_t physical_offset) {
    store64(w->index.base + HEADER(END_TIMESTAMP), (uint64_t)timestamp, memory_order_relaxed);
    store64(w->index.base + HEADER(END_PHYSICAL_OFFSET), physical_offset, memory_order_relaxed);
}

/* The first and the last millisecond of an entry's store time. What was cut to 0 may be earlier, and to the most,
 * later. */
static void time_of(int64_t begin, uint32_t time_diff, int64_t *from, int64_t *to) {
    int64_t first;
    if (__builtin_add_overflow(begin, (int64_t)time_diff * SECOND_MS, &first)) first = INT64_MAX;
    *from = time_diff ? first : INT64_MIN;
    if (time_diff == INT32_MAX || __builtin_add_overflow(first, SECOND_MS - 1, to)) *to = INT64_MAX;
}

static uint32_t time_diff_of(int64_t begin, int64_t timestamp) {
    int64_t diff;
    if (__builtin_sub_overflow(timestamp, begin, &diff)) return timestamp < begin ? 0 : INT32_MAX;
    if (diff < 0) return 0;
    return diff / SECOND_MS > INT32_MAX ? INT32_MAX : (uint32_t)(diff / SECOND_MS);
}

/* The entry `count` was put into its slot and not counted: take it out again. Else it is what is written next. */
static wr_key_code undo(wr_key_writer *w) {
    if (w->count == w->index.entries_n) return WR_KEY_FOUND;
    a_key half = load_entry(&w->index, w->count);
    if (half.key_hash >> 31) return WR_KEY_FOUND;
    uint8_t *slot = slot_at(&w->index, slot_of(&w->index, half.key_hash));
    if (load32(slot, memory_order_relaxed) != w->count) return WR_KEY_FOUND;
    if (half.previous >= w->count) return WR_KEY_BAD_PREVIOUS;
    /* SYNC index-slot: pairs with newest_of, which looks at the slot again */
    store32(slot, half.previous, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* before the entry changes */
    return WR_KEY_FOUND;
}

/* Begin and end of the header, of what is counted. */
static wr_key_code settle_header(wr_key_writer *w) {
    if (w->count == 1) {
        store_begin(w, 0, 0);
        store_end(w, 0, 0);
        return WR_KEY_FOUND;
    }
    a_key last = load_entry(&w->index, w->count - 1);
    if (last.physical_offset >> 63 || last.time_diff >> 31) return WR_KEY_BAD_ENTRY;
    int64_t from, to, end = (int64_t)load64(w->index.base + HEADER(END_TIMESTAMP), memory_order_relaxed);
    time_of(w->begin, last.time_diff, &from, &to);
    if (end < from || end > to) end = to;
    store_end(w, end, last.physical_offset);
    return WR_KEY_FOUND;
}

wr_key_code wr_key_writer_open(wr_key_writer *writer, const wr_key_index *index) {
    *writer = (wr_key_writer){.index = *index};
    if (!(writer->count = counted(index, &writer->slots_used))) return WR_KEY_BAD_HEADER;
    writer->begin = (int64_t)load64(index->base + HEADER(BEGIN_TIMESTAMP), memory_order_relaxed);
    wr_key_code code = undo(writer);
    return code == WR_KEY_FOUND ? settle_header(writer) : code;
}

wr_key_code wr_key_put(wr_key_writer *w, uint32_t key_hash, uint64_t physical_offset, int64_t store_timestamp) {
    assert(!(key_hash >> 31) && !(physical_offset >> 63));
    if (w->count >= w->index.entries_n) return WR_KEY_FULL;
    uint8_t *slot = slot_at(&w->index, slot_of(&w->index, key_hash));
    uint32_t previous = load32(slot, memory_order_relaxed);
    if (previous >= w->count) return WR_KEY_BAD_SLOT;
    if (w->count == 1) {
        w->begin = store_timestamp;
        store_begin(w, store_timestamp, physical_offset);
    }
    a_key made = {key_hash, time_diff_of(w->begin, store_timestamp), previous, physical_offset};
    store_entry(&w->index, w->count, &made);
    /* SYNC index-slot: pairs with newest_of */
    store32(slot, w->count, memory_order_release);
    store_end(w, store_timestamp, physical_offset);
    w->count++;
    w->slots_used += !previous;
    store_counts(w);
    return WR_KEY_FOUND;
}

wr_key_code wr_key_truncate(wr_key_writer *w, uint64_t end) {
    while (w->count > 1) {
        a_key last = load_entry(&w->index, w->count - 1);
        if (last.physical_offset < end) break;
        if (last.key_hash >> 31) return WR_KEY_BAD_ENTRY;
        uint8_t *slot = slot_at(&w->index, slot_of(&w->index, last.key_hash));
        if (load32(slot, memory_order_relaxed) != w->count - 1) return WR_KEY_BAD_SLOT;
        if (last.previous >= w->count - 1) return WR_KEY_BAD_PREVIOUS;
        w->count--;
        w->slots_used -= !last.previous;
        store_counts(w); /* first: killed here, wr_key_writer_open does the rest */
        store32(slot, last.previous, memory_order_release);
    }
    return settle_header(w);
}

/* ---- readers ---- */

/* The newest entry of a slot that is counted, 0: none. What is not counted may be undone and written again by
 * another writer, while it is looked at: its `previous` is taken if the slot still points to it then, for it is
 * taken out of the slot before. */
static wr_key_code newest_of(const wr_key_index *index, uint32_t slot, uint32_t *newest) {
    const uint8_t *at = slot_at(index, slot);
    uint32_t unused;
    for (uint32_t looks = 0; looks < LOOKS_MAX; looks++) {
        /* SYNC index-slot: pairs with wr_key_put, undo */
        *newest = load32(at, memory_order_acquire);
        if (!*newest) return WR_KEY_FOUND;
        if (*newest >= index->entries_n) return WR_KEY_BAD_SLOT;
        uint32_t count = counted(index, &unused); /* behind the slot: what was put before this one is counted in it */
        if (!count) return WR_KEY_BAD_HEADER;
        if (*newest < count) return WR_KEY_FOUND;
        if (*newest > count) return WR_KEY_BAD_SLOT;
        a_key half = load_entry(index, *newest);
        atomic_thread_fence(memory_order_acquire);
        if (load32(at, memory_order_relaxed) != *newest) continue;
        if (half.previous >= *newest) return WR_KEY_BAD_PREVIOUS;
        if (!may_be(index, &half, slot)) return WR_KEY_BAD_ENTRY;
        *newest = half.previous;
        return WR_KEY_FOUND;
    }
    return WR_KEY_BAD_SLOT;
}

void wr_key_find_begin(wr_key_find *find, const wr_key_index *index, uint32_t key_hash, int64_t since, int64_t until,
                       bool ordered) {
    assert(!(key_hash >> 31));
    *find = (wr_key_find){.index = *index, .key_hash = key_hash, .ordered = ordered, .since = since, .until = until};
    find->slot = slot_of(index, key_hash);
    find->code = newest_of(index, find->slot, &find->next);
    if (find->code != WR_KEY_FOUND) find->next = 0;
    find->begin = (int64_t)load64(index->base + HEADER(BEGIN_TIMESTAMP), memory_order_relaxed);
    find->first_offset = load64(index->base + HEADER(BEGIN_PHYSICAL_OFFSET), memory_order_relaxed);
    find->last_offset = load64(index->base + HEADER(END_PHYSICAL_OFFSET), memory_order_relaxed); /* behind the counts: of what they count */
}

wr_key_code wr_key_find_next(wr_key_find *find, wr_key_entry *to) {
    wr_key_code code = find->code;
    find->code = WR_KEY_FOUND;
    if (code != WR_KEY_FOUND) return code;
    while (find->next) {
        uint32_t number = find->next;
        a_key found = load_entry(&find->index, number);
        find->next = 0;
        if (found.previous >= number) return WR_KEY_BAD_PREVIOUS;
        if (!may_be(&find->index, &found, find->slot)) return WR_KEY_BAD_ENTRY;
        const bool outside = found.physical_offset < find->first_offset || found.physical_offset > find->last_offset;
        if (find->ordered && outside) return WR_KEY_BAD_ENTRY;
        int64_t first, last;
        time_of(find->begin, found.time_diff, &first, &last);
        if (find->ordered && last < find->since) return WR_KEY_END;
        find->next = found.previous;
        if (found.key_hash != find->key_hash || last < find->since || first > find->until) continue;
        *to = (wr_key_entry){number, found.physical_offset, first, last};
        return WR_KEY_FOUND;
    }
    return WR_KEY_END;
}
