/* The message store as its clients see it: writing and removing. What it promises: store/client.h; reading: store/reader.c; the directory's
 * protocol: store/directory.h.
 *
 * Write (rules S2, S3): blob, record with flying = WRITTEN (F), directory row (C), then the caller submits (S). A batch has a flying word for
 * each message at the start of its blob, and a directory row for each group of ids.
 * Remove: a write of mine that is still flying is eliminated by one compare-and-swap against the server's; else a command.
 * Crash points
 *   after F or C, before S: nothing is submitted; the rows go with the sweep of the slot.
 *   after WRITTEN -> ELIMINATED: the write is void, whoever dies next.
 */
#include "store/client.h"
#include "store/directory.h"

int wr_store_client_write(wr_store_client *s, const uint8_t id[16], uint64_t body, uint32_t length, uint16_t meta_length,
                          uint64_t owner_tag, uint8_t flags, uint64_t *sequence) {
    wr_command *command = wr_port_prepare(s->port, s->server, sequence);
    if (!command) return EAGAIN;
    uint64_t hash = wr_id_hash(id);
    command->op = WR_OP_STORE_WRITE;
    command->flags = flags;
    command->meta_length = meta_length;
    memcpy(command->id, id, 16);
    command->body = body;
    command->length = length;
    command->tag = owner_tag;
    atomic_store_explicit(&command->flying, WR_FLYING_WRITTEN, memory_order_relaxed);
    uint64_t word = wr_directory_word(hash, s->port->slot, *sequence);
    wr_row_ref row = wr_directory_insert(s->directory, s->directory_rows, hash, word);
    if (!wr_row_some(row)) {
        wr_port_abandon(s->port, s->server, *sequence);
        return EAGAIN;
    }
    command->row = row.plus_one;
    return 0;
}

void wr_store_client_prefetch_write(wr_store_client *s, const uint8_t id[16]) {
    uint8_t next[16];
    memcpy(next, id, 8);
    wr_put64(next + 8, wr_id_counter(id) + 1);
    __builtin_prefetch((const void *)&s->directory[wr_directory_bucket(wr_id_hash(next), s->directory_rows)], 1);
    __builtin_prefetch(wr_view_command(&s->port->view, s->server, s->port->prepared[s->server]), 1);
}

/* ---- batches ---- */

uint32_t wr_store_batch_cut(const wr_store_body *bodies, uint32_t n) {
    uint64_t bytes = 0;
    if (n > WR_BATCH_MESSAGES) n = WR_BATCH_MESSAGES;
    for (uint32_t i = 0; i < n; i++) {
        bytes += bodies[i].length;
        if (bytes > WR_BATCH_BYTES) return i ? i : 1;
    }
    return n;
}

/* The groups of n ids from `first` on: the last 8 bytes of the first group's id, and how many they are. */
static uint32_t groups_of(const uint8_t first[16], uint64_t n, uint64_t *from) {
    uint64_t counter = wr_id_counter(first);
    *from = counter / WR_DIRECTORY_GROUP;
    return (uint32_t)((counter + n - 1) / WR_DIRECTORY_GROUP - *from + 1);
}

static uint64_t group_hash(const uint8_t first[16], uint64_t number) {
    uint8_t id[16], group[16];
    memcpy(id, first, 8);
    wr_put64(id + 8, number * WR_DIRECTORY_GROUP);
    wr_group_id(id, group);
    return wr_id_hash(group);
}

/* The one place where a client removes rows: its own, of a record that nobody was ever shown by `tail`. */
static void remove_groups(wr_store_client *s, const uint8_t first[16], uint64_t from, uint32_t n, uint64_t sequence) {
    for (uint32_t i = 0; i < n; i++) {
        uint64_t hash = group_hash(first, from + i);
        uint64_t word = wr_directory_word(hash, s->port->slot, sequence);
        wr_directory_remove(s->directory, s->directory_rows, hash, word, (wr_row_ref){0});
    }
}

int wr_store_client_write_many(wr_store_client *s, const uint8_t first[16], const wr_store_body *bodies, uint32_t n, uint8_t flags,
                               uint64_t *sequence) {
    if (!n || n > WR_BATCH_COUNT_MAX || wr_id_counter(first) > UINT64_MAX - n) return EINVAL;
    uint64_t bytes = 0, position, from;
    for (uint32_t i = 0; i < n; i++) bytes += bodies[i].length;
    if (bytes > UINT32_MAX / 2) return EMSGSIZE;
    wr_port *port = s->port;
    wr_command *command = wr_port_prepare(port, s->server, sequence);
    if (!command) return EAGAIN;
    uint8_t *blob;
    int error = wr_port_alloc(port, 8ull * n + bytes, &position, &blob);
    if (error) {
        wr_port_abandon(port, s->server, *sequence);
        return error;
    }
    command->op = WR_OP_STORE_WRITE_MANY;
    command->flags = flags;
    memcpy(command->id, first, 16);
    command->body = position;
    command->length = (uint32_t)(8ull * n + bytes);
    command->count = n;
    _Atomic uint32_t *flying = (_Atomic uint32_t *)blob;
    uint32_t *ends = (uint32_t *)(blob + 4ull * n), end = 0;
    uint8_t *to = blob + 8ull * n;
    for (uint32_t i = 0; i < n; i++) {
        atomic_store_explicit(&flying[i], WR_FLYING_WRITTEN, memory_order_relaxed);
        memcpy(to + end, bodies[i].bytes, bodies[i].length);
        ends[i] = end += bodies[i].length;
    }
    uint32_t groups = groups_of(first, n, &from), inserted = 0;
    while (inserted < groups) {
        uint64_t hash = group_hash(first, from + inserted);
        uint64_t word = wr_directory_word(hash, port->slot, *sequence);
        if (!wr_row_some(wr_directory_insert(s->directory, s->directory_rows, hash, word))) break;
        inserted++;
    }
    error = inserted < groups ? EAGAIN : wr_port_use(port, s->server, *sequence);
    if (!error) return 0;
    remove_groups(s, first, from, inserted, *sequence);
    port->arena_next = position;
    wr_port_abandon(port, s->server, *sequence);
    return error;
}

