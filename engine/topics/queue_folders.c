/* Folders of consume queues. Declared in topics/queue_folders.h. */
#define _GNU_SOURCE
#include "topics/queue_folders.h"
#include "kernel/data_files.h"
#include "topics/folder.h"
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
        else if ((error = wr_data_unlink(root, path)) == ENOENT) error = 0;
    }
    wr_folder_list_free(&list);
    return error;
}

/* A folder that is empty goes; one with somebody's files stays. */
static int remove_folder(int root, const char *path) {
    const int error = wr_data_remove_folder(root, path);
    return error == ENOENT || error == ENOTEMPTY || error == EEXIST ? 0 : error;
}

/* A path that is no folder has nothing in it. */
static int each_in(int root, const char *path, int (*visit)(void *context, const char *name), void *context) {
    int fd = wr_data_open_folder(root, path);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    return wr_folder_each(fd, visit, context);
}

typedef struct {
    int root;
    const char *topic; /* its folder */
} removing;

static int remove_queue(void *context, const char *name) {
    const removing *r = context;
    char path[PATH_MAX];
    const size_t n = strlen(name);
    if (n > 10 || strspn(name, "0123456789") != n) return 0;
    if (snprintf(path, sizeof path, "%s/%s", r->topic, name) >= (int)sizeof path) return ENAMETOOLONG;
    int error = wr_queue_folder_empty(r->root, path);
    if (error == ENOTDIR) return 0; /* a file of that name is none of ours */
    return error ? error : remove_folder(r->root, path);
}

int wr_topic_folder_remove(int root, const char *topic) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, QUEUES "/%.255s", topic) >= (int)sizeof path) return ENAMETOOLONG;
    int error = each_in(root, path, remove_queue, &(removing){root, path});
    return error ? error : remove_folder(root, path);
}

typedef struct {
    int root;
    bool (*keep)(void *context, const char *topic, uint32_t n);
    void *context;
} sweeping;

static int sweep_topic(void *context, const char *name) {
    const sweeping *s = context;
    if (s->keep(s->context, name, (uint32_t)strlen(name))) return 0;
    int error = wr_topic_folder_remove(s->root, name);
    return error == ENOTDIR ? 0 : error;
}

int wr_topic_folders_sweep(int root, bool (*keep)(void *context, const char *topic, uint32_t n), void *context) {
    return each_in(root, QUEUES, sweep_topic, &(sweeping){root, keep, context});
}
