/* The queues that an attachment consumes: credit, deliveries, what is pending and what is in hand. See
 * client/consumer.h for the invariants. */
#include "client/consumer.h"
#include "kernel/delivery.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TAGS_MAX 4096u
#define RETURNED_AT_ONCE 512u

/* ---- the table of an attachment --------------------------------------------------------------------------------- */

static inline uint32_t place_of(const wr_attachment *a, uint32_t queue) {
    return (queue * 2654435761u) & (a->consumers_size - 1);
}

wr_client_consumer *wr_client_consumer_find(const wr_attachment *a, uint32_t server, uint32_t queue) {
    for (uint32_t i = place_of(a, queue);; i = (i + 1) & (a->consumers_size - 1)) {
        wr_client_consumer *c = a->consumers[i];
        if (!c || (c->queue == queue && c->server == server)) return c;
    }
}

static void insert(wr_attachment *a, wr_client_consumer *c) {
    uint32_t i = place_of(a, c->queue);
    while (a->consumers[i]) i = (i + 1) & (a->consumers_size - 1);
    a->consumers[i] = c;
}

/* Rebuild the table with `size` places, without `without`. */
static int rebuild(wr_attachment *a, uint32_t size, const wr_client_consumer *without) {
    wr_client_consumer **old = a->consumers;
    uint32_t old_size = a->consumers_size;
    wr_client_consumer **fresh = calloc(size, sizeof *fresh);
    if (!fresh) return ENOMEM;
    a->consumers = fresh;
    a->consumers_size = size;
    for (uint32_t i = 0; i < old_size; i++)
        if (old[i] && old[i] != without) insert(a, old[i]);
    free(old);
    return 0;
}

/* Put one in the place of another. */
static void replace(wr_attachment *a, const wr_client_consumer *old, wr_client_consumer *by) {
    uint32_t i = place_of(a, old->queue);
    while (a->consumers[i] != old) i = (i + 1) & (a->consumers_size - 1);
    a->consumers[i] = by;
}

/* Out of the list of those that are parked. False: it is none of them. */
static bool unpark(wr_attachment *a, const wr_client_consumer *c) {
    wr_client_consumer **at = &a->parked;
    while (*at && *at != c) at = &(*at)->next_parked;
    if (!*at) return false;
    *at = c->next_parked;
    return true;
}

void wr_client_consumer_park(wr_attachment *a, wr_client_consumer *c, wr_client_consumer *shell) {
    assert(wr_client_consumer_find(a, c->server, c->queue) == c);
    replace(a, c, shell);
    *shell = *c;
    shell->next_parked = a->parked;
    a->parked = shell;
    c->pending = NULL;
    c->unacked = NULL;
}

int wr_client_consumer_add(wr_attachment *a, wr_client_consumer *c, uint32_t server, uint32_t queue) {
    wr_client_consumer *found = wr_client_consumer_find(a, server, queue);
    if (found && !unpark(a, found)) return EEXIST;
    if (found) {
        replace(a, found, c);
        *c = *found;
        free(found);
        return ESTALE;
    }
    if (2 * (a->consumers_n + 1) > a->consumers_size && rebuild(a, 2 * a->consumers_size, NULL)) return ENOMEM;
    memset(c, 0, sizeof *c);
    c->server = server;
    c->queue = queue;
    c->pending_size = c->unacked_size = 16;
    c->pending = malloc(c->pending_size * sizeof *c->pending);
    c->unacked = malloc(c->unacked_size * sizeof *c->unacked);
    if (!c->pending || !c->unacked) {
        free(c->pending);
        free(c->unacked);
        c->pending = NULL;
        c->unacked = NULL;
        return ENOMEM;
    }
    insert(a, c);
    a->consumers_n++;
    return 0;
}

void wr_client_consumer_drop(wr_attachment *a, wr_client_consumer *c) {
    if (!c->pending) return;
    if (a && a->consumers && wr_client_consumer_find(a, c->server, c->queue) == c) {
        uint32_t hole = place_of(a, c->queue);
        while (a->consumers[hole] != c) hole = (hole + 1) & (a->consumers_size - 1);
        a->consumers[hole] = NULL;
        a->consumers_n--;
        /* Close the gap: whoever stands behind it in the same run is put in anew. */
        for (uint32_t i = (hole + 1) & (a->consumers_size - 1); a->consumers[i]; i = (i + 1) & (a->consumers_size - 1)) {
            wr_client_consumer *moved = a->consumers[i];
            a->consumers[i] = NULL;
            insert(a, moved);
        }
    }
    free(c->pending);
    free(c->unacked);
    c->pending = NULL;
    c->unacked = NULL;
}

