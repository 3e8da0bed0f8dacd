/* A small disk of a C test: a tmpfs that the process alone sees, and that goes with it. */
#ifndef WR_TEST_SMALL_MOUNT_H
#define WR_TEST_SMALL_MOUNT_H
#include "support/check.h"
#include <sched.h>
#include <stdbool.h>
#include <sys/mount.h>

/* Mount `bytes` at a folder, for this process and its children. false: who runs the test has no right to. */
static inline bool small_mount(const char *place, unsigned long bytes) {
    char options[64];
    if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) != 0) return false;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return false;
    snprintf(options, sizeof options, "size=%lu", bytes);
    return mount("none", place, "tmpfs", 0, options) == 0;
}
/* What a call says when there is room again: a system may give back the place of removed files a moment later. The call is evaluated again and again. */
#define WITH_ROOM(call)                                                                       \
    ({                                                                                        \
        int error_ = ENOSPC;                                                                  \
        for (int n_ = 0; n_ < 1000 && (error_ = (call)) == ENOSPC; n_++) usleep(10000);       \
        error_;                                                                               \
    })
#endif
