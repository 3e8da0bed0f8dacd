/* Memory that runs out: the n-th allocation of the C core fails, for each n, until a scenario gets through without a failure.
 *
 * scripts/sanitize links the core with these functions in the place of malloc and its kin, so the product pays nothing and
 * the tests' own allocations never fail. Only the thread that asked for it is short of memory. */
#ifndef WR_TEST_SCARCE_H
#define WR_TEST_SCARCE_H
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include "support/check.h"

/* From here on the allocation behind the next n of this thread fails, once. */
void scarce_begin(uint64_t n);
/* From here on there is memory again. Whether one failed. */
bool scarce_end(void);
/* Whether one has failed since scarce_begin. */
bool scarce_failed(void);

/* How often a call said ENOMEM and was called again. */
extern unsigned scarce_again_n;
/* Once without memory, then with: what a caller does that goes on. */
#define SCARCE_AGAIN(call)                                   \
    ({                                                       \
        bool before_ = scarce_failed();                      \
        int error_ = (call);                                 \
        if (error_ == ENOMEM) {                              \
            CHECK(!before_ && scarce_failed());              \
            scarce_again_n++;                                \
            error_ = (call);                                 \
        }                                                    \
        error_;                                              \
    })

/* What became of a scenario of a server when one allocation failed. */
typedef struct {
    unsigned ended;  /* the process ended by abort, as by kill -9 */
    unsigned said;   /* an error was returned: scarce_said */
    unsigned unhurt; /* the scenario got through all the same */
} scarce_count;

/* The scenario got an error, and cannot go on: ends its process. What it holds may be left. */
_Noreturn void scarce_said(void);

/* Runs the scenario in a process of its own for each `step`th allocation that it makes, from any on. In that process it says with scarce_begin
 * from where on the failure counts, with the number that it is given, and checks what it promises itself; a check that
 * fails must end it with exit code 1, so that it is told from an end for want of memory. What it returns from must be freed:
 * a leak fails it, too. */
scarce_count scarce_each(void (*scenario)(uint64_t n), uint64_t step);
/* The step for a scenario with many. */
enum { SCARCE_FEW = AT_LENGTH ? 1 : 3 };
#endif