/* ---- commands --------------------------------------------------------------------------------------------------- */

int wr_attachment_credit(wr_attachment *a, wr_client_consumer *c, uint64_t credit, uint32_t prefetch, wr_condition *blocked) {
    int error = wr_attachment_room(a, c->server, blocked);
    if (error) return error;
    uint64_t sequence;
    wr_command *command = wr_attachment_prepare(a, c->server, WR_OP_CREDIT, 0, c->queue, &sequence);
    if (!command) return ECONNRESET;
    command->tag = credit;
    command->count = prefetch;
    command->body = a->workers[c->server].epoch; /* a restarted worker counts anew, and ignores what was meant for its predecessor */
    c->granted = credit;
    c->prefetch = prefetch;
    c->announced = true;
    return 0;
}

int wr_attachment_cancel(wr_attachment *a, wr_client_consumer *c, uint64_t *sequence, wr_condition *blocked) {
    int error = wr_attachment_command(a, c->server, WR_OP_CANCEL, 0, c->queue, 0, NULL, sequence, blocked);
    if (error) return error;
    /* What the worker pushes before it sees the CANCEL counts as delivered under the next credit: that only grants a
     * little more. */
    c->popped = c->granted = 0;
    c->prefetch = 0;
    c->announced = false;
    return 0;
}

int wr_attachment_leave(wr_attachment *a, uint32_t server, uint32_t queue, wr_condition *blocked) {
    uint64_t sequence;
    return wr_attachment_command(a, server, WR_OP_LEAVE, 0, queue, 0, NULL, &sequence, blocked);
}

int wr_attachment_settle(wr_attachment *a, const wr_client_consumer *c, uint8_t op, uint8_t flags, const uint64_t *tags,
                         uint32_t tags_n, wr_condition *blocked) {
    uint64_t sequence;
    assert(tags_n && tags_n <= TAGS_MAX);
    if (tags_n == 1) return wr_attachment_command(a, c->server, op, flags, c->queue, tags[0], NULL, &sequence, blocked);
    return wr_attachment_blob(a, c->server, op, flags, c->queue, tags_n, tags, 8ull * tags_n, &sequence, blocked);
}

int wr_attachment_return_later(wr_attachment *a, const wr_client_consumer *c, uint64_t tag, uint64_t due, wr_condition *blocked) {
    int error = wr_attachment_room(a, c->server, blocked);
    if (error) return error;
    uint64_t sequence;
    wr_command *command = wr_attachment_prepare(a, c->server, WR_OP_NACK, WR_FLAG_REQUEUE, c->queue, &sequence);
    if (!command) return ECONNRESET;
    command->tag = tag;
    command->body = due;
    return 0;
}

/* ---- pending, in hand ------------------------------------------------------------------------------------------- */

static int grow_pending(wr_client_consumer *c) {
    if (wr_client_consumer_pending(c) < c->pending_size) return 0;
    wr_pending *bigger = malloc(2 * (size_t)c->pending_size * sizeof *bigger);
    if (!bigger) return ENOMEM;
    for (uint64_t i = c->pending_first; i != c->pending_next; i++)
        memcpy((void *)&bigger[i & (2ull * c->pending_size - 1)], (void *)&c->pending[i & (c->pending_size - 1)], sizeof *bigger);
    free(c->pending);
    c->pending = bigger;
    c->pending_size *= 2;
    return 0;
}

static int push_pending(wr_client_consumer *c, const wr_pending *p) {
    if (grow_pending(c)) return ENOMEM;
    memcpy((void *)&c->pending[c->pending_next++ & (c->pending_size - 1)], (const void *)p, sizeof *p);
    return 0;
}

int wr_client_consumer_push_front(wr_client_consumer *c, const wr_pending *p) {
    if (grow_pending(c)) return ENOMEM;
    memcpy((void *)&c->pending[--c->pending_first & (c->pending_size - 1)], (const void *)p, sizeof *p);
    return 0;
}

