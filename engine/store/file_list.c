/* The list of a store's file. What it is: store/file_list.h; the file format: LIST_… in engine/kernel/formats.py.
 *
 * Invariants
 *   Runs are in order of their offsets and do not overlap; only the last one is open: its totals, when it has any, are the
 *   last ones. A run of few frames whose sizes differ gets totals; a long uniform one is closed instead.
 *   Adding makes room for everything first and changes the list afterwards: without memory it stays as it was.
 *   decode believes nothing: after it every run lies inside the file, every total is that of a frame, and the counts are true.
 *   A scan reads each byte a bounded number of times, whatever the bytes are (HUNT_…).
 */
#include "store/file_list.h"
#include <errno.h>
#include <stdlib.h>

#define CONVERT_MAX 16         /* frames of a uniform run that are given totals when one of another size follows */
#define HUNT_PAGES_FACTOR 16   /* bytes checksummed in vain while a scan looks for a valid page start, in lengths of the file */
#define HUNT_BYTES_MAX (64u << 20) /* the same while it looks at every byte before it */
#define HUNT_LAST_BYTES (1u << 20) /* so far behind damage every byte is looked at when no page behind begins with a frame */

/* ---- memory ---- */

wr_list *wr_list_new(uint64_t file, uint64_t salt) {
    wr_list *list = calloc(1, sizeof *list);
    if (!list) return NULL;
    list->file = file;
    list->salt = salt;
    list->used = WR_FILE_HEADER_BYTES;
    return list;
}

void wr_list_free(wr_list *list) {
    if (!list) return;
    free(list->runs);
    free(list->totals);
    free(list->waters);
    free(list->damage);
    free(list);
}

static bool reserve_runs(wr_list *list, uint64_t more) {
    if (list->runs_size - list->runs_n >= more) return true;
    uint64_t size = list->runs_size ? 2 * list->runs_size : 64;
    if (size < list->runs_n + more) size = list->runs_n + more;
    wr_list_run *runs = realloc(list->runs, size * sizeof *runs);
    if (!runs) return false;
    list->runs = runs;
    list->runs_size = size;
    return true;
}

static bool reserve_totals(wr_list *list, uint64_t more) {
    if (list->totals_size - list->totals_n >= more) return true;
    uint64_t size = list->totals_size ? 2 * list->totals_size : 256;
    if (size < list->totals_n + more) size = list->totals_n + more;
    uint32_t *totals = realloc(list->totals, size * sizeof *totals);
    if (!totals) return false;
    list->totals = totals;
    list->totals_size = size;
    return true;
}

/* ---- waters ---- */

static inline uint64_t water_place(uint64_t client_epoch, uint64_t size) {
    return (client_epoch * 0x9e3779b97f4a7c15ull >> 20) & (size - 1);
}

/* Its place in a table that is not packed: where it is, or the free one where it belongs. */
static uint64_t water_find(const wr_list_water *waters, uint64_t size, uint64_t client_epoch) {
    uint64_t i = water_place(client_epoch, size);
    while (waters[i].water && waters[i].client_epoch != client_epoch) i = (i + 1) & (size - 1);
    return i;
}

/* Room for one more epoch; a packed table is full by this measure, and becomes an open one. */
static bool reserve_water(wr_list *list) {
    if (2 * (list->waters_n + 1) <= list->waters_size) return true;
    uint64_t size = 8;
    while (size < 4 * (list->waters_n + 1)) size *= 2;
    wr_list_water *waters = calloc(size, sizeof *waters);
    if (!waters) return false;
    for (uint64_t i = 0; i < list->waters_size; i++)
        if (list->waters[i].water) waters[water_find(waters, size, list->waters[i].client_epoch)] = list->waters[i];
    free(list->waters);
    list->waters = waters;
    list->waters_size = size;
    list->last_water = 0;
    return true;
}

static void note_water_elsewhere(wr_list *list, uint64_t client_epoch, uint64_t water) {
    uint64_t i = water_find(list->waters, list->waters_size, client_epoch);
    if (!list->waters[i].water) {
        list->waters[i].client_epoch = client_epoch;
        list->waters_n++;
    }
    if (water > list->waters[i].water) list->waters[i].water = water;
    list->last_water = i;
}

