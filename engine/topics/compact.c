/* A pass. Declared in topics/compact.h. */
#define _GNU_SOURCE
#include "topics/compact.h"
#include "kernel/map.h"
#include "topics/hash.h"
#include "topics/key_digest.h"
#include "topics/log_search.h"
#include "topics/properties.h"
#include "topics/read.h"
#include "topics/system_topics.h"
#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

#define RECORDS_AT_ONCE 4096u
#define BYTES_AT_ONCE (1u << 20)
#define TELL_BYTES (16ull << 20)
#define PAUSE_NS 50000000ull /* `stop` is looked at so often */

typedef struct {
    const wr_compact_job *job;
    wr_compact_result *result;
    wr_compacted_writer writer;
    wr_map newest; /* digest of a key → offset of its newest record */
    uint64_t secret[2];
    uint64_t end;
    uint64_t bytes, began; /* done; when */
} a_pass;

static bool stopped(const a_pass *p) { return p->job->stop && atomic_load_explicit(p->job->stop, memory_order_relaxed); }

/* So many bytes were read or written: no faster than it may. 0 or ECANCELED. */
static int pace(a_pass *p, uint64_t bytes) {
    p->bytes += bytes;
    while (!stopped(p)) {
        const uint64_t due = p->job->bytes_per_s ? (uint64_t)((double)p->bytes / (double)p->job->bytes_per_s * 1e9) : 0, now = wr_now_ns() - p->began;
        if (now >= due) return 0;
        const uint64_t pause = due - now < PAUSE_NS ? due - now : PAUSE_NS;
        nanosleep(&(struct timespec){.tv_nsec = (long)pause}, NULL);
    }
    return ECANCELED;
}

/* The digest of a record's key; false: it has none. */
static bool digest_of(const a_pass *p, const wr_record *record, const uint8_t *bytes, wr_digest *digest) {
    wr_known_properties known;
    wr_properties_known(bytes + record->properties_at, record->properties_length, &known);
    if (known.keys.n) *digest = wr_key_digest(p->secret, known.keys.at, known.keys.n);
    return known.keys.n;
}

/* The offset of the newest record of this one's key, as far as `note` has come; NULL: none came of it. */
static const uint64_t *newest_of(const a_pass *p, const wr_record *record, const uint8_t *bytes) {
    wr_digest digest;
    return digest_of(p, record, bytes, &digest) ? wr_map_find(&p->newest, digest.a, digest.b) : NULL;
}

/* ---- the log ---- */

typedef int (*each)(a_pass *p, const wr_record *record, const uint8_t *bytes, bool *over);

static int why(a_pass *p, const wr_topic_damage *damage) {
    snprintf(p->result->wrong, sizeof p->result->wrong, "%s at %llu: expected %s, found %s", damage->file, (unsigned long long)damage->position, damage->expected,
             damage->found);
    return EUCLEAN;
}

typedef struct {
    a_pass *pass;
    each take;
    uint64_t told;
} a_walk;

static int open_log(void *context, uint64_t base) { return wr_log_open_file(((const a_walk *)context)->pass->job->files->root, base, false); }

/* Is it a message of the queue? */
static bool is_wanted(const a_pass *p, const wr_record *r, const uint8_t *bytes) {
    const uint32_t kind = r->sys_flag & WR_SYS_TRANSACTION_MASK;
    return r->flag == p->job->files->topic && r->queue_id == p->job->queue && r->queue_offset >= p->job->from && r->queue_offset < p->end &&
           kind != WR_SYS_PREPARED && kind != WR_SYS_ROLLBACK && !wr_system_is(bytes + r->topic_at, r->topic_length);
}

static int take_commit(void *context, const uint8_t *bytes, uint64_t n, const wr_commit_head *head, const uint8_t *marks) {
    (void)marks;
    a_walk *w = context;
    a_pass *p = w->pass;
    const wr_compact_files *files = p->job->files;
    const uint64_t records_n = n - wr_commit_record_bytes(head->marks_n);
    wr_record record;
    bool over = false;
    int error = 0;
    for (uint64_t at = 0; !error && at < records_n; at += record.size) {
        if (wr_record_scan(bytes + at, n - at, head->from + at, 0, &record) != WR_SCAN_RECORD) return EUCLEAN;
        if (!is_wanted(p, &record, bytes + at)) continue;
        if (record.queue_offset < p->result->first) p->result->first = record.queue_offset;
        error = w->take(p, &record, bytes + at, &over);
    }
    if (error || head->from - w->told < TELL_BYTES) return error;
    w->told = head->from;
    return files->progress(files->context, head->from);
}

/* The same from the files. EUCLEAN: the log is damaged. */
static int each_of_files(a_pass *p, each take) {
    static const wr_log_visitor visitor = {open_log, take_commit};
    const wr_compact_files *files = p->job->files;
    a_walk walk = {p, take, files->first};
    wr_commit_head after = {.number = 0};
    wr_log_end end;
    memcpy(after.origin.node, p->job->node, sizeof after.origin.node);
    int error = wr_log_before(&visitor, &walk, files->file_bytes, files->first, &after);
    if (!error) error = wr_log_walk(&visitor, &walk, files->file_bytes, files->first, &after, &end);
    if (error) return error == ENOENT ? 0 : error; /* there is no commit */
    return end.damaged || end.foreign ? EUCLEAN : 0;
}

