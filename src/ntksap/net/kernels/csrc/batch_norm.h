/* BatchNorm (N, C, places) by the statistics of the batch; channels first, and below that channels last.

   y = (x - mean) * scale * r + shift, r = 1 / sqrt(variance + eps). Sums run over one plane in REAL, over planes in
   double, and from the channel's first number, so that a large mean does not cancel the variance.                  */

typedef REAL N(vec2) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
#define VEC N(vec2)
#define LANES ((int64_t)(32 / sizeof(REAL)))
#define AT(p) (*(const VEC *)(p))

static inline double N(over)(VEC v)
{
    double sum = 0;
    for (int j = 0; j < LANES; j++) sum += v[j];
    return sum;
}

/* first += sum of a - shift, second += sum of (a - shift) * (b - other) */
static void N(sums)(const REAL *a, REAL shift, const REAL *b, REAL other, int64_t places, double *first, double *second)
{
    VEC one = {0}, two = {0}, three = {0}, four = {0};
    int64_t p = 0;
    for (; p + 2 * LANES <= places; p += 2 * LANES) {
        const VEC u = AT(a + p) - shift, v = AT(a + p + LANES) - shift;
        one += u;
        two += v;
        three += u * (AT(b + p) - other);
        four += v * (AT(b + p + LANES) - other);
    }
    *first += N(over)(one + two);
    *second += N(over)(three + four);
    for (; p < places; p++) {
        *first += a[p] - shift;
        *second += (double)(a[p] - shift) * (b[p] - other);
    }
}

/* to = a * x + b * y + c, y may be null */
static void N(affine)(REAL *to, REAL a, const REAL *x, REAL b, const REAL *y, REAL c, int64_t places)
{
    int64_t p = 0;
    for (; p + LANES <= places; p += LANES) {
        VEC v = AT(x + p) * a + c;
        if (y) v += AT(y + p) * b;
        *(VEC *)(to + p) = v;
    }
    for (; p < places; p++) to[p] = x[p] * a + c + (y ? y[p] * b : 0);
}

/* Threads take channels that lie side by side, and go through the images in the order of memory: channel by channel they
   would jump by a power of two, and the cache would hold next to nothing. The second pass begins with what it still holds. */
#define EACH_PART                                                                \
    _Pragma("omp parallel for num_threads(threads) if (threads > 1)")            \
    for (int64_t part = 0; part < threads; part++)

/* The channels from `from` to `end`; sums (2, channels) are zero. */
static void N(normalise)(int64_t images, int64_t channels, int64_t from, int64_t end, int64_t places, const REAL *x, REAL *y,
                         const REAL *scale, const REAL *shift, double eps, REAL *mean, REAL *variance, REAL *r, double *sums)
{
    for (int64_t n = 0; n < images; n++)
        for (int64_t c = from; c < end; c++) {
            const REAL *plane = x + (n * channels + c) * places, start = x[c * places];
            N(sums)(plane, start, plane, start, places, sums + c, sums + channels + c);
        }
    for (int64_t c = from; c < end; c++) {
        const double count = (double)images * places, off = sums[c] / count, var = sums[channels + c] / count - off * off;
        mean[c] = x[c * places] + off;
        variance[c] = var > 0 || var != var ? var : 0;
        r[c] = 1 / __builtin_sqrt(variance[c] + eps);
    }
    for (int64_t n = images; y && n-- > 0;) /* without y: statistics only */
        for (int64_t c = from; c < end; c++) {
            const int64_t at = (n * channels + c) * places;
            const REAL times = (scale ? scale[c] : 1) * r[c], plus = (shift ? shift[c] : 0) - mean[c] * times;
            N(affine)(y + at, times, x + at, 0, 0, plus, places);
        }
}

int N(batch_norm)(int64_t images, int64_t channels, int64_t places, const REAL *x, REAL *y, const REAL *scale,
                  const REAL *shift, double eps, REAL *mean, REAL *variance, REAL *r, int64_t threads)
{
    double *sums = calloc(2 * channels, sizeof(double));
    if (!sums) return 1;
    EACH_PART N(normalise)(images, channels, channels * part / threads, channels * (part + 1) / threads, places, x, y, scale,
                           shift, eps, mean, variance, r, sums);
    free(sums);
    return 0;
}

