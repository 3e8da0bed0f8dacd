/* Goal: after a collection a restart finds the same messages, references and bytes as without it, whatever happens to the store while
 * it runs; damage and errors are reported and change nothing.
 * Method: a small model of a store (files in memory, entries, the server's rules for locked files, ghosts and pins) does random
 * operations, also between the steps of collections; then everything is replayed from the files. Errors are injected. */
#include "store/copy.h"
#include "support/random.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES (64u << 10)
#define FILES 400
#define IDS 48
#define BODY_MAX 300

typedef struct {
    bool there, locked, ghosts;
    uint8_t *bytes;
    uint64_t used, salt, low, high, pin_low, pin_high; /* pins: position + 1 */
    wr_list *list;
} store_file;

typedef struct {
    bool there;
    uint32_t file, offset, refs;
} place;

static store_file files[FILES];
static place truth[IDS];
static uint32_t value[IDS]; /* what the body must say */
static uint32_t current, next_value, stale_for, lookups;

static uint32_t pick(uint32_t n) { return (uint32_t)((random64() >> 16) % n); }

static void id_of(uint32_t n, uint8_t id[16]) {
    memset(id, 0, 16);
    id[7] = 7;
    id[14] = (uint8_t)(n >> 8);
    id[15] = (uint8_t)n;
}
static uint32_t number_of(const uint8_t id[16]) { return (uint32_t)id[14] << 8 | id[15]; }

/* ---- the store ---- */

static void make_file(uint32_t file, uint64_t low, uint64_t high) {
    store_file *f = &files[file];
    assert(file < FILES && !f->bytes);
    *f = (store_file){.there = true, .used = WR_FILE_HEADER_BYTES, .salt = 1000 + file, .low = low, .high = high};
    f->bytes = calloc(1, FILE_BYTES);
    f->list = wr_list_new(file, f->salt);
    assert(f->bytes && f->list);
}

static void drop_file(uint32_t file) {
    free(files[file].bytes);
    wr_list_free(files[file].list);
    files[file].bytes = NULL;
    files[file].list = NULL;
    files[file].there = false;
}

static uint32_t numbers; /* next file number */
static uint8_t *room(uint64_t total) {
    if (files[current].used + total > FILE_BYTES || pick(60) == 0) {
        current = numbers++;
        make_file(current, current, current);
    }
    return files[current].bytes + files[current].used;
}

static void pin(uint32_t target) {
    store_file *f = &files[current], *t = &files[target];
    if (target == current) return;
    if (!f->pin_low || t->low + 1 < f->pin_low) f->pin_low = t->low + 1;
    if (t->high + 1 > f->pin_high) f->pin_high = t->high + 1;
}

static void append_one(uint32_t n, uint8_t kind, const uint8_t *body, uint64_t length) {
    wr_frame_head head = {.kind = kind, .client_epoch = 3, .sequence = next_value + 1};
    id_of(n, head.id);
    uint8_t *to = room(wr_frame_bytes(length));
    store_file *f = &files[current];
    uint64_t total = wr_frame_write(to, &head, NULL, 0, body, length, f->salt);
    assert(wr_list_add(f->list, &head, f->used, total) == 0);
    f->used += total;
}

static void append_message(uint32_t n) {
    uint8_t body[BODY_MAX];
    uint64_t length = 4 + pick(BODY_MAX - 4);
    memset(body, (int)next_value, sizeof body);
    value[n] = ++next_value;
    memcpy(body, &value[n], 4);
    append_one(n, WR_KIND_MESSAGE, body, length);
    truth[n] = (place){true, current, (uint32_t)(files[current].used - wr_frame_bytes(length)), 1};
}

static void write_one(uint32_t n) {
    place *p = &truth[n];
    if (p->there && (p->refs || (!files[p->file].locked && pick(8)))) {
        if (!p->refs++) /* revived by a write of just these bytes */
            memcpy(&value[n], files[p->file].bytes + p->offset + WR_FRAME_HEAD_BYTES, 4);
        append_one(n, WR_KIND_ADD_REFERENCE, NULL, 0);
        pin(p->file);
        return;
    }
    /* Absent, or its file is locked, or other bytes than those stored: afresh. A dead record stays without an entry. */
    if (p->there) files[p->file].ghosts = true;
    append_message(n);
}