/* All records from job->from on, below p->end, until one says that it is over. */
static int each_of_log(a_pass *p, each take) {
    const wr_compact_job *job = p->job;
    if (job->files) return each_of_files(p, take);
    uint64_t at = job->from;
    bool over = false;
    int error = 0;
    while (!error && !over && at < p->end) {
        const wr_topic_request request = {.queue = job->queue, .offset = at, .end = p->end, .records_max = RECORDS_AT_ONCE, .bytes_max = BYTES_AT_ONCE, .sum = true};
        wr_topic_read read;
        wr_topic_read_result result;
        wr_record record;
        const uint8_t *bytes;
        uint64_t n = 0;
        error = wr_topic_read_begin(&read, job->reader, &request);
        if (error) return error == ENXIO ? ESTALE : error;
        while (!error && !over && wr_topic_read_next(&read, &record, &bytes)) {
            n += record.size;
            error = take(p, &record, bytes, &over);
        }
        const int failed = wr_topic_read_end(&read, &result);
        if (!error) error = failed;
        if (error || over) break;
        switch (result.status) {
        case WR_READ_FOUND:
        case WR_READ_OFFSET_FOUND_NULL: break; /* what the log lost was said when it did */
        case WR_READ_DAMAGED: return why(p, &job->reader->damage);
        default: return ESTALE;
        }
        if (result.next <= at) return ESTALE;
        at = result.next;
        error = pace(p, n);
    }
    return error;
}

static int note(a_pass *p, const wr_record *record, const uint8_t *bytes, bool *over) {
    wr_digest digest;
    const bool key = digest_of(p, record, bytes, &digest);
    const bool many = key && p->newest.n >= p->job->keys_max && !wr_map_find(&p->newest, digest.a, digest.b);
    if (many || record->physical_offset + record->size > p->job->synced) {
        p->end = record->queue_offset;
        *over = true;
    } else if (key) {
        uint64_t *newest = wr_map_put(&p->newest, digest.a, digest.b);
        if (!newest) return ENOMEM;
        *newest = record->queue_offset;
    }
    return 0;
}

static int put(a_pass *p, const wr_record *record, const uint8_t *bytes, uint64_t since) {
    const int error = wr_compacted_put(&p->writer, record, bytes, since);
    if (!error) p->result->records_n++;
    return error;
}

/* One of the log: it stays if it is its key's newest. One without a key cannot be replaced. */
static int put_newest(a_pass *p, const wr_record *record, const uint8_t *bytes, bool *over) {
    (void)over;
    const uint64_t *newest = newest_of(p, record, bytes); /* NULL: it has no key */
    p->result->read_bytes += record->size;
    if (!newest || *newest == record->queue_offset) return put(p, record, bytes, 0);
    p->result->gone_n++;
    return 0;
}

/* ---- the old file ---- */

static int copy_old(a_pass *p) {
    wr_compacted *old = p->job->old;
    wr_record record;
    const uint8_t *bytes;
    int error = 0;
    for (uint64_t at = 0, n = 0; !error; at = record.queue_offset + 1) {
        const wr_compacted_code code = wr_compacted_from(old, WR_COMPACTED_OFFSET, at, &record, &bytes, &error);
        if (code == WR_COMPACTED_NONE) return pace(p, n);
        if (code == WR_COMPACTED_DAMAGED) {
            snprintf(p->result->wrong, sizeof p->result->wrong, "the file of newest records of queue %u at %llu: %s", p->job->queue,
                     (unsigned long long)old->wrong_at, old->wrong);
            return EUCLEAN;
        }
        if (code != WR_COMPACTED_FOUND) return error;
        if (p->job->files && record.queue_offset >= p->result->first) return 0; /* the log has it, too */
        n += record.size;
        p->result->read_bytes += record.size;
        const bool tombstone = !record.body_length;
        const uint64_t since = tombstone ? wr_compacted_since(old, record.queue_offset) : 0;
        const bool passed = since && p->job->now >= since && p->job->now - since >= p->job->tombstone_ms;
        const bool replaced = newest_of(p, &record, bytes) != NULL;
        if (replaced || passed) p->result->gone_n++;
        else error = put(p, &record, bytes, tombstone && !since ? p->job->now : since);
        if (!error && n >= BYTES_AT_ONCE) {
            error = pace(p, n);
            n = 0;
        }
    }
    return error;
}

static int run(a_pass *p) {
    const wr_compact_job *job = p->job;
    if (job->old && !job->files && job->old->id.end != job->from) return EINVAL;
    if (getrandom(p->secret, sizeof p->secret, 0) != sizeof p->secret) return errno ? errno : EIO;
    int error = each_of_log(p, note);
    if (error) return error;
    const wr_compact_files *files = job->files;
    wr_compacted_id id = {.topic = files ? files->topic : job->reader->id, .queue = job->queue, .end = p->end, .made = job->now};
    memcpy(id.node, job->node, 16);
    const uint32_t hash = files ? wr_key_hash_topic((const uint8_t *)files->name, files->name_n) : wr_key_hash_topic(job->reader->name, job->reader->name_n);
    wr_compacted_begin(&p->writer, job->fd, &id, hash, job->io, job->io_context);
    if (job->old) error = copy_old(p);
    if (!error) error = each_of_log(p, put_newest);
    if (!error) error = wr_compacted_finish(&p->writer, &p->result->size);
    p->result->end = p->end;
    wr_compacted_end(&p->writer);
    return error;
}

int wr_compact(const wr_compact_job *job, wr_compact_result *result) {
    a_pass p = {.job = job, .result = result, .end = job->end, .began = wr_now_ns()};
    *result = (wr_compact_result){.first = UINT64_MAX};
    const int error = run(&p);
    wr_map_free(&p.newest);
    return error;
}
