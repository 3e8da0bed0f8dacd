/* OP_STORE_WRITE_MANY: many messages in one command (design note 003, section 2). Invariants: store/store.h.
 *
 * Messages are done in order, in stretches: new ids whose entries lie one behind the other are taken, copied and filled in without
 * looking at anything else. What is not that simple (the id is there, was eliminated, has no dense place, its writer is
 * dying) goes the way of a single message, and the next stretch begins behind it.
 *
 * A command that was interrupted (slice over, no file, no room; kill) goes on at link->part: after a kill at the last part that
 * has a frame on disk. The parts before it that have none were eliminated, masked, or needed none.
 * The rows of the directory go when the whole command is done.
 */
#include "store/batch.h"
#include "store/append.h"
#include "store/command.h"
#include "store/files.h"
#include "store/take.h"

#define STRETCH 64

typedef struct {
    wr_store *store;
    wr_store_link *link;
    uint32_t slot;
    uint64_t sequence;
    const wr_command *c;
    uint64_t epoch_half, counter; /* of the first id */
    _Atomic uint32_t *flying;
    const uint32_t *ends; /* private; ends[i] is where body i begins */
    const uint8_t *bodies;
    wr_command *record;
} batch;

void wr_store_group_rows(wr_store *store, uint32_t slot, uint64_t sequence, const uint8_t first_id[16], uint64_t count, bool put) {
    uint64_t counter = wr_get64(first_id + 8);
    uint64_t last = (counter + count - 1) / WR_DIRECTORY_GROUP;
    uint8_t id[16], group[16];
    memcpy(id, first_id, 8);
    for (uint64_t g = counter / WR_DIRECTORY_GROUP; g <= last; g++) {
        wr_put64(id + 8, g * WR_DIRECTORY_GROUP);
        wr_group_id(id, group);
        uint64_t hash = wr_id_hash(group);
        uint64_t word = wr_directory_word(hash, slot, sequence);
        if (put)
            wr_directory_insert(store->directory, store->directory_rows, hash, word);
        else
            wr_directory_remove(store->directory, store->directory_rows, hash, word, (wr_row_ref){0});
    }
}

/* Copy the ends and check them: they rise, and the last is the end of the blob. */
static bool copy_ends(wr_store_server *server, const wr_command *c, const uint8_t *blob) {
    uint32_t count = (uint32_t)c->count, largest = 0, falls = 0;
    uint32_t *ends = server->ends;
    ends[0] = 0;
    memcpy(ends + 1, blob + 4ull * count, 4ull * count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = ends[i + 1] - ends[i];
        falls |= ends[i + 1] < ends[i];
        largest = length > largest ? length : largest;
    }
    return !falls && ends[count] == c->length - 8 * count && largest <= server->super->shared_bytes_max;
}

static inline void take_flying(_Atomic uint32_t *word, uint32_t *flying) {
    *flying = WR_FLYING_WRITTEN;
    /* SYNC flying: one of this and the client's WRITTEN -> ELIMINATED wins (store/client.c) */
    atomic_compare_exchange_strong_explicit(word, flying, WR_FLYING_TAKEN, memory_order_acq_rel, memory_order_acquire);
}

static inline void part_began(batch *b) {
    b->link->part_effect = true;
    if (!wr_file_some(b->link->part_file)) b->link->part_file = b->store->current;
}

/* One message, whatever is the matter with it. DONE, STALLED, EVICTED. */
static int single(batch *b, uint32_t at, uint32_t *reason) {
    uint32_t flying;
    take_flying(&b->flying[at], &flying);
    if (flying == WR_FLYING_ELIMINATED) {
        b->store->eliminated_n++;
        return WR_STORE_DONE;
    }
    if (flying != WR_FLYING_WRITTEN && flying != WR_FLYING_TAKEN && flying != WR_FLYING_DONE) {
        *reason = WR_EVICTED_OPERATION;
        return WR_STORE_EVICTED;
    }
    uint8_t id[16];
    memcpy(id, &b->epoch_half, 8);
    wr_put64(id + 8, b->counter + at);
    wr_store_message m = {.id = id,
                          .body = b->bodies + b->ends[at],
                          .length = b->ends[at + 1] - b->ends[at],
                          .part = (uint16_t)(at + 1)};
    bool masked;
    int outcome = wr_store_take(b->store, b->slot, b->sequence, &m, &masked);
    if (outcome != WR_STORE_DONE) return outcome;
    if (masked)
        atomic_store_explicit(&b->record->result, WR_RESULT_MASKED, memory_order_relaxed);
    else
        part_began(b);
    atomic_store_explicit(&b->flying[at], WR_FLYING_DONE, memory_order_release);
    return WR_STORE_DONE;
}

