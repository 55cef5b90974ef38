/* Dense 3 x 3 convolution with stride 1, channels last, by Winograd's F(4 x 4, 3 x 3): 36 multiplications for 144.

   The result is cut into tiles of 4 x 4. With the 6 x 6 pixels d under a tile, the weights w and B, G, A of the macros
   below,

       V = B' d B,   U = G w G',   M = sum over channels of U * V (number by number),   tile = A' M A

   and so for derivatives: by the pixels, the same with w turned round; by the weights, G' (sum over tiles of
   (A tile A') * V) G. Tiles are worked on in blocks, for each of the 36 places by a product of matrices:
   M (tiles, outputs) = V (tiles, channels) U (channels, outputs), U being kept in panels of two vectors of outputs.

   Where channels or outputs do not fill the last vector, the rest of it is zero. The result does not depend on the
   number of threads.                                                                                                */

#ifndef WINOGRAD_SHAPE
#define WINOGRAD_SHAPE
#define ROWS 6      /* tiles whose sums are in registers at a time */
#define CHUNK 4     /* panels of outputs for which M is held */
#define SPACING 16  /* numbers between tiles, so that they do not compete for the same lines of the cache */

typedef struct {
    int64_t images, height, width, channels, outputs, pad_y, pad_x, out_height, out_width;
    int64_t down, across; /* tiles of an image */
    int64_t block;        /* tiles worked on together, a multiple of ROWS */
    int64_t threads;
} Tiles;

/* Keeps a vector in its register, where the compiler would rather load it again for each use. */
#ifdef __AVX__
#define HOLD(vector) __asm__("" : "+x"(vector))
#else
#define HOLD(vector) (void)(vector)
#endif

