/* Target: a file of the key index, as readers look keys up in it and a writer goes on in it.
 *
 * Input: mode, counts, then with bit 0 of the mode the file's bytes, else steps: puts, look-ups, cuts of the log, a
 * new writer, and a kill, which takes back the counts of the last put. With bit 1 bytes of the file are changed on
 * the way. Checked: nothing outside of the file is touched; a look-up ends, with smaller and smaller entries; in a
 * file that nobody damaged it finds what a list has. */
#include "fuzz.h"
#include "topics/key_index.h"

enum { PUTS_MAX = 64 };

typedef struct {
    uint32_t key_hash;
    uint64_t physical_offset;
    int64_t timestamp;
} a_put;

static struct {
    wr_key_index index;
    wr_key_writer writer;
    uint64_t bytes;
    a_put listed[PUTS_MAX];
    uint32_t n;
    bool sound; /* nobody damaged it */
} f;

static void look_up(fuzz_input *in) {
    wr_key_find find;
    wr_key_entry entry;
    wr_key_code code;
    uint32_t key = fuzz8(in) % 16, last = f.index.entries_n, i = f.n;
    int64_t since = fuzz8(in) & 1 ? INT64_MIN : (int64_t)fuzz_size(in, 1000000);
    int64_t until = fuzz8(in) & 1 ? INT64_MAX : (int64_t)fuzz_size(in, 1000000);
    wr_key_find_begin(&find, &f.index, key, since, until, fuzz8(in) & 1 && !f.sound);
    while ((code = wr_key_find_next(&find, &entry)) == WR_KEY_FOUND) {
        FUZZ_CHECK(entry.number && entry.number < last && entry.from <= entry.to && !(entry.physical_offset >> 63));
        FUZZ_CHECK(entry.to >= since && entry.from <= until);
        last = entry.number;
        if (!f.sound) continue;
        FUZZ_CHECK(entry.number <= f.n);
        for (; i >= entry.number; i--) /* what was left out lies outside of the range */
            if (i > entry.number && f.listed[i - 1].key_hash == key)
                FUZZ_CHECK(f.listed[i - 1].timestamp < since || f.listed[i - 1].timestamp > until);
        FUZZ_CHECK(f.listed[entry.number - 1].key_hash == key);
        FUZZ_CHECK(f.listed[entry.number - 1].physical_offset == entry.physical_offset);
    }
    FUZZ_CHECK(code != WR_KEY_FULL && wr_key_find_next(&find, &entry) == WR_KEY_END);
    if (!f.sound) return;
    FUZZ_CHECK(code == WR_KEY_END);
    for (; i; i--)
        if (f.listed[i - 1].key_hash == key)
            FUZZ_CHECK(f.listed[i - 1].timestamp < since || f.listed[i - 1].timestamp > until);
}

static void put(fuzz_input *in) {
    a_put made = {fuzz8(in) % 16, f.n ? f.listed[f.n - 1].physical_offset + fuzz8(in) : fuzz8(in),
                  (int64_t)fuzz_size(in, 1000000)};
    wr_key_code code = wr_key_put(&f.writer, made.key_hash, made.physical_offset, made.timestamp);
    if (!f.sound) return;
    FUZZ_CHECK(code == (f.n + 1 < f.index.entries_n ? WR_KEY_FOUND : WR_KEY_FULL));
    if (code == WR_KEY_FOUND) f.listed[f.n++] = made;
}

static bool open_writer(void) {
    wr_key_code code = wr_key_writer_open(&f.writer, &f.index);
    if (f.sound) FUZZ_CHECK(code == WR_KEY_FOUND && f.writer.count == f.n + 1);
    return code == WR_KEY_FOUND;
}

static bool step(fuzz_input *in, uint8_t mode) {
    uint8_t counts[8], *at = f.index.base + WR_KEY_INDEX_HEADER_AT_HASH_SLOT_COUNT;
    uint32_t before = f.n;
    switch (fuzz8(in) % 8) {
    case 0:
    case 1:
    case 2:
        put(in);
        return true;
    case 3: { /* the log is cut */
        uint64_t end = fuzz16(in);
        wr_key_code code = wr_key_truncate(&f.writer, end);
        while (f.n && f.listed[f.n - 1].physical_offset >= end) f.n--;
        if (f.sound) FUZZ_CHECK(code == WR_KEY_FOUND && f.writer.count == f.n + 1);
        return true;
    }
    case 4:
        return open_writer();
    case 5: /* killed before it counted */
        memcpy(counts, at, 8);
        put(in);
        if (f.n == before && f.sound) return true; /* it was full */
        memcpy(at, counts, 8);
        f.n = before;
        look_up(in);
        return open_writer();
    case 6:
        if (mode & 2) {
            f.sound = false;
            f.index.base[fuzz16(in) % f.bytes] = fuzz8(in);
        }
        return true;
    default:
        look_up(in);
        return true;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    uint8_t mode = fuzz8(&in);
    uint32_t slots = 1 + fuzz8(&in) % 8, entries = 2 + fuzz8(&in) % (PUTS_MAX - 2);
    memset(&f, 0, sizeof f);
    f.bytes = wr_key_index_bytes(slots, entries);
    uint8_t *file = calloc(1, f.bytes);
    f.sound = !(mode & 1);
    FUZZ_CHECK(file && wr_key_index_take(&f.index, file, f.bytes, slots, entries));
    FUZZ_CHECK(!wr_key_index_take(&f.index, file, f.bytes - 1, slots, entries));
    wr_key_header header;
    if (mode & 1) fuzz_bytes(&in, file, in.left < f.bytes ? in.left : f.bytes);
    wr_key_index_header(&f.index, &header);
    for (int i = 0; i < 16; i++) look_up(&in);
    bool open = open_writer();
    for (int i = 0; open && i < 200 && (in.left || i < 8); i++) open = step(&in, mode);
    for (int i = 0; i < 4; i++) look_up(&in);
    free(file);
    return 0;
}