void wr_store_client_abandon(wr_store_client *s, uint64_t sequence) {
    for (uint64_t n = sequence; n < s->port->prepared[s->server]; n++) {
        wr_command *command = wr_view_command(&s->port->view, s->server, n);
        if (command->op == WR_OP_STORE_WRITE && command->row) {
            uint64_t hash = wr_id_hash(command->id);
            uint64_t word = wr_directory_word(hash, s->port->slot, n);
            wr_directory_remove(s->directory, s->directory_rows, hash, word, (wr_row_ref){command->row});
        } else if (command->op == WR_OP_STORE_WRITE_MANY && command->count && command->count <= WR_BATCH_COUNT_MAX) {
            uint64_t from;
            uint32_t groups = groups_of(command->id, command->count, &from);
            remove_groups(s, command->id, from, groups, n);
        }
    }
    wr_port_abandon(s->port, s->server, sequence);
}

/* ---- removing ---- */

/* The flying word of a message in a record of mine; NULL: it is not in there. */
static _Atomic uint32_t *flying_of(wr_store_client *s, wr_command *command, const uint8_t id[16]) {
    if (command->op == WR_OP_STORE_WRITE) return memcmp(command->id, id, 16) == 0 ? &command->flying : NULL;
    if (command->op != WR_OP_STORE_WRITE_MANY || memcmp(command->id, id, 8) != 0) return NULL;
    uint64_t at = wr_id_counter(id) - wr_id_counter(command->id);
    if (at >= command->count || command->count > WR_BATCH_COUNT_MAX || command->length < 8 * command->count) return NULL;
    uint8_t *blob = wr_view_blob(&s->port->view, command->body, command->length);
    return blob ? (_Atomic uint32_t *)blob + at : NULL;
}

static bool win(_Atomic uint32_t *word) {
    uint32_t flying = WR_FLYING_WRITTEN;
    /* SYNC flying: one of this and the server's WRITTEN -> TAKEN wins (store/commands.c, store/batch.c) */
    return word && atomic_compare_exchange_strong_explicit(word, &flying, WR_FLYING_ELIMINATED, memory_order_acq_rel, memory_order_relaxed);
}

/* Void one write of mine whose row lies in this hash's bucket and that the server has not taken yet. */
static bool eliminate_in(wr_store_client *s, const uint8_t id[16], uint64_t hash, uint64_t tail, uint64_t *found) {
    uint64_t mine = wr_directory_word(hash, s->port->slot, 0) >> WR_SEQUENCE_BITS;
    uint32_t first = wr_directory_bucket(hash, s->directory_rows);
    for (uint32_t i = 0; i < WR_DIRECTORY_WAYS; i++) {
        uint64_t word = atomic_load_explicit(&s->directory[first + i], memory_order_acquire);
        if (word >> WR_SEQUENCE_BITS != mine) continue;
        /* Only what is submitted: the full sequence lies in the ring's window below the tail. */
        uint64_t sequence = (tail & ~WR_SEQUENCE_MASK) | (word & WR_SEQUENCE_MASK);
        if (sequence >= tail || tail - sequence > s->port->view.g.ring_records) continue;
        if (!win(flying_of(s, wr_view_command(&s->port->view, s->server, sequence), id))) continue;
        *found = sequence;
        return true;
    }
    return false;
}

int wr_store_client_remove(wr_store_client *s, const uint8_t (*ids)[16], uint32_t n, uint32_t *eliminated) {
    *eliminated = 0;
    if (n == 0) return 0;
    if (n > 4096) return EINVAL;
    wr_port *port = s->port;
    /* All that can fail comes first: after an elimination there is no way back. */
    uint64_t sequence, position;
    uint8_t *blob;
    wr_command *command = wr_port_prepare(port, s->server, &sequence);
    if (!command) return EAGAIN;
    int error = wr_port_alloc(port, (uint64_t)n * 16, &position, &blob);
    if (error) {
        wr_port_abandon(port, s->server, sequence);
        return error;
    }
    error = wr_port_use(port, s->server, sequence);
    if (error) {
        port->arena_next = position;
        wr_port_abandon(port, s->server, sequence);
        return error;
    }
    const wr_link *link = &port->view.links[s->server];
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed), last = tail;
    /* Everything submitted is processed: all of it was taken, there is nothing to eliminate. */
    bool flying = atomic_load_explicit(&link->processed, memory_order_acquire) != tail;
    uint32_t left = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool gone = false;
        if (flying) {
            /* neighbours mostly lie in one batch */
            gone = last != tail && win(flying_of(s, wr_view_command(&port->view, s->server, last), ids[i]));
            if (!gone) gone = eliminate_in(s, ids[i], wr_id_hash(ids[i]), tail, &last);
            if (!gone) gone = eliminate_in(s, ids[i], group_hash(ids[i], wr_id_counter(ids[i]) / WR_DIRECTORY_GROUP), tail, &last);
        }
        if (gone)
            ++*eliminated;
        else
            memcpy(blob + 16 * (size_t)left++, ids[i], 16);
    }
    if (!left) {
        wr_port_abandon(port, s->server, sequence);
        return 0;
    }
    command->op = WR_OP_STORE_REMOVE;
    command->body = position;
    command->length = left * 16;
    command->count = left;
    return 0;
}
