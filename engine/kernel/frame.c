/* One record: encode, check, scan. Format: engine/kernel/formats.py.
 *
 * The CRC of a frame starts from the file's salt (its 8 bytes, big-endian, are fed first), then takes the head without
 * the crc field, then the body. So an intact frame of another file, left over in a recycled block, never validates.
 *
 * Invariants
 *   wr_frame_check never reads outside [file, file + file_bytes), whatever the bytes are.
 *   A frame that wr_frame_check accepts was written whole, by wr_frame_seal, wr_frame_write or wr_frame_pad with this salt.
 *   A padding frame is written head first: its filler is not covered by the CRC and may be anything.
 */
#include "kernel/frame.h"
#include <assert.h>

_Static_assert(sizeof WR_PADDING_ID - 1 == 16, "the padding id is a whole id");
_Static_assert(WR_FRAME_BYTES_MIN == WR_FRAME_HEAD_BYTES + 1, "head and marker");

/* What the CRC of a frame begins with, as words in the byte order of the file: salt, head up to the crc field, rest of the
 * head. Kept in registers: a head put together in memory and read again at once stalls on store forwarding (20 ns). */
typedef struct {
    uint64_t salt, size, id[2];
    uint32_t envelope; /* version, kind, flags */
    uint64_t client_epoch, sequence;
    uint64_t rest; /* extra, meta_length, part */
} head_words;

_Static_assert(WR_FRAME_AT_SIZE == 0 && WR_FRAME_AT_ID == 8 && WR_FRAME_AT_VERSION == 24 && WR_FRAME_AT_KIND == 25 &&
                   WR_FRAME_AT_FLAGS == 26 && WR_FRAME_AT_CRC == 28 && WR_FRAME_AT_CLIENT_EPOCH == 32 &&
                   WR_FRAME_AT_SEQUENCE == 40 && WR_FRAME_AT_EXTRA == 48 && WR_FRAME_AT_META_LENGTH == 52 &&
                   WR_FRAME_AT_PART == 54 && WR_FRAME_HEAD_BYTES == 56,
               "head_words follows the declaration");

static inline uint64_t load64(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, 8);
    return word;
}

static uint32_t crc_of_words_table(const head_words *w) {
    uint8_t bare[60];
    memcpy(bare, &w->salt, 8);
    memcpy(bare + 8, &w->size, 8);
    memcpy(bare + 16, w->id, 16);
    memcpy(bare + 32, &w->envelope, 4);
    memcpy(bare + 36, &w->client_epoch, 8);
    memcpy(bare + 44, &w->sequence, 8);
    memcpy(bare + 52, &w->rest, 8);
    return wr_crc32c(0, bare, sizeof bare);
}

#if defined(__x86_64__)
static inline __attribute__((target("sse4.2"))) uint32_t crc_of_words_hardware(const head_words *w) {
    uint64_t crc = 0xffffffffu;
    crc = __builtin_ia32_crc32di(crc, w->salt);
    crc = __builtin_ia32_crc32di(crc, w->size);
    crc = __builtin_ia32_crc32di(crc, w->id[0]);
    crc = __builtin_ia32_crc32di(crc, w->id[1]);
    crc = __builtin_ia32_crc32si((uint32_t)crc, w->envelope);
    crc = __builtin_ia32_crc32di(crc, w->client_epoch);
    crc = __builtin_ia32_crc32di(crc, w->sequence);
    crc = __builtin_ia32_crc32di(crc, w->rest);
    return ~(uint32_t)crc;
}
#endif

static inline uint32_t crc_of_words(const head_words *w) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return crc_of_words_hardware(w);
#endif
    return crc_of_words_table(w);
}

