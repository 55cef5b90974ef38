/* BatchNorm (N, C, places) by the statistics of the batch, channels first to last; one call takes some channels.

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

int N(batch_norm)(int64_t images, int64_t channels, int64_t places, int64_t from, int64_t end, const REAL *x, REAL *y,
                   const REAL *scale, const REAL *shift, double eps, REAL *mean, REAL *variance, REAL *r)
{
    for (int64_t c = from; c < end; c++) {
        const REAL start = x[c * places];
        double first = 0, second = 0;
        for (int64_t n = 0; n < images; n++) {
            const REAL *plane = x + (n * channels + c) * places;
            N(sums)(plane, start, plane, start, places, &first, &second);
        }
        const double count = (double)images * places, off = first / count, var = second / count - off * off;
        mean[c] = start + off;
        variance[c] = var > 0 || var != var ? var : 0;
        r[c] = 1 / __builtin_sqrt(variance[c] + eps);
        const REAL times = (scale ? scale[c] : 1) * r[c], plus = (shift ? shift[c] : 0) - mean[c] * times;
        for (int64_t n = 0; y && n < images; n++) { /* without y: statistics only */
            const int64_t at = (n * channels + c) * places;
            N(affine)(y + at, times, x + at, 0, 0, plus, places);
        }
    }
    return 0;
}

/* by_x = scale * r * (g - mean(g) - xhat * mean(g * xhat)); by_scale = sum(g * xhat); by_shift = sum(g) */
int N(batch_norm_backward)(int64_t images, int64_t channels, int64_t places, int64_t from, int64_t end, const REAL *x, const REAL *g,
                            const REAL *scale, const REAL *mean, const REAL *r, REAL *by_x, REAL *by_scale, REAL *by_shift)
{
    for (int64_t c = from; c < end; c++) {
        double first = 0, second = 0;
        for (int64_t n = 0; n < images; n++) {
            const int64_t at = (n * channels + c) * places;
            N(sums)(g + at, 0, x + at, mean[c], places, &first, &second);
        }
        by_shift[c] = first;
        by_scale[c] = second * r[c];
        const double count = (double)images * places, times = (scale ? scale[c] : 1) * (double)r[c];
        const double slope = -times * by_scale[c] / count * r[c], plus = -times * first / count - slope * mean[c];
        for (int64_t n = 0; n < images; n++) {
            const int64_t at = (n * channels + c) * places;
            N(affine)(by_x + at, times, g + at, slope, x + at, plus, places);
        }
    }
    return 0;
}

#undef VEC
#undef LANES
#undef AT
