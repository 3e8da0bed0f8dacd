/* A number of which there may be none: of a file, an image, a row of a table, a slot. 0 is none, so zeroed memory names
 * nothing.
 *
 * Each is a type of its own: a file is not taken for a row, nor a number plus one for the number. Words in shared
 * memory that are declared as "number + 1, 0 if none" hold `plus_one`; it is used for nothing else.
 */
#ifndef WR_REF_H
#define WR_REF_H
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/* Makes wr_KIND_ref: {0} names none, wr_KIND_of(number) that one. wr_KIND_some: there is one; wr_KIND_is: it is this
 * one; wr_KIND_number: which one, never asked of none. */
#define WR_REF(KIND, integer)                                                                                          \
    typedef struct {                                                                                                   \
        integer plus_one;                                                                                              \
    } wr_##KIND##_ref;                                                                                                 \
    static inline wr_##KIND##_ref wr_##KIND##_of(integer number) { return (wr_##KIND##_ref){(integer)(number + 1)}; }  \
    static inline bool wr_##KIND##_some(wr_##KIND##_ref ref) { return ref.plus_one; }                                  \
    static inline bool wr_##KIND##_is(wr_##KIND##_ref ref, integer number) {                                           \
        return ref.plus_one && ref.plus_one - 1 == number;                                                             \
    }                                                                                                                  \
    static inline integer wr_##KIND##_number(wr_##KIND##_ref ref) {                                                    \
        assert(ref.plus_one);                                                                                          \
        return ref.plus_one - 1;                                                                                       \
    }

WR_REF(file, uint64_t)
WR_REF(image, uint32_t)
WR_REF(row, uint32_t)
WR_REF(slot, uint32_t)
#endif
