/* Folders of derived files: made when a file in them is first wanted, synced when files were made, and listed.
 *
 * A folder is a path below `root`, a descriptor of a folder that is there. Modes are the widest that a node gives: its umask, and
 * the set-group-id bit of the folder above, say the rest.
 * Crash points: a folder or a name that was not synced may be gone after a loss of power. Whoever says that a file is durable
 * syncs its folder first. */
#ifndef WR_TOPICS_FOLDER_H
#define WR_TOPICS_FOLDER_H
#include <stdint.h>

#define WR_FOLDER_FILE_MODE 0660
#define WR_FOLDER_NAME_MAX 20 /* digits of a file's name */

/* Make a folder and those above it, below root. 0 or an errno. */
int wr_folder_make(int root, const char *path);

/* The mount of an open file: a number that no other one gets while the machine runs. 0: the system does not say (before
 * Linux 6.8). */
uint64_t wr_folder_mount(int fd);

/* Sync a folder and those above it, root among them. 0 or an errno. */
int wr_folder_sync(int root, const char *path);

/* Show each name in an open folder, but "." and "..", until one is answered by another number than 0, which is returned, or by an
 * error of the folder. The descriptor is closed. */
int wr_folder_each(int fd, int (*visit)(void *context, const char *name), void *context);

typedef struct {
    char (*names)[WR_FOLDER_NAME_MAX + 4];
    uint32_t n;
} wr_folder_list;

/* The files of a folder whose names are so many digits, the lowest first; others are left alone. A folder that is not
 * there has none. 0 or an errno; wr_folder_list_free in either case. */
int wr_folder_read(int root, const char *path, uint32_t digits, wr_folder_list *list);
void wr_folder_list_free(wr_folder_list *list);
#endif