/* Does the water of the last frame belong to the same epoch? Then noting this one needs no room. */
static inline bool same_water(const wr_list *list, uint64_t client_epoch) {
    return list->waters_n && list->last_water < list->waters_size && list->waters[list->last_water].water &&
           list->waters[list->last_water].client_epoch == client_epoch;
}

static inline void note_water(wr_list *list, const wr_frame_head *head) {
    if (!head->sequence) return;
    uint64_t water = wr_water(head->sequence, head->part);
    if (same_water(list, head->client_epoch)) {
        if (water > list->waters[list->last_water].water) list->waters[list->last_water].water = water;
    } else {
        note_water_elsewhere(list, head->client_epoch, water);
    }
}

uint64_t wr_list_water_of(const wr_list *list, uint64_t client_epoch) {
    uint64_t water = 0;
    for (uint64_t i = 0; i < list->waters_size; i++)
        if (list->waters[i].client_epoch == client_epoch && list->waters[i].water > water) water = list->waters[i].water;
    return water;
}

void wr_list_seal(wr_list *list) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < list->waters_size; i++)
        if (list->waters[i].water) list->waters[n++] = list->waters[i];
    list->waters_size = n;
    list->last_water = 0;
    if (list->runs_n && list->runs_n < list->runs_size) {
        wr_list_run *runs = realloc(list->runs, list->runs_n * sizeof *runs);
        if (runs) {
            list->runs = runs;
            list->runs_size = list->runs_n;
        }
    }
    if (list->totals_n && list->totals_n < list->totals_size) {
        uint32_t *totals = realloc(list->totals, list->totals_n * sizeof *totals);
        if (totals) {
            list->totals = totals;
            list->totals_size = list->totals_n;
        }
    }
}

/* ---- adding ---- */

static inline void count_in(wr_list *list, const wr_frame_head *head, uint64_t offset, uint64_t total) {
    if (head->kind == WR_KIND_MESSAGE) {
        list->messages++;
        list->message_bytes += total;
    } else {
        list->controls++;
    }
    list->run_end = list->used = offset + total;
}

/* The frame does not simply go on with the open run: it changes it, or begins another. */
static __attribute__((noinline)) int add_elsewhere(wr_list *list, const wr_frame_head *head, uint64_t offset, uint64_t total,
                                                   wr_list_run *follows) {
    if (head->sequence && !same_water(list, head->client_epoch) && !reserve_water(list)) return ENOMEM;
    if (follows && follows->total && follows->count <= CONVERT_MAX) {
        if (!reserve_totals(list, follows->count + 1)) return ENOMEM;
        follows->first_total = (uint32_t)list->totals_n;
        for (uint32_t i = 0; i < follows->count; i++) list->totals[list->totals_n++] = follows->total;
        follows->total = 0;
    }
    if (follows && !follows->total) {
        if (!reserve_totals(list, 1)) return ENOMEM;
        list->totals[list->totals_n++] = (uint32_t)total;
        follows->count++;
    } else {
        if (!reserve_runs(list, 1)) return ENOMEM;
        list->runs[list->runs_n++] = (wr_list_run){
            .id_high = wr_get64(head->id),
            .id_low = wr_get64(head->id + 8),
            .count = 1,
            .offset = (uint32_t)offset,
            .total = (uint32_t)total,
            .extra = head->extra,
            .meta_length = head->meta_length,
            .kind = head->kind,
        };
    }
    note_water(list, head);
    count_in(list, head, offset, total);
    return 0;
}

int wr_list_add(wr_list *list, const wr_frame_head *head, uint64_t offset, uint64_t total) {
    if (offset + total > UINT32_MAX) return EFBIG;
    wr_list_run *run = NULL;
    if (list->runs_n) {
        run = &list->runs[list->runs_n - 1];
        uint64_t low = wr_get64(head->id + 8);
        if (run->id_low + run->count != low || low < run->id_low || run->id_high != wr_get64(head->id) ||
            list->run_end != offset || run->kind != head->kind || run->extra != head->extra ||
            run->meta_length != head->meta_length)
            run = NULL;
    }
    bool goes_on = run && run->total == total &&
                   (!head->sequence || same_water(list, head->client_epoch) || reserve_water(list));
    if (!goes_on) return add_elsewhere(list, head, offset, total, run);
    run->count++;
    note_water(list, head);
    count_in(list, head, offset, total);
    return 0;
}