/* New messages at the beginning of entries[0..n). Returns how many were done; 0 and *outcome: DONE: the first one is not that
 * simple, else why not. */
static uint32_t stretch(batch *b, wr_index_entry *entries, uint32_t at, uint32_t n, int *outcome) {
    wr_store *store = b->store;
    const uint32_t *ends = b->ends + at;
    *outcome = WR_STORE_DONE;
    if (entries[0].state == 1) return 0;
    bool too_big;
    uint64_t offset;
    uint8_t *to = wr_store_reserve_new(store, wr_frame_bytes(ends[1] - ends[0]), &offset, &too_big);
    if (!to) {
        *outcome = too_big ? WR_STORE_EVICTED : WR_STORE_STALLED;
        return 0;
    }
    int holder = store->server->holder[b->slot];
    uint64_t salt = store->state->salt, room = wr_log_room(store->log), used = 0;
    if (wr_log_new_room(store->log) < room) room = wr_log_new_room(store->log);
    wr_frame_head head = {.kind = WR_KIND_MESSAGE,
                          .client_epoch = store->server->client_epoch[b->slot],
                          .sequence = b->sequence + 1,
                          .extra = (uint32_t)(holder + 1)};
    memcpy(head.id, &b->epoch_half, 8);
    if (n > STRETCH) n = STRETCH;
    uint32_t k = 0;
    for (; k < n; k++) {
        uint32_t length = ends[k + 1] - ends[k], flying;
        uint64_t total = wr_frame_bytes(length);
        if (entries[k].state == 1 || (k && used + total + WR_FRAME_BYTES_MIN > room)) break;
        take_flying(&b->flying[at + k], &flying);
        if (flying != WR_FLYING_WRITTEN && flying != WR_FLYING_TAKEN) break;
        wr_put64(head.id + 8, b->counter + at + k);
        head.part = (uint16_t)(at + k + 1);
        wr_frame_write(to + used, &head, NULL, 0, b->bodies + ends[k], length, salt);
        if (store->list && wr_list_add(store->list, &head, offset + used, total)) wr_store_spoil_list(store);
        used += total;
    }
    if (!k) return 0;
    /* The bytes first: whoever finds an entry finds its frame in the image. */
    wr_log_append(store->log, used, false);
    uint32_t file = (uint32_t)wr_file_number(store->current), bits = holder < 0 ? 0 : 1u << holder;
    for (uint32_t i = 0, place = (uint32_t)offset; i < k; i++) {
        wr_index_entry *entry = &entries[i];
        uint32_t total = (uint32_t)wr_frame_bytes(ends[i + 1] - ends[i]);
        wr_entry_begin(entry);
        entry->file = file;
        entry->offset = place;
        entry->total_size = total;
        entry->ref_count = holder < 0;
        entry->holders = entry->marks = bits;
        entry->meta_length = 0;
        entry->state = 1;
        wr_entry_end(entry);
        place += total;
        /* SYNC flying-done: who sees it finds the entry. Until the whole batch is done readers find its rows, and a message that
         * was removed meanwhile must not come from there. */
        atomic_store_explicit(&b->flying[at + i], WR_FLYING_DONE, memory_order_release);
    }
    wr_row_add(&store->current_row->file_size, used);
    wr_row_add(&store->current_row->valid_total_size, used);
    wr_row_add(&store->current_row->messages, k);
    store->file_bytes_sum += used;
    store->valid_bytes += used;
    store->messages += k;
    store->written_n += k;
    part_began(b);
    return k;
}

/* Messages from *at to `to`. DONE: all of them; STALLED, EVICTED: *at is where it stopped. */
static int run_batch(batch *b, uint32_t *at, uint32_t to, uint32_t *reason) {
    wr_store *store = b->store;
    uint8_t id[16];
    memcpy(id, &b->epoch_half, 8);
    while (*at < to) {
        wr_index_run run;
        wr_put64(id + 8, b->counter + *at);
        int outcome = WR_STORE_DONE;
        uint32_t done = 0;
        if (!b->link->dying && wr_index_run_of(&store->index, id, to - *at, &run)) {
            while (done < run.n) {
                uint32_t k = stretch(b, run.entries + done, *at + done, run.n - done, &outcome);
                if (!k) break;
                done += k;
            }
            if (done) wr_index_run_filled(&store->index, &run, done);
            *at += done;
            if (outcome != WR_STORE_DONE) return outcome;
            if (done == run.n) continue;
        }
        outcome = single(b, *at, reason);
        if (outcome != WR_STORE_DONE) return outcome;
        ++*at;
    }
    return WR_STORE_DONE;
}

