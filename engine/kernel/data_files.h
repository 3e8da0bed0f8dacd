/* Files and folders of a data directory, for C: opened, made, named and removed below a folder that is open, `root`, and nothing outside of
 * it whatever lies in it. What they promise, and why: kernel/data_files.py.
 *
 * No part of a path is followed as a link, and none leads up. What is opened is a regular file of the owner of root. */
#ifndef WR_DATA_FILES_H
#define WR_DATA_FILES_H
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/* A descriptor, or −1 with errno. EISDIR: what lies there is no file (a folder, a link, a pipe, which is not waited for); EPERM: it is
 * another user's. `flags`: as of open(2); O_TRUNC counts for a file of the owner alone. */
int wr_data_open(int root, const char *path, int flags, mode_t mode);

/* The same for what members of the node's group make, too: a file of anybody. */
int wr_data_open_anyones(int root, const char *path, int flags, mode_t mode);

/* A descriptor of a folder to be read, or −1 with errno; ENOTDIR: none, or a link. "." is root. */
int wr_data_open_folder(int root, const char *path);

/* 0 or an errno. */
int wr_data_unlink(int root, const char *path);
int wr_data_remove_folder(int root, const char *path);
int wr_data_make_folder(int root, const char *path, mode_t mode);
int wr_data_rename(int root, const char *from, const char *to);
int wr_data_stat(int root, const char *path, struct stat *found); /* of a link: of itself */

/* A second name for a file, in another folder. */
int wr_data_link(int from, int to, const char *name);
#endif
