/* Notes of what was appended. What they are: topics/notes.h. */
#include "topics/notes.h"
#include "topics/hash.h"
#include "topics/properties.h"
#include <assert.h>

#define HASHES_IN_SLOT 4
#define MARKS_IN_SLOT 4
#define MARK_SLOTS(n) (((uint64_t)(n) + MARKS_IN_SLOT - 1) / MARKS_IN_SLOT)
#define HASHES_MAX (WR_PROPERTIES_BYTES_MAX / 2 + 2) /* keys of one byte and a space, and UNIQ_KEY */

typedef struct {
    uint64_t number, from, end, store_ms;
    uint32_t records_n, marks_n;
} a_commit;

typedef struct {
    uint32_t topic, row, size, keys_n;
    uint64_t position, offset, store_ms;
    int64_t tags_code;
    union {
        uint32_t few[HASHES_IN_SLOT];
        uint32_t *many; /* of keys_n > HASHES_IN_SLOT */
    };
} a_record;

typedef union {
    a_commit commit;
    a_record record;
    struct {
        uint64_t client_epoch, sequence;
    } marks[MARKS_IN_SLOT];
} a_slot;
_Static_assert(sizeof(a_slot) == 64, "a cache line");

struct wr_notes {
    uint64_t slots_n;
    /* the loop's */
    uint64_t begin, next; /* where the commit that is not sealed begins; behind its last record */
    /* both */
    _Alignas(64) _Atomic uint64_t tail;  /* commits before it are sealed (loop) */
    _Atomic uint32_t waits;              /* the loop waits for room (loop; taken back by the dispatcher) */
    _Alignas(64) _Atomic uint64_t head;  /* commits before it are done with (dispatcher) */
    _Alignas(64) a_slot slots[];
};

static inline a_slot *slot(const wr_notes *notes, uint64_t at) { return (a_slot *)&notes->slots[at & (notes->slots_n - 1)]; }

wr_notes *wr_notes_new(uint64_t slots_n) {
    assert(slots_n && !(slots_n & (slots_n - 1)) && slots_n >= 2 * (WR_APPEND_COUNT_MAX + 1 + MARK_SLOTS(WR_COMMIT_MARKS_MAX)));
    _Static_assert(sizeof(wr_notes) % 64 == 0, "aligned_alloc takes multiples of its alignment");
    wr_notes *notes = aligned_alloc(64, sizeof *notes + slots_n * sizeof(a_slot));
    if (!notes) return NULL;
    memset((void *)notes, 0, sizeof *notes); /* the slots are memory as far as they are used */
    notes->slots_n = slots_n;
    return notes;
}

/* Give the hashes of some records back. */
static void free_hashes(const wr_notes *notes, uint64_t from, uint64_t to) {
    for (; from < to; from++)
        if (slot(notes, from)->record.keys_n > HASHES_IN_SLOT) free(slot(notes, from)->record.many);
}

void wr_notes_free(wr_notes *notes) {
    wr_noted_commit commit;
    if (!notes) return;
    while (wr_notes_look(notes, &commit)) wr_notes_drop(notes, &commit);
    if (notes->next > notes->begin) free_hashes(notes, notes->begin + 1, notes->next);
    free(notes);
}

/* ---- the loop ---- */

