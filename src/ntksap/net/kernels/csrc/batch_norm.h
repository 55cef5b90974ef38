/* BatchNorm (N, C, places), a sum and a ReLU in one; channels first, and below that channels last.

       z = relu(a * y + b + add),   a = scale * r, b = shift - mean * a, r = 1 / sqrt(variance + eps)

   by the statistics of the batch; without `add` and without the ReLU if these are not wanted. Sums run over one plane
   in REAL, over planes in double, and from the channel's first number, so that a large mean does not cancel the variance. */

typedef REAL N(vec2) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
#define VEC N(vec2)
#define LANES ((int64_t)(32 / sizeof(REAL)))
#define AT(p) (*(const VEC *)(p))
#define INLINE static inline __attribute__((always_inline))

INLINE REAL N(passed)(REAL v, REAL z) { return z <= 0 ? 0 : v; } /* PASSED of one number */

/* A number for each of a vector's, or one for all. */
INLINE VEC N(each)(const int last, const REAL *of, int64_t p)
{
    if (last) return AT(of + p);
    return *of - (VEC){0};
}

static inline double N(over)(VEC v)
{
    double sum = 0;
    for (int j = 0; j < LANES; j++) sum += v[j];
    return sum;
}

/* first += sum of x - shift, second += sum of its squares */
static void N(sums)(const REAL *x, REAL shift, int64_t places, double *first, double *second)
{
    VEC one = {0}, two = {0}, three = {0}, four = {0};
    int64_t p = 0;
    for (; p + 2 * LANES <= places; p += 2 * LANES) {
        const VEC u = AT(x + p) - shift, v = AT(x + p + LANES) - shift;
        one += u;
        two += v;
        three += u * u;
        four += v * v;
    }
    *first += N(over)(one + two);
    *second += N(over)(three + four);
    for (; p < places; p++) {
        *first += x[p] - shift;
        *second += (double)(x[p] - shift) * (x[p] - shift);
    }
}

/* z = relu(a * y + b + add) for numbers in a row. a and b are those of one channel, or with `last` a number for each. */
INLINE void N(finish_row)(const int last, const int relu, const REAL *y, const REAL *a, const REAL *b, const REAL *add, REAL *z,
                          int64_t count, int past)
{
    int64_t p = 0;
    for (; p + LANES <= count; p += LANES) {
        VEC v = AT(y + p) * N(each)(last, a, p) + N(each)(last, b, p);
        if (add) v += AT(add + p);
        STORE(z + p, relu ? PASSED(v, v) : v, past);
    }
    for (; p < count; p++) {
        REAL v = y[p] * a[last ? p : 0] + b[last ? p : 0];
        if (add) v += add[p];
        z[p] = relu ? N(passed)(v, v) : v;
    }
}

/* The numbers of one channel, or with `last` rows of all channels. */
static void N(finish)(const int last, int64_t relu, const REAL *y, const REAL *a, const REAL *b, const REAL *add, REAL *z,
                      int64_t count, int past)
{
    if (last && relu) N(finish_row)(1, 1, y, a, b, add, z, count, past);
    else if (last) N(finish_row)(1, 0, y, a, b, add, z, count, past);
    else if (relu) N(finish_row)(0, 1, y, a, b, add, z, count, past);
    else N(finish_row)(0, 0, y, a, b, add, z, count, past);
}

/* What follows a convolution in evaluation: relu(a * y + b + add), with a, b (outputs) and add like y, which may be null;
   nothing if a is null. */
typedef struct {
    const REAL *a, *b, *add;
    int64_t relu;
} N(After);

/* How the derivative g with respect to z becomes the one with respect to a * y + b: as it is, or 0 where the ReLU gave 0.
   That is known from a * y + b itself if nothing was added, else from z; the result is then kept, since it is also the
   derivative with respect to what was added. */
enum N(Through) { N(LINEAR), N(BY_Y), N(BY_Z) };

