/* Folders of consume queues. Declared in topics/queue_folders.h. */
#define _GNU_SOURCE
#include "topics/queue_folders.h"
#include "topics/folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define QUEUES "consumequeue"

void wr_queue_folder(const char *topic, uint32_t queue, char path[PATH_MAX]) { snprintf(path, PATH_MAX, QUEUES "/%.255s/%u", topic, queue); }

int wr_queue_folder_empty(int root, const char *folder) {
    char path[PATH_MAX];
    wr_folder_list list;
    int error = wr_folder_read(root, folder, WR_FOLDER_NAME_MAX, &list);
    for (uint32_t i = 0; !error && i < list.n; i++) {
        if (snprintf(path, sizeof path, "%s/%s", folder, list.names[i]) >= (int)sizeof path) error = ENAMETOOLONG;
        else if (unlinkat(root, path, 0) != 0 && errno != ENOENT) error = errno;
    }
    wr_folder_list_free(&list);
    return error;
}

/* A folder that is empty goes; one with somebody's files stays. */
static int remove_folder(int root, const char *path) {
    if (unlinkat(root, path, AT_REMOVEDIR) == 0) return 0;
    return errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST ? 0 : errno;
}

/* Do something for each folder in one. 0 or the first error; a path that is no folder has none. */
static int each_folder(int root, const char *path, int (*visit)(void *context, int root, const char *name), void *context) {
    int fd = openat(root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), error = 0;
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : errno;
    DIR *folder = fdopendir(fd);
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
        if (strcmp(found->d_name, ".") && strcmp(found->d_name, "..")) error = visit(context, root, found->d_name);
    }
    closedir(folder);
    return error;
}

static int remove_queue(void *context, int root, const char *name) {
    char path[PATH_MAX];
    const size_t n = strlen(name);
    if (n > 10 || strspn(name, "0123456789") != n) return 0;
    if (snprintf(path, sizeof path, "%s/%s", (const char *)context, name) >= (int)sizeof path) return ENAMETOOLONG;
    int error = wr_queue_folder_empty(root, path);
    if (error == ENOTDIR) return 0; /* a file of that name is none of ours */
    return error ? error : remove_folder(root, path);
}

int wr_topic_folder_remove(int root, const char *topic) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, QUEUES "/%.255s", topic) >= (int)sizeof path) return ENAMETOOLONG;
    int error = each_folder(root, path, remove_queue, path);
    return error ? error : remove_folder(root, path);
}

typedef struct {
    bool (*keep)(void *context, const char *topic, uint32_t n);
    void *context;
} sweeping;

static int sweep_topic(void *context, int root, const char *name) {
    const sweeping *s = context;
    if (s->keep(s->context, name, (uint32_t)strlen(name))) return 0;
    int error = wr_topic_folder_remove(root, name);
    return error == ENOTDIR ? 0 : error;
}

int wr_topic_folders_sweep(int root, bool (*keep)(void *context, const char *topic, uint32_t n), void *context) {
    return each_folder(root, QUEUES, sweep_topic, &(sweeping){keep, context});
}