/* Which of the 32 bytes of a vector come first, by their signs. */
#if defined __AVX__ && !defined __AVX512F__
static const int32_t signs[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
#define SIGNS(bytes) _mm256_loadu_si256((const __m256i *)(signs + 8 - (bytes) / 4))
#endif

/* Zeros that begin at the start of a cache line; null if memory ran out. */
static void *zeros(int64_t count, int64_t size)
{
    const int64_t bytes = (count * size + 63) / 64 * 64;
    void *made = aligned_alloc(64, bytes);
    return made ? memset(made, 0, bytes) : made;
}

/* t = B' d */
#define B6(t, d0, d1, d2, d3, d4, d5)                                                    \
    do {                                                                                 \
        t[0] = 4 * d0 - 5 * d2 + d4;                                                     \
        t[1] = (d4 - 4 * d2) + (d3 - 4 * d1);                                            \
        t[2] = (d4 - 4 * d2) - (d3 - 4 * d1);                                            \
        t[3] = (d4 - d2) + 2 * (d3 - d1);                                                \
        t[4] = (d4 - d2) - 2 * (d3 - d1);                                                \
        t[5] = 4 * d1 - 5 * d3 + d5;                                                     \
    } while (0)

/* t = A' m, of 6 numbers 4 */
#define A4(t, m0, m1, m2, m3, m4, m5)                                                    \
    do {                                                                                 \
        t[0] = m0 + (m1 + m2) + (m3 + m4);                                               \
        t[1] = (m1 - m2) + 2 * (m3 - m4);                                                \
        t[2] = (m1 + m2) + 4 * (m3 + m4);                                                \
        t[3] = (m1 - m2) + 8 * (m3 - m4) + m5;                                           \
    } while (0)

/* t = A g, of 4 numbers 6 */
#define A6(t, g0, g1, g2, g3)                                                            \
    do {                                                                                 \
        t[0] = g0;                                                                       \
        t[1] = (g0 + g2) + (g1 + g3);                                                    \
        t[2] = (g0 + g2) - (g1 + g3);                                                    \
        t[3] = (g0 + 4 * g2) + 2 * (g1 + 4 * g3);                                        \
        t[4] = (g0 + 4 * g2) - 2 * (g1 + 4 * g3);                                        \
        t[5] = g3;                                                                       \
    } while (0)

/* t = G w, of 3 numbers 6 */
#define G6(t, w0, w1, w2)                                                                \
    do {                                                                                 \
        t[0] = w0 / 4;                                                                   \
        t[1] = -((w0 + w2) + w1) / 6;                                                    \
        t[2] = -((w0 + w2) - w1) / 6;                                                    \
        t[3] = (w0 + 4 * w2) / 24 + w1 / 12;                                             \
        t[4] = (w0 + 4 * w2) / 24 - w1 / 12;                                             \
        t[5] = w2;                                                                       \
    } while (0)

/* t = G' u, of 6 numbers 3 */
#define G3(t, u0, u1, u2, u3, u4, u5)                                                    \
    do {                                                                                 \
        t[0] = u0 / 4 - (u1 + u2) / 6 + (u3 + u4) / 24;                                  \
        t[1] = (u2 - u1) / 6 + (u3 - u4) / 12;                                           \
        t[2] = (u3 + u4) / 6 - (u1 + u2) / 6 + u5;                                       \
    } while (0)
#endif

typedef REAL N(vec3) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define VEC N(vec3)
#define LANES ((int64_t)(BYTES / sizeof(REAL)))
#define PANEL (2 * LANES)
#define PANELS(outputs) (((outputs) + PANEL - 1) / PANEL)
#define AT(p) (*(VEC *)(p))
#define FILLED(count) (((count) + LANES - 1) / LANES * LANES) /* up to whole vectors */

/* The first `count` numbers of a vector: beyond them memory is neither read nor written, and loaded numbers are zero. */
static inline VEC N(load_part)(const REAL *from, int64_t count)
{
#if defined __AVX512F__
    const unsigned which = (1u << count) - 1;
    return sizeof(REAL) == 4 ? (VEC)_mm512_maskz_loadu_ps(which, from) : (VEC)_mm512_maskz_loadu_pd(which, from);
#elif defined __AVX__
    const __m256i which = SIGNS(count * sizeof(REAL));
    return sizeof(REAL) == 4 ? (VEC)_mm256_maskload_ps((const float *)from, which)
                             : (VEC)_mm256_maskload_pd((const double *)from, which);
#else
    VEC v = {0};
    for (int64_t j = 0; j < count; j++) v[j] = from[j];
    return v;
#endif
}

static inline void N(store_part)(REAL *to, VEC v, int64_t count)
{
#if defined __AVX512F__
    const unsigned which = (1u << count) - 1;
    if (sizeof(REAL) == 4) _mm512_mask_storeu_ps(to, which, (__m512)v);
    else _mm512_mask_storeu_pd(to, which, (__m512d)v);
#elif defined __AVX__
    const __m256i which = SIGNS(count * sizeof(REAL));
    if (sizeof(REAL) == 4) _mm256_maskstore_ps((float *)to, which, (__m256)v);
    else _mm256_maskstore_pd((double *)to, which, (__m256d)v);
#else
    for (int64_t j = 0; j < count; j++) to[j] = v[j];
#endif
}

/* The vector from p on, of which `left` numbers are there: all of them if `whole`, which is known to the compiler. */
#define LOAD(p) (whole ? AT(p) : N(load_part)(p, left))

/* U (36, panels, channels, PANEL) of weights whose steps from one output, channel and place to the next are given. */
int N(winograd_weights)(int64_t channels, int64_t outputs, const REAL *w, int64_t by_output, int64_t by_channel, int64_t by_place,
                        REAL *u, int64_t threads)
{
    const int64_t step = PANELS(outputs) * channels * PANEL;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t line = 0; line < PANELS(outputs) * channels; line++) {
        const int64_t panel = line / channels, c = line % channels;
        REAL nine[9][PANEL];
        memset(nine, 0, sizeof nine);
        for (int64_t o = 0; o < PANEL && panel * PANEL + o < outputs; o++) {
            const REAL *from = w + (panel * PANEL + o) * by_output + c * by_channel;
            for (int k = 0; k < 9; k++) nine[k][o] = from[k * by_place];
        }
        for (int64_t o = 0; o < PANEL; o += LANES) {
            VEC half[6][3], t[6];
            for (int j = 0; j < 3; j++) {
                G6(t, AT(nine[j] + o), AT(nine[3 + j] + o), AT(nine[6 + j] + o));
                for (int i = 0; i < 6; i++) half[i][j] = t[i];
            }
            for (int i = 0; i < 6; i++) {
                G6(t, half[i][0], half[i][1], half[i][2]);
                for (int j = 0; j < 6; j++) AT(u + (6 * i + j) * step + line * PANEL + o) = t[j];
            }
        }
    }
    return 0;
}