/* Write the head but for the crc field; return the CRC of salt and head. */
static inline uint32_t put_head(uint8_t *to, const wr_frame_head *head, uint64_t body_length, uint64_t salt) {
    head_words w = {
        .salt = __builtin_bswap64(salt),
        .size = __builtin_bswap64(WR_FRAME_HEAD_BYTES - 8 + body_length),
        .id = {load64(head->id), load64(head->id + 8)},
        .envelope = WR_FORMAT_VERSION | (uint32_t)head->kind << 8 | (uint32_t)__builtin_bswap16(head->flags) << 16,
        .client_epoch = __builtin_bswap64(head->client_epoch),
        .sequence = __builtin_bswap64(head->sequence),
        .rest = __builtin_bswap32(head->extra) | (uint64_t)__builtin_bswap16(head->meta_length) << 32 |
                (uint64_t)__builtin_bswap16(head->part) << 48,
    };
    memcpy(to + WR_FRAME_AT_SIZE, &w.size, 8);
    memcpy(to + WR_FRAME_AT_ID, &w.id[0], 8);
    memcpy(to + WR_FRAME_AT_ID + 8, &w.id[1], 8);
    memcpy(to + WR_FRAME_AT_VERSION, &w.envelope, 4);
    memcpy(to + WR_FRAME_AT_CLIENT_EPOCH, &w.client_epoch, 8);
    memcpy(to + WR_FRAME_AT_SEQUENCE, &w.sequence, 8);
    memcpy(to + WR_FRAME_AT_EXTRA, &w.rest, 8);
    return crc_of_words(&w);
}

/* CRC of salt and head as they lie in a file. */
static inline uint32_t head_crc(const uint8_t *frame, uint64_t salt) {
    head_words w = {
        .salt = __builtin_bswap64(salt),
        .size = load64(frame + WR_FRAME_AT_SIZE),
        .id = {load64(frame + WR_FRAME_AT_ID), load64(frame + WR_FRAME_AT_ID + 8)},
        .client_epoch = load64(frame + WR_FRAME_AT_CLIENT_EPOCH),
        .sequence = load64(frame + WR_FRAME_AT_SEQUENCE),
        .rest = load64(frame + WR_FRAME_AT_EXTRA),
    };
    memcpy(&w.envelope, frame + WR_FRAME_AT_VERSION, 4);
    return crc_of_words(&w);
}

uint64_t wr_frame_seal(uint8_t *to, const wr_frame_head *head, uint64_t body_length, uint64_t salt) {
    uint32_t crc = put_head(to, head, body_length, salt);
    wr_put32(to + WR_FRAME_AT_CRC, wr_crc32c(crc, to + WR_FRAME_HEAD_BYTES, body_length));
    to[WR_FRAME_HEAD_BYTES + body_length] = WR_FRAME_MARKER;
    return wr_frame_bytes(body_length);
}

uint64_t wr_frame_write(uint8_t *to, const wr_frame_head *head, const void *prefix, uint64_t prefix_length,
                        const void *from, uint64_t length, uint64_t salt) {
    uint64_t body_length = prefix_length + length;
    uint32_t crc = put_head(to, head, body_length, salt);
    uint8_t *body = to + WR_FRAME_HEAD_BYTES;
    if (prefix_length) crc = wr_copy_crc32c(crc, body, prefix, prefix_length);
    if (length) crc = wr_copy_crc32c(crc, body + prefix_length, from, length);
    wr_put32(to + WR_FRAME_AT_CRC, crc);
    body[body_length] = WR_FRAME_MARKER;
    return wr_frame_bytes(body_length);
}

void wr_frame_pad(uint8_t *to, uint64_t bytes, uint64_t salt, bool last) {
    assert(bytes >= WR_FRAME_BYTES_MIN);
    wr_frame_head head = {.kind = WR_KIND_PADDING, .flags = last ? WR_FRAME_LAST : 0};
    memcpy(head.id, WR_PADDING_ID, 16);
    uint64_t filler = bytes - WR_FRAME_BYTES_MIN;
    wr_put32(to + WR_FRAME_AT_CRC, put_head(to, &head, filler, salt));
    memset(to + WR_FRAME_HEAD_BYTES, 0, filler);
    to[bytes - 1] = WR_FRAME_MARKER;
}

void wr_frame_vouch(uint8_t *padding, uint64_t synced, uint64_t salt) {
    wr_put64(padding + WR_FRAME_AT_SEQUENCE, synced);
    wr_put32(padding + WR_FRAME_AT_CRC, head_crc(padding, salt));
}

void wr_frame_resalt(uint8_t *frame, uint64_t total, uint64_t salt) {
    uint32_t crc = head_crc(frame, salt);
    if (frame[WR_FRAME_AT_KIND] != WR_KIND_PADDING)
        crc = wr_crc32c(crc, frame + WR_FRAME_HEAD_BYTES, total - WR_FRAME_BYTES_MIN);
    wr_put32(frame + WR_FRAME_AT_CRC, crc);
}

