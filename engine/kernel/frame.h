/* One record: encode, check, scan. The format is declared in engine/kernel/formats.py. */
#ifndef WR_FRAME_H
#define WR_FRAME_H
#include "kernel/bytes.h"
#include "kernel/formats.h"
#include "kernel/rows.h"
#include <stdbool.h>
#include <stddef.h>

/* CRC32C (Castagnoli), as in RFC 3720; `seed` is the CRC of what went before (0 at the start). */
uint32_t wr_crc32c(uint32_t seed, const void *bytes, size_t n);
/* memcpy and CRC32C of the same bytes in one pass: the source may be memory of a client that changes it meanwhile,
 * so what is checked must be what was copied. */
uint32_t wr_copy_crc32c(uint32_t seed, void *to, const void *from, size_t n);
/* The same without the processor's instruction (`to` may be NULL): what runs where it is missing, and the tests' oracle. */
uint32_t wr_crc32c_table(uint32_t seed, void *to, const void *from, size_t n);

typedef struct {
    uint8_t id[16];
    uint8_t kind;
    uint16_t flags;
    uint64_t client_epoch;
    uint64_t sequence;
    uint32_t extra;
    uint16_t meta_length;
    uint16_t part; /* store: place in a batch of writes + 1, 0: no batch */
} wr_frame_head;

/* Total bytes of a frame with `body_length` bytes after its head. */
static inline uint64_t wr_frame_bytes(uint64_t body_length) { return WR_FRAME_HEAD_BYTES + body_length + 1; }

/* Write head, CRC and marker around a body that already lies at to + WR_FRAME_HEAD_BYTES. Returns the total. */
uint64_t wr_frame_seal(uint8_t *to, const wr_frame_head *head, uint64_t body_length, uint64_t salt);

/* The common case in one pass: write a frame whose body is prefix (may be NULL) followed by a copy of `from`. */
uint64_t wr_frame_write(uint8_t *to, const wr_frame_head *head, const void *prefix, uint64_t prefix_length,
                        const void *from, uint64_t length, uint64_t salt);

/* Fill `bytes` (>= WR_FRAME_BYTES_MIN) with one padding frame; `last`: nothing follows in this file. */
void wr_frame_pad(uint8_t *to, uint64_t bytes, uint64_t salt, bool last);

/* A padding frame of the log vouches for what lies before `synced` in its file: that was durable when the frame was made. So of a
 * file that ends in a torn batch it can be told what was confirmed and is damaged, and what never was. */
void wr_frame_vouch(uint8_t *padding, uint64_t synced, uint64_t salt);

/* Check the frame at `at` of a file's bytes. Returns its total size (> 0) and fills head, or 0 when there is no valid
 * frame; *reason (may be NULL) then names why: "short", "size", "marker", "version", "kind", "crc". */
uint64_t wr_frame_check(const uint8_t *file, uint64_t file_bytes, uint64_t at, uint64_t salt, wr_frame_head *head,
                        const char **reason);

/* The same for a frame that was read into pieces: its head, and what follows it up to the marker, which the caller has looked at. */
bool wr_frame_check_apart(const uint8_t *head, const void *first, uint64_t first_bytes, const void *rest, uint64_t rest_bytes, uint64_t salt);

/* List the frames from *at on, without the padding, into rows[rows_n]; returns how many and moves *at behind the last.
 * *reason: NULL when the rows are full (call again), "end" at the end of the bytes or behind a padding
 * frame that is the last (*at is then behind it), "zeros" when nothing but zeros follows
 * (the unused rest of a preallocated file), else why the bytes at *at are no frame, as wr_frame_check says it. */
uint64_t wr_frame_scan(const uint8_t *file, uint64_t file_bytes, uint64_t *at, uint64_t salt, wr_frame_row *rows,
                       uint64_t rows_n, const char **reason);

/* Compute the CRC of a frame anew under another salt: a collection moves it to another file. The frame was checked before. */
void wr_frame_resalt(uint8_t *frame, uint64_t total, uint64_t salt);

/* Positions of a checked header page: its own number, unless the file was made by a collection. */
void wr_file_header_positions(const uint8_t *page, uint64_t *low, uint64_t *high);
/* Make a header page that of a collected file, which stands for the positions low ... high. */
void wr_file_header_stand_for(uint8_t *page, uint64_t low, uint64_t high);
/* File header page: write and check. check returns NULL when good, else the reason ("magic", "version", "crc", ...). */
void wr_file_header_write(uint8_t *page, uint32_t kind, uint64_t node_id, uint32_t owner, uint64_t file, uint64_t salt,
                          uint64_t created_ns);
const char *wr_file_header_check(const uint8_t *page, uint32_t kind, uint64_t node_id, uint32_t owner, uint64_t file,
                                 uint64_t *salt);
/* Where valid frames go on behind byte `at`, which holds none; 0: nowhere. The checksum of a frame that is whole but for a byte of its
 * size says where it ends. Else: a body may contain what looks like a frame, even one of this file: frames count only if one follows
 * another, over damaged ones of a plausible size, as far as the end of a commit (a padding up to a page's end), of the file, or of what
 * was ever written. */
uint64_t wr_frame_behind(const uint8_t *file, uint64_t file_bytes, uint64_t at, uint64_t salt);
#endif