int wr_client_consumer_hand(wr_client_consumer *c, uint64_t tag, wr_place *place) {
    if (c->unacked_next - c->unacked_first == c->unacked_size) {
        /* Full: squeeze the settled places out; grow only when that gains less than half. */
        uint64_t kept = 0;
        for (uint64_t i = c->unacked_first; i != c->unacked_next; i++)
            kept += c->unacked[i & (c->unacked_size - 1)].tag != WR_TAG_NONE;
        uint32_t size = 2 * kept > c->unacked_size ? 2 * c->unacked_size : c->unacked_size;
        wr_in_hand *fresh = malloc(size * sizeof *fresh);
        if (!fresh) return ENOMEM;
        uint64_t to = 0;
        for (uint64_t i = c->unacked_first; i != c->unacked_next; i++) {
            wr_in_hand held = c->unacked[i & (c->unacked_size - 1)];
            if (held.tag != WR_TAG_NONE) fresh[to++] = held;
        }
        free(c->unacked);
        c->unacked = fresh;
        c->unacked_size = size;
        c->unacked_first = 0;
        c->unacked_next = to;
    }
    place->number = c->handed_n++;
    c->unacked_n++;
    c->unacked[c->unacked_next++ & (c->unacked_size - 1)] = (wr_in_hand){tag, *place};
    return 0;
}

static inline void trim(wr_client_consumer *c) {
    uint32_t mask = c->unacked_size - 1;
    while (c->unacked_first != c->unacked_next && c->unacked[c->unacked_first & mask].tag == WR_TAG_NONE) c->unacked_first++;
    while (c->unacked_first != c->unacked_next && c->unacked[(c->unacked_next - 1) & mask].tag == WR_TAG_NONE) c->unacked_next--;
}

static inline bool is_it(const wr_client_consumer *c, uint64_t at, uint64_t tag, wr_place place) {
    const wr_in_hand *held = &c->unacked[at & (c->unacked_size - 1)];
    return held->tag == tag && held->place.mark == place.mark;
}

/* Where it stands in `unacked`; unacked_next: nowhere. It is searched by its number, and if it has another one there (it was handed out
 * a second time, because its ack could not be sent) from the first on. */
static uint64_t stands_at(const wr_client_consumer *c, uint64_t tag, wr_place place) {
    const uint32_t mask = c->unacked_size - 1;
    uint64_t low = c->unacked_first, high = c->unacked_next;
    if (low == high) return high;
    const uint32_t base = c->unacked[low & mask].place.number;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (c->unacked[middle & mask].place.number - base < place.number - base) low = middle + 1;
        else high = middle;
    }
    if (low != c->unacked_next && is_it(c, low, tag, place)) return low;
    for (low = c->unacked_first; low != c->unacked_next && !is_it(c, low, tag, place);) low++;
    return low;
}

bool wr_client_consumer_forget(wr_client_consumer *c, uint64_t tag, wr_place place) {
    const uint64_t at = stands_at(c, tag, place);
    if (at == c->unacked_next) return false;
    c->unacked[at & (c->unacked_size - 1)].tag = WR_TAG_NONE;
    c->unacked_n--;
    trim(c);
    return true;
}

uint32_t wr_client_consumer_forget_up_to(wr_client_consumer *c, uint64_t tag, wr_place place, uint64_t *tags, wr_place *places, uint32_t room) {
    uint32_t mask = c->unacked_size - 1, n = 0;
    const uint64_t last = stands_at(c, tag, place);
    if (last == c->unacked_next) return 0;
    for (uint64_t i = c->unacked_first; i != last + 1 && n < room; i++) {
        wr_in_hand *held = &c->unacked[i & mask];
        if (held->tag == WR_TAG_NONE) continue;
        tags[n] = held->tag;
        places[n++] = held->place;
        held->tag = WR_TAG_NONE;
    }
    c->unacked_n -= n;
    trim(c);
    return n;
}

/* ---- deliveries ------------------------------------------------------------------------------------------------- */

bool wr_attachment_slot_read(const wr_attachment *a, uint32_t server, uint32_t slot, wr_delivery *to) {
    wr_delivery *from = wr_view_delivery(&a->port.view, server, slot);
    /* SYNC delivery: state is written last by the worker. */
    if (atomic_load_explicit(&from->state, memory_order_acquire) != WR_DELIVERY_HELD) return false;
    memcpy((void *)to, (const void *)from, sizeof *to);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&from->state, memory_order_relaxed) == WR_DELIVERY_HELD && from->pushed_at == to->pushed_at;
}

/* ---- deliveries that the worker may take back -------------------------------------------------------------------- */

