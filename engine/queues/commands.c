/* Commands of a link. Declared in queues/commands.h. */
#include "kernel/delivery.h"
#include "queues/barred.h"
#include "queues/command.h"
#include "queues/commands.h"
#include "queues/consumers.h"
#include "queues/entries.h"
#include "queues/exclusive.h"
#include "queues/links.h"
#include "queues/pages.h"
#include "queues/publish.h"
#include "queues/registry.h"

static wr_outcome settle_command(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record) {
    wr_queue *q = wr_queue_find(e, c->queue);
    bool returned = c->op == WR_OP_NACK && c->flags & WR_FLAG_REQUEUE;
    bool unseen = c->flags & WR_FLAG_UNSEEN;
    wr_settling how = returned             ? unseen ? WR_SETTLE_UNSEEN : WR_SETTLE_REQUEUE
                      : c->op == WR_OP_ACK ? WR_SETTLE_ACK
                      : unseen             ? WR_SETTLE_LOST
                                           : WR_SETTLE_REJECT;
    uint64_t n = 0;
    uint64_t before = e->ranges_n, deaths = e->deaths_n;
    if (!q) {
        /* deleted meanwhile: nothing is held */
    } else if (c->count) {
        const uint8_t *blob = wr_command_blob(l, c);
        if (!blob || c->count > c->length / 8) {
            wr_link_evict(e, l, WR_EVICTED_BLOB);
            return WR_WAIT;
        }
        for (uint64_t i = 0; i < c->count; i++) {
            uint64_t sequence;
            memcpy(&sequence, blob + i * 8, 8);
            n += wr_queue_settle(e, l, q, sequence, how);
        }
    } else if (c->flags & WR_FLAG_MULTIPLE) {
        n = wr_queue_settle_to(e, l, q, c->tag, how);
    } else if (how == WR_SETTLE_REQUEUE && c->body) {
        if (c->body >> WR_TIME_BITS) {
            wr_link_evict(e, l, WR_EVICTED_OPERATION);
            return WR_WAIT;
        }
        n = wr_queue_return_later(e, l, q, c->tag, c->body);
    } else {
        n = wr_queue_settle(e, l, q, c->tag, how);
    }
    /* A limit of deliveries ends a message when it is returned. */
    if (n && (e->ranges_n != before || e->deaths_n != deaths || (!returned && q->range_round == e->round))) {
        l->dirty = true;
        if (c->flags & WR_FLAG_SYNCED) e->want_commit = e->want_sync = true;
        if (c->flags & WR_FLAG_WRITTEN) e->want_commit = true;
    } else {
        wr_link_wants(e, l, c->flags);
    }
    return wr_command_answer(record, n ? WR_RESULT_OK : WR_RESULT_NO);
}

static wr_outcome credit(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record) {
    wr_queue *q = wr_queue_find(e, c->queue);
    /* counted under another worker, or told to one: the client announces itself again */
    bool past = (c->body && c->body != e->epoch) || l->next < l->takeup_tail;
    if (!q && !past && c->queue == wr_reply_queue_of(l)) {
        q = wr_queue_declare(e, c->queue, false);
        if (!q) return WR_WAIT;
    }
    if (!q && !wr_is_reply_queue(c->queue) && l->unknown_checked != l->next + 1) {
        l->pause = WR_PAUSE_UNKNOWN;
        e->unknown_waiting = true;
        return WR_WAIT;
    }
    if (!q || past) return wr_command_answer(record, WR_RESULT_NO);
    wr_consumer *consumer = wr_consumer_get(e, l, q);
    if (!consumer) return WR_WAIT;
    if (c->count && !(consumer->active && consumer->prefetch) && wr_is_barred(e, q)) return WR_WAIT;
    bool asked = wr_consumer_asks(consumer);
    if (!consumer->active && !wr_consumer_begin(consumer)) return WR_WAIT;
    if (c->count && !consumer->prefetch) {
        q->consumed_n++;
        wr_queue_dirty(e, q);
    }
    consumer->spoke = true;
    wr_consumer_speaks(e, consumer);
    consumer->credit = c->tag;
    consumer->prefetch = c->count > UINT32_MAX ? UINT32_MAX : (uint32_t)c->count;
    if (!asked && wr_consumer_asks(consumer)) {
        q->asked_n++;
        wr_queue_dirty(e, q);
    }
    wr_queue_wake(e, q);
    return wr_command_answer(record, WR_RESULT_OK);
}

static wr_outcome cancel(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record) {
    wr_consumer *consumer = wr_consumer_find(e, l, c->queue);
    if (!consumer) return wr_command_answer(record, WR_RESULT_NO);
    consumer->joined = false;
    wr_consumer_stop(e, consumer);
    wr_consumer_speaks(e, consumer);
    if (c->flags & WR_FLAG_REQUEUE) wr_consumer_return(e, consumer, false);
    return wr_command_answer(record, WR_RESULT_OK);
}

static wr_outcome locate(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record) {
    wr_queue *q = wr_queue_find(e, c->queue);
    wr_entry *entry = q ? wr_queue_entry(q, c->tag) : NULL;
    if (!entry || entry->state != WR_ENTRY_UNACKED || entry->holder != l->slot) return wr_command_answer(record, WR_RESULT_NO);
    wr_delivery *d = wr_view_delivery(&l->view, e->o.server, wr_entry_slot(entry));
    uint16_t count = entry->delivery_count ? entry->delivery_count - 1 : 0;
    wr_delivery_fill(d, q->id, c->tag, entry);
    d->delivery_count = count;
    return wr_command_answer(record, WR_RESULT_OK);
}

wr_outcome wr_command_execute(wr_queue_engine *e, wr_qlink *l, const wr_command *c, wr_command *record, uint64_t sequence) {
    switch (c->op) {
    case WR_OP_PUBLISH:
        return wr_command_publish(e, l, c, record, sequence);
    case WR_OP_ACK:
    case WR_OP_NACK:
        return settle_command(e, l, c, record);
    case WR_OP_CREDIT:
        return credit(e, l, c, record);
    case WR_OP_CANCEL:
        return cancel(e, l, c, record);
    case WR_OP_LEAVE: {
        wr_queue *q = wr_queue_find(e, c->queue);
        return wr_command_answer(record, q && wr_exclusive_leave(e, l, q) ? WR_RESULT_OK : WR_RESULT_NO);
    }
    case WR_OP_LOCATE:
        return locate(e, l, c, record);
    case WR_OP_BARRIER:
        wr_link_wants(e, l, c->flags);
        return wr_command_answer(record, WR_RESULT_OK);
    case WR_OP_CONTROL:
        if (l->closing) return wr_command_answer(record, WR_RESULT_ERROR); /* nobody reads the answer */
        if (!wr_command_blob(l, c)) break;
        l->pause = WR_PAUSE_CONTROL;
        return WR_WAIT;
    default:
        wr_link_evict(e, l, WR_EVICTED_OPERATION);
        return WR_WAIT;
    }
    wr_link_evict(e, l, WR_EVICTED_BLOB);
    return WR_WAIT;
}
