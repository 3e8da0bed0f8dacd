/* Target: lists of the store's files: decoding of any bytes, and the scan of a file that is damaged in any way.
 *
 * Input: mode; then the bytes of a list file (its checksum, counts and names are made right when the mode says so), or frames of a
 * store's file, made right, and then damaged at some places. Checked: every item lies inside the file, in order; counts are true; encode
 * gives the same list back; what a scan lists is valid by itself and its damaged parts hold none of it. */
#include "store/file_list.h"
#include "framed.h"

enum { NODE = 4711, FILE_NUMBER = 5, FILE_BYTES = 1 << 16 };

static void check_list(const wr_list *list) {
    wr_list_cursor cursor = wr_list_cursor_at(list, 0);
    wr_list_item item;
    uint64_t messages = 0, bytes = 0, controls = 0, last = WR_FILE_HEADER_BYTES, last_remove = 0;
    while (wr_list_next(&cursor, &item)) {
        FUZZ_CHECK(item.total >= WR_FRAME_BYTES_MIN && item.offset >= WR_FILE_HEADER_BYTES);
        FUZZ_CHECK(item.offset + item.total <= list->used);
        if (item.kind == WR_KIND_REMOVE) {
            FUZZ_CHECK(item.offset >= last || item.offset == last_remove);
            last_remove = item.offset;
        } else {
            FUZZ_CHECK(item.kind == WR_KIND_MESSAGE || item.kind == WR_KIND_ADD_REFERENCE);
            FUZZ_CHECK(item.offset >= last);
        }
        last = item.offset + item.total;
        if (item.kind == WR_KIND_MESSAGE) messages++, bytes += item.total;
        else controls++;
        FUZZ_CHECK(messages + controls < 1u << 24);
    }
    FUZZ_CHECK(messages == list->messages && bytes == list->message_bytes && controls == list->controls);
    uint64_t n;
    const char *reason;
    uint8_t *encoded = wr_list_encode(list, NODE, 0, &n);
    FUZZ_CHECK(encoded);
    wr_list *again = wr_list_decode(encoded, n, NODE, 0, list->file, list->salt, list->used, &reason);
    FUZZ_CHECK(again && !reason);
    FUZZ_CHECK(again->runs_n == list->runs_n && again->totals_n == list->totals_n && again->used == list->used &&
               again->damaged == list->damaged && again->waters_n == list->waters_n);
    for (uint64_t i = 0; i < again->waters_n; i++) FUZZ_CHECK(wr_list_water_of(list, again->waters[i].client_epoch) >= again->waters[i].water);
    uint64_t m;
    uint8_t *twice = wr_list_encode(again, NODE, 0, &m);
    FUZZ_CHECK(twice && m == n && !memcmp(twice, encoded, n));
    free(twice);
    free(encoded);
    wr_list_free(again);
}

/* Make a list file's head fit its bytes. */
static void make_list_right(uint8_t *bytes, uint64_t n, uint64_t salt, uint8_t runs_wanted, uint8_t totals_wanted) {
    if (n < WR_LIST_HEADER_SIZE) return;
    uint64_t left = n - WR_LIST_HEADER_SIZE, runs = runs_wanted, totals = totals_wanted;
    if (runs > left / WR_LIST_RUN_SIZE) runs = left / WR_LIST_RUN_SIZE;
    left -= runs * WR_LIST_RUN_SIZE;
    if (totals > left / 4) totals = left / 4;
    totals += (left - totals * 4) % WR_LIST_WATER_SIZE / 4; /* the rest is waters */
    uint64_t waters = (left - totals * 4) / WR_LIST_WATER_SIZE;
    memcpy(bytes + WR_LIST_HEADER_AT_MAGIC, WR_LIST_MAGIC, 8);
    wr_put32(bytes + WR_LIST_HEADER_AT_VERSION, WR_LIST_VERSION);
    wr_put64(bytes + WR_LIST_HEADER_AT_NODE_ID, NODE);
    wr_put32(bytes + WR_LIST_HEADER_AT_OWNER, 0);
    wr_put64(bytes + WR_LIST_HEADER_AT_FILE, FILE_NUMBER);
    wr_put64(bytes + WR_LIST_HEADER_AT_SALT, salt);
    wr_put64(bytes + WR_LIST_HEADER_AT_USED, WR_FILE_HEADER_BYTES + wr_get64(bytes + WR_LIST_HEADER_AT_USED) % (FILE_BYTES - WR_FILE_HEADER_BYTES));
    wr_put64(bytes + WR_LIST_HEADER_AT_RUNS, runs);
    wr_put64(bytes + WR_LIST_HEADER_AT_TOTALS, totals);
    wr_put64(bytes + WR_LIST_HEADER_AT_WATERS, waters);
    uint64_t messages = 0, message_bytes = 0, controls = 0, next_total = 0;
    const uint8_t *totals_at = bytes + WR_LIST_HEADER_SIZE + runs * WR_LIST_RUN_SIZE;
    for (uint64_t i = 0; i < runs; i++) {
        const uint8_t *run = bytes + WR_LIST_HEADER_SIZE + i * WR_LIST_RUN_SIZE;
        uint64_t count = wr_get32(run + WR_LIST_RUN_AT_COUNT), total = wr_get32(run + WR_LIST_RUN_AT_TOTAL), sum = count * total;
        for (uint64_t k = 0; !total && k < count && next_total < totals; k++) sum += wr_get32(totals_at + 4 * next_total++);
        if (run[WR_LIST_RUN_AT_KIND] == WR_KIND_MESSAGE) messages += count, message_bytes += sum;
        else controls += count;
    }
    wr_put64(bytes + WR_LIST_HEADER_AT_MESSAGES, messages);
    wr_put64(bytes + WR_LIST_HEADER_AT_MESSAGE_BYTES, message_bytes);
    wr_put64(bytes + WR_LIST_HEADER_AT_CONTROLS, controls);
    wr_put32(bytes + WR_LIST_HEADER_AT_CRC, wr_crc32c(0, bytes + 16, n - 16));
}

