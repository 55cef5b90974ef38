/* Compiled on first use, see compiler.py. Each routine exists in float and in double, and returns 0, or 1 if
   memory ran out. Work is shared by threads of OpenMP, the same that torch uses. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif

/* Memory that begins where a line of the cache does: a vector that lies across two lines takes twice as long to load.
   There is a line more than asked for, since nothing at all would look like memory that ran out. */
#define LINE 64
#ifdef _WIN32
#define aligned_alloc(line, bytes) malloc(bytes)
#endif
static void *room(int64_t bytes) { return aligned_alloc(LINE, (bytes / LINE + 2) * LINE); }
static void *cleared(int64_t bytes)
{
    void *found = room(bytes);
    return found ? memset(found, 0, bytes) : 0;
}

#define JOIN_(name, type) name##_##type
#define JOIN(name, type) JOIN_(name, type)
#define N(name) JOIN(name, REAL)

#ifdef __AVX__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define BYTES 64 /* of a vector */
#else
#define BYTES 32
#endif

/* Results larger than the caches are written past them: otherwise each line of memory is first read, only to be
   overwritten. `streams` says whether that pays off and can be done for so many bytes in vectors of 32 bytes. */
#define LARGE (1 << 21)
static inline int streams(const void *to, int64_t bytes) { return bytes >= LARGE && (uintptr_t)to % 32 == 0; }
#ifdef __AVX__
#define STORE(to, v, past) \
    do { if (past) _mm256_stream_si256((__m256i *)(to), (__m256i)(v)); else *(VEC *)(to) = (v); } while (0)
#define DONE() _mm_sfence() /* before anybody reads what was written past the caches */
#else
#define STORE(to, v, past) (*(VEC *)(to) = (v))
#define DONE() (void)0
#endif

/* Numbers of a vector v where those of z are positive or not a number, else 0. */
#define PASSED(v, z) ((__typeof__(v))((__typeof__((z) <= (z)))(v) & ~((z) <= 0)))

#define REAL float
#include "batch_norm.h"
#include "sparse_conv.h"
#include "sparse_linear.h"
#include "winograd.h"
#undef REAL

#define REAL double
#include "batch_norm.h"
#include "sparse_conv.h"
#include "sparse_linear.h"
#include "winograd.h"