int wr_list_add_removes(wr_list *list, const wr_frame_head *head, uint64_t offset, uint64_t total, const uint8_t (*ids)[16],
                        uint64_t n) {
    if (offset + total > UINT32_MAX || total < WR_FRAME_BYTES_MIN || n > (total - WR_FRAME_BYTES_MIN) / 16) return EFBIG;
    if (head->sequence && !same_water(list, head->client_epoch) && !reserve_water(list)) return ENOMEM;
    uint64_t runs_n = list->runs_n;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t high = wr_get64(ids[i]), low = wr_get64(ids[i] + 8);
        if (list->runs_n > runs_n) {
            wr_list_run *run = &list->runs[list->runs_n - 1];
            if (run->id_high == high && run->id_low + run->count == low && low > run->id_low) {
                run->count++;
                continue;
            }
        }
        if (!reserve_runs(list, 1)) {
            list->runs_n = runs_n;
            return ENOMEM;
        }
        list->runs[list->runs_n++] = (wr_list_run){
            .id_high = high,
            .id_low = low,
            .count = 1,
            .offset = (uint32_t)offset,
            .total = (uint32_t)total,
            .kind = WR_KIND_REMOVE,
        };
    }
    note_water(list, head);
    list->controls += n;
    list->used = offset + total;
    list->run_end = n ? list->used : 0; /* no ids, no run of its own: what follows must not go on with the run before */
    return 0;
}

/* ---- scan ---- */

static bool all_zero(const uint8_t *bytes, uint64_t n) {
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}

static bool note_damage(wr_list *list, uint64_t from, uint64_t to, const char *reason) {
    wr_list_damage *last = list->damage_n ? &list->damage[list->damage_n - 1] : NULL;
    if (last && last->to == from) { /* the frame behind a damaged one is damaged as well */
        last->to = to;
        return true;
    }
    if ((list->damage_n & (list->damage_n - 1)) == 0) { /* room for the next power of two */
        wr_list_damage *more = realloc(list->damage, (list->damage_n ? 2 * list->damage_n : 1) * sizeof *more);
        if (!more) return false;
        list->damage = more;
    }
    list->damage[list->damage_n++] = (wr_list_damage){from, to, reason};
    list->damaged = list->damage_n;
    return true;
}

/* One scan's looking for frames behind damage. */
typedef struct {
    uint64_t page;         /* the page start that is known to hold a valid frame, 0: none */
    bool last;             /* no page behind begins with one */
    uint64_t pages_budget; /* bytes that may still be checksummed in vain */
    uint64_t bytes_budget;
} hunt_state;

/* Is there a valid frame? *budget: bytes that may still be checksummed in vain. */
static bool frame_at(const uint8_t *bytes, uint64_t length, uint64_t at, uint64_t salt, uint64_t *budget) {
    if (at > length || length - at < WR_FRAME_BYTES_MIN) return false;
    uint64_t size = wr_get64(bytes + at);
    if (size > length || bytes[at + WR_FRAME_AT_VERSION] != WR_FORMAT_VERSION) return false;
    wr_frame_head head;
    const char *why;
    if (wr_frame_check(bytes, length, at, salt, &head, &why)) return true;
    if (why[0] == 'c') *budget = *budget > size ? *budget - size : 0;
    return false;
}

