/* Rule S12: is a message that is written again the one that a record without references holds? Its bytes are compared with the
 * stored ones: in the image where the file has one, else read from the file. Invariants: store/store.h.
 *
 * A stored record is compared, not checked: damaged bytes are other bytes, and the message is appended afresh.
 */
#include "store/same_body.h"
#include "kernel/read.h"
#include "store/files.h"
#include "store/open_files.h"
#include <stdlib.h>

/* The whole stored frame, NULL when it cannot be had. */
static const uint8_t *stored_frame(wr_store *store, const wr_index_entry *entry) {
    uint64_t file_bytes = store->server->super->file_bytes, total = entry->total_size;
    if (total < WR_FRAME_BYTES_MIN || total > file_bytes || entry->offset > file_bytes - total) return NULL;
    wr_image_ref image = wr_row_image(wr_store_file(store, entry->file));
    /* Images are changed by this thread alone (a roll), and a file that has none any more is wholly on disk. */
    if (wr_image_some(image)) return store->images + WR_PAGE_BYTES + wr_image_number(image) * file_bytes + entry->offset;
    int fd = wr_store_open_file(store, entry->file);
    if (fd < 0) return NULL;
    if (total > store->compare_size) {
        uint8_t *bigger = realloc(store->compare, total);
        if (!bigger) return NULL;
        store->compare = bigger;
        store->compare_size = total;
    }
    return wr_read_all(fd, store->compare, total, entry->offset) ? NULL : store->compare;
}

bool wr_store_same_body(wr_store *store, const wr_index_entry *entry, const wr_store_message *m) {
    if (entry->total_size != wr_frame_bytes(m->length) || entry->meta_length != m->meta_length) return false;
    const uint8_t *frame = stored_frame(store, entry);
    return frame && memcmp(frame + WR_FRAME_AT_ID, m->id, 16) == 0 &&
           memcmp(frame + WR_FRAME_HEAD_BYTES, m->body, m->length) == 0;
}