static void decode(fuzz_input *in, uint8_t mode) {
    uint64_t salt = mode & 2 ? 99 : fuzz64(in);
    uint8_t runs = fuzz8(in), totals = fuzz8(in);
    uint64_t n = in->left / 4 * 4;
    uint8_t *bytes = malloc(n ? n : 1);
    FUZZ_CHECK(bytes);
    fuzz_bytes(in, bytes, n);
    if (mode & 2) make_list_right(bytes, n, salt, runs, totals);
    const char *reason;
    wr_list *list = wr_list_decode(bytes, n, NODE, 0, FILE_NUMBER, salt, FILE_BYTES, &reason);
    FUZZ_CHECK(!list == !!reason);
    if (list) {
        check_list(list);
        /* the list of another file, as far as the bytes go: all bad, none followed outside */
        wr_list_bad bad[4];
        wr_list_verify(list, bytes, n, bad, 4);
        wr_list_free(list);
    }
    free(bytes);
}

static void scan(fuzz_input *in, uint8_t mode) {
    uint64_t salt = 99;
    struct {
        uint32_t at;
        uint8_t with;
    } damage[8];
    uint32_t damages = mode >> 2 & 7;
    for (uint32_t i = 0; i < damages; i++) {
        damage[i].at = fuzz16(in);
        damage[i].with = fuzz8(in);
    }
    uint64_t pad = mode >> 5 & 1 ? 4096 : 0; /* frames over several pages: the scan looks for page starts */
    uint64_t body = in->left, n = WR_FILE_HEADER_BYTES + body + pad + body;
    if (!(mode & 64)) n = WR_FILE_HEADER_BYTES + body;
    if (mode & 128) n = body; /* shorter than a header */
    uint8_t *bytes = calloc(1, n ? n : 1);
    FUZZ_CHECK(bytes);
    if (mode & 128) {
        fuzz_bytes(in, bytes, n);
    } else {
        fuzz_bytes(in, bytes + WR_FILE_HEADER_BYTES, body);
        if (mode & 64) memcpy(bytes + WR_FILE_HEADER_BYTES + body + pad, bytes + WR_FILE_HEADER_BYTES, body);
        static const uint8_t kinds[] = {WR_KIND_MESSAGE, WR_KIND_MESSAGE, WR_KIND_MESSAGE, WR_KIND_ADD_REFERENCE, WR_KIND_REMOVE, WR_KIND_PADDING};
        make_frames_right(bytes + WR_FILE_HEADER_BYTES, n - WR_FILE_HEADER_BYTES, salt, kinds, mode & 2 ? sizeof kinds : 0);
        for (uint32_t i = 0; i < damages; i++) {
            uint64_t space = n - WR_FILE_HEADER_BYTES;
            if (space) bytes[WR_FILE_HEADER_BYTES + damage[i].at % space] ^= damage[i].with;
        }
    }
    const char *reason = NULL;
    wr_list *list = wr_list_scan(FILE_NUMBER, salt, bytes, n, &reason);
    FUZZ_CHECK(list && reason);
    FUZZ_CHECK(list->used <= n || n < WR_FILE_HEADER_BYTES);
    check_list(list);
    wr_list_bad bad[1];
    FUZZ_CHECK(wr_list_verify(list, bytes, n, bad, 1) == 0);
    uint64_t last = WR_FILE_HEADER_BYTES;
    for (uint64_t i = 0; i < list->damage_n; i++) {
        FUZZ_CHECK(list->damage[i].from >= last && list->damage[i].to > list->damage[i].from && list->damage[i].to <= n && list->damage[i].reason);
        last = list->damage[i].to;
    }
    wr_list_cursor cursor = wr_list_cursor_at(list, 0);
    wr_list_item item;
    uint64_t d = 0;
    while (wr_list_next(&cursor, &item)) {
        while (d < list->damage_n && list->damage[d].to <= item.offset) d++;
        FUZZ_CHECK(d == list->damage_n || item.offset + item.total <= list->damage[d].from);
    }
    wr_list_free(list);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    uint8_t mode = fuzz8(&in);
    if (mode & 1) decode(&in, mode);
    else scan(&in, mode);
    return 0;
}
