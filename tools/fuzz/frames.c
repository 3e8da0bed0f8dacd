/* Target: the scanner of frames over the bytes of a file, as recovery, readers and `warren check` use it.
 *
 * Input: mode, salt, then the file's bytes. With bit 0 of the mode the checksums of what looks like frames are made right first, so
 * that the scan gets deep. Checked: rows lie in the file, one behind the other; a scan in small steps finds the same; each row passes the
 * check by itself; a frame under a new salt is valid there and, as a rule, nowhere else; writing a found frame again gives its bytes. */
#include "framed.h"

enum { ROWS = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    uint8_t mode = fuzz8(&in);
    uint64_t salt = fuzz16(&in);
    uint64_t n = in.left;
    uint8_t *file = malloc(n ? n : 1);
    FUZZ_CHECK(file);
    fuzz_bytes(&in, file, n);
    static const uint8_t kinds[] = {1, 2, 3, 8, 9, 10, 11, 15};
    if (mode & 1) make_frames_right(file, n, salt, kinds, mode & 2 ? sizeof kinds : 0);

    static wr_frame_row all[1024], few[ROWS];
    uint64_t at = 0, found = 0, step_at = 0;
    const char *reason = NULL, *step_reason = NULL;
    while (!reason && found < 1024) found += wr_frame_scan(file, n, &at, salt, all + found, 1024 - found, &reason);
    FUZZ_CHECK(at <= n);
    FUZZ_CHECK(reason || found == 1024);
    uint64_t stepped = 0, last = 0;
    uint64_t step = 1 + mode / 4 % ROWS;
    while (!step_reason && stepped < found) {
        uint64_t most = found - stepped < step ? found - stepped : step;
        uint64_t k = wr_frame_scan(file, n, &step_at, salt, few, most, &step_reason);
        FUZZ_CHECK(k <= most && !memcmp(few, all + stepped, k * sizeof *few));
        stepped += k;
        FUZZ_CHECK(k || step_reason);
    }
    FUZZ_CHECK(stepped == found);
    for (uint64_t i = 0; i < found; i++) {
        const wr_frame_row *row = &all[i];
        FUZZ_CHECK(row->offset >= last && row->total >= WR_FRAME_BYTES_MIN && row->offset <= n && row->total <= n - row->offset);
        last = row->offset + row->total;
        wr_frame_head head;
        FUZZ_CHECK(wr_frame_check(file, n, row->offset, salt, &head, NULL) == row->total);
        FUZZ_CHECK(head.kind == row->kind && !memcmp(head.id, row->id, 16) && head.part == row->part && head.extra == row->extra);
        /* not a byte more than it says */
        uint8_t *alone = malloc(row->total);
        FUZZ_CHECK(alone);
        memcpy(alone, file + row->offset, row->total);
        FUZZ_CHECK(wr_frame_check(alone, row->total, 0, salt, &head, NULL) == row->total);
        FUZZ_CHECK(wr_frame_check(alone, row->total - 1, 0, salt, &head, NULL) == 0);
        if (mode & 1) {
            uint8_t *again = malloc(row->total);
            FUZZ_CHECK(again);
            uint64_t body = row->total - WR_FRAME_BYTES_MIN, prefix = body / 3;
            FUZZ_CHECK(wr_frame_write(again, &head, alone + WR_FRAME_HEAD_BYTES, prefix, alone + WR_FRAME_HEAD_BYTES + prefix,
                                      body - prefix, salt) == row->total);
            FUZZ_CHECK(!memcmp(again, alone, row->total));
            wr_frame_resalt(again, row->total, salt + 1);
            FUZZ_CHECK(wr_frame_check(again, row->total, 0, salt + 1, &head, NULL) == row->total);
            FUZZ_CHECK(wr_frame_check(again, row->total, 0, salt, &head, NULL) == 0);
            free(again);
        }
        free(alone);
    }
    /* Behind what is no frame a valid one is found, or one whose contents alone suffered, or none; and within the file. */
    uint64_t behind = at < n ? wr_frame_behind(file, n, at, salt) : 0;
    FUZZ_CHECK(!behind || (behind > at && behind < n));
    if (n >= WR_FILE_HEADER_BYTES) {
        uint64_t low, high, header_salt;
        if (mode & 1) wr_put32(file + WR_FILE_HEADER_AT_CRC, wr_crc32c(0, file, WR_FILE_HEADER_AT_CRC));
        wr_file_header_check(file, WR_FILE_STORE, 7, 0, 1, &header_salt);
        wr_file_header_positions(file, &low, &high);
    }
    free(file);
    return 0;
}
