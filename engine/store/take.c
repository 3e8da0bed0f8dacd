/* One message of a link is taken (rules S5, S6, S12): a new reference, a revival, or a new record. Invariants: store/store.h. */
#include "store/take.h"
#include "store/append.h"
#include "store/dying.h"
#include "store/references.h"
#include "store/same_body.h"

static int add_reference(wr_store *store, uint32_t slot, uint64_t sequence, const wr_store_message *m, wr_index_entry *entry) {
    bool too_big;
    uint64_t offset;
    uint8_t *to = wr_store_reserve_new(store, wr_frame_bytes(0), &offset, &too_big);
    if (!to) return WR_STORE_STALLED;
    wr_frame_head head = {.kind = WR_KIND_ADD_REFERENCE,
                          .client_epoch = store->server->client_epoch[slot],
                          .sequence = sequence + 1,
                          .part = m->part};
    memcpy(head.id, m->id, 16);
    uint64_t total = wr_frame_write(to, &head, NULL, 0, NULL, 0, store->state->salt);
    wr_store_append(store, total, m->flags & WR_FLAG_SYNCED);
    if (store->list && wr_list_add(store->list, &head, offset, total)) wr_store_spoil_list(store);
    wr_store_pin(store, wr_file_number(store->current), entry->file);
    wr_store_hold(store, entry, -1);
    return WR_STORE_DONE;
}

static int add_message(wr_store *store, uint32_t slot, uint64_t sequence, const wr_store_message *m, int holder) {
    bool too_big;
    uint64_t offset;
    uint8_t *to = wr_store_reserve_new(store, wr_frame_bytes(m->length), &offset, &too_big);
    if (!to) return too_big ? WR_STORE_EVICTED : WR_STORE_STALLED;
    wr_index_entry *entry = wr_index_insert(&store->index, m->id);
    if (!entry) return WR_STORE_STALLED;
    wr_frame_head head = {.kind = WR_KIND_MESSAGE,
                          .client_epoch = store->server->client_epoch[slot],
                          .sequence = sequence + 1,
                          .extra = (uint32_t)(holder + 1),
                          .meta_length = m->meta_length,
                          .part = m->part};
    memcpy(head.id, m->id, 16);
    uint64_t total = wr_frame_write(to, &head, NULL, 0, m->body, m->length, store->state->salt);
    wr_store_append(store, total, m->flags & WR_FLAG_SYNCED);
    if (store->list && wr_list_add(store->list, &head, offset, total)) wr_store_spoil_list(store);
    wr_entry_begin(entry);
    entry->state = 1;
    entry->ref_count = holder < 0;
    entry->holders = entry->marks = holder < 0 ? 0 : 1u << holder;
    entry->file = (uint32_t)wr_file_number(store->current);
    entry->offset = (uint32_t)offset;
    entry->total_size = (uint32_t)total;
    entry->meta_length = m->meta_length;
    wr_entry_end(entry);
    wr_row_add(&store->current_row->valid_total_size, total);
    wr_row_add(&store->current_row->messages, 1);
    store->valid_bytes += total;
    store->messages++;
    return WR_STORE_DONE;
}

/* Which workers hold it is known when all have said so since the start; until then a message that no client holds may be theirs, or
 * nobody's. A worker that has not said yet never waits for itself: its resync stands behind this command. */
static bool provisional(const wr_store *store, const wr_index_entry *entry, int holder) {
    const wr_store_server *server = store->server;
    uint32_t unknown = server->workers_all & ~server->workers_resynced;
    return store->persistent && unknown && !entry->ref_count && (holder < 0 || !(unknown & 1u << holder));
}

int wr_store_take(wr_store *store, uint32_t slot, uint64_t sequence, const wr_store_message *m, bool *masked) {
    int holder = store->server->holder[slot];
    wr_index_entry *entry = wr_index_find(&store->index, m->id);
    int mask = wr_store_mask(store, &store->links[slot], entry);
    *masked = mask == WR_MASK_ALL;
    if (*masked) return WR_STORE_DONE;
    /* Without its body nothing can be compared; ids are made to be unique, so what is there is taken for the same. */
    if (entry && provisional(store, entry, holder) && m->body && !wr_store_same_body(store, entry, m))
        return WR_STORE_STALLED; /* whether the stored one or this one counts is known after the resync */
    if (entry && !wr_entry_held(entry) &&
        (!wr_store_may_revive(store, entry) || (m->body && !wr_store_same_body(store, entry, m)))) {
        *masked = mask == WR_MASK_COUNT;
        if (*masked) return WR_STORE_DONE;
        wr_store_ghost(store, entry->file);
        wr_index_remove(&store->index, m->id, entry);
        entry = NULL;
    }
    if (!entry) return m->body ? add_message(store, slot, sequence, m, holder) : WR_STORE_EVICTED;
    if (holder < 0 && store->persistent) return add_reference(store, slot, sequence, m, entry);
    wr_store_hold(store, entry, holder);
    return WR_STORE_DONE;
}
