/* Messages in files of their own: written, linked, read, locked, damaged at any byte. */
#include "kernel/large.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BODY (2u << 20)
static uint8_t body[BODY], back[BODY];

static int folder_named(const char *root, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert(!mkdir(path, 0700));
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    assert(fd >= 0);
    return fd;
}

static void flip(int folder, const uint8_t id[16], off_t at) {
    char name[WR_LARGE_NAME_BYTES];
    uint8_t byte;
    wr_large_name(id, name);
    int fd = openat(folder, name, O_RDWR);
    assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    assert(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* A worker that looks for garbage has the lock of the name's empty file: nobody makes another one in its place before it has removed it,
 * or let it go. */
static void a_look_meets_an_empty_one(int folder, const wr_large *of) {
    const uint8_t id[16] = {9};
    char name[WR_LARGE_NAME_BYTES];
    wr_large m = *of;
    int fd;
    m.id = id;
    wr_large_name(id, name);
    for (int removed = 0; removed < 2; removed++) {
        int look = openat(folder, name, O_RDWR | O_CREAT | O_EXCL, 0600);
        assert(look >= 0 && !flock(look, LOCK_EX | LOCK_NB));
        assert(wr_large_write(folder, &m, true, &fd) == EWOULDBLOCK && fd == -1);
        assert(!faccessat(folder, name, F_OK, 0));
        if (removed) assert(!unlinkat(folder, name, 0));
        close(look);
        assert(!wr_large_write(folder, &m, true, &fd));
        close(fd);
        assert(!unlinkat(folder, name, 0));
    }
}

static void written_and_damaged(void) {
    char root[] = "/tmp/warren-large-XXXXXX", name[WR_LARGE_NAME_BYTES], path[300];
    assert(mkdtemp(root));
    int one = folder_named(root, "one"), two = folder_named(root, "two"), fd, other;
    uint8_t id[16], meta[300], meta_back[300];
    const char *reason;
    uint64_t length;
    uint16_t meta_length;
    for (int i = 0; i < 16; i++) id[i] = (uint8_t)(i * 17);
    for (uint32_t i = 0; i < BODY; i++) body[i] = (uint8_t)(i * 31 + (i >> 11));
    memset(meta, 7, sizeof meta);
    wr_large_name(id, name);
    assert(!strcmp(name, "00112233445566778899aabbccddeeff"));
    const uint64_t lengths[] = {0, 1, (1u << 20) - 1, 1u << 20, (1u << 20) + 1, BODY};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const wr_large m = {.id = id, .meta = meta, .body = body, .node_id = 5, .length = lengths[i], .meta_length = i % 2 ? sizeof meta : 0};
        const uint64_t whole = m.length + m.meta_length;
        assert(!wr_large_write(one, &m, i % 2, &fd));
        assert(wr_large_write(one, &m, true, &other) == EEXIST && other == -1);
        assert(!wr_large_link(one, two, id, true) && wr_large_link(one, two, id, true) == EEXIST);
        /* locked until its publisher closes it, under each of its names */
        other = openat(two, name, O_RDONLY);
        assert(other >= 0 && flock(other, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK);
        close(fd);
        assert(!flock(other, LOCK_EX | LOCK_NB));
        close(other);
        if (i == 1) a_look_meets_an_empty_one(one, &m);
        memset(back, 0, sizeof back);
        assert(!wr_large_read(two, 5, id, whole, m.meta_length, meta_back, back, &reason));
        assert(!memcmp(back, body, m.length) && !memcmp(meta_back, meta, m.meta_length));
        assert(!wr_large_read(one, 5, id, whole, m.meta_length, meta_back, NULL, &reason));
        assert(!wr_large_check(one, 5, id, &length, &meta_length, &reason) && length == whole && meta_length == m.meta_length);
        /* of another node; another length than a row says; damage */
        assert(wr_large_read(one, 6, id, whole, m.meta_length, meta_back, back, &reason) == EUCLEAN && !strcmp(reason, "node"));
        assert(wr_large_read(one, 5, id, whole + 1, m.meta_length, meta_back, back, &reason) == EBADMSG && !strcmp(reason, "size"));
        for (off_t at = 0; at < (off_t)(64 + whole); at += at < 64 ? 1 : 65537) {
            if (at >= 8 && at < 12) continue; /* a file of a later version is no damage */
            flip(one, id, at);
            int error = wr_large_check(one, 5, id, &length, &meta_length, &reason);
            assert(error == EBADMSG);
            flip(one, id, at);
        }
        flip(one, id, 11);
        assert(wr_large_check(one, 5, id, &length, &meta_length, &reason) == EUCLEAN && !strcmp(reason, "version"));
        flip(one, id, 11);
        assert(!wr_large_check(one, 5, id, &length, &meta_length, &reason));
        snprintf(path, sizeof path, "%s/one/%s", root, name);
        assert(!truncate(path, (off_t)(64 + whole - (whole ? 1 : 60))));
        assert(wr_large_check(two, 5, id, &length, &meta_length, &reason) == EBADMSG && !strcmp(reason, "size"));
        wr_large_unlink(one, id);
        wr_large_unlink(two, id);
        assert(wr_large_read(one, 5, id, whole, m.meta_length, NULL, back, &reason) == ENOENT);
    }
    const wr_large huge = {.id = id, .body = body, .length = (uint64_t)WR_MESSAGE_BYTES_MOST + 1};
    assert(wr_large_write(one, &huge, true, &fd) == EMSGSIZE);
    close(one);
    close(two);
    snprintf(path, sizeof path, "%s/one", root);
    assert(!rmdir(path));
    snprintf(path, sizeof path, "%s/two", root);
    assert(!rmdir(path));
    assert(!rmdir(root));
}

int main(void) {
    written_and_damaged();
    return 0;
}