/* by_y = k[0] * g + k[1] * y + k[2] for numbers in a row, g through the ReLU; k (3, step) */
INLINE void N(back_row)(const int last, const int how, const REAL *g, const REAL *y, const REAL *a, const REAL *b, const REAL *k,
                        int64_t step, REAL *by_y, int64_t count, int past)
{
    int64_t p = 0;
    for (; p + LANES <= count; p += LANES) {
        const VEC u = AT(y + p);
        VEC v = AT(g + p);
        if (how == N(BY_Y)) v = PASSED(v, u * N(each)(last, a, p) + N(each)(last, b, p));
        STORE(by_y + p, v * N(each)(last, k, p) + u * N(each)(last, k + step, p) + N(each)(last, k + 2 * step, p), past);
    }
    for (; p < count; p++) {
        const int64_t c = last ? p : 0;
        const REAL v = how == N(BY_Y) ? N(passed)(g[p], y[p] * a[c] + b[c]) : g[p];
        by_y[p] = v * k[c] + y[p] * k[step + c] + k[2 * step + c];
    }
}

static void N(back)(const int last, const int how, const REAL *g, const REAL *y, const REAL *a, const REAL *b, const REAL *k,
                    int64_t step, REAL *by_y, int64_t count, int past)
{
    if (last && how == N(BY_Y)) N(back_row)(1, N(BY_Y), g, y, a, b, k, step, by_y, count, past);
    else if (last) N(back_row)(1, N(LINEAR), g, y, a, b, k, step, by_y, count, past);
    else if (how == N(BY_Y)) N(back_row)(0, N(BY_Y), g, y, a, b, k, step, by_y, count, past);
    else N(back_row)(0, N(LINEAR), g, y, a, b, k, step, by_y, count, past);
}

/* first += sum of g, second += sum of g * (y - mean) for a plane, g through the ReLU and then kept in `through` */
INLINE void N(back_sums)(const int how, const REAL *g, const REAL *y, const REAL *z, REAL a, REAL b, REAL mean, REAL *through,
                         int64_t places, double *first, double *second, int past)
{
    VEC one[2] = {{0}}, two[2] = {{0}};
    int64_t p = 0;
    for (; p + 2 * LANES <= places; p += 2 * LANES)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const int64_t at = p + j * LANES;
            const VEC u = AT(y + at);
            VEC v = AT(g + at);
            if (how == N(BY_Y)) v = PASSED(v, u * a + b);
            if (how == N(BY_Z)) v = PASSED(v, AT(z + at));
            if (how == N(BY_Z)) STORE(through + at, v, past);
            one[j] += v;
            two[j] += v * (u - mean);
        }
    *first += N(over)(one[0] + one[1]);
    *second += N(over)(two[0] + two[1]);
    for (; p < places; p++) {
        REAL v = g[p];
        if (how == N(BY_Y)) v = N(passed)(v, y[p] * a + b);
        if (how == N(BY_Z)) through[p] = v = N(passed)(v, z[p]);
        *first += v;
        *second += (double)v * (y[p] - mean);
    }
}

/* a, b of a channel from its statistics */
INLINE void N(line_of)(int64_t c, const REAL *scale, const REAL *shift, const REAL *mean, const REAL *r, REAL *a, REAL *b)
{
    a[c] = (scale ? scale[c] : 1) * r[c];
    b[c] = (shift ? shift[c] : 0) - mean[c] * a[c];
}

/* k (3, step) of a channel from sums of `count` numbers: by_y = a * (g - mean(g) - yhat * mean(g * yhat)) */
INLINE void N(slopes_of)(int64_t c, double count, double sum, double product, const REAL *scale, const REAL *mean, const REAL *r,
                         REAL *by_scale, REAL *by_shift, REAL *k, int64_t step)
{
    const double times = (scale ? scale[c] : 1) * (double)r[c];
    by_shift[c] = sum;
    by_scale[c] = product * r[c];
    const double slope = -times * by_scale[c] / count * r[c];
    k[c] = times;
    k[step + c] = slope;
    k[2 * step + c] = -times * sum / count - slope * mean[c];
}

/* Threads take channels that lie side by side, and go through the images in the order of memory: channel by channel they
   would jump by a power of two, and the cache would hold next to nothing. The second pass begins with what it still holds. */
#define EACH_PART                                                                \
    _Pragma("omp parallel for num_threads(threads) if (threads > 1)")            \
    for (int64_t part = 0; part < threads; part++)
#define FROM(part) (channels * (part) / threads)
#define PAST(to) (places % LANES == 0 && streams(to, images * channels * places * sizeof(REAL)))

