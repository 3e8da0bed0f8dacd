/* Folders of derived files. What they are: topics/folder.h. */
#define _GNU_SOURCE
#include "topics/folder.h"
#include "kernel/data_files.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER_MODE 0770

int wr_folder_make(int root, const char *path) {
    char part[PATH_MAX];
    if (strlen(path) >= sizeof part) return ENAMETOOLONG;
    for (const char *end = path; *end;) {
        end += *end == '/';
        end += strcspn(end, "/");
        memcpy(part, path, (size_t)(end - path));
        part[end - path] = 0;
        const int error = wr_data_make_folder(root, part, FOLDER_MODE);
        if (error && error != EEXIST) return error;
    }
    return 0;
}

#define MOUNT_ID_UNIQUE 0x4000u /* STATX_MNT_ID_UNIQUE */
#define MOUNT_ID_AT 0x90        /* stx_mnt_id, which older headers lack */

uint64_t wr_folder_mount(int fd) {
    struct statx found = {0};
    uint64_t number;
    if (statx(fd, "", AT_EMPTY_PATH, MOUNT_ID_UNIQUE, &found) != 0 || !(found.stx_mask & MOUNT_ID_UNIQUE)) return 0;
    memcpy(&number, (const uint8_t *)&found + MOUNT_ID_AT, sizeof number);
    return number;
}

static int sync_one(int root, const char *path) {
    int fd = wr_data_open_folder(root, path), error = 0;
    if (fd < 0) return errno;
    while (fsync(fd) != 0 && !error)
        if (errno != EINTR) error = errno;
    close(fd);
    return error;
}

int wr_folder_sync(int root, const char *path) {
    char part[PATH_MAX];
    if (strlen(path) >= sizeof part) return ENAMETOOLONG;
    strcpy(part, path);
    for (;;) {
        int error = sync_one(root, part);
        if (error || !strcmp(part, ".")) return error;
        char *slash = strrchr(part, '/');
        if (slash) *slash = 0;
        else strcpy(part, ".");
    }
}

int wr_folder_each(int fd, int (*visit)(void *context, const char *name), void *context) {
    DIR *folder = fdopendir(fd);
    int error = 0;
    if (!folder) {
        error = errno;
        close(fd);
        return error;
    }
    while (!error) {
        errno = 0;
        const struct dirent *found = readdir(folder);
        if (!found) {
            error = errno;
            break;
        }
        if (strcmp(found->d_name, ".") && strcmp(found->d_name, "..")) error = visit(context, found->d_name);
    }
    closedir(folder);
    return error;
}

static int compare(const void *a, const void *b) { return strcmp(a, b); }

typedef struct {
    wr_folder_list *list;
    uint32_t room, digits;
} listing;

static int add(void *context, const char *name) {
    listing *l = context;
    wr_folder_list *list = l->list;
    if (strlen(name) != l->digits || strspn(name, "0123456789") != l->digits) return 0;
    if (list->n == l->room) {
        uint32_t more = l->room ? 2 * l->room : 16;
        void *names = realloc(list->names, more * sizeof *list->names);
        if (!names) return ENOMEM;
        list->names = names;
        l->room = more;
    }
    strcpy(list->names[list->n++], name);
    return 0;
}

int wr_folder_read(int root, const char *path, uint32_t digits, wr_folder_list *list) {
    *list = (wr_folder_list){0};
    int fd = wr_data_open_folder(root, path);
    if (fd < 0) return errno == ENOENT ? 0 : errno;
    int error = wr_folder_each(fd, add, &(listing){.list = list, .digits = digits});
    if (!error && list->n) qsort(list->names, list->n, sizeof *list->names, compare);
    return error;
}

void wr_folder_list_free(wr_folder_list *list) {
    free(list->names);
    *list = (wr_folder_list){0};
}