/* Where the side x side pixels of a tile are, from `pad` before its own corner on; those beyond the image are `outside`. */
static inline __attribute__((always_inline)) void N(places)(const Tiles *s, const int side, int64_t tile, int64_t pad_y,
                                                            int64_t pad_x, const REAL *images, int height, int width,
                                                            int64_t channels, const REAL *outside, const REAL **at)
{
    const int line = tile / s->across, column = tile % s->across * 4 - pad_x;
    const int image = line / s->down, row = line % s->down * 4 - pad_y;
    const REAL *corner = images + (((int64_t)image * height + row) * width + column) * channels;
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) at[side * i + j] = corner + (i * width + j) * channels;
    if (row >= 0 && column >= 0 && row + side <= height && column + side <= width) return;
    for (int i = 0; i < side; i++)
        if (row + i < 0 || row + i >= height)
            for (int j = 0; j < side; j++) at[side * i + j] = outside;
    for (int j = 0; j < side; j++)
        if (column + j < 0 || column + j >= width)
            for (int i = 0; i < side; i++) at[side * i + j] = outside;
}

/* V (36, wide) of one tile, for the vector of channels that begins at c. */
static inline __attribute__((always_inline)) void N(see_vector)(const REAL *const *at, int64_t c, const int whole, int64_t left,
                                                                REAL *to, int64_t wide)
{
    VEC half[6][6], t[6];
#pragma GCC unroll 6
    for (int j = 0; j < 6; j++) {
        const VEC a = LOAD(at[j] + c), b = LOAD(at[6 + j] + c), d = LOAD(at[12 + j] + c);
        const VEC e = LOAD(at[18 + j] + c), f = LOAD(at[24 + j] + c), g = LOAD(at[30 + j] + c);
        B6(t, a, b, d, e, f, g);
#pragma GCC unroll 6
        for (int i = 0; i < 6; i++) half[i][j] = t[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < 6; i++) {
        B6(t, half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5]);
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) AT(to + (6 * i + j) * wide + c) = t[j];
    }
}

static void N(see)(const Tiles *s, const REAL *x, int64_t tile, const REAL *zero, REAL *to)
{
    const REAL *at[36];
    const int64_t wide = FILLED(s->channels);
    int64_t c = 0;
    N(places)(s, 6, tile, s->pad_y, s->pad_x, x, s->height, s->width, s->channels, zero, at);
    for (; c + LANES <= s->channels; c += LANES) {
        if (c % 16 == 0)
#pragma GCC unroll 24
            for (int k = 0; k < 24; k++) __builtin_prefetch(at[k / 4 * 6 + k % 4 + 1] + 8 * s->channels + c, 0, 3);
        N(see_vector)(at, c, 1, LANES, to, wide);
    }
    if (c < s->channels) N(see_vector)(at, c, 0, s->channels - c, to, wide);
}

/* A tile A' (36, wide) of one tile of g, whose channels are the outputs, for the vector of them that begins at o. */
static inline __attribute__((always_inline)) void N(spread_vector)(const REAL *const *at, int64_t o, const int whole,
                                                                   int64_t left, REAL *to, int64_t wide)
{
    VEC half[6][4], t[6];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const VEC a = LOAD(at[j] + o), b = LOAD(at[4 + j] + o), c = LOAD(at[8 + j] + o), d = LOAD(at[12 + j] + o);
        A6(t, a, b, c, d);
#pragma GCC unroll 6
        for (int i = 0; i < 6; i++) half[i][j] = t[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < 6; i++) {
        A6(t, half[i][0], half[i][1], half[i][2], half[i][3]);
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) AT(to + (6 * i + j) * wide + o) = t[j];
    }
}

static void N(spread)(const Tiles *s, const REAL *g, int64_t tile, const REAL *zero, REAL *to, int64_t wide)
{
    const REAL *at[16];
    int64_t o = 0;
    N(places)(s, 4, tile, 0, 0, g, s->out_height, s->out_width, s->outputs, zero, at);
    for (; o + LANES <= s->outputs; o += LANES) N(spread_vector)(at, o, 1, LANES, to, wide);
    if (o < s->outputs) N(spread_vector)(at, o, 0, s->outputs - o, to, wide);
}

/* A' M A of one tile's M (36, step) for the vector of outputs that begins at o, and what follows; `more` is where what is
   added lies for each of the 16 places, if anything is. */
static inline __attribute__((always_inline)) void N(gather_vector)(const REAL *m, int64_t step, const REAL *const *at, int64_t o,
                                                                   const int whole, int64_t left, const REAL *const *more,
                                                                   N(After) after)
{
    VEC half[4][6], t[4];
#pragma GCC unroll 6
    for (int j = 0; j < 6; j++) {
        const REAL *from = m + j * step + o;
        const VEC a = AT(from), b = AT(from + 6 * step), c = AT(from + 12 * step);
        const VEC d = AT(from + 18 * step), e = AT(from + 24 * step), f = AT(from + 30 * step);
        A4(t, a, b, c, d, e, f);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) half[i][j] = t[i];
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        A4(t, half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5]);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            REAL *to = (REAL *)at[4 * i + j] + o;
            if (after.a) t[j] = t[j] * LOAD(after.a + o) + LOAD(after.b + o);
            if (after.a && more) t[j] += LOAD(more[4 * i + j] + o);
            if (after.a && after.relu) t[j] = PASSED(t[j], t[j]);
            if (whole) AT(to) = t[j];
            else N(store_part)(to, t[j], left);
        }
    }
}