static void N(statistics)(int64_t images, int64_t channels, int64_t from, int64_t end, int64_t places, const REAL *y, double eps,
                          REAL *mean, REAL *variance, REAL *r, double *sums)
{
    for (int64_t n = 0; n < images; n++)
        for (int64_t c = from; c < end; c++)
            N(sums)(y + (n * channels + c) * places, y[c * places], places, sums + c, sums + channels + c);
    for (int64_t c = from; c < end; c++) {
        const double count = (double)images * places, off = sums[c] / count, var = sums[channels + c] / count - off * off;
        mean[c] = y[c * places] + off;
        variance[c] = var > 0 || var != var ? var : 0;
        r[c] = 1 / __builtin_sqrt(variance[c] + eps);
    }
}

/* The same from mean and sum of squared distances of each image's plane, parts (images, channels, 2). */
static void N(joined)(int64_t images, int64_t channels, int64_t places, const double *parts, double eps, REAL *mean,
                      REAL *variance, REAL *r)
{
    for (int64_t c = 0; c < channels; c++) {
        double middle = 0, apart = 0, within = 0;
        for (int64_t n = 0; n < images; n++) middle += parts[(n * channels + c) * 2];
        middle /= images;
        for (int64_t n = 0; n < images; n++) {
            const double off = parts[(n * channels + c) * 2] - middle;
            apart += off * off;
            within += parts[(n * channels + c) * 2 + 1];
        }
        mean[c] = middle;
        variance[c] = apart / images + within / ((double)images * places);
        r[c] = 1 / __builtin_sqrt(variance[c] + eps);
    }
}

/* z from given a and b (channels), channels first; z may be y */
int N(finish_first)(int64_t images, int64_t channels, int64_t places, const REAL *y, const REAL *a, const REAL *b,
                    const REAL *add, int64_t relu, REAL *z, int64_t threads)
{
    const int past = PAST(z) && z != y;
    EACH_PART {
        for (int64_t n = images; n-- > 0;)
            for (int64_t c = FROM(part); c < FROM(part + 1); c++) {
                const int64_t at = (n * channels + c) * places;
                N(finish)(0, relu, y + at, a + c, b + c, add ? add + at : 0, z + at, places, past);
            }
        DONE();
    }
    return 0;
}

/* parts: what `joined` takes, or null; without z: statistics only. */
int N(batch_norm)(int64_t images, int64_t channels, int64_t places, const REAL *y, const double *parts, const REAL *scale,
                  const REAL *shift, double eps, REAL *mean, REAL *variance, REAL *r, REAL *a, REAL *b, const REAL *add,
                  int64_t relu, REAL *z, int64_t threads)
{
    double *sums = calloc(2 * channels, sizeof(double));
    if (!sums) return 1;
    if (parts) N(joined)(images, channels, places, parts, eps, mean, variance, r);
    else EACH_PART N(statistics)(images, channels, FROM(part), FROM(part + 1), places, y, eps, mean, variance, r, sums);
    free(sums);
    if (!z) return 0;
    for (int64_t c = 0; c < channels; c++) N(line_of)(c, scale, shift, mean, r, a, b);
    return N(finish_first)(images, channels, places, y, a, b, add, relu, z, threads);
}

/* The derivatives. z: what came out where something was added before a ReLU, else null; `through` is then g through the
   ReLU. k (3, channels) for the derivative with respect to y, which is itself written if by_y is not null. */
