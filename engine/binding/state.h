/* All that the module keeps for itself, in one place. There is one of it in a process: the module is for the main
 * interpreter. */
#ifndef WR_BINDING_STATE_H
#define WR_BINDING_STATE_H
#include "binding/module.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WR_SPARE_CONFIRMS 256
#define WR_BLOCKS_KEPT 8

typedef struct {
    /* Read by every call, written when the module is made, and by a fork. */
    uint64_t forks; /* forks of this process: an attachment of the parent is not the child's */
    PyTypeObject *client_type, *confirm_type, *route_type, *handle_type, *delivery_type, *list_type, *position_type;
    PyTypeObject *memory_type, *record_type;
    PyObject *attachment_lost;                          /* AttachmentLost */
    PyObject *confirm_callback, *confirm_future;        /* functions of Python, given with set_confirm_face */
    PyObject *store_argument_names[8], *level_names[3]; /* interned: binding/store_type.c */
    PyObject *spare_confirms[WR_SPARE_CONFIRMS];        /* memory of dead ones: a hot loop makes and drops one for each message */
    uint32_t spare_confirms_n;
    /* binding/memory.c: blocks that nobody needs. The GIL does not guard them. */
    struct {
        _Atomic bool busy; /* never waited for: the thread that had it may be missing after a fork */
        uint32_t n;
        uint64_t bytes;
        struct {
            void *bytes;
            uint64_t room;
        } blocks[WR_BLOCKS_KEPT];
    } kept;
    /* binding/sleeper.c; on a line of their own, because the sleeper writes them all the time */
    _Alignas(64) _Atomic uint32_t kicks; /* rises when the sleeper must look at its list of clients anew */
    _Atomic uint32_t idle;               /* 1: it sleeps on `kicks` alone */
} wr_module_state;

extern wr_module_state wr_module;
#endif