/* by_x = scale * r * (g - mean(g) - xhat * mean(g * xhat)); by_scale = sum(g * xhat); by_shift = sum(g) */
static void N(normalise_backward)(int64_t images, int64_t channels, int64_t from, int64_t end, int64_t places, const REAL *x,
                                  const REAL *g, const REAL *scale, const REAL *mean, const REAL *r, REAL *by_x,
                                  REAL *by_scale, REAL *by_shift, double *sums)
{
    for (int64_t n = 0; n < images; n++)
        for (int64_t c = from; c < end; c++) {
            const int64_t at = (n * channels + c) * places;
            N(sums)(g + at, 0, x + at, mean[c], places, sums + c, sums + channels + c);
        }
    for (int64_t c = from; c < end; c++) {
        by_shift[c] = sums[c];
        by_scale[c] = sums[channels + c] * r[c];
    }
    for (int64_t n = images; n-- > 0;)
        for (int64_t c = from; c < end; c++) {
            const int64_t at = (n * channels + c) * places;
            const double count = (double)images * places, times = (scale ? scale[c] : 1) * (double)r[c];
            const double slope = -times * by_scale[c] / count * r[c], plus = -times * sums[c] / count - slope * mean[c];
            N(affine)(by_x + at, times, g + at, slope, x + at, plus, places);
        }
}

int N(batch_norm_backward)(int64_t images, int64_t channels, int64_t places, const REAL *x, const REAL *g,
                           const REAL *scale, const REAL *mean, const REAL *r, REAL *by_x, REAL *by_scale, REAL *by_shift,
                           int64_t threads)
{
    double *sums = calloc(2 * channels, sizeof(double));
    if (!sums) return 1;
    EACH_PART N(normalise_backward)(images, channels, channels * part / threads, channels * (part + 1) / threads, places, x, g,
                                    scale, mean, r, by_x, by_scale, by_shift, sums);
    free(sums);
    return 0;
}

/* The same for rows (N * places, C), that is channels last: each thread takes some rows, and sums are put together in
   double. Where channels do not fill the vectors, several rows are taken as one, of which each channel is a part several
   times.                                                                                                             */
#define BLOCK 64    /* rows whose sums are taken in REAL */
#define WIDEST 1024 /* numbers in rows that are taken as one: with many channels, a vector that is not full hardly counts */

/* How many rows are taken as one. */
static int64_t N(together)(int64_t rows, int64_t channels)
{
    int64_t times = 1;
    while (times * channels % LANES) times *= 2;
    return rows % times || times * channels > WIDEST ? 1 : times;
}

static void N(repeat)(REAL *to, const REAL *from, int64_t channels, int64_t times)
{
    for (int64_t j = 0; j < times; j++) memmove(to + j * channels, from, channels * sizeof(REAL));
}

/* Sums (2, times, channels) of the parts into those of the channels, which are the first of each line. */
static void N(fold)(double *sums, int64_t channels, int64_t times)
{
    for (int64_t line = 0; line < 2; line++, sums += times * channels)
        for (int64_t j = channels; j < times * channels; j++) sums[j % channels] += sums[j];
}

/* first += sum of a - shift, second += sum of (a - shift) * (b - other), for each channel */
static void N(sums_last)(const REAL *a, const REAL *shift, const REAL *b, const REAL *other, int64_t rows, int64_t channels,
                         double *first, double *second)
{
    for (int64_t row = 0; row < rows; row += BLOCK) {
        const int64_t stop = (row + BLOCK < rows ? row + BLOCK : rows) * channels;
        int64_t c = 0;
        for (; c + LANES <= channels; c += LANES) {
            const VEC u = shift ? AT(shift + c) : (VEC){0}, v = AT(other + c);
            VEC one = {0}, two = {0};
            for (int64_t p = row * channels + c; p < stop; p += channels) {
                const VEC off = AT(a + p) - u;
                one += off;
                two += off * (AT(b + p) - v);
            }
            for (int j = 0; j < LANES; j++) {
                first[c + j] += one[j];
                second[c + j] += two[j];
            }
        }
        for (; c < channels; c++)
            for (int64_t p = row * channels + c; p < stop; p += channels) {
                const REAL off = a[p] - (shift ? shift[c] : 0);
                first[c] += off;
                second[c] += (double)off * (b[p] - other[c]);
            }
    }
}

/* Sums over all rows, by the threads together: sums (2, channels) of sums_last. Needs space (threads, 2, channels). */
static void N(all_sums_last)(const REAL *a, const REAL *shift, const REAL *b, const REAL *other, int64_t rows, int64_t channels,
                             double *sums, double *space, int64_t threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t part = 0; part < threads; part++) {
        const int64_t from = rows * part / threads, to = rows * (part + 1) / threads;
        double *mine = space + 2 * part * channels;
        memset(mine, 0, 2 * channels * sizeof(double));
        N(sums_last)(a + from * channels, shift, b + from * channels, other, to - from, channels, mine, mine + channels);
    }
    memcpy(sums, space, 2 * channels * sizeof(double));
    for (int64_t part = 1; part < threads; part++)
        for (int64_t c = 0; c < 2 * channels; c++) sums[c] += space[2 * part * channels + c];
}