static void remove_some(void) {
    uint8_t ids[8][16];
    uint32_t n = 0, wanted = 1 + pick(5), targets[8];
    for (uint32_t tries = 0; n < wanted && tries < 20; tries++) {
        uint32_t number = pick(IDS);
        if (!truth[number].there || !truth[number].refs) continue;
        truth[number].refs--;
        targets[n] = truth[number].file;
        id_of(number, ids[n++]);
    }
    if (!n) return;
    wr_frame_head head = {.kind = WR_KIND_REMOVE, .client_epoch = 3, .sequence = ++next_value, .extra = n};
    uint8_t *to = room(wr_frame_bytes(n * 16));
    store_file *f = &files[current];
    uint64_t total = wr_frame_write(to, &head, NULL, 0, ids, n * 16, f->salt);
    assert(wr_list_add_removes(f->list, &head, f->used, total, (const uint8_t(*)[16])ids, n) == 0);
    f->used += total;
    for (uint32_t i = 0; i < n; i++) pin(targets[i]);
}

static void churn(uint32_t n) {
    while (n--)
        if (pick(100) < 52)
            write_one(pick(IDS));
        else
            remove_some();
}

static bool live_in(uint32_t file) {
    for (uint32_t n = 0; n < IDS; n++)
        if (truth[n].there && truth[n].file == file && truth[n].refs) return true;
    return false;
}

static bool is_pinned(uint32_t file) {
    const store_file *f = &files[file];
    if (!f->pin_low) return false;
    for (uint32_t i = 0; i < numbers; i++)
        if (i != file && files[i].there && files[i].low <= f->pin_high - 1 && files[i].high >= f->pin_low - 1) return true;
    return false;
}

static void forget_entries(uint32_t file) {
    for (uint32_t n = 0; n < IDS; n++)
        if (truth[n].there && truth[n].file == file) {
            assert(!truth[n].refs);
            truth[n].there = false;
        }
}

static void drop_empties(void) {
    for (uint32_t i = 0; i < numbers; i++)
        if (files[i].there && i != current && !live_in(i) && !is_pinned(i)) {
            forget_entries(i);
            drop_file(i);
        }
}

/* ---- replay ---- */

static int by_position(const void *a, const void *b) {
    const store_file *x = &files[*(const uint32_t *)a], *y = &files[*(const uint32_t *)b];
    return x->low < y->low ? -1 : x->low > y->low;
}

/* What a start finds; takes it up when `restart`. */
static void replay(bool restart) {
    static uint32_t order[FILES];
    static place found[IDS];
    uint32_t n = 0;
    memset(found, 0, sizeof found);
    for (uint32_t i = 0; i < numbers; i++)
        if (files[i].there) order[n++] = i;
    qsort(order, n, sizeof *order, by_position);
    if (restart)
        for (uint32_t i = 0; i < n; i++) files[order[i]].ghosts = false;
    for (uint32_t i = 0; i < n; i++) {
        store_file *f = &files[order[i]];
        const char *reason;
        wr_list *list = wr_list_scan(order[i], f->salt, f->bytes, FILE_BYTES, &reason);
        assert(list && list->damage_n == 0 && (strcmp(reason, "end") == 0 || strcmp(reason, "zeros") == 0));
        wr_list_cursor cursor = wr_list_cursor_at(list, 0), known = wr_list_cursor_at(f->list, 0);
        wr_list_item item, said;
        while (wr_list_next(&cursor, &item)) {
            assert(wr_list_next(&known, &said)); /* the list made by appending says the same */
            assert(!memcmp(said.id, item.id, 16) && said.offset == item.offset && said.total == item.total && said.kind == item.kind);
            place *p = &found[number_of(item.id)];
            if (item.kind == WR_KIND_MESSAGE) {
                if (restart && p->there) files[p->file].ghosts = true;
                *p = (place){true, order[i], (uint32_t)item.offset, 1};
            } else if (item.kind == WR_KIND_ADD_REFERENCE) {
                if (p->there) p->refs++;
            } else if (p->there && p->refs) {
                p->refs--;
            }
        }
        assert(!wr_list_next(&known, &said));
        wr_list_free(list);
    }
    for (uint32_t k = 0; k < IDS; k++) {
        bool lives = truth[k].there && truth[k].refs;
        assert(lives == (found[k].there && found[k].refs));
        if (!lives) continue;
        assert(truth[k].refs == found[k].refs && truth[k].file == found[k].file && truth[k].offset == found[k].offset);
        uint32_t stored;
        memcpy(&stored, files[found[k].file].bytes + found[k].offset + WR_FRAME_HEAD_BYTES, 4);
        assert(stored == value[k]);
    }
    if (restart) memcpy(truth, found, sizeof truth);
}

/* ---- what a collection asks and does ---- */

