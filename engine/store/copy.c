/* Collection of neighbouring files into one; contract in store/copy.h.
 *
 * Memory: one window of a source (1 MiB, or its largest frame), one staging buffer of the output (1 MiB), both aligned for O_DIRECT,
 * four bytes for each copied message, and the output's list.
 */
#define _GNU_SOURCE
#include "store/copy.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW_BYTES (1u << 20)
#define STAGE_BYTES (1u << 20)
#define LOOKUP_COST 64

/* Where the messages of one source were copied from, rising. */
typedef struct {
    uint32_t *offsets;
    uint64_t n, size;
} copied_places;

struct wr_collect {
    wr_collect_source *sources;
    copied_places *copied; /* per source */
    uint32_t sources_n, source;
    wr_collect_output out;
    wr_collect_io io;
    wr_list *list;
    wr_list_cursor cursor;
    wr_list_item item;
    bool has_item;
    uint64_t out_at;  /* end of what was appended */
    uint8_t *stage;   /* holds [stage_at, out_at) */
    uint64_t stage_at, stage_used;
    uint8_t *window; /* holds [window_at, window_at + window_used) of the source */
    uint64_t window_size, window_at, window_used;
    uint8_t (*ids)[16]; /* of the REMOVE frame at hand */
    uint8_t *needed;
    uint64_t ids_n, ids_size, ids_asked, needed_n;
    uint64_t removes_at, removes_total;
    bool has_removes;
    wr_collect_damage *damage;
    uint64_t damage_n, damage_size;
    wr_collect_counts counts;
    uint64_t spent;
    bool ended;
};

static int grow(void **array, uint64_t *size, uint64_t n, size_t each) {
    if (n < *size) return 0;
    uint64_t wanted = *size ? *size * 2 : 64;
    while (wanted <= n) wanted *= 2;
    void *larger = realloc(*array, wanted * each);
    if (!larger) return ENOMEM;
    *array = larger;
    *size = wanted;
    return 0;
}

wr_collect *wr_collect_new(const wr_collect_source *sources, uint32_t sources_n, const wr_collect_output *output, const wr_collect_io *io) {
    wr_collect *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->out = *output;
    c->io = *io;
    c->sources_n = sources_n;
    c->sources = calloc(sources_n ? sources_n : 1, sizeof *c->sources);
    c->copied = calloc(sources_n ? sources_n : 1, sizeof *c->copied);
    if (!c->sources || !c->copied) goto failed;
    memcpy(c->sources, sources, sources_n * sizeof *sources);
    if (sources_n) c->cursor = wr_list_cursor_at(sources[0].list, 0);
    if (output->fd >= 0) {
        c->list = wr_list_new(output->file, output->salt);
        if (!c->list || posix_memalign((void **)&c->stage, WR_PAGE_BYTES, STAGE_BYTES)) goto failed;
        wr_file_header_write(c->stage, WR_FILE_STORE, output->node_id, output->owner, output->file, output->salt, output->created_ns);
        wr_file_header_stand_for(c->stage, output->low, output->high);
        c->stage_used = c->out_at = WR_FILE_HEADER_BYTES;
        c->list->used = c->out_at;
    }
    return c;
failed:
    wr_collect_free(c);
    return NULL;
}

void wr_collect_free(wr_collect *c) {
    if (!c) return;
    if (c->copied)
        for (uint32_t i = 0; i < c->sources_n; i++) free(c->copied[i].offsets);
    if (c->list) wr_list_free(c->list);
    free(c->copied);
    free(c->sources);
    free(c->stage);
    free(c->window);
    free(c->ids);
    free(c->needed);
    free(c->damage);
    free(c);
}

/* After EINVAL: a file system that takes O_DIRECT and not this call, or (reading) an end of file within a page. False: it was not that. */
static bool without_direct(int fd) {
    int error = errno, flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && flags & O_DIRECT && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0) return true;
    errno = error;
    return false;
}

static uint64_t pages(uint64_t n) { return (n + WR_PAGE_BYTES - 1) / WR_PAGE_BYTES * WR_PAGE_BYTES; }

/* ---- the output ---- */

static int flush(wr_collect *c) {
    /* Everything before stage_at is in the file. A short write leaves the rest for the next try, from a page boundary. */
    while (c->stage_used) {
        ssize_t n = c->io.pwrite(c->io.context, c->out.fd, c->stage, c->stage_used, (off_t)c->stage_at);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EINVAL && without_direct(c->out.fd)) continue;
            return errno;
        }
        uint64_t done = (uint64_t)n;
        if (done > c->stage_used) return EIO;
        if (done < c->stage_used) {
            done -= done % WR_PAGE_BYTES;
            if (!done) return n ? EIO : ENOSPC;
            memmove(c->stage, c->stage + done, c->stage_used - done);
        }
        c->stage_at += done;
        c->stage_used -= done;
        c->counts.written_bytes += done;
        c->spent += done;
    }
    return 0;
}