/* The same for `count` outputs, into y; what falls beyond the image goes to `waste`. */
static void N(gather)(const Tiles *s, const REAL *m, int64_t step, int64_t tile, int64_t count, REAL *waste, REAL *y,
                      N(After) after)
{
    const REAL *at[16], *added[16], *const *more = after.add ? added : 0;
    int64_t o = 0;
    N(places)(s, 4, tile, 0, 0, y, s->out_height, s->out_width, s->outputs, waste, at);
    for (int k = 0; k < 16 && more; k++) added[k] = at[k] == waste ? waste : after.add + (at[k] - y);
    for (; o + LANES <= count; o += LANES) {
        if (o % 16 == 0)
#pragma GCC unroll 16
            for (int k = 0; k < 16; k++) __builtin_prefetch(at[k] + 4 * s->outputs + o, 1, 3);
        N(gather_vector)(m, step, at, o, 1, LANES, more, after);
    }
    if (o < count) N(gather_vector)(m, step, at, o, 0, count - o, more, after);
}

/* (ROWS, vecs vectors) of M from ROWS lines of V and one panel of U */
static inline __attribute__((always_inline)) void N(multiply)(const int vecs, const REAL *restrict v, int64_t v_step,
                                                              const REAL *restrict u, int64_t channels, REAL *restrict m,
                                                              int64_t m_step)
{
    VEC sum[ROWS][2] = {{{0}}};
    for (int64_t c = 0; c < channels; c++) {
        VEC a = AT(u + c * PANEL), b = vecs == 2 ? AT(u + c * PANEL + LANES) : a;
        HOLD(a);
        if (vecs == 2) HOLD(b);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const VEC times = v[r * v_step + c] - (VEC){0};
            sum[r][0] += times * a;
            if (vecs == 2) sum[r][1] += times * b;
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
        AT(m + r * m_step) = sum[r][0];
        if (vecs == 2) AT(m + r * m_step + LANES) = sum[r][1];
    }
}

/* How many vectors of a panel hold outputs. */
#define VECTORS(panel, outputs) ((outputs) - (panel) * PANEL > LANES ? 2 : 1)

/* y = x * w, or with a what follows */
int N(winograd)(const Tiles *s, const REAL *x, const REAL *u, const REAL *a, const REAL *b, const REAL *add, int64_t relu,
                REAL *y)
{
    const int64_t tiles = s->images * s->down * s->across, panels = PANELS(s->outputs);
    const int64_t wide = (panels < CHUNK ? panels : CHUNK) * PANEL;
    const int64_t filled = FILLED(s->channels), v_step = 36 * filled + SPACING, m_step = 36 * wide + SPACING; /* of a tile */
    int failed = 0;
#pragma omp parallel num_threads(s->threads) if (s->threads > 1) reduction(| : failed)
    {
        REAL *v = zeros(s->block * v_step + filled, sizeof(REAL)), *m = zeros(s->block * m_step + wide, sizeof(REAL));
        REAL *zero = v + s->block * v_step, *waste = m + s->block * m_step;
        failed = !v || !m;
#pragma omp for schedule(static)
        for (int64_t start = 0; start < tiles; start += s->block) {
            if (failed) continue;
            const int64_t here = tiles - start < s->block ? tiles - start : s->block;
            for (int64_t t = 0; t < here; t++) N(see)(s, x, start + t, zero, v + t * v_step);
            for (int64_t first = 0; first < panels; first += CHUNK) {
                const int64_t end = first + CHUNK < panels ? first + CHUNK : panels;
                for (int64_t f = 0; f < 36; f++)
                    for (int64_t panel = first; panel < end; panel++)
                        for (int64_t t = 0; t < here; t += ROWS) {
                            const REAL *from = v + t * v_step + f * filled, *by = u + (f * panels + panel) * s->channels * PANEL;
                            REAL *to = m + t * m_step + f * wide + (panel - first) * PANEL;
                            if (VECTORS(panel, s->outputs) == 2) N(multiply)(2, from, v_step, by, s->channels, to, m_step);
                            else N(multiply)(1, from, v_step, by, s->channels, to, m_step);
                        }
                const int64_t o = first * PANEL, left = s->outputs - o, count = left < wide ? left : wide;
                const N(After) after = {a ? a + o : 0, b ? b + o : 0, add ? add + o : 0, relu};
                for (int64_t t = 0; t < here; t++) N(gather)(s, m + t * m_step, wide, start + t, count, waste, y + o, after);
            }
        }
        free(v);
        free(m);
    }
    return failed;
}

