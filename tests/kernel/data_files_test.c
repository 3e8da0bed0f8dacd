/* Files of a data directory: found through folders, and through no link, whatever part of the path is one (rule N21). */
#define _GNU_SOURCE
#include "kernel/data_files.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char outside[] = "/tmp/wr-data-files-outside-XXXXXX", inside[] = "/tmp/wr-data-files-XXXXXX";

/* Its content, that of the file outside, is still there. */
static void unharmed(void) {
    struct stat found;
    char path[128];
    snprintf(path, sizeof path, "%s/file", outside);
    assert(!stat(path, &found) && found.st_size == 4);
}

static void put(int root, const char *path, int flags, const char *content) {
    int fd = wr_data_open(root, path, O_WRONLY | O_CREAT | flags, 0600);
    assert(fd >= 0 && write(fd, content, strlen(content)) == (ssize_t)strlen(content));
    close(fd);
}

static void test_ways(int root) {
    struct stat found;
    assert(!wr_data_make_folder(root, "a", 0700) && !wr_data_make_folder(root, "a/b", 0700));
    assert(wr_data_make_folder(root, "a/b", 0700) == EEXIST);
    put(root, "a/b/file", O_EXCL, "hello");
    assert(wr_data_open(root, "a/b/file", O_WRONLY | O_CREAT | O_EXCL, 0600) < 0 && errno == EEXIST);
    put(root, "a/b/file", O_TRUNC, "x");
    assert(!wr_data_stat(root, "a/b/file", &found) && found.st_size == 1);
    assert(!wr_data_rename(root, "a/b/file", "a/other") && wr_data_unlink(root, "a/b/file") == ENOENT);
    int fd = wr_data_open_folder(root, "a"), same = wr_data_open_folder(root, ".");
    assert(fd >= 0 && same >= 0);
    assert(!wr_data_rename(fd, "other", "b/file") && !wr_data_unlink(fd, "b/file"));
    close(fd);
    close(same);
    assert(wr_data_open(root, "a/../a/b", O_RDONLY, 0) < 0 && errno == EINVAL);
    assert(wr_data_unlink(root, "..") == EINVAL && wr_data_unlink(root, "") == EINVAL && wr_data_unlink(root, "a//b") == EINVAL);
    assert(wr_data_open(root, "none/file", O_RDONLY, 0) < 0 && errno == ENOENT);
    assert(wr_data_open(root, "a/b", O_RDONLY, 0) < 0 && errno == EISDIR);
    assert(!mkfifoat(root, "fifo", 0600) && wr_data_open(root, "fifo", O_RDONLY, 0) < 0 && errno == EISDIR);
    assert(wr_data_open(root, "fifo", O_WRONLY, 0) < 0 && errno == EISDIR);
    assert(!wr_data_unlink(root, "fifo"));
}

static void test_links(int root) {
    struct stat found;
    char path[128];
    snprintf(path, sizeof path, "%s/file", outside);
    assert(!symlinkat(path, root, "file") && !symlinkat(outside, root, "folder"));
    for (int flags = O_RDONLY; flags <= O_RDWR; flags++) {
        assert(wr_data_open(root, "file", flags, 0) < 0 && errno == EISDIR);
        assert(wr_data_open(root, "file", flags | O_CREAT | O_TRUNC, 0600) < 0 && errno == EISDIR);
        assert(wr_data_open(root, "folder/file", flags, 0) < 0 && errno == ENOTDIR);
        assert(wr_data_open_anyones(root, "folder/new", flags | O_CREAT, 0600) < 0 && errno == ENOTDIR);
    }
    assert(wr_data_open_folder(root, "folder") < 0 && errno == ENOTDIR);
    assert(wr_data_unlink(root, "folder/file") == ENOTDIR && wr_data_remove_folder(root, "folder") == ENOTDIR);
    assert(wr_data_make_folder(root, "folder/new", 0700) == ENOTDIR && wr_data_stat(root, "folder/file", &found) == ENOTDIR);
    put(root, "own", 0, "x");
    assert(wr_data_rename(root, "own", "folder/file") == ENOTDIR && wr_data_rename(root, "folder/file", "own") == ENOTDIR);
    assert(!wr_data_rename(root, "own", "file")); /* in the place of the link */
    assert(!wr_data_stat(root, "file", &found) && S_ISREG(found.st_mode));
    unharmed();
    assert(!wr_data_unlink(root, "file") && !wr_data_unlink(root, "folder")); /* the link itself */
    unharmed();
}

/* As root: a file of somebody else in the place of one. */
static void test_another_users(int root) {
    if (geteuid()) return;
    put(root, "his", 0, "his!");
    assert(!fchownat(root, "his", 61201, 61201, 0));
    assert(wr_data_open(root, "his", O_RDONLY, 0) < 0 && errno == EPERM);
    struct stat found;
    assert(wr_data_open(root, "his", O_WRONLY | O_TRUNC, 0) < 0 && errno == EPERM);
    assert(!wr_data_stat(root, "his", &found) && found.st_size == 4); /* it was not cut before that was seen */
    int fd = wr_data_open_anyones(root, "his", O_RDONLY, 0);
    assert(fd >= 0);
    close(fd);
    assert(!wr_data_unlink(root, "his"));
}

int main(void) {
    assert(mkdtemp(outside) && mkdtemp(inside));
    int root = open(inside, O_RDONLY | O_DIRECTORY), out = open(outside, O_RDONLY | O_DIRECTORY), next = dup(out);
    assert(root >= 0 && out >= 0 && next >= 0);
    close(next);
    put(out, "file", O_EXCL, "hers");
    test_ways(root);
    test_links(root);
    test_another_users(root);
    assert(!wr_data_remove_folder(root, "a/b") && !wr_data_remove_folder(root, "a"));
    assert(!wr_data_unlink(out, "file") && !rmdir(inside) && !rmdir(outside));
    assert(dup(out) == next); /* all that was opened on the way is closed */
    close(next);
    close(out);
    close(root);
    return 0;
}