/* Where the scan goes on behind bytes that are no frame; 0: nowhere. */
static uint64_t hunt(hunt_state *state, const uint8_t *bytes, uint64_t length, uint64_t at, uint64_t salt) {
    /* The next frame, when only the contents of this one suffered. */
    if (length - at >= WR_FRAME_BYTES_MIN && state->pages_budget) {
        uint64_t size = wr_get64(bytes + at);
        if (size >= WR_FRAME_BYTES_MIN - 9 && size <= length - at - 9 &&
            frame_at(bytes, length, at + size + 9, salt, &state->pages_budget))
            return at + size + 9;
    }
    if (state->page <= at && !state->last) {
        uint64_t page = (at / WR_PAGE_BYTES + 1) * WR_PAGE_BYTES;
        while (page < length && state->pages_budget && !frame_at(bytes, length, page, salt, &state->pages_budget))
            page += WR_PAGE_BYTES;
        if (page < length && !state->pages_budget) return length; /* bytes made to keep us busy */
        if (page < length) state->page = page;
        state->last = page >= length;
    }
    if (state->page <= at) { /* in the last commit of the file, in which one page alone begins with a frame */
        uint64_t end = length - at < HUNT_LAST_BYTES ? length : at + HUNT_LAST_BYTES;
        for (uint64_t behind = at + 1; behind < end && state->bytes_budget; behind++)
            if (frame_at(bytes, length, behind, salt, &state->bytes_budget)) return behind;
        return 0;
    }
    /* Later bytes are good, so these were written as well: there may be whole frames between. */
    for (uint64_t between = at + 1; between < state->page && state->bytes_budget; between++)
        if (frame_at(bytes, length, between, salt, &state->bytes_budget)) return between;
    return state->page;
}

wr_list *wr_list_scan(uint64_t file, uint64_t salt, const uint8_t *bytes, uint64_t length, const char **reason) {
    *reason = "memory";
    wr_list *list = wr_list_new(file, salt);
    if (!list) return NULL;
    if (length > UINT32_MAX) length = UINT32_MAX;
    uint64_t at = WR_FILE_HEADER_BYTES;
    hunt_state state = {.pages_budget = HUNT_PAGES_FACTOR * length + 1, .bytes_budget = HUNT_BYTES_MAX};
    int error = 0;
    for (;;) {
        wr_frame_head head;
        const char *why;
        uint64_t total = wr_frame_check(bytes, length, at, salt, &head, &why);
        if (total == 0) {
            *reason = why;
            if (at >= length) *reason = "end";
            else if (all_zero(bytes + at, length - at)) *reason = "zeros";
            if (at >= length || (*reason)[0] == 'z') break;
            uint64_t next = hunt(&state, bytes, length, at, salt);
            if (!next) break;
            if (!note_damage(list, at, next, why)) {
                error = ENOMEM;
                break;
            }
            at = next;
            list->used = at;
            continue;
        }
        if (head.kind == WR_KIND_MESSAGE || head.kind == WR_KIND_ADD_REFERENCE) {
            error = wr_list_add(list, &head, at, total);
        } else if (head.kind == WR_KIND_REMOVE) {
            uint64_t n = (total - WR_FRAME_BYTES_MIN) / 16;
            error = wr_list_add_removes(list, &head, at, total, (const uint8_t(*)[16])(bytes + at + WR_FRAME_HEAD_BYTES),
                                        n < head.extra ? n : head.extra);
        }
        if (error) break;
        if (head.kind == WR_KIND_PADDING && head.sequence <= at && head.sequence > list->vouched) list->vouched = head.sequence;
        at += total;
        list->used = at;
        if (head.kind == WR_KIND_PADDING && head.flags & WR_FRAME_LAST) {
            *reason = "end";
            break;
        }
    }
    if (error) {
        *reason = "memory";
        wr_list_free(list);
        return NULL;
    }
    wr_list_seal(list);
    return list;
}

uint64_t wr_list_verify(const wr_list *list, const uint8_t *bytes, uint64_t length, wr_list_bad *bad, uint64_t room) {
    uint64_t n = 0, offset = 0;
    wr_frame_head head = {0};
    const char *why = NULL;
    wr_list_cursor cursor = wr_list_cursor_at(list, 0);
    wr_list_item item;
    while (wr_list_next(&cursor, &item)) {
        if (item.offset != offset) { /* many ids of a REMOVE lie in one frame */
            uint64_t total = wr_frame_check(bytes, length, item.offset, list->salt, &head, &why);
            if (total && (total != item.total || head.kind != item.kind)) why = "other";
            offset = item.offset;
        }
        const char *reason = why;
        if (!reason && item.kind != WR_KIND_REMOVE &&
            (memcmp(head.id, item.id, 16) || head.extra != item.extra || head.meta_length != item.meta_length))
            reason = "other";
        if (!reason) continue;
        if (n < room) {
            bad[n] = (wr_list_bad){.offset = item.offset, .total = item.total, .kind = item.kind, .reason = reason};
            memcpy(bad[n].id, item.id, 16);
        }
        n++;
    }
    return n;
}

