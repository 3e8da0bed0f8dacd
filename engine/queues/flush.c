/* Rows of a flush. Declared in queues/flush.h. */
#include "queues/flush.h"
#include "queues/segment_codec.h"
#include <unistd.h>

wr_segment_survey wr_segment_look(const wr_segment_row *rows, uint64_t n) {
    wr_segment_survey found = {.rising = true};
    uint64_t run = 0, last = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (rows[i].location != WR_LOCATION_JOURNAL) continue;
        if (found.embedded_n++ && rows[i].entry.offset <= last) {
            found.rising = false;
            run = 0;
        }
        last = rows[i].entry.offset;
        run += rows[i].entry.frame_length;
        if (run > found.bytes) found.bytes = run;
    }
    return found;
}

void wr_segment_place(wr_segment_row *rows, uint64_t n, uint32_t file) {
    for (uint64_t i = 0; i < n; i++) {
        if (rows[i].location != WR_LOCATION_JOURNAL) continue;
        rows[i].location = rows[i].entry.location = WR_LOCATION_SEGMENT;
        rows[i].entry.file = file;
    }
}

uint64_t wr_segment_group(const wr_segment_row *rows, uint64_t n) {
    uint64_t end = 1, number = rows->sequence / WR_SEGMENT_ENTRY_COUNT;
    while (end < n && rows[end].queue == rows->queue && rows[end].sequence / WR_SEGMENT_ENTRY_COUNT == number) end++;
    return end;
}

int wr_segment_write(int fd, const wr_segment_row *rows, uint64_t n, uint64_t salt) {
    uint8_t *bytes = malloc(n * WR_QUEUE_SEGMENT_ENTRY_SIZE + 1);
    if (!bytes) return ENOMEM;
    wr_segment_encode_rows(bytes, rows, n, salt);
    for (uint64_t i = 0; i < n;) {
        uint64_t end = i + 1;
        while (end < n && rows[end].sequence == rows[end - 1].sequence + 1) end++;
        const uint8_t *from = bytes + i * WR_QUEUE_SEGMENT_ENTRY_SIZE;
        uint64_t left = (end - i) * WR_QUEUE_SEGMENT_ENTRY_SIZE;
        off_t at = (off_t)(WR_FILE_HEADER_BYTES + rows[i].sequence % WR_SEGMENT_ENTRY_COUNT * WR_QUEUE_SEGMENT_ENTRY_SIZE);
        while (left) {
            ssize_t done = pwrite(fd, from, left, at);
            if (done < 0 && errno == EINTR) continue;
            if (done <= 0) {
                int error = done ? errno : EIO;
                free(bytes);
                return error;
            }
            from += done;
            left -= (uint64_t)done;
            at += done;
        }
        i = end;
    }
    free(bytes);
    return 0;
}