static int fail_pread, fail_pwrite; /* errno of the next call */
static uint32_t short_write;

static int lookup(void *context, const uint8_t id[16], wr_index_entry *copy) {
    (void)context;
    lookups++;
    if (stale_for) {
        stale_for--;
        return ESTALE;
    }
    const place *p = &truth[number_of(id)];
    if (!p->there) return ENOENT;
    memset((void *)copy, 0, sizeof *copy);
    copy->file = p->file;
    copy->offset = p->offset;
    copy->ref_count = p->refs;
    return 0;
}

static ssize_t read_at(void *context, int fd, void *to, size_t n, off_t at) {
    (void)context;
    if (fail_pread) {
        errno = fail_pread;
        if (errno == EINTR) fail_pread = 0;
        return -1;
    }
    if ((uint64_t)at >= FILE_BYTES) return 0;
    if (n > FILE_BYTES - (uint64_t)at) n = FILE_BYTES - (uint64_t)at;
    if (n > 1 && pick(4) == 0) n = 1 + pick((uint32_t)n - 1);
    memcpy(to, files[fd].bytes + at, n);
    return (ssize_t)n;
}

static ssize_t write_at(void *context, int fd, const void *from, size_t n, off_t at) {
    (void)context;
    if (fail_pwrite) {
        errno = fail_pwrite;
        if (errno == EINTR) fail_pwrite = 0;
        return -1;
    }
    assert(at % WR_PAGE_BYTES == 0 && n % WR_PAGE_BYTES == 0 && (uint64_t)at + n <= FILE_BYTES);
    if (short_write && n > short_write) n = short_write;
    memcpy(files[fd].bytes + at, from, n);
    return (ssize_t)n;
}

static bool ghosts(void *context, uint64_t position) {
    (void)context;
    for (uint32_t i = 0; i < numbers; i++)
        if (files[i].there && files[i].ghosts && files[i].low <= position) return true;
    return false;
}

static const wr_collect_io io = {lookup, ghosts, read_at, write_at, NULL};

static wr_collect *begin(const uint32_t *run, uint32_t n, uint32_t output) {
    wr_collect_source sources[16];
    for (uint32_t i = 0; i < n; i++) {
        bool keep = false;
        for (uint32_t g = 0; g < numbers; g++) {
            bool inside = false;
            for (uint32_t k = 0; k < n; k++) inside = inside || run[k] == g;
            keep = keep || (files[g].there && files[g].ghosts && !inside && files[g].low <= files[run[i]].high);
        }
        sources[i] = (wr_collect_source){(int)run[i], files[run[i]].list, files[run[i]].high, keep};
    }
    wr_collect_output out = {(int)output, FILE_BYTES, 5, 0, output, files[output].salt, 1, files[run[0]].low, files[run[n - 1]].high};
    wr_collect *c = wr_collect_new(sources, n, &out, &io);
    assert(c);
    return c;
}

/* A run of neighbours whose live records fit into one file. */
static uint32_t choose(uint32_t run[16]) {
    static uint32_t order[FILES];
    uint32_t all = 0, n = 0;
    for (uint32_t i = 0; i < numbers; i++)
        if (files[i].there && i != current) order[all++] = i;
    if (!all) return 0;
    qsort(order, all, sizeof *order, by_position);
    uint32_t first = pick(all), most = 1 + pick(5);
    uint64_t sum = WR_FILE_HEADER_BYTES;
    for (uint32_t i = first; i < all && n < most; i++) {
        sum += files[order[i]].used - WR_FILE_HEADER_BYTES;
        if (n && sum > 2 * FILE_BYTES) break;
        run[n++] = order[i];
    }
    return n;
}

static uint64_t collected, failed_n, too_big;