/* Is the slot this delivery's still? */
static bool still_there(const wr_attachment *a, uint32_t server, uint32_t slot, uint64_t pushed_at) {
    wr_delivery *d = wr_view_delivery(&a->port.view, server, slot);
    return atomic_load_explicit(&d->state, memory_order_acquire) == WR_DELIVERY_HELD && d->pushed_at == pushed_at;
}

bool wr_attachment_hand_out(const wr_attachment *a, uint32_t server, wr_place place, uint64_t pushed_at) {
    _Atomic uint32_t *word = wr_view_handed(&a->port.view, server, place.slot);
    uint32_t now = atomic_load_explicit(word, memory_order_acquire);
    /* SYNC taken: pairs with the worker's swap (queues/overdue.c). The slot is another delivery's only after this word was
     * changed: then the swap fails, and both are looked at again. */
    do {
        if (wr_handed_state(now, place.mark) == WR_HANDED_TAKEN || !still_there(a, server, place.slot, pushed_at)) return false;
    } while (!atomic_compare_exchange_strong(word, &now, wr_handed_word(place.mark, WR_HANDED_OUT)));
    return true;
}

/* From one state to another; false: it is in a third one. */
static bool change(const wr_attachment *a, uint32_t server, wr_place place, uint32_t from, uint32_t to) {
    uint32_t now = wr_handed_word(place.mark, from);
    return atomic_compare_exchange_strong(wr_view_handed(&a->port.view, server, place.slot), &now, wr_handed_word(place.mark, to));
}

bool wr_attachment_settling(const wr_attachment *a, uint32_t server, wr_place place) {
    return change(a, server, place, WR_HANDED_OUT, WR_HANDED_SETTLING);
}

void wr_attachment_not_settling(const wr_attachment *a, uint32_t server, wr_place place) {
    change(a, server, place, WR_HANDED_SETTLING, WR_HANDED_OUT);
}

static uint32_t state_of(const wr_attachment *a, uint32_t server, wr_place place) {
    return wr_handed_state(atomic_load_explicit(wr_view_handed(&a->port.view, server, place.slot), memory_order_acquire), place.mark);
}

bool wr_attachment_taken(const wr_attachment *a, uint32_t server, wr_place place) {
    return state_of(a, server, place) == WR_HANDED_TAKEN;
}

/* Of what stands in `unacked`. Without a state the slot is another delivery's by now. */
static bool taken(const wr_attachment *a, const wr_client_consumer *c, const wr_in_hand *held) {
    uint32_t state = c->timed ? state_of(a, c->server, held->place) : WR_HANDED_OUT;
    return !state || state == WR_HANDED_TAKEN;
}

bool wr_client_consumer_taken(const wr_attachment *a, const wr_client_consumer *c, uint64_t tag, wr_place place) {
    const uint64_t at = stands_at(c, tag, place);
    if (at != c->unacked_next) return taken(a, c, &c->unacked[at & (c->unacked_size - 1)]);
    return c->timed && wr_attachment_taken(a, c->server, place);
}

uint64_t wr_client_consumer_unacked(const wr_attachment *a, const wr_client_consumer *c) {
    if (!c->timed) return c->unacked_n;
    uint64_t n = 0;
    for (uint64_t i = c->unacked_first; i != c->unacked_next; i++) {
        const wr_in_hand *held = &c->unacked[i & (c->unacked_size - 1)];
        n += held->tag != WR_TAG_NONE && !taken(a, c, held);
    }
    return n;
}

void wr_client_consumer_drop_taken(const wr_attachment *a, wr_client_consumer *c) {
    uint64_t to = c->pending_first;
    for (uint64_t i = c->pending_first; i != c->pending_next; i++) {
        wr_pending *p = &c->pending[i & (c->pending_size - 1)];
        if (still_there(a, c->server, p->slot, p->delivery.pushed_at))
            memmove((void *)&c->pending[to++ & (c->pending_size - 1)], (const void *)p, sizeof *p);
    }
    c->pending_next = to;
}

void wr_client_consumer_forget_taken(const wr_attachment *a, wr_client_consumer *c) {
    for (uint64_t i = c->unacked_first; i != c->unacked_next; i++) {
        wr_in_hand *held = &c->unacked[i & (c->unacked_size - 1)];
        if (held->tag == WR_TAG_NONE || !taken(a, c, held)) continue;
        held->tag = WR_TAG_NONE;
        c->unacked_n--;
    }
    trim(c);
}