/* to = a * x + b * y + c with a, b, c (channels); y may be null */
static void N(affine_last)(REAL *to, const REAL *a, const REAL *x, const REAL *b, const REAL *y, const REAL *c, int64_t rows,
                           int64_t channels, int64_t threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        int64_t k = 0, p = row * channels;
        for (; k + LANES <= channels; k += LANES) {
            VEC v = AT(x + p + k) * AT(a + k) + AT(c + k);
            if (y) v += AT(y + p + k) * AT(b + k);
            *(VEC *)(to + p + k) = v;
        }
        for (; k < channels; k++) to[p + k] = x[p + k] * a[k] + c[k] + (y ? y[p + k] * b[k] : 0);
    }
}

int N(batch_norm_last)(int64_t rows, int64_t channels, const REAL *x, REAL *y, const REAL *scale, const REAL *shift, double eps,
                       REAL *mean, REAL *variance, REAL *r, int64_t threads)
{
    const int64_t times = N(together)(rows, channels), wide = times * channels;
    double *sums = malloc(2 * (threads + 1) * wide * sizeof(double));
    REAL *k = malloc(2 * wide * sizeof(REAL)), *plus = k + wide;
    const int failed = !sums || !k;
    if (!failed) {
        N(repeat)(k, x, channels, times); /* sums start from the first row */
        N(all_sums_last)(x, k, x, k, rows / times, wide, sums, sums + 2 * wide, threads);
        N(fold)(sums, channels, times);
        for (int64_t c = 0; c < channels; c++) {
            const double off = sums[c] / rows, var = sums[wide + c] / rows - off * off;
            mean[c] = x[c] + off;
            variance[c] = var > 0 || var != var ? var : 0;
            r[c] = 1 / __builtin_sqrt(variance[c] + eps);
            k[c] = (scale ? scale[c] : 1) * r[c];
            plus[c] = (shift ? shift[c] : 0) - mean[c] * k[c];
        }
        N(repeat)(k, k, channels, times);
        N(repeat)(plus, plus, channels, times);
        if (y) N(affine_last)(y, k, x, 0, 0, plus, rows / times, wide, threads);
    }
    free(sums);
    free(k);
    return failed;
}

int N(batch_norm_last_backward)(int64_t rows, int64_t channels, const REAL *x, const REAL *g, const REAL *scale, const REAL *mean,
                                const REAL *r, REAL *by_x, REAL *by_scale, REAL *by_shift, int64_t threads)
{
    const int64_t times = N(together)(rows, channels), wide = times * channels;
    double *sums = malloc(2 * (threads + 1) * wide * sizeof(double));
    REAL *k = malloc(3 * wide * sizeof(REAL)), *slope = k + wide, *plus = slope + wide;
    const int failed = !sums || !k;
    if (!failed) {
        N(repeat)(k, mean, channels, times);
        N(all_sums_last)(g, 0, x, k, rows / times, wide, sums, sums + 2 * wide, threads);
        N(fold)(sums, channels, times);
        for (int64_t c = 0; c < channels; c++) {
            const double by = (scale ? scale[c] : 1) * (double)r[c];
            by_shift[c] = sums[c];
            by_scale[c] = sums[wide + c] * r[c];
            const double steep = -by * by_scale[c] / rows * r[c];
            k[c] = by;
            slope[c] = steep;
            plus[c] = -by * sums[c] / rows - steep * mean[c];
        }
        N(repeat)(k, k, channels, times);
        N(repeat)(slope, slope, channels, times);
        N(repeat)(plus, plus, channels, times);
        N(affine_last)(by_x, k, g, slope, x, plus, rows / times, wide, threads);
    }
    free(sums);
    free(k);
    return failed;
}

/* The derivatives of sum(v * by_x) by g and by x, the statistics being functions of x: rows (N * places, C), that is
   channels last. With v-, g- the means, s = mean(v * xhat), c = mean(g * xhat), q = mean(v * g) - v- * g- - s * c:
   by_g = scale * r * (v - v- - s * xhat)
   by_x = -scale * r^2 * (c * (v - v-) + s * (g - g-) + (q - 2 * c * s) * xhat)                                       */