/* Append. An error is final: the output is useless. */
static int append(wr_collect *c, const uint8_t *bytes, uint64_t n) {
    c->out_at += n;
    while (n) {
        uint64_t part = STAGE_BYTES - c->stage_used;
        if (part > n) part = n;
        memcpy(c->stage + c->stage_used, bytes, part);
        c->stage_used += part;
        bytes += part;
        n -= part;
        if (c->stage_used == STAGE_BYTES) {
            int error = flush(c);
            if (error) return error;
        }
    }
    return 0;
}

static bool fits(const wr_collect *c, uint64_t total) { return c->out_at + total <= c->out.file_bytes; }

/* The last frame: nothing follows. Less room than a padding frame before the end of the file: zeros, which a scan takes for the end. */
static int end_output(wr_collect *c) {
    uint8_t tail[2 * WR_PAGE_BYTES];
    uint64_t end = pages(c->out_at + WR_FRAME_BYTES_MIN);
    if (end > c->out.file_bytes) end = c->out.file_bytes;
    uint64_t gap = end - c->out_at;
    if (gap >= WR_FRAME_BYTES_MIN) {
        wr_frame_pad(tail, gap, c->out.salt, true);
        c->list->used = end;
    } else {
        memset(tail, 0, gap);
    }
    int error = gap ? append(c, tail, gap) : 0;
    return error ? error : flush(c);
}

/* ---- the sources ---- */

/* The bytes of a frame in the window. NULL with *reason when they cannot be had (*error 0), or with *error. Whole pages are read,
 * because sources are open with O_DIRECT: what is read once and never again has no business in the page cache, nor the copy from there. */
static uint8_t *fetch(wr_collect *c, uint64_t at, uint64_t total, const char **reason, int *error) {
    const wr_collect_source *source = &c->sources[c->source];
    *error = 0;
    if (at >= c->window_at && at + total <= c->window_at + c->window_used) return c->window + (at - c->window_at);
    uint64_t from = at / WR_PAGE_BYTES * WR_PAGE_BYTES, least = pages(at + total) - from;
    uint64_t wanted = source->list->used > at ? pages(source->list->used) - from : 0;
    if (wanted > WINDOW_BYTES) wanted = WINDOW_BYTES;
    if (wanted < least) wanted = least;
    if (wanted > c->window_size) {
        void *larger;
        if (posix_memalign(&larger, WR_PAGE_BYTES, wanted)) {
            *error = ENOMEM;
            return NULL;
        }
        free(c->window);
        c->window = larger;
        c->window_size = wanted;
    }
    c->window_used = 0;
    c->window_at = from;
    while (c->window_used < wanted) {
        ssize_t n = c->io.pread(c->io.context, source->fd, c->window + c->window_used, wanted - c->window_used, (off_t)(from + c->window_used));
        if (n < 0) {
            if (errno == EINTR || (errno == EINVAL && without_direct(source->fd))) continue;
            if (from + c->window_used >= at + total) break;
            if (wanted > least) { /* a bad sector behind this frame is not its fault */
                wanted = least;
                continue;
            }
            *reason = "unreadable";
            return NULL;
        }
        if (n == 0) break;
        c->window_used += (uint64_t)n;
        c->counts.read_bytes += (uint64_t)n;
        c->spent += (uint64_t)n;
    }
    if (from + c->window_used < at + total) {
        *reason = "short";
        return NULL;
    }
    return c->window + (at - from);
}

/* The frame of the item: checked, and what the list says it is. */
static uint8_t *checked(wr_collect *c, uint64_t at, uint64_t total, uint8_t kind, const uint8_t *id, wr_frame_head *head,
                        const char **reason, int *error) {
    uint8_t *frame = fetch(c, at, total, reason, error);
    if (!frame) return NULL;
    uint64_t found = wr_frame_check(frame, total, 0, c->sources[c->source].list->salt, head, reason);
    if (!found) return NULL;
    if (found != total || head->kind != kind || (id && memcmp(head->id, id, 16) != 0)) {
        *reason = "other";
        return NULL;
    }
    return frame;
}

static int note_damage(wr_collect *c, uint8_t kind, const uint8_t id[16], uint64_t at, uint64_t total, const char *reason) {
    int error = grow((void **)&c->damage, &c->damage_size, c->damage_n, sizeof *c->damage);
    if (error) return error;
    wr_collect_damage *d = &c->damage[c->damage_n++];
    *d = (wr_collect_damage){.file = c->sources[c->source].list->file, .offset = at, .total = total, .reason = reason, .kind = kind};
    memcpy(d->id, id, 16);
    return 0;
}