/* sums (4, vecs vectors) += products of 4 channels of V with a panel of the spread derivatives, over tiles */
static inline __attribute__((always_inline)) void N(products)(const int vecs, const REAL *restrict v, int64_t v_step,
                                                              const REAL *restrict g, int64_t g_step, int64_t tiles,
                                                              REAL *restrict sums, int64_t sums_step)
{
    VEC sum[4][2];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        sum[r][0] = AT(sums + r * sums_step);
        if (vecs == 2) sum[r][1] = AT(sums + r * sums_step + LANES);
    }
    for (int64_t t = 0; t < tiles; t++) {
        VEC a = AT(g + t * g_step), b = vecs == 2 ? AT(g + t * g_step + LANES) : a;
        HOLD(a);
        if (vecs == 2) HOLD(b);
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
            const VEC times = v[t * v_step + r] - (VEC){0};
            sum[r][0] += times * a;
            if (vecs == 2) sum[r][1] += times * b;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        AT(sums + r * sums_step) = sum[r][0];
        if (vecs == 2) AT(sums + r * sums_step + LANES) = sum[r][1];
    }
}

/* The derivative by the weights, with steps as above, given the derivative g by the result. */
int N(winograd_by_weight)(const Tiles *s, const REAL *x, const REAL *g, REAL *w, int64_t by_output, int64_t by_channel,
                          int64_t by_place)
{
    const int64_t tiles = s->images * s->down * s->across, panels = PANELS(s->outputs), wide = panels * PANEL;
    const int64_t filled = FILLED(s->channels), v_step = 36 * filled + SPACING, g_step = 36 * wide + SPACING; /* of a tile */
    const int64_t u_step = filled * wide + SPACING;                                                           /* of a place */
    const int64_t widest = filled > wide ? filled : wide;
    REAL *v = zeros(s->block * v_step, sizeof(REAL)), *spread = zeros(s->block * g_step, sizeof(REAL));
    REAL *u = zeros(36 * u_step, sizeof(REAL)), *zero = zeros(widest, sizeof(REAL));
    const int failed = !v || !spread || !u || !zero;
#pragma omp parallel num_threads(s->threads) if (s->threads > 1)
    for (int64_t start = 0; !failed && start < tiles; start += s->block) {
        const int64_t here = tiles - start < s->block ? tiles - start : s->block;
#pragma omp for schedule(static)
        for (int64_t t = 0; t < here; t++) {
            N(see)(s, x, start + t, zero, v + t * v_step);
            N(spread)(s, g, start + t, zero, spread + t * g_step, wide);
        }
#pragma omp for schedule(static)
        for (int64_t f = 0; f < 36; f++)
            for (int64_t panel = 0; panel < panels; panel++)
                for (int64_t c = 0; c < s->channels; c += 4) {
                    const REAL *by = v + f * filled + c, *from = spread + f * wide + panel * PANEL;
                    REAL *to = u + f * u_step + c * wide + panel * PANEL;
                    if (VECTORS(panel, s->outputs) == 2) N(products)(2, by, v_step, from, g_step, here, to, wide);
                    else N(products)(1, by, v_step, from, g_step, here, to, wide);
                }
    }
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t c = 0; c < s->channels; c++)
        for (int64_t o = 0; !failed && o < s->outputs; o += LANES) {
            VEC half[3][6], t[3];
            for (int j = 0; j < 6; j++) {
                const REAL *from = u + j * u_step + c * wide + o;
                G3(t, AT(from), AT(from + 6 * u_step), AT(from + 12 * u_step), AT(from + 18 * u_step), AT(from + 24 * u_step),
                   AT(from + 30 * u_step));
                for (int i = 0; i < 3; i++) half[i][j] = t[i];
            }
            for (int i = 0; i < 3; i++) {
                G3(t, half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5]);
                for (int j = 0; j < 3; j++)
                    for (int lane = 0; lane < LANES && o + lane < s->outputs; lane++)
                        w[(o + lane) * by_output + c * by_channel + (3 * i + j) * by_place] = t[j][lane];
            }
        }
    free(v);
    free(spread);
    free(zero);
    free(u);
    return failed;
}

#undef VEC
#undef LANES
#undef FILLED
#undef LOAD
#undef VECTORS
#undef PANEL
#undef PANELS
#undef AT