/* The flying words of a batch, NULL: nonsense; *on_disk: how many of its messages are, as recovery knows. */
static _Atomic uint32_t *flying_of(const wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c, uint32_t *on_disk) {
    if (!c->count || c->count > WR_BATCH_COUNT_MAX || c->length < 8 * c->count || wr_get64(c->id + 8) > UINT64_MAX - c->count) return NULL;
    const wr_store_link *link = &store->links[slot];
    uint8_t *blob = wr_view_blob(&store->server->views[slot], c->body, c->length);
    if (!blob || (uintptr_t)blob % 4) return NULL;
    uint64_t parts = link->high_water >> 16 == sequence + 1 ? (uint16_t)link->high_water : 0;
    *on_disk = (uint32_t)(wr_store_replayed(link, sequence) || parts > c->count ? c->count : parts);
    return (_Atomic uint32_t *)blob;
}

static void exchange_all(_Atomic uint32_t *flying, uint32_t from, uint32_t to, uint32_t old, uint32_t fresh) {
    for (uint32_t i = from; i < to; i++) {
        uint32_t expected = old;
        /* SYNC flying-done: what the index shows is there before */
        atomic_compare_exchange_strong_explicit(&flying[i], &expected, fresh, memory_order_release, memory_order_relaxed);
    }
}

void wr_store_take_batch_up(wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c) {
    uint32_t on_disk;
    _Atomic uint32_t *flying = flying_of(store, slot, sequence, c, &on_disk);
    if (!flying) return;
    exchange_all(flying, on_disk, (uint32_t)c->count, WR_FLYING_DONE, WR_FLYING_TAKEN);
    if (on_disk < c->count) wr_store_group_rows(store, slot, sequence, c->id, c->count, true);
}

void wr_store_batch_on_disk(wr_store *store, uint32_t slot, uint64_t sequence, const wr_command *c) {
    uint32_t on_disk;
    _Atomic uint32_t *flying = flying_of(store, slot, sequence, c, &on_disk);
    if (flying) exchange_all(flying, 0, on_disk, WR_FLYING_TAKEN, WR_FLYING_DONE);
}

int wr_store_write_many(wr_store *store, uint32_t slot, uint64_t sequence, wr_command *record, const wr_command *c, uint32_t *reason) {
    wr_store_server *server = store->server;
    wr_store_link *link = &store->links[slot];
    *reason = WR_EVICTED_BLOB;
    if (!c->count || c->count > WR_BATCH_COUNT_MAX || c->length < 8 * c->count || c->meta_length || c->tag) return WR_STORE_EVICTED;
    uint8_t *blob = wr_view_blob(&server->views[slot], c->body, c->length);
    if (!blob || (uintptr_t)blob % 4 || !copy_ends(server, c, blob)) return WR_STORE_EVICTED;
    uint64_t counter = wr_get64(c->id + 8);
    if (counter > UINT64_MAX - c->count) return WR_STORE_EVICTED;
    uint32_t count = (uint32_t)c->count;
    if (wr_store_replayed(link, sequence)) {
        link->part = count;
    } else if (link->high_water >> 16 == sequence + 1 && link->part < (uint16_t)link->high_water) {
        uint32_t on_disk = (uint16_t)link->high_water;
        link->part = on_disk < count ? on_disk : count;
    }
    if (link->part < count) {
        batch b = {.store = store,
                   .link = link,
                   .slot = slot,
                   .sequence = sequence,
                   .c = c,
                   .counter = counter,
                   .flying = (_Atomic uint32_t *)blob,
                   .ends = server->ends,
                   .bodies = blob + 8ull * count,
                   .record = record};
        memcpy(&b.epoch_half, c->id, 8);
        uint32_t at = link->part, left = WR_STORE_ROUND - store->round_messages;
        uint32_t to = count - at > left ? at + left : count;
        int outcome = run_batch(&b, &at, to, reason);
        store->round_messages += at - link->part;
        link->part = at;
        if (outcome != WR_STORE_DONE) return outcome;
        if (at < count) return WR_STORE_AGAIN;
    }
    wr_store_group_rows(store, slot, sequence, c->id, count, false);
    if (link->part_effect) wr_store_effect(store, link, sequence, c->flags);
    else wr_store_no_effect(store, c->flags);
    link->part = 0;
    link->part_file = (wr_file_ref){0};
    link->part_effect = false;
    return WR_STORE_DONE;
}