static bool have_room(wr_notes *notes, uint64_t records_n) {
    const uint64_t first = notes->next > notes->begin ? notes->next : notes->begin + 1;
    const uint64_t end = first + records_n + MARK_SLOTS(WR_COMMIT_MARKS_MAX);
    /* SYNC notes-room: pairs with wr_notes_drop; slots before `head` may be written over */
    if (end - atomic_load_explicit(&notes->head, memory_order_acquire) <= notes->slots_n) return true;
    atomic_store_explicit(&notes->waits, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* SYNC notes-waits: said, then looked again; the dispatcher raises, then looks */
    return end - atomic_load_explicit(&notes->head, memory_order_acquire) <= notes->slots_n;
}

/* Hash a record's keys: as dispatch does that reads the log. False: no memory. */
static bool put_keys(a_record *to, const wr_topic *topic, const uint8_t *properties, uint32_t properties_n) {
    static _Thread_local uint32_t hashes[HASHES_MAX];
    wr_known_properties known;
    wr_text key;
    uint32_t at = 0, n = 0;
    to->tags_code = 0;
    if (properties_n) {
        wr_properties_known(properties, properties_n, &known);
        if (known.tags.at) to->tags_code = wr_tags_code(known.tags.at, known.tags.n);
        if (known.uniq_key.at && known.uniq_key.n) hashes[n++] = wr_key_hash(topic->key_hash, known.uniq_key.at, known.uniq_key.n);
        while (n < HASHES_MAX && known.keys.at && wr_keys_next(known.keys, &at, &key)) hashes[n++] = wr_key_hash(topic->key_hash, key.at, key.n);
    }
    uint32_t *place = n > HASHES_IN_SLOT ? malloc(n * sizeof *place) : to->few;
    to->keys_n = place ? n : 0;
    if (!place) return false;
    memcpy(place, hashes, n * sizeof *place);
    if (n > HASHES_IN_SLOT) to->many = place;
    return true;
}

bool wr_notes_put(wr_notes *notes, const wr_topic_batch *batch) {
    if (!have_room(notes, batch->n)) return false;
    const uint64_t first = notes->next > notes->begin ? notes->next : notes->begin + 1;
    const uint8_t *end = batch->bytes;
    uint64_t position = batch->position;
    for (uint32_t i = 0; i < batch->n; i++) {
        const uint32_t properties_n = batch->parts[i].properties_length;
        a_record *to = &slot(notes, first + i)->record;
        end += batch->sizes[i];
        *to = (a_record){.topic = batch->topic->id, .row = batch->topic->queues[batch->queue].row, .size = batch->sizes[i], .position = position,
                         .offset = batch->offset + i, .store_ms = batch->store_ms};
        position += batch->sizes[i];
        if (put_keys(to, batch->topic, end - properties_n, properties_n)) continue; /* a record ends with its properties */
        free_hashes(notes, first, first + i);
        atomic_store_explicit(&notes->waits, 1, memory_order_relaxed);
        return false;
    }
    notes->next = first + batch->n;
    return true;
}

void wr_notes_seal(wr_notes *notes, const wr_commit_head *head, const wr_commit_mark *marks, uint64_t end) {
    assert(notes->next > notes->begin && head->marks_n <= WR_COMMIT_MARKS_MAX);
    slot(notes, notes->begin)->commit = (a_commit){.number = head->number, .from = head->from, .end = end, .store_ms = head->store_ms,
                                                   .records_n = (uint32_t)(notes->next - notes->begin - 1), .marks_n = head->marks_n};
    for (uint32_t i = 0; i < head->marks_n; i++) {
        a_slot *to = slot(notes, notes->next + i / MARKS_IN_SLOT);
        to->marks[i % MARKS_IN_SLOT].client_epoch = marks[i].client_epoch;
        to->marks[i % MARKS_IN_SLOT].sequence = marks[i].sequence;
    }
    notes->begin = notes->next = notes->next + MARK_SLOTS(head->marks_n);
    /* SYNC notes-sealed: pairs with wr_notes_look; the commit's slots are whole */
    atomic_store_explicit(&notes->tail, notes->begin, memory_order_release);
}

/* ---- the dispatcher ---- */

static inline uint64_t head_of(const wr_notes *notes) { return atomic_load_explicit((_Atomic uint64_t *)&notes->head, memory_order_relaxed); }

bool wr_notes_look(const wr_notes *notes, wr_noted_commit *commit) {
    const uint64_t at = head_of(notes);
    /* SYNC notes-sealed */
    if (atomic_load_explicit((_Atomic uint64_t *)&notes->tail, memory_order_acquire) == at) return false;
    const a_commit *c = &slot(notes, at)->commit;
    *commit = (wr_noted_commit){.head = {.number = c->number, .from = c->from, .store_ms = c->store_ms, .marks_n = c->marks_n},
                                .end = c->end, .records_n = c->records_n};
    return true;
}

uint32_t wr_notes_records(const wr_notes *notes, const wr_noted_commit *commit, uint32_t from, wr_dispatch_record *to, uint32_t most) {
    const uint64_t first = head_of(notes) + 1;
    uint32_t n = 0;
    for (; n < most && from < commit->records_n; n++, from++) {
        const a_record *r = &slot(notes, first + from)->record;
        to[n] = (wr_dispatch_record){.topic = r->topic, .row = r->row, .size = r->size, .position = r->position, .queue_offset = r->offset,
                                     .store_ms = r->store_ms, .tags_code = r->tags_code, .keys_n = r->keys_n,
                                     .key_hashes = r->keys_n > HASHES_IN_SLOT ? r->many : r->few};
    }
    return n;
}

void wr_notes_marks(const wr_notes *notes, const wr_noted_commit *commit, wr_commit_mark *to) {
    const uint64_t first = head_of(notes) + 1 + commit->records_n;
    for (uint32_t i = 0; i < commit->head.marks_n; i++) {
        const a_slot *from = slot(notes, first + i / MARKS_IN_SLOT);
        to[i] = (wr_commit_mark){.client_epoch = from->marks[i % MARKS_IN_SLOT].client_epoch, .sequence = from->marks[i % MARKS_IN_SLOT].sequence};
    }
}

bool wr_notes_drop(wr_notes *notes, const wr_noted_commit *commit) {
    const uint64_t at = head_of(notes);
    free_hashes(notes, at + 1, at + 1 + commit->records_n);
    /* SYNC notes-room */
    atomic_store_explicit(&notes->head, at + 1 + commit->records_n + MARK_SLOTS(commit->head.marks_n), memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* SYNC notes-waits */
    return atomic_load_explicit(&notes->waits, memory_order_relaxed) && atomic_exchange_explicit(&notes->waits, 0, memory_order_relaxed);
}