/* The channels from `from` to `end`; sums (5, channels) are zero, k (6, channels) is space. */
static void N(twice)(int64_t rows, int64_t channels, int64_t from, int64_t end, const REAL *v, const REAL *g, const REAL *x,
                     const REAL *scale, const REAL *mean, const REAL *r, REAL *by_g, REAL *by_x, double *sums, REAL *k)
{
    double *of_v = sums, *of_g = of_v + channels, *of_vx = of_g + channels;
    double *of_gx = of_vx + channels, *of_vg = of_gx + channels;
    for (int64_t row = 0; row < rows; row += BLOCK) {
        const int64_t stop = row + BLOCK < rows ? row + BLOCK : rows;
        int64_t c = from;
        for (; c + LANES <= end; c += LANES) {
            const VEC centre = AT(mean + c);
            VEC one = {0}, two = {0}, three = {0}, four = {0}, five = {0};
            for (int64_t p = row * channels + c; p < stop * channels; p += channels) {
                const VEC a = AT(v + p), b = AT(g + p), off = AT(x + p) - centre;
                one += a;
                two += b;
                three += a * off;
                four += b * off;
                five += a * b;
            }
            for (int j = 0; j < LANES; j++) {
                of_v[c + j] += one[j];
                of_g[c + j] += two[j];
                of_vx[c + j] += three[j];
                of_gx[c + j] += four[j];
                of_vg[c + j] += five[j];
            }
        }
        for (; c < end; c++)
            for (int64_t p = row * channels + c; p < stop * channels; p += channels) {
                of_v[c] += v[p];
                of_g[c] += g[p];
                of_vx[c] += (double)v[p] * (x[p] - mean[c]);
                of_gx[c] += (double)g[p] * (x[p] - mean[c]);
                of_vg[c] += (double)v[p] * g[p];
            }
    }
    for (int64_t c = from; c < end; c++) {
        const double vm = of_v[c] / rows, gm = of_g[c] / rows, vx = of_vx[c] / rows * r[c], gx = of_gx[c] / rows * r[c];
        const double q = of_vg[c] / rows - vm * gm - vx * gx, times = (scale ? scale[c] : 1) * (double)r[c];
        k[c] = times;
        k[channels + c] = -times * vx * r[c];
        k[2 * channels + c] = -times * r[c] * gx;
        k[3 * channels + c] = -times * r[c] * vx;
        k[4 * channels + c] = -times * r[c] * (q - 2 * gx * vx) * r[c];
        k[5 * channels + c] = times * r[c] * (gx * vm + vx * gm);
        of_v[c] = vm;
    }
    for (int64_t row = 0; row < rows; row += BLOCK) {
        const int64_t stop = row + BLOCK < rows ? row + BLOCK : rows;
        int64_t c = from;
        for (; c + LANES <= end; c += LANES) {
            const VEC centre = AT(mean + c), k0 = AT(k + c), k1 = AT(k + channels + c), k2 = AT(k + 2 * channels + c);
            const VEC k3 = AT(k + 3 * channels + c), k4 = AT(k + 4 * channels + c), k5 = AT(k + 5 * channels + c);
            VEC vm;
            for (int j = 0; j < LANES; j++) vm[j] = of_v[c + j];
            for (int64_t p = row * channels + c; p < stop * channels; p += channels) {
                const VEC a = AT(v + p), b = AT(g + p), off = AT(x + p) - centre;
                *(VEC *)(by_g + p) = k0 * (a - vm) + k1 * off;
                *(VEC *)(by_x + p) = k2 * a + k3 * b + k4 * off + k5;
            }
        }
        for (; c < end; c++)
            for (int64_t p = row * channels + c; p < stop * channels; p += channels) {
                const REAL off = x[p] - mean[c], vm = of_v[c];
                by_g[p] = k[c] * (v[p] - vm) + k[channels + c] * off;
                by_x[p] = k[2 * channels + c] * v[p] + k[3 * channels + c] * g[p] + k[4 * channels + c] * off + k[5 * channels + c];
            }
    }
}

int N(batch_norm_twice)(int64_t rows, int64_t channels, const REAL *v, const REAL *g, const REAL *x, const REAL *scale,
                        const REAL *mean, const REAL *r, REAL *by_g, REAL *by_x, int64_t threads)
{
    double *sums = calloc(5 * channels, sizeof(double));
    REAL *k = calloc(6 * channels, sizeof(REAL));
    const int64_t vectors = (channels + LANES - 1) / LANES;
    const int failed = !sums || !k;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t part = 0; part < threads; part++) { /* whole vectors for each */
        const int64_t from = vectors * part / threads * LANES, to = vectors * (part + 1) / threads * LANES;
        if (!failed) N(twice)(rows, channels, from, to < channels ? to : channels, v, g, x, scale, mean, r, by_g, by_x, sums, k);
    }
    free(sums);
    free(k);
    return failed;
}

#undef BLOCK
#undef WIDEST
#undef EACH_PART
#undef VEC
#undef LANES
#undef AT