uint64_t wr_list_rewrite(const wr_list *list, const uint8_t *bytes, uint64_t length, uint8_t *to, uint64_t room, uint64_t salt) {
    uint64_t at = WR_FILE_HEADER_BYTES, offset = 0;
    wr_list_cursor cursor = wr_list_cursor_at(list, 0);
    wr_list_item item;
    while (wr_list_next(&cursor, &item)) {
        if (item.offset == offset) continue; /* many ids of a REMOVE lie in one frame */
        offset = item.offset;
        wr_frame_head head;
        uint64_t total = wr_frame_check(bytes, length, offset, list->salt, &head, NULL);
        if (!total || total != item.total || head.kind != item.kind) continue;
        if (at + total > room) return 0;
        memcpy(to + at, bytes + offset, total);
        wr_frame_resalt(to + at, total, salt);
        at += total;
    }
    uint64_t end = (at + WR_PAGE_BYTES - 1) / WR_PAGE_BYTES * WR_PAGE_BYTES;
    if (end > at && end - at < WR_FRAME_BYTES_MIN) end += WR_PAGE_BYTES;
    if (end > room) return 0;
    if (end > at) wr_frame_pad(to + at, end - at, salt, true);
    return end;
}

/* ---- list files ---- */

uint8_t *wr_list_encode(const wr_list *list, uint64_t node_id, uint32_t owner, uint64_t *bytes) {
    *bytes = WR_LIST_HEADER_SIZE + list->runs_n * WR_LIST_RUN_SIZE + list->totals_n * 4 + list->waters_n * WR_LIST_WATER_SIZE;
    uint8_t *page = malloc(*bytes);
    if (!page) return NULL;
    memset(page, 0, WR_LIST_HEADER_SIZE);
    memcpy(page + WR_LIST_HEADER_AT_MAGIC, WR_LIST_MAGIC, 8);
    wr_put32(page + WR_LIST_HEADER_AT_VERSION, WR_LIST_VERSION);
    wr_put64(page + WR_LIST_HEADER_AT_NODE_ID, node_id);
    wr_put32(page + WR_LIST_HEADER_AT_OWNER, owner);
    wr_put64(page + WR_LIST_HEADER_AT_FILE, list->file);
    wr_put64(page + WR_LIST_HEADER_AT_SALT, list->salt);
    wr_put64(page + WR_LIST_HEADER_AT_USED, list->used);
    wr_put64(page + WR_LIST_HEADER_AT_RUNS, list->runs_n);
    wr_put64(page + WR_LIST_HEADER_AT_TOTALS, list->totals_n);
    wr_put64(page + WR_LIST_HEADER_AT_WATERS, list->waters_n);
    wr_put64(page + WR_LIST_HEADER_AT_MESSAGES, list->messages);
    wr_put64(page + WR_LIST_HEADER_AT_MESSAGE_BYTES, list->message_bytes);
    wr_put64(page + WR_LIST_HEADER_AT_CONTROLS, list->controls);
    wr_put64(page + WR_LIST_HEADER_AT_DAMAGED, list->damaged);
    uint8_t *to = page + WR_LIST_HEADER_SIZE;
    for (uint64_t i = 0; i < list->runs_n; i++, to += WR_LIST_RUN_SIZE) {
        const wr_list_run *run = &list->runs[i];
        memset(to, 0, WR_LIST_RUN_SIZE);
        wr_put64(to + WR_LIST_RUN_AT_ID, run->id_high);
        wr_put64(to + WR_LIST_RUN_AT_ID + 8, run->id_low);
        wr_put32(to + WR_LIST_RUN_AT_COUNT, run->count);
        wr_put32(to + WR_LIST_RUN_AT_OFFSET, run->offset);
        wr_put32(to + WR_LIST_RUN_AT_TOTAL, run->total);
        wr_put32(to + WR_LIST_RUN_AT_EXTRA, run->extra);
        wr_put16(to + WR_LIST_RUN_AT_META_LENGTH, run->meta_length);
        to[WR_LIST_RUN_AT_KIND] = run->kind;
    }
    for (uint64_t i = 0; i < list->totals_n; i++, to += 4) wr_put32(to, list->totals[i]);
    for (uint64_t i = 0; i < list->waters_size; i++) {
        if (!list->waters[i].water) continue;
        wr_put64(to + WR_LIST_WATER_AT_CLIENT_EPOCH, list->waters[i].client_epoch);
        wr_put64(to + WR_LIST_WATER_AT_WATER, list->waters[i].water);
        to += WR_LIST_WATER_SIZE;
    }
    wr_put32(page + WR_LIST_HEADER_AT_CRC, wr_crc32c(0, page + 16, *bytes - 16));
    return page;
}