static bool kind_known(uint8_t kind) {
    switch (kind) {
    case WR_KIND_MESSAGE:
    case WR_KIND_ADD_REFERENCE:
    case WR_KIND_REMOVE:
    case WR_KIND_PUBLISH:
    case WR_KIND_ACK:
    case WR_KIND_DELAY:
    case WR_KIND_MOVE:
    case WR_KIND_KEYS:
    case WR_KIND_PADDING:
        return true;
    default:
        return false;
    }
}

uint64_t wr_frame_check(const uint8_t *file, uint64_t file_bytes, uint64_t at, uint64_t salt, wr_frame_head *head,
                        const char **reason) {
    const char *why = NULL;
    uint64_t total = 0;
    if (at > file_bytes || file_bytes - at < WR_FRAME_BYTES_MIN) {
        why = "short";
    } else {
        const uint8_t *frame = file + at;
        uint64_t size = wr_get64(frame + WR_FRAME_AT_SIZE);
        uint8_t kind = frame[WR_FRAME_AT_KIND];
        if (size < WR_FRAME_BYTES_MIN - 9 || size > file_bytes - at - 9) {
            why = "size";
        } else if (frame[size + 8] != WR_FRAME_MARKER) {
            why = "marker";
        } else if (frame[WR_FRAME_AT_VERSION] != WR_FORMAT_VERSION) {
            why = "version";
        } else if (!kind_known(kind)) {
            why = "kind";
        } else {
            uint32_t crc = head_crc(frame, salt);
            if (kind != WR_KIND_PADDING)
                crc = wr_crc32c(crc, frame + WR_FRAME_HEAD_BYTES, size + 8 - WR_FRAME_HEAD_BYTES);
            if (crc != wr_get32(frame + WR_FRAME_AT_CRC)) {
                why = "crc";
            } else {
                total = size + 9;
                memcpy(head->id, frame + WR_FRAME_AT_ID, 16);
                head->kind = kind;
                head->flags = wr_get16(frame + WR_FRAME_AT_FLAGS);
                head->client_epoch = wr_get64(frame + WR_FRAME_AT_CLIENT_EPOCH);
                head->sequence = wr_get64(frame + WR_FRAME_AT_SEQUENCE);
                head->extra = wr_get32(frame + WR_FRAME_AT_EXTRA);
                head->meta_length = wr_get16(frame + WR_FRAME_AT_META_LENGTH);
                head->part = wr_get16(frame + WR_FRAME_AT_PART);
            }
        }
    }
    if (reason) *reason = why;
    return total;
}

bool wr_frame_check_apart(const uint8_t *head, const void *first, uint64_t first_bytes, const void *rest, uint64_t rest_bytes, uint64_t salt) {
    if (wr_get64(head + WR_FRAME_AT_SIZE) != WR_FRAME_HEAD_BYTES + first_bytes + rest_bytes + 1 - 9 ||
        head[WR_FRAME_AT_VERSION] != WR_FORMAT_VERSION || !kind_known(head[WR_FRAME_AT_KIND]))
        return false;
    uint32_t crc = wr_crc32c(wr_crc32c(head_crc(head, salt), first, first_bytes), rest, rest_bytes);
    return crc == wr_get32(head + WR_FRAME_AT_CRC);
}

static bool all_zero(const uint8_t *bytes, uint64_t n) {
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}

uint64_t wr_frame_scan(const uint8_t *file, uint64_t file_bytes, uint64_t *at, uint64_t salt, wr_frame_row *rows,
                       uint64_t rows_n, const char **reason) {
    uint64_t n = 0;
    *reason = NULL;
    while (n < rows_n) {
        wr_frame_head head;
        const char *why;
        uint64_t total = wr_frame_check(file, file_bytes, *at, salt, &head, &why);
        if (total == 0) {
            if (*at >= file_bytes)
                why = "end";
            else if (all_zero(file + *at, file_bytes - *at))
                why = "zeros";
            *reason = why;
            break;
        }
        if (head.kind != WR_KIND_PADDING) {
            wr_frame_row *row = &rows[n++];
            memset(row, 0, sizeof *row);
            row->offset = *at;
            row->total = total;
            memcpy(row->id, head.id, 16);
            row->client_epoch = head.client_epoch;
            row->sequence = head.sequence;
            row->extra = head.extra;
            row->flags = head.flags;
            row->meta_length = head.meta_length;
            row->kind = head.kind;
            row->part = head.part;
        }
        *at += total;
        if (head.kind == WR_KIND_PADDING && head.flags & WR_FRAME_LAST) {
            *reason = "end";
            break;
        }
    }
    return n;
}

