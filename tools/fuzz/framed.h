/* Bytes of a file whose frames are made right, so that what reads them gets behind the checksum. */
#ifndef WR_FUZZ_FRAMED_H
#define WR_FUZZ_FRAMED_H
#include "kernel/frame.h"
#include "fuzz.h"

/* Size, marker, version and checksum for every place that a scan would come to. With `kinds` and `kinds_n` the kinds, too. */
static void make_frames_right(uint8_t *file, uint64_t n, uint64_t salt, const uint8_t *kinds, uint32_t kinds_n) {
    for (uint64_t at = 0; n - at >= WR_FRAME_BYTES_MIN;) {
        uint8_t *frame = file + at;
        uint64_t size = wr_get64(frame + WR_FRAME_AT_SIZE);
        if (size > 0xffff) size &= 0xff;
        if (size < WR_FRAME_BYTES_MIN - 9) size += WR_FRAME_BYTES_MIN - 9;
        if (size + 9 > n - at) size = n - at - 9;
        wr_put64(frame + WR_FRAME_AT_SIZE, size);
        frame[size + 8] = WR_FRAME_MARKER;
        frame[WR_FRAME_AT_VERSION] = WR_FORMAT_VERSION;
        if (kinds_n) frame[WR_FRAME_AT_KIND] = kinds[frame[WR_FRAME_AT_KIND] % kinds_n];
        wr_frame_resalt(frame, size + 9, salt);
        at += size + 9;
    }
}
#endif