static const char *check_head(const uint8_t *bytes, uint64_t n, uint64_t node_id, uint32_t owner, uint64_t file, uint64_t salt,
                              uint64_t file_bytes) {
    if (n < WR_LIST_HEADER_SIZE) return "size";
    if (memcmp(bytes + WR_LIST_HEADER_AT_MAGIC, WR_LIST_MAGIC, 8)) return "magic";
    if (wr_get32(bytes + WR_LIST_HEADER_AT_VERSION) != WR_LIST_VERSION) return "version";
    if (wr_get32(bytes + WR_LIST_HEADER_AT_CRC) != wr_crc32c(0, bytes + 16, n - 16)) return "crc";
    if (wr_get64(bytes + WR_LIST_HEADER_AT_NODE_ID) != node_id) return "node";
    if (wr_get32(bytes + WR_LIST_HEADER_AT_OWNER) != owner) return "owner";
    if (wr_get64(bytes + WR_LIST_HEADER_AT_FILE) != file) return "file";
    if (wr_get64(bytes + WR_LIST_HEADER_AT_SALT) != salt) return "salt";
    uint64_t runs = wr_get64(bytes + WR_LIST_HEADER_AT_RUNS), totals = wr_get64(bytes + WR_LIST_HEADER_AT_TOTALS);
    uint64_t waters = wr_get64(bytes + WR_LIST_HEADER_AT_WATERS), used = wr_get64(bytes + WR_LIST_HEADER_AT_USED);
    if (runs > n / WR_LIST_RUN_SIZE || totals > n / 4 || totals > UINT32_MAX || waters > n / WR_LIST_WATER_SIZE ||
        WR_LIST_HEADER_SIZE + runs * WR_LIST_RUN_SIZE + totals * 4 + waters * WR_LIST_WATER_SIZE != n)
        return "size";
    return used < WR_FILE_HEADER_BYTES || used > file_bytes || used > UINT32_MAX ? "size" : NULL;
}

/* Check a decoded run against its neighbour; *end: behind its frames. False: it cannot be. */
static bool run_sound(const wr_list *list, const wr_list_run *run, const wr_list_run *before, uint64_t *end) {
    uint64_t from = *end;
    if (run->count == 0 || run->id_low + (run->count - 1) < run->id_low) return false;
    if (run->kind == WR_KIND_REMOVE) {
        if (run->total < WR_FRAME_BYTES_MIN || run->count > (run->total - WR_FRAME_BYTES_MIN) / 16) return false;
        bool same = before && before->kind == WR_KIND_REMOVE && before->offset == run->offset;
        if (same ? before->total != run->total : run->offset < from) return false;
        *end = (uint64_t)run->offset + run->total;
    } else if (run->kind == WR_KIND_MESSAGE || run->kind == WR_KIND_ADD_REFERENCE) {
        if (run->offset < from) return false;
        uint64_t length = (uint64_t)run->total * run->count;
        if (run->total ? run->total < WR_FRAME_BYTES_MIN : run->count > list->totals_n - run->first_total) return false;
        for (uint32_t i = 0; !run->total && i < run->count; i++) {
            if (list->totals[run->first_total + i] < WR_FRAME_BYTES_MIN) return false;
            length += list->totals[run->first_total + i];
        }
        *end = run->offset + length;
    } else {
        return false;
    }
    return *end <= list->used;
}