static inline bool held(const wr_index_entry *entry) { return entry->ref_count || entry->holders; }

/* An entry that will lead into the output: its message was copied. One that lies in no source leads where it did. */
static bool leads_somewhere(const wr_collect *c, const wr_index_entry *entry) {
    for (uint32_t i = 0; i < c->sources_n; i++) {
        if (c->sources[i].list->file != entry->file) continue;
        const copied_places *places = &c->copied[i];
        uint64_t low = 0, high = places->n;
        while (low < high) {
            uint64_t middle = low + (high - low) / 2;
            if (places->offsets[middle] < entry->offset)
                low = middle + 1;
            else
                high = middle;
        }
        return low < places->n && places->offsets[low] == entry->offset;
    }
    return true;
}

/* Must a control frame of this id stay, as its entry says? 0 and *needed, or an errno of the lookup. Where it says no, one that is
 * dead and has no entry may still be in a file: see ghost_before. */
static int control_needed(wr_collect *c, const uint8_t id[16], bool *needed) {
    *needed = true;
    if (c->sources[c->source].keep_controls) return 0;
    wr_index_entry entry;
    int error = c->io.lookup(c->io.context, id, &entry);
    c->spent += LOOKUP_COST;
    if (error == ENOENT)
        *needed = false;
    else if (error)
        return error;
    else
        *needed = leads_somewhere(c, &entry);
    return 0;
}

/* After the lookups whose answer was no. */
static bool ghost_before(wr_collect *c) { return c->io.ghosts(c->io.context, c->sources[c->source].high); }

/* Append a frame that was checked; it is in private memory, and gets the output's salt. */
static int put_frame(wr_collect *c, uint8_t *frame, uint64_t total, const wr_frame_head *head) {
    uint64_t at = c->out_at;
    wr_frame_resalt(frame, total, c->out.salt);
    int error = append(c, frame, total);
    return error ? error : wr_list_add(c->list, head, at, total);
}

/* Does the message of the item live, and just here? 0 and *lives, or an errno of the lookup. */
static int message_lives(wr_collect *c, bool *lives) {
    wr_index_entry entry;
    int error = c->io.lookup(c->io.context, c->item.id, &entry);
    c->spent += LOOKUP_COST;
    *lives = !error && entry.file == c->sources[c->source].list->file && entry.offset == c->item.offset && held(&entry);
    return error == ENOENT ? 0 : error;
}

static int do_message(wr_collect *c) {
    const wr_list_item *item = &c->item;
    bool lives;
    int error = message_lives(c, &lives);
    if (error) return error;
    if (!lives) {
        c->counts.dropped++;
        return 0;
    }
    const char *reason = NULL;
    wr_frame_head head;
    uint8_t *frame = checked(c, item->offset, item->total, WR_KIND_MESSAGE, item->id, &head, &reason, &error);
    if (error) return error;
    if (!frame) {
        /* Where files are only checked nobody has locked them: the file may have gone, and its space been used again. */
        if ((error = message_lives(c, &lives))) return error;
        return lives ? note_damage(c, WR_KIND_MESSAGE, item->id, item->offset, item->total, reason) : 0;
    }
    copied_places *places = &c->copied[c->source];
    if ((error = grow((void **)&places->offsets, &places->size, places->n, sizeof *places->offsets))) return error;
    if (c->list) {
        if (!fits(c, item->total)) return E2BIG;
        if ((error = put_frame(c, frame, item->total, &head))) return error;
    }
    places->offsets[places->n++] = (uint32_t)item->offset;
    c->counts.messages++;
    c->counts.message_bytes += item->total;
    return 0;
}

static int do_add_reference(wr_collect *c) {
    const wr_list_item *item = &c->item;
    bool needed;
    int error = control_needed(c, item->id, &needed);
    if (error) return error;
    if (!needed && !ghost_before(c)) {
        c->counts.dropped++;
        return 0;
    }
    if (c->list && !fits(c, item->total)) return E2BIG;
    const char *reason = NULL;
    wr_frame_head head;
    uint8_t *frame = checked(c, item->offset, item->total, WR_KIND_ADD_REFERENCE, item->id, &head, &reason, &error);
    uint8_t anew[WR_FRAME_BYTES_MIN];
    uint64_t total = item->total;
    if (error) return error;
    if (!frame) { /* the list says all that it said */
        head = (wr_frame_head){.kind = WR_KIND_ADD_REFERENCE, .extra = item->extra};
        memcpy(head.id, item->id, 16);
        frame = anew;
        total = wr_frame_seal(anew, &head, 0, c->sources[c->source].list->salt);
    }
    if (c->list && (error = put_frame(c, frame, total, &head))) return error;
    if (reason && (error = note_damage(c, WR_KIND_ADD_REFERENCE, item->id, item->offset, item->total, reason))) return error;
    c->counts.controls++;
    return 0;
}