int N(batch_norm_backward)(int64_t images, int64_t channels, int64_t places, const REAL *y, const REAL *g, const REAL *z,
                           int64_t relu, const REAL *a, const REAL *b, const REAL *scale, const REAL *mean, const REAL *r,
                           REAL *through, REAL *k, REAL *by_y, REAL *by_scale, REAL *by_shift, int64_t threads)
{
    const double count = (double)images * places;
    const int past = PAST(through), past_y = PAST(by_y);
    double *sums = calloc(2 * channels, sizeof(double));
    if (!sums) return 1;
    EACH_PART {
        for (int64_t n = 0; n < images; n++)
            for (int64_t c = FROM(part); c < FROM(part + 1); c++) {
                const int64_t at = (n * channels + c) * places;
#define SUMS(how) N(back_sums)(how, g + at, y + at, z + at, a[c], b[c], mean[c], through + at, places, sums + c, sums + channels + c, past)
                if (z) SUMS(N(BY_Z));
                else if (relu) SUMS(N(BY_Y));
                else SUMS(N(LINEAR));
#undef SUMS
            }
        for (int64_t c = FROM(part); c < FROM(part + 1); c++)
            N(slopes_of)(c, count, sums[c], sums[channels + c], scale, mean, r, by_scale, by_shift, k, channels);
        for (int64_t n = images; by_y && n-- > 0;)
            for (int64_t c = FROM(part); c < FROM(part + 1); c++) {
                const int64_t at = (n * channels + c) * places;
                N(back)(0, relu && !z ? N(BY_Y) : N(LINEAR), (z ? through : g) + at, y + at, a + c, b + c, k + c, channels,
                        by_y + at, places, past_y);
            }
        DONE();
    }
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

/* For each channel, first += sum of x - shift, second += sum of its squares */
static void N(sums_last)(const REAL *x, const REAL *shift, int64_t rows, int64_t channels, double *first, double *second)
{
    for (int64_t row = 0; row < rows; row += BLOCK) {
        const int64_t stop = (row + BLOCK < rows ? row + BLOCK : rows) * channels;
        int64_t c = 0;
        for (; c + LANES <= channels; c += LANES) {
            VEC one = {0}, two = {0};
            for (int64_t p = row * channels + c; p < stop; p += channels) {
                const VEC off = AT(x + p) - AT(shift + c);
                one += off;
                two += off * off;
            }
            for (int j = 0; j < LANES; j++) {
                first[c + j] += one[j];
                second[c + j] += two[j];
            }
        }
        for (; c < channels; c++)
            for (int64_t p = row * channels + c; p < stop; p += channels) {
                const REAL off = x[p] - shift[c];
                first[c] += off;
                second[c] += (double)off * off;
            }
    }
}

/* For each channel, first += sum of g, second += sum of g * (y - mean), g through the ReLU as in `back_sums` */
INLINE void N(back_sums_last)(const int how, const REAL *g, const REAL *y, const REAL *z, const REAL *a, const REAL *b,
                              const REAL *mean, REAL *through, int64_t rows, int64_t channels, double *first, double *second,
                              int past)
{
    for (int64_t row = 0; row < rows; row += BLOCK) {
        const int64_t stop = (row + BLOCK < rows ? row + BLOCK : rows) * channels;
        int64_t c = 0;
        for (; c + LANES <= channels; c += LANES) {
            VEC one = {0}, two = {0};
            for (int64_t p = row * channels + c; p < stop; p += channels) {
                const VEC u = AT(y + p);
                VEC v = AT(g + p);
                if (how == N(BY_Y)) v = PASSED(v, u * AT(a + c) + AT(b + c));
                if (how == N(BY_Z)) v = PASSED(v, AT(z + p));
                if (how == N(BY_Z)) STORE(through + p, v, past);
                one += v;
                two += v * (u - AT(mean + c));
            }
            for (int j = 0; j < LANES; j++) {
                first[c + j] += one[j];
                second[c + j] += two[j];
            }
        }
        for (; c < channels; c++)
            for (int64_t p = row * channels + c; p < stop; p += channels) {
                REAL v = g[p];
                if (how == N(BY_Y)) v = N(passed)(v, y[p] * a[c] + b[c]);
                if (how == N(BY_Z)) through[p] = v = N(passed)(v, z[p]);
                first[c] += v;
                second[c] += (double)v * (y[p] - mean[c]);
            }
    }
}

/* What the threads found, space (threads, 2, wide), put together in the first of them, and the parts of each channel too. */
static void N(gathered)(double *space, int64_t threads, int64_t channels, int64_t times)
{
    const int64_t wide = times * channels;
    for (int64_t part = 1; part < threads; part++)
        for (int64_t c = 0; c < 2 * wide; c++) space[c] += space[2 * part * wide + c];
    N(fold)(space, channels, times);
}

/* The rows of one thread */
#define FIRST(part) (rows / times * (part) / threads)
#undef PAST
#define PAST(to) (wide % LANES == 0 && streams(to, rows * channels * sizeof(REAL)))

/* z from given a and b (channels), channels last; z may be y */
int N(finish_last)(int64_t rows, int64_t channels, const REAL *y, const REAL *a, const REAL *b, const REAL *add, int64_t relu,
                   REAL *z, int64_t threads)
{
    const int64_t times = N(together)(rows, channels), wide = times * channels;
    REAL *lines = malloc(2 * wide * sizeof(REAL));
    if (!lines) return 1;
    N(repeat)(lines, a, channels, times);
    N(repeat)(lines + wide, b, channels, times);
    const int past = PAST(z) && z != y;
    EACH_PART {
        for (int64_t row = FIRST(part); row < FIRST(part + 1); row++)
            N(finish)(1, relu, y + row * wide, lines, lines + wide, add ? add + row * wide : 0, z + row * wide, wide, past);
        DONE();
    }
    free(lines);
    return 0;
}

int N(batch_norm_last)(int64_t rows, int64_t channels, const REAL *y, const REAL *scale, const REAL *shift, double eps, REAL *mean,
                       REAL *variance, REAL *r, REAL *a, REAL *b, const REAL *add, int64_t relu, REAL *z, int64_t threads)
{
    const int64_t times = N(together)(rows, channels), wide = times * channels;
    double *sums = calloc(2 * threads * wide, sizeof(double));
    REAL *start = malloc(wide * sizeof(REAL));
    const int failed = !sums || !start;
    if (!failed) {
        N(repeat)(start, y, channels, times); /* sums start from the first row */
        EACH_PART N(sums_last)(y + FIRST(part) * wide, start, FIRST(part + 1) - FIRST(part), wide, sums + 2 * part * wide,
                               sums + 2 * part * wide + wide);
        N(gathered)(sums, threads, channels, times);
        for (int64_t c = 0; c < channels; c++) {
            const double off = sums[c] / rows, var = sums[wide + c] / rows - off * off;
            mean[c] = y[c] + off;
            variance[c] = var > 0 || var != var ? var : 0;
            r[c] = 1 / __builtin_sqrt(variance[c] + eps);
            if (z) N(line_of)(c, scale, shift, mean, r, a, b);
        }
    }
    free(sums);
    free(start);
    return failed || (z && N(finish_last)(rows, channels, y, a, b, add, relu, z, threads));
}

int N(batch_norm_last_backward)(int64_t rows, int64_t channels, const REAL *y, const REAL *g, const REAL *z, int64_t relu,
                                const REAL *a, const REAL *b, const REAL *scale, const REAL *mean, const REAL *r, REAL *through,
                                REAL *k, REAL *by_y, REAL *by_scale, REAL *by_shift, int64_t threads)
{
    const int64_t times = N(together)(rows, channels), wide = times * channels;
    double *sums = calloc(2 * threads * wide, sizeof(double));
    REAL *of = malloc(6 * wide * sizeof(REAL)), *a_of = of + wide, *b_of = a_of + wide, *k_of = b_of + wide;
    const int failed = !sums || !of, past = PAST(through), past_y = PAST(by_y);
    if (!failed) {
        N(repeat)(of, mean, channels, times);
        N(repeat)(a_of, a, channels, times);
        N(repeat)(b_of, b, channels, times);
        EACH_PART {
            const int64_t at = FIRST(part) * wide, count = FIRST(part + 1) - FIRST(part);
            double *mine = sums + 2 * part * wide;
#define SUMS(how) N(back_sums_last)(how, g + at, y + at, z + at, a_of, b_of, of, through + at, count, wide, mine, mine + wide, past)
            if (z) SUMS(N(BY_Z));
            else if (relu) SUMS(N(BY_Y));
            else SUMS(N(LINEAR));
#undef SUMS
            DONE();
        }
        N(gathered)(sums, threads, channels, times);
        for (int64_t c = 0; c < channels; c++)
            N(slopes_of)(c, rows, sums[c], sums[wide + c], scale, mean, r, by_scale, by_shift, k, channels);
        for (int64_t line = 0; line < 3; line++) N(repeat)(k_of + line * wide, k + line * channels, channels, times);
        EACH_PART {
            for (int64_t row = FIRST(part); row < FIRST(part + 1); row++)
                N(back)(1, relu && !z ? N(BY_Y) : N(LINEAR), (z ? through : g) + row * wide, y + row * wide, a_of, b_of, k_of,
                        wide, by_y + row * wide, wide, past_y);
            DONE();
        }
    }
    free(sums);
    free(of);
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
#undef FROM
#undef FIRST
#undef PAST
#undef INLINE
#undef VEC
#undef LANES
#undef AT