/* ---- behind damage ---- */

#define BEHIND_BYTES_MAX (64u << 20) /* checksummed in vain, in one look */

/* The frame at `at` when only one byte of its size suffered: where it ends, 0: more suffered. Its checksum tells, so this is certain.
 * Such a size must not be believed: a flipped bit of a padding's leads to the beginning of another commit. */
static uint64_t end_but_for_size(const uint8_t *file, uint64_t file_bytes, uint64_t at, uint64_t salt, uint64_t *spent) {
    if (at > file_bytes || file_bytes - at < WR_FRAME_BYTES_MIN) return 0;
    const uint8_t *frame = file + at;
    uint8_t kind = frame[WR_FRAME_AT_KIND];
    if (frame[WR_FRAME_AT_VERSION] != WR_FORMAT_VERSION || !kind_known(kind)) return 0;
    uint64_t damaged = wr_get64(frame + WR_FRAME_AT_SIZE);
    uint8_t head[WR_FRAME_HEAD_BYTES];
    memcpy(head, frame, sizeof head);
    for (int shift = 0; shift < 64; shift += 8) {
        for (uint64_t value = 0; value < 256 && *spent < BEHIND_BYTES_MAX; value++) {
            uint64_t size = (damaged & ~(0xffull << shift)) | value << shift;
            if (size < WR_FRAME_BYTES_MIN - 9 || size > file_bytes - at - 9 || frame[size + 8] != WR_FRAME_MARKER) continue;
            wr_put64(head + WR_FRAME_AT_SIZE, size);
            uint32_t crc = head_crc(head, salt);
            if (kind != WR_KIND_PADDING) {
                crc = wr_crc32c(crc, frame + WR_FRAME_HEAD_BYTES, size + 8 - WR_FRAME_HEAD_BYTES);
                *spent += size;
            }
            if (crc == wr_get32(head + WR_FRAME_AT_CRC)) return at + size + 9;
        }
    }
    return 0;
}

/* The frame at `at` when its size did not suffer: where the next one would be, 0: not plausible. */
static uint64_t hop(const uint8_t *file, uint64_t file_bytes, uint64_t at, uint64_t salt) {
    if (file_bytes - at < WR_FRAME_BYTES_MIN) return 0;
    uint64_t size = wr_get64(file + at + WR_FRAME_AT_SIZE);
    if (size < WR_FRAME_BYTES_MIN - 9 || size > file_bytes - at - 9) return 0;
    wr_frame_head head;
    uint64_t next = at + size + 9;
    return next == file_bytes || wr_frame_check(file, file_bytes, next, salt, &head, NULL) ? next : 0;
}

/* Is what lies at `at`, and may be damaged, more than bytes that happen to begin with a plausible size? A body that ends in seven zeros
 * does so with its marker. */
static bool resembles(const uint8_t *file, uint64_t file_bytes, uint64_t at) {
    return file_bytes - at >= WR_FRAME_BYTES_MIN && file[at + WR_FRAME_AT_VERSION] == WR_FORMAT_VERSION &&
           kind_known(file[at + WR_FRAME_AT_KIND]);
}

/* Do the frames from here on end as those of a commit do? */
static bool arrives(const uint8_t *file, uint64_t file_bytes, uint64_t at, uint64_t salt) {
    while (at < file_bytes) {
        wr_frame_head head;
        uint64_t total = wr_frame_check(file, file_bytes, at, salt, &head, NULL);
        if (total && head.kind == WR_KIND_PADDING && (at + total) % WR_FILE_HEADER_BYTES == 0) return true;
        if (!total && all_zero(file + at, file_bytes - at)) return true;
        uint64_t next = total ? at + total : resembles(file, file_bytes, at) ? hop(file, file_bytes, at, salt) : 0;
        if (!next) return false;
        at = next;
    }
    return at == file_bytes;
}