static void collect_once(bool fail) {
    uint32_t run[16], n = choose(run);
    if (!n) return;
    for (uint32_t i = 0; i < n; i++) files[run[i]].locked = true;
    uint32_t output = numbers++;
    make_file(output, 0, 0);
    files[output].there = false; /* it has no name yet */
    uint32_t used = n;
    wr_collect *c = begin(run, n, output);
    short_write = pick(3) ? 0 : WR_PAGE_BYTES * 2 + 100;
    int error;
    while ((error = wr_collect_step(c, 1 + pick(3000)))) {
        if (error == E2BIG) {
            used = wr_collect_fits(c);
            assert(used > 0 && used < n);
            too_big++;
            wr_collect_free(c);
            memset(files[output].bytes, 0, FILE_BYTES);
            c = begin(run, used, output);
            continue;
        }
        assert(error == EAGAIN || error == ESTALE);
        churn(pick(6));
        if (pick(20) == 0) stale_for = pick(3);
        if (fail && pick(4) == 0) break;
    }
    stale_for = 0;
    if (error) {
        for (uint32_t i = 0; i < n; i++) {
            files[run[i]].locked = false;
            files[run[i]].ghosts = true;
        }
        wr_collect_free(c);
        drop_file(output);
        failed_n++;
        return;
    }
    collected++;
    uint64_t damage_n;
    wr_collect_damaged(c, &damage_n);
    assert(damage_n == 0);
    churn(pick(10));
    store_file *f = &files[output];
    uint64_t salt, low, high;
    assert(!wr_file_header_check(f->bytes, WR_FILE_STORE, 5, 0, output, &salt) && salt == f->salt);
    wr_file_header_positions(f->bytes, &low, &high);
    wr_list_free(f->list);
    f->list = wr_collect_take_list(c);
    f->used = f->list->used;
    f->low = low;
    f->high = high;
    f->there = true;
    wr_collect_free(c);
    wr_list_cursor cursor = wr_list_cursor_at(f->list, 0);
    wr_list_item item;
    while (wr_list_next(&cursor, &item)) { /* swing */
        if (item.kind != WR_KIND_MESSAGE) continue;
        place *p = &truth[number_of(item.id)];
        bool moved = false;
        for (uint32_t i = 0; i < used && p->there; i++) moved = moved || p->file == run[i];
        if (moved) {
            p->file = output;
            p->offset = (uint32_t)item.offset;
        } else {
            f->ghosts = true;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        files[run[i]].locked = false;
        if (i >= used) {
            files[run[i]].ghosts = true;
            continue;
        }
        const store_file *s = &files[run[i]];
        if (s->pin_low && (!f->pin_low || s->pin_low < f->pin_low)) f->pin_low = s->pin_low;
        if (s->pin_high > f->pin_high) f->pin_high = s->pin_high;
        forget_entries(run[i]);
        drop_file(run[i]);
    }
    replay(false);
}

static void reset(void) {
    for (uint32_t i = 0; i < numbers; i++)
        if (files[i].bytes) drop_file(i);
    memset(files, 0, sizeof files);
    memset(truth, 0, sizeof truth);
    numbers = 1;
    current = 0;
    make_file(0, 0, 0);
}

static void test_random(void) {
    for (uint32_t round = 0; round < 40; round++) {
        reset();
        while (numbers < FILES - 60) {
            churn(40 + pick(200));
            if (pick(2)) drop_empties();
            collect_once(pick(5) == 0);
            if (pick(4) == 0) replay(pick(2));
        }
        replay(true);
    }
    reset();
    assert(collected > 500 && failed_n > 50 && too_big > 5);
    printf("random: %llu collected, %llu failed, %llu too big\n", (unsigned long long)collected, (unsigned long long)failed_n,
           (unsigned long long)too_big);
}

/* A file with ten messages; the third is damaged. */
static void test_damage(void) {
    for (uint32_t what = 0; what < 3; what++) {
        reset();
        for (uint32_t n = 0; n < 10; n++) append_message(n);
        uint32_t source = truth[2].file;
        assert(source == truth[9].file || what < 3);
        uint64_t hit = truth[2].offset + (what == 0 ? WR_FRAME_HEAD_BYTES + 1 : what == 1 ? WR_FRAME_AT_ID + 15 : WR_FRAME_AT_SIZE + 7);
        files[source].bytes[hit] ^= 1;
        uint32_t output = numbers++;
        make_file(output, 0, 0);
        wr_collect *c = begin(&source, 1, output);
        assert(wr_collect_step(c, UINT64_MAX) == 0);
        uint64_t n;
        const wr_collect_damage *damage = wr_collect_damaged(c, &n);
        assert(n == 1 && damage[0].kind == WR_KIND_MESSAGE && number_of(damage[0].id) == 2 && damage[0].file == source);
        assert(damage[0].offset == truth[2].offset && damage[0].reason);
        const wr_list *list = wr_collect_list(c);
        assert(list->messages == files[source].list->messages - 1);
        const char *reason;
        wr_list *found = wr_list_scan(output, files[output].salt, files[output].bytes, FILE_BYTES, &reason);
        assert(found && strcmp(reason, "end") == 0 && found->messages == list->messages && found->used == list->used && !found->damage_n);
        wr_list_free(found);
        wr_collect_free(c);
    }
}

/* A damaged REMOVE is made anew from the list: otherwise its messages would come back. */
static void test_damaged_controls(void) {
    reset();
    append_message(0);
    append_message(1);
    append_message(2);
    uint32_t first = current;
    current = numbers++;
    make_file(current, current, current);
    write_one(0);
    append_message(3);
    uint64_t at = files[current].used;
    uint8_t ids[2][16];
    id_of(1, ids[0]);
    id_of(2, ids[1]);
    wr_frame_head head = {.kind = WR_KIND_REMOVE, .client_epoch = 3, .sequence = 9, .extra = 2};
    uint64_t total = wr_frame_write(files[current].bytes + at, &head, NULL, 0, ids, 32, files[current].salt);
    assert(!wr_list_add_removes(files[current].list, &head, at, total, (const uint8_t(*)[16])ids, 2));
    files[current].used += total;
    truth[1].refs = truth[2].refs = 0;
    uint32_t source = current;
    files[source].bytes[at + 60] ^= 4;
    files[source].bytes[WR_FILE_HEADER_BYTES + 30] ^= 4; /* the ADD_REFERENCE */
    current = numbers++;
    make_file(current, current, current);
    uint32_t output = numbers++;
    make_file(output, 0, 0);
    wr_collect *c = begin(&source, 1, output);
    assert(wr_collect_step(c, UINT64_MAX) == 0);
    uint64_t n;
    const wr_collect_damage *damage = wr_collect_damaged(c, &n);
    assert(n == 2 && damage[0].kind == WR_KIND_ADD_REFERENCE && damage[1].kind == WR_KIND_REMOVE);
    assert(wr_collect_counted(c)->controls == 3 && wr_collect_counted(c)->messages == 1);
    wr_list_free(files[output].list);
    files[output].list = wr_collect_take_list(c);
    files[output].low = files[output].high = files[source].low;
    truth[3].file = output;
    wr_list_cursor cursor = wr_list_cursor_at(files[output].list, 0);
    wr_list_item item;
    while (wr_list_next(&cursor, &item))
        if (item.kind == WR_KIND_MESSAGE) truth[3].offset = (uint32_t)item.offset;
    wr_collect_free(c);
    drop_file(source);
    assert(files[first].there);
    replay(false);
}

static void test_errors(void) {
    reset();
    for (uint32_t n = 0; n < 10; n++) append_message(n);
    uint32_t source = truth[0].file, output = numbers++;
    make_file(output, 0, 0);
    int errors[] = {ENOSPC, EIO};
    for (uint32_t i = 0; i < 2; i++) {
        wr_collect *c = begin(&source, 1, output);
        fail_pwrite = errors[i];
        assert(wr_collect_step(c, UINT64_MAX) == errors[i]);
        fail_pwrite = 0;
        wr_collect_free(c);
    }
    wr_collect *c = begin(&source, 1, output); /* interrupted calls are made again */
    fail_pread = fail_pwrite = EINTR;
    assert(wr_collect_step(c, UINT64_MAX) == 0);
    assert(!fail_pread && !fail_pwrite);
    wr_collect_free(c);
    c = begin(&source, 1, output); /* a disk that cannot read: every record is named */
    fail_pread = EIO;
    assert(wr_collect_step(c, UINT64_MAX) == 0);
    fail_pread = 0;
    uint64_t n;
    const wr_collect_damage *damage = wr_collect_damaged(c, &n);
    assert(n == files[source].list->messages && strcmp(damage[0].reason, "unreadable") == 0);
    wr_collect_free(c);
    c = begin(&source, 1, output); /* the index is being replaced: nothing happens until it is there again */
    stale_for = 3;
    for (uint32_t i = 0; i < 3; i++) assert(wr_collect_step(c, UINT64_MAX) == ESTALE);
    assert(wr_collect_step(c, UINT64_MAX) == 0 && wr_collect_list(c)->messages == files[source].list->messages);
    wr_collect_free(c);
    wr_collect_source checked = {(int)source, files[source].list, 0, false}; /* without an output */
    wr_collect_output none = {.fd = -1, .file_bytes = FILE_BYTES};
    files[source].bytes[truth[1].offset + 70] ^= 1;
    c = wr_collect_new(&checked, 1, &none, &io);
    assert(wr_collect_step(c, UINT64_MAX) == 0 && !wr_collect_list(c));
    wr_collect_damaged(c, &n);
    assert(n == 1 && wr_collect_counted(c)->written_bytes == 0);
    wr_collect_free(c);
}

int main(void) {
    test_random();
    test_damage();
    test_damaged_controls();
    test_errors();
    reset();
    drop_file(0);
    return 0;
}
