/* Files and folders of a data directory, for C: opened, made, renamed and removed below an open folder, `root`, and
 * never outside it, whatever it contains. The promises and their reasons are in kernel/data_files.py.
 *
 * No part of a path is followed as a link, and none leads up. Only regular files of the owner of root are opened. */
#ifndef WR_DATA_FILES_H
#define WR_DATA_FILES_H
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/* A descriptor, or −1 with errno. EISDIR: not a regular file (a folder, a link, a pipe, which is not waited for);
 * EPERM: it belongs to another user. `flags`: as in open(2); O_TRUNC applies only to a file of the owner. */
int wr_data_open(int root, const char *path, int flags, mode_t mode);

/* The same, also for files that members of the node's group make: a file of any user. */
int wr_data_open_anyones(int root, const char *path, int flags, mode_t mode);

/* A descriptor of a folder, for reading, or −1 with errno; ENOTDIR: not a folder, or a link. "." is root. */
int wr_data_open_folder(int root, const char *path);

/* 0 or an errno. */
int wr_data_unlink(int root, const char *path);
int wr_data_remove_folder(int root, const char *path);
int wr_data_make_folder(int root, const char *path, mode_t mode);
int wr_data_rename(int root, const char *from, const char *to);
int wr_data_stat(int root, const char *path, struct stat *found); /* does not follow a link */

/* A second name for a file, in another folder. */
int wr_data_link(int from, int to, const char *name);
#endif