uint64_t wr_frame_behind(const uint8_t *file, uint64_t file_bytes, uint64_t at, uint64_t salt) {
    uint64_t spent = 0;
    uint64_t next = end_but_for_size(file, file_bytes, at, salt, &spent);
    wr_frame_head first;
    if (next && wr_frame_check(file, file_bytes, next, salt, &first, NULL)) return next;
    if (next) at = next; /* what lies there is damaged, too, or the end */
    next = at < file_bytes ? hop(file, file_bytes, at, salt) : 0;
    if (next && next < file_bytes && arrives(file, file_bytes, next, salt)) return next;
    spent = 0;
    for (next = at + 1; next < file_bytes && file_bytes - next >= WR_FRAME_BYTES_MIN && spent < BEHIND_BYTES_MAX; next++) {
        wr_frame_head head;
        const char *why;
        if (wr_frame_check(file, file_bytes, next, salt, &head, &why)) {
            if (arrives(file, file_bytes, next, salt)) return next;
            spent += 4096; /* bytes made to keep us busy */
        } else if (why[0] == 'c') {
            spent += wr_get64(file + next + WR_FRAME_AT_SIZE);
        }
    }
    return 0;
}

/* ---- header page of a file ---- */

void wr_file_header_write(uint8_t *page, uint32_t kind, uint64_t node_id, uint32_t owner, uint64_t file, uint64_t salt,
                          uint64_t created_ns) {
    memset(page, 0, WR_FILE_HEADER_BYTES);
    memcpy(page + WR_FILE_HEADER_AT_MAGIC, WR_FILE_MAGIC, 8);
    wr_put32(page + WR_FILE_HEADER_AT_VERSION, WR_FORMAT_VERSION);
    wr_put32(page + WR_FILE_HEADER_AT_KIND, kind);
    wr_put64(page + WR_FILE_HEADER_AT_NODE_ID, node_id);
    wr_put32(page + WR_FILE_HEADER_AT_OWNER, owner);
    wr_put64(page + WR_FILE_HEADER_AT_FILE, file);
    wr_put64(page + WR_FILE_HEADER_AT_SALT, salt);
    wr_put64(page + WR_FILE_HEADER_AT_CREATED_NS, created_ns);
    wr_put32(page + WR_FILE_HEADER_AT_CRC, wr_crc32c(0, page, WR_FILE_HEADER_AT_CRC));
}

void wr_file_header_stand_for(uint8_t *page, uint64_t low, uint64_t high) {
    wr_put64(page + WR_FILE_HEADER_AT_POSITION_LOW, low + 1);
    wr_put64(page + WR_FILE_HEADER_AT_POSITION_HIGH, high + 1);
    wr_put32(page + WR_FILE_HEADER_AT_CRC, wr_crc32c(0, page, WR_FILE_HEADER_AT_CRC));
}

void wr_file_header_positions(const uint8_t *page, uint64_t *low, uint64_t *high) {
    uint64_t first = wr_get64(page + WR_FILE_HEADER_AT_POSITION_LOW), last = wr_get64(page + WR_FILE_HEADER_AT_POSITION_HIGH);
    uint64_t own = wr_get64(page + WR_FILE_HEADER_AT_FILE);
    *low = first ? first - 1 : own;
    *high = last ? last - 1 : own;
}

const char *wr_file_header_check(const uint8_t *page, uint32_t kind, uint64_t node_id, uint32_t owner, uint64_t file,
                                 uint64_t *salt) {
    /* The version comes before the CRC: a newer version may have moved the CRC, and must be named as what it is. */
    if (memcmp(page + WR_FILE_HEADER_AT_MAGIC, WR_FILE_MAGIC, 8) != 0) return "magic";
    if (wr_get32(page + WR_FILE_HEADER_AT_VERSION) != WR_FORMAT_VERSION) return "version";
    if (wr_get32(page + WR_FILE_HEADER_AT_CRC) != wr_crc32c(0, page, WR_FILE_HEADER_AT_CRC)) return "crc";
    if (wr_get32(page + WR_FILE_HEADER_AT_KIND) != kind) return "kind";
    if (wr_get64(page + WR_FILE_HEADER_AT_NODE_ID) != node_id) return "node";
    if (wr_get32(page + WR_FILE_HEADER_AT_OWNER) != owner) return "owner";
    if (wr_get64(page + WR_FILE_HEADER_AT_FILE) != file) return "file";
    if (salt) *salt = wr_get64(page + WR_FILE_HEADER_AT_SALT);
    return NULL;
}