int wr_client_consumer_return_last(wr_attachment *a, wr_client_consumer *c, uint64_t keep, uint64_t *left, wr_condition *blocked) {
    if (c->timed) wr_client_consumer_drop_taken(a, c);
    uint64_t tags[RETURNED_AT_ONCE], at = c->pending_next, lying = wr_client_consumer_pending(c);
    *left = 0;
    if (lying <= keep) return 0;
    uint32_t n = lying - keep < RETURNED_AT_ONCE ? (uint32_t)(lying - keep) : RETURNED_AT_ONCE;
    for (uint32_t i = n; i-- > 0;) tags[i] = c->pending[--at & (c->pending_size - 1)].delivery.sequence;
    int error = wr_attachment_settle(a, c, WR_OP_NACK, WR_FLAG_REQUEUE | WR_FLAG_UNSEEN, tags, n, blocked);
    if (!error) c->pending_next = at;
    *left = wr_client_consumer_pending(c) - keep;
    return error;
}

/* Nobody reads it: what is delivered to it ends, and what lies here returns. False: there is no room to say so now. */
static bool leave(wr_attachment *a, wr_client_consumer *c) {
    wr_condition blocked;
    uint64_t sequence, left = 1;
    int error = c->announced ? wr_attachment_cancel(a, c, &sequence, &blocked) : 0;
    while (!error && left) error = wr_client_consumer_return_last(a, c, 0, &left, &blocked);
    wr_port_submit(&a->port, c->server);
    return !error || error == ECONNRESET;
}

void wr_client_consumer_free_parked(wr_attachment *a) {
    while (a->parked) {
        wr_client_consumer *first = a->parked;
        a->parked = first->next_parked;
        wr_client_consumer_drop(NULL, first);
        free(first);
    }
}

static void leave_parked(wr_attachment *a, uint32_t server) {
    for (wr_client_consumer *c = a->parked, *next; c; c = next) {
        next = c->next_parked;
        if (c->server != server || !leave(a, c)) continue;
        unpark(a, c);
        wr_client_consumer_drop(a, c);
        free(c);
    }
}

int wr_attachment_intake(wr_attachment *a, uint32_t server) {
    if (__builtin_expect(a->parked != NULL, 0)) leave_parked(a, server);
    wr_link *link = wr_attachment_link(a, server);
    wr_worker_side *side = &a->workers[server];
    uint64_t tail = atomic_load_explicit(&link->delivery_tail, memory_order_acquire);
    int error = 0;
    wr_client_consumer *c = NULL;
    if (tail - side->popped > a->port.view.g.delivery_slots) { /* the worker skipped: what was overwritten is not ours any more */
        side->popped = tail - a->port.view.g.delivery_slots;
    }
    while (side->popped != tail) {
        wr_pending p;
        p.slot = atomic_load_explicit(wr_view_delivery_ring(&a->port.view, server, side->popped), memory_order_relaxed);
        bool ours = wr_attachment_slot_read(a, server, p.slot, &p.delivery) && p.delivery.pushed_at == side->popped;
        if (ours) {
            if (!c || c->queue != p.delivery.queue) c = wr_client_consumer_find(a, server, p.delivery.queue);
            if (c) {
                if ((error = push_pending(c, &p))) break;
                c->popped++;
                c->came_n++;
            } else { /* nobody here reads that queue any more */
                uint64_t sequence;
                wr_condition blocked;
                error = wr_attachment_command(a, server, WR_OP_NACK, WR_FLAG_REQUEUE | WR_FLAG_UNSEEN, p.delivery.queue,
                                              p.delivery.sequence, NULL, &sequence, &blocked);
                if (error) break;
                wr_port_submit(&a->port, server);
            }
        }
        side->popped++;
    }
    atomic_store_explicit(&link->delivery_head, side->popped, memory_order_release);
    return error;
}

void wr_client_consumer_recheck(const wr_attachment *a, wr_client_consumer *c) {
    uint64_t to = c->pending_first;
    for (uint64_t i = c->pending_first; i != c->pending_next; i++) {
        wr_pending p;
        memcpy((void *)&p, (void *)&c->pending[i & (c->pending_size - 1)], sizeof p);
        wr_delivery now;
        if (!wr_attachment_slot_read(a, c->server, p.slot, &now) || now.queue != c->queue ||
            now.sequence != p.delivery.sequence || now.pushed_at != p.delivery.pushed_at)
            continue;
        memcpy((void *)&p.delivery, (void *)&now, sizeof now);
        memcpy((void *)&c->pending[to++ & (c->pending_size - 1)], (void *)&p, sizeof p);
    }
    c->pending_next = to;
}