/* The REMOVE frame whose ids were gathered. */
static int do_removes(wr_collect *c) {
    int error;
    for (; c->ids_asked < c->ids_n; c->ids_asked++) {
        bool needed;
        if ((error = control_needed(c, c->ids[c->ids_asked], &needed))) return error;
        c->needed[c->ids_asked] = needed;
        c->needed_n += needed;
    }
    if (c->needed_n < c->ids_n && ghost_before(c)) {
        memset(c->needed, 1, c->ids_n);
        c->needed_n = c->ids_n;
    }
    if (!c->needed_n) {
        c->counts.dropped += c->ids_n;
        c->has_removes = false;
        return 0;
    }
    const char *reason = NULL;
    wr_frame_head head;
    uint8_t *frame = checked(c, c->removes_at, c->removes_total, WR_KIND_REMOVE, NULL, &head, &reason, &error);
    if (error) return error;
    if (c->list) {
        uint64_t body = c->needed_n * 16, total = wr_frame_bytes(body), n = 0;
        if (!fits(c, total)) return E2BIG;
        uint8_t *anew = malloc(total);
        if (!anew) return ENOMEM;
        uint8_t(*kept)[16] = (uint8_t(*)[16])(anew + WR_FRAME_HEAD_BYTES);
        for (uint64_t i = 0; i < c->ids_n; i++)
            if (c->needed[i]) memcpy(kept[n++], c->ids[i], 16);
        if (!frame) head = (wr_frame_head){.kind = WR_KIND_REMOVE};
        head.extra = (uint32_t)n;
        wr_frame_seal(anew, &head, body, c->out.salt);
        uint64_t at = c->out_at;
        error = append(c, anew, total);
        if (!error) error = wr_list_add_removes(c->list, &head, at, total, (const uint8_t(*)[16])kept, n);
        free(anew);
        if (error) return error;
    }
    if (reason && (error = note_damage(c, WR_KIND_REMOVE, c->ids[0], c->removes_at, c->removes_total, reason))) return error;
    c->counts.controls += c->needed_n;
    c->counts.dropped += c->ids_n - c->needed_n;
    c->has_removes = false;
    return 0;
}

/* The ids of the REMOVE frame that begins with the item at hand; leaves the first item behind it. */
static int gather_removes(wr_collect *c) {
    c->removes_at = c->item.offset;
    c->removes_total = c->item.total;
    c->ids_n = c->ids_asked = c->needed_n = 0;
    do {
        uint64_t size = c->ids_size;
        int error = grow((void **)&c->ids, &size, c->ids_n, sizeof *c->ids);
        if (!error) error = grow((void **)&c->needed, &c->ids_size, c->ids_n, sizeof *c->needed);
        if (error) return error;
        memcpy(c->ids[c->ids_n++], c->item.id, 16);
        c->has_item = wr_list_next(&c->cursor, &c->item);
    } while (c->has_item && c->item.kind == WR_KIND_REMOVE && c->item.offset == c->removes_at);
    c->has_removes = true;
    return 0;
}

int wr_collect_step(wr_collect *c, uint64_t bytes) {
    c->spent = 0;
    while (c->source < c->sources_n) {
        if (c->spent >= bytes) return EAGAIN;
        int error = 0;
        if (c->has_removes) {
            if ((error = do_removes(c))) return error;
            if (c->has_item) continue;
        }
        if (!c->has_item && !(c->has_item = wr_list_next(&c->cursor, &c->item))) {
            c->source++;
            c->window_used = 0;
            if (c->source < c->sources_n) c->cursor = wr_list_cursor_at(c->sources[c->source].list, 0);
            continue;
        }
        if (c->item.kind == WR_KIND_REMOVE) {
            if ((error = gather_removes(c))) return error;
            continue;
        }
        error = c->item.kind == WR_KIND_MESSAGE ? do_message(c) : do_add_reference(c);
        if (error) return error;
        c->has_item = false;
    }
    if (c->list && !c->ended) {
        int error = end_output(c);
        if (error) return error;
        c->ended = true;
    }
    return 0;
}

uint32_t wr_collect_fits(const wr_collect *c) { return c->source; }
const wr_collect_counts *wr_collect_counted(const wr_collect *c) { return &c->counts; }
const wr_collect_damage *wr_collect_damaged(const wr_collect *c, uint64_t *n) {
    *n = c->damage_n;
    return c->damage;
}
const wr_list *wr_collect_list(const wr_collect *c) { return c->list; }
wr_list *wr_collect_take_list(wr_collect *c) {
    wr_list *list = c->list;
    c->list = NULL;
    return list;
}