static const char *fill(wr_list *list, const uint8_t *bytes) {
    const uint8_t *from = bytes + WR_LIST_HEADER_SIZE, *totals = from + list->runs_n * WR_LIST_RUN_SIZE;
    for (uint64_t i = 0; i < list->totals_n; i++) list->totals[i] = wr_get32(totals + 4 * i);
    uint64_t totals_used = 0, end = WR_FILE_HEADER_BYTES;
    for (uint64_t i = 0; i < list->runs_n; i++, from += WR_LIST_RUN_SIZE) {
        wr_list_run *run = &list->runs[i];
        *run = (wr_list_run){
            .id_high = wr_get64(from + WR_LIST_RUN_AT_ID),
            .id_low = wr_get64(from + WR_LIST_RUN_AT_ID + 8),
            .count = wr_get32(from + WR_LIST_RUN_AT_COUNT),
            .offset = wr_get32(from + WR_LIST_RUN_AT_OFFSET),
            .total = wr_get32(from + WR_LIST_RUN_AT_TOTAL),
            .extra = wr_get32(from + WR_LIST_RUN_AT_EXTRA),
            .meta_length = wr_get16(from + WR_LIST_RUN_AT_META_LENGTH),
            .kind = from[WR_LIST_RUN_AT_KIND],
            .first_total = (uint32_t)totals_used,
        };
        uint64_t begin = end;
        if (!run_sound(list, run, i ? run - 1 : NULL, &end)) return "run";
        if (!run->total) totals_used += run->count;
        if (run->kind == WR_KIND_MESSAGE) {
            list->messages += run->count;
            list->message_bytes += end - run->offset;
        } else {
            list->controls += run->count;
        }
        if (end < begin) return "run";
    }
    if (totals_used != list->totals_n) return "run";
    const uint8_t *waters = totals + 4 * list->totals_n;
    for (uint64_t i = 0; i < list->waters_n; i++, waters += WR_LIST_WATER_SIZE) {
        list->waters[i].client_epoch = wr_get64(waters + WR_LIST_WATER_AT_CLIENT_EPOCH);
        list->waters[i].water = wr_get64(waters + WR_LIST_WATER_AT_WATER);
        if (!list->waters[i].water) return "size";
    }
    list->run_end = end;
    if (list->messages != wr_get64(bytes + WR_LIST_HEADER_AT_MESSAGES) ||
        list->message_bytes != wr_get64(bytes + WR_LIST_HEADER_AT_MESSAGE_BYTES) ||
        list->controls != wr_get64(bytes + WR_LIST_HEADER_AT_CONTROLS))
        return "size";
    return NULL;
}

wr_list *wr_list_decode(const uint8_t *bytes, uint64_t n, uint64_t node_id, uint32_t owner, uint64_t file, uint64_t salt,
                        uint64_t file_bytes, const char **reason) {
    *reason = check_head(bytes, n, node_id, owner, file, salt, file_bytes);
    if (*reason) return NULL;
    wr_list *list = wr_list_new(file, salt);
    if (list) {
        list->used = wr_get64(bytes + WR_LIST_HEADER_AT_USED);
        list->damaged = wr_get64(bytes + WR_LIST_HEADER_AT_DAMAGED);
        list->runs_n = list->runs_size = wr_get64(bytes + WR_LIST_HEADER_AT_RUNS);
        list->totals_n = list->totals_size = wr_get64(bytes + WR_LIST_HEADER_AT_TOTALS);
        list->waters_n = list->waters_size = wr_get64(bytes + WR_LIST_HEADER_AT_WATERS);
        list->runs = malloc((list->runs_n + 1) * sizeof *list->runs);
        list->totals = malloc((list->totals_n + 1) * sizeof *list->totals);
        list->waters = malloc((list->waters_n + 1) * sizeof *list->waters);
    }
    if (!list || !list->runs || !list->totals || !list->waters)
        *reason = "memory";
    else
        *reason = fill(list, bytes);
    if (!*reason) return list;
    wr_list_free(list);
    return NULL;
}
