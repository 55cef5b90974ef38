/* Convolution (NCHW) that touches the kept weights only.

   An image is packed into planes: zero padding around it, and with a stride s one plane for each remainder of a
   place modulo s, so that a kept weight always multiplies a plane shifted by a fixed offset:

       out[o][p]   = sum over kept weights k of o:       value[k] * planes[where[k] + p]
       back[b][p]  = sum over kept weights k of plane b: value[k] * grads[back_where[k] + p]
       by_value[k] = sum over places p:                  grad[o][p] * planes[where[k] + p]

   Where the width of the result is a multiple of a vector, it is computed in tiles of 8 vectors. Otherwise a plane is
   walked as if it were one line of rows x pitch numbers: what falls into the padding columns is computed too and never
   read. Small images of that kind are stacked into one plane, so that lines are long enough.

   What usually follows is done while an image is in the cache, see batch_norm.h: BatchNorm in evaluation, a sum and a
   ReLU; in training, the statistics of each output are taken, and on the way back the gradient passes through
   BatchNorm and a ReLU first.                                                                                         */

#ifndef SPARSE_CONV_SHAPE
#define SPARSE_CONV_SHAPE
typedef struct {
    int64_t channels, height, width, outputs, out_height, out_width, stride_y, stride_x, pad_y, pad_x;
    int64_t rows, pitch; /* of one image in a plane */
    int64_t stack;       /* images in a plane */
    int64_t slack;       /* the largest offset of a weight */
    int64_t plane;       /* numbers from one plane to the next */
    int64_t grad;        /* numbers from one output's gradient to the next: slack zeros, then a plane */
} Shape;

/* Memory that is wanted soon comes into the cache bit by bit, while there is something to calculate. */
#define LINE 64 /* bytes of the cache */
typedef struct {
    const char *next, *end;
} Ahead;

static inline Ahead ahead_of(const void *from, int64_t bytes)
{
    return (Ahead){from, (const char *)from + bytes};
}

static inline void fetch(Ahead *ahead, int64_t lines)
{
    for (; lines > 0 && ahead->next < ahead->end; lines--, ahead->next += LINE) __builtin_prefetch(ahead->next, 0, 2);
}

/* Lists the kept weights (outputs, channels / groups, high, wide) by output, and by the plane that they look at. */
int sparse_plan(const Shape *s, const char *kept, int64_t groups, int64_t high, int64_t wide, int64_t apart_y, int64_t apart_x,
                 int64_t *index, int64_t *first, int *where, int64_t *back_first, int64_t *order, int *back_where)
{
    const int64_t per_group = s->channels / groups, planes = s->channels * s->stride_y * s->stride_x;
    for (int fill = 0; fill < 2; fill++) { /* count for each plane, then put in place */
        int64_t k = 0, at = 0;
        for (int64_t o = 0; o < s->outputs; o++) {
            first[o] = k;
            for (int64_t i = 0; i < per_group; i++)
                for (int64_t y = 0; y < high * apart_y; y += apart_y)
                    for (int64_t x = 0; x < wide * apart_x; x += apart_x, at++) {
                        if (!kept[at]) continue;
                        const int64_t channel = o / (s->outputs / groups) * per_group + i;
                        const int64_t plane = (channel * s->stride_y + y % s->stride_y) * s->stride_x + x % s->stride_x;
                        const int64_t offset = y / s->stride_y * s->pitch + x / s->stride_x;
                        if (fill) {
                            const int64_t to = back_first[plane]++;
                            index[k] = at;
                            where[k] = plane * s->plane + offset;
                            order[to] = k;
                            back_where[to] = o * s->grad + s->slack - offset;
                        } else back_first[plane + 1]++;
                        k++;
                    }
        }
        first[s->outputs] = k;
        if (fill) /* each now stands at the start of the next */
            for (int64_t b = planes; b > 0; b--) back_first[b] = back_first[b - 1];
        else
            for (int64_t b = 0; b < planes; b++) back_first[b + 1] += back_first[b];
    }
    back_first[0] = 0;
    return 0;
}
#endif

typedef REAL N(vec) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef REAL N(half) __attribute__((vector_size(16), may_alias));
#define VEC N(vec)
#define LANES ((int64_t)(32 / sizeof(REAL)))
#define AT(p) (*(const VEC *)(p))

static inline void N(copy)(REAL *restrict to, const REAL *restrict from, int64_t count)
{
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES) *(VEC *)(to + j) = AT(from + j);
    for (; j < count; j++) to[j] = from[j];
}

static inline __attribute__((always_inline)) void N(rows_of)(REAL *restrict to, int64_t to_pitch, const REAL *restrict from,
                                                             int64_t pitch, int64_t rows, int64_t width)
{
    for (int64_t row = 0; row < rows; row++) N(copy)(to + row * to_pitch, from + row * pitch, width);
}

/* Rows of `width` numbers; the usual widths are compiled apart, without loops. */
static void N(copy_rows)(REAL *to, int64_t to_pitch, const REAL *from, int64_t pitch, int64_t rows, int64_t width)
{
    if (width == 8) N(rows_of)(to, to_pitch, from, pitch, rows, 8);
    else if (width == 16) N(rows_of)(to, to_pitch, from, pitch, rows, 16);
    else if (width == 32) N(rows_of)(to, to_pitch, from, pitch, rows, 32);
    else N(rows_of)(to, to_pitch, from, pitch, rows, width);
}

static inline REAL N(total)(VEC v)
{
    const N(half) *halves = (const N(half) *)&v, sum = halves[0] + halves[1];
    if (sizeof(REAL) == 8) return sum[0] + sum[1];
    return (sum[0] + sum[1]) + (sum[LANES / 4] + sum[LANES / 4 + 1]); /* of 4, which the compiler must not see in double */
}

/* `width` vectors of one line of the result stay in registers while all its weights pass. */
static inline __attribute__((always_inline)) void N(line)(const int width, const REAL *restrict from, REAL *restrict to,
                                                          const int *where, const REAL *value, int64_t count)
{
    VEC sum[10];
#pragma GCC unroll 10
    for (int j = 0; j < width; j++) sum[j] = (VEC){0};
    for (int64_t k = 0; k < count; k++) {
        const REAL *at = from + where[k];
        const VEC times = value[k] - (VEC){0};
#pragma GCC unroll 10
        for (int j = 0; j < width; j++) sum[j] += times * AT(at + j * LANES);
    }
#pragma GCC unroll 10
    for (int j = 0; j < width; j++) *(VEC *)(to + j * LANES) = sum[j];
}

static void N(combine)(const REAL *from, REAL *to, int64_t to_size, int64_t length, int64_t lines, const int64_t *first,
                       const int *where, const REAL *value)
{
    for (int64_t at = 0, width; at < length; at += width * LANES) {
        const int64_t left = (length - at + LANES - 1) / LANES;
        width = left >= 10 ? 10 : left >= 5 ? 5 : left >= 3 ? 3 : 1;
        for (int64_t o = 0; o < lines; o++) { /* all lines at one place, while that place is in the cache */
            const int64_t k = first[o], count = first[o + 1] - k;
            REAL *out = to + o * to_size + at;
            if (width == 10) N(line)(10, from + at, out, where + k, value + k, count);
            else if (width == 5) N(line)(5, from + at, out, where + k, value + k, count);
            else if (width == 3) N(line)(3, from + at, out, where + k, value + k, count);
            else N(line)(1, from + at, out, where + k, value + k, count);
        }
    }
}

/* The same for a tile of rows x vecs vectors, and what follows: a, b and add are those of this line and tile. */
static inline __attribute__((always_inline)) void N(tile)(const int rows, const int vecs, const REAL *restrict from,
                                                          int64_t pitch, REAL *restrict to, int64_t to_pitch,
                                                          const int *where, const REAL *value, int64_t count,
                                                          N(After) after, int past)
{
    VEC sum[8];
#pragma GCC unroll 8
    for (int j = 0; j < rows * vecs; j++) sum[j] = (VEC){0};
    for (int64_t k = 0; k < count; k++) {
        const REAL *at = from + where[k];
        const VEC times = value[k] - (VEC){0};
#pragma GCC unroll 8
        for (int j = 0; j < rows * vecs; j++) sum[j] += times * AT(at + j / vecs * pitch + j % vecs * LANES);
    }
    if (after.a)
#pragma GCC unroll 8
        for (int j = 0; j < rows * vecs; j++) sum[j] = sum[j] * *after.a + *after.b;
    if (after.a && after.add)
#pragma GCC unroll 8
        for (int j = 0; j < rows * vecs; j++) sum[j] += AT(after.add + j / vecs * to_pitch + j % vecs * LANES);
    if (after.a && after.relu)
#pragma GCC unroll 8
        for (int j = 0; j < rows * vecs; j++) sum[j] = PASSED(sum[j], sum[j]);
    if (past)
#pragma GCC unroll 8
        for (int j = 0; j < rows * vecs; j++) STORE(to + j / vecs * to_pitch + j % vecs * LANES, sum[j], 1);
    else
#pragma GCC unroll 8
        for (int j = 0; j < rows * vecs; j++) *(VEC *)(to + j / vecs * to_pitch + j % vecs * LANES) = sum[j];
}

/* `to` has lines of height x width numbers one after the other. */
static void N(combine_tiles)(const REAL *from, int64_t pitch, REAL *to, int64_t height, int64_t width, int64_t lines,
                             const int64_t *first, const int *where, const REAL *value, N(After) after, int past,
                             Ahead ahead)
{
    const int64_t tiles = lines * height * width / (8 * LANES) + 1, share = (ahead.end - ahead.next) / LINE / tiles + 1;
    const int64_t wide = width / LANES, vecs = wide % 8 == 0 ? 8 : wide % 4 == 0 ? 4 : wide % 2 == 0 ? 2 : 1;
    for (int64_t y = 0, rows; y < height; y += rows) {
        rows = height - y >= 8 / vecs ? 8 / vecs : 1;
        for (int64_t x = 0; x < width; x += vecs * LANES)
            for (int64_t o = 0; o < lines; o++) { /* all lines at one place, while that place is in the cache */
                const REAL *in = from + y * pitch + x;
                const int64_t place = (o * height + y) * width + x, k = first[o], count = first[o + 1] - k;
                const N(After) then = {after.a ? after.a + o : 0, after.b + o, after.add ? after.add + place : 0, after.relu};
                REAL *out = to + place;
                Ahead later = ahead_of(out + 3 * height * width, 8 * sizeof(VEC)); /* the tile after the next two */
                if (!past) fetch(&later, 8 * sizeof(VEC) / LINE);
                fetch(&ahead, share);
#define TILE(r, v) N(tile)(r, v, in, pitch, out, width, where + k, value + k, count, then, past)
                if (vecs == 8) TILE(1, 8);
                else if (vecs == 4 && rows == 2) TILE(2, 4);
                else if (vecs == 2 && rows == 4) TILE(4, 2);
                else if (vecs == 1 && rows == 8) TILE(8, 1);
                else if (vecs == 4) TILE(1, 4);
                else if (vecs == 2) TILE(1, 2);
                else TILE(1, 1);
#undef TILE
            }
    }
}

/* `count` weights of one output at a time share what is loaded of its gradient, (height, width) without padding. */
static inline __attribute__((always_inline)) void N(dot_rows)(const int count, const REAL *grad, const REAL *planes,
                                                              int64_t pitch, int64_t height, int64_t width, const int *where,
                                                              REAL *sums)
{
    VEC even[8], odd[8];
#pragma GCC unroll 8
    for (int j = 0; j < count; j++) even[j] = odd[j] = (VEC){0};
    for (int64_t y = 0; y < height; y += 2)
        for (int64_t x = 0; x < width; x += LANES) {
            const VEC g = AT(grad + y * width + x);
#pragma GCC unroll 8
            for (int j = 0; j < count; j++) even[j] += g * AT(planes + where[j] + y * pitch + x);
            if (y + 1 == height) continue;
            const VEC h = AT(grad + (y + 1) * width + x);
#pragma GCC unroll 8
            for (int j = 0; j < count; j++) odd[j] += h * AT(planes + where[j] + (y + 1) * pitch + x);
        }
#pragma GCC unroll 8
    for (int j = 0; j < count; j++) sums[j] += N(total)(even[j] + odd[j]);
}

static void N(dots_rows)(const Shape *s, const REAL *grads, const REAL *planes, const int64_t *first, const int *where,
                         REAL *sums, Ahead ahead)
{
    const int64_t height = s->out_height, width = s->out_width, share = (ahead.end - ahead.next) / LINE / s->outputs + 1;
    for (int64_t o = 0; o < s->outputs; o++) {
        const REAL *grad = grads + o * height * width;
        fetch(&ahead, share);
        int64_t k = first[o], end = first[o + 1];
        for (; k + 4 <= end; k += 4) N(dot_rows)(4, grad, planes, s->pitch, height, width, where + k, sums + k);
        for (; k + 2 <= end; k += 2) N(dot_rows)(2, grad, planes, s->pitch, height, width, where + k, sums + k);
        for (; k < end; k++) N(dot_rows)(1, grad, planes, s->pitch, height, width, where + k, sums + k);
    }
}

/* `width` weights of one output at a time share what is loaded of its gradient. */
static inline __attribute__((always_inline)) void N(dot)(const int width, const REAL *grad, const REAL *planes,
                                                         int64_t length, const int *where, REAL *sums)
{
    VEC even[4], odd[4];
#pragma GCC unroll 4
    for (int j = 0; j < width; j++) even[j] = odd[j] = (VEC){0};
    for (int64_t p = 0; p < length; p += 2 * LANES) {
        const VEC g = AT(grad + p), h = AT(grad + p + LANES);
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) {
            even[j] += g * AT(planes + where[j] + p);
            odd[j] += h * AT(planes + where[j] + p + LANES);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < width; j++) sums[j] += N(total)(even[j] + odd[j]);
}

static void N(dots)(const Shape *s, const REAL *grads, const REAL *planes, int64_t length, const int64_t *first,
                    const int *where, REAL *sums)
{
    for (int64_t o = 0; o < s->outputs; o++) {
        const REAL *grad = grads + o * s->grad + s->slack;
        int64_t k = first[o];
        for (; k + 4 <= first[o + 1]; k += 4) N(dot)(4, grad, planes, length, where + k, sums + k);
        for (; k < first[o + 1]; k++) N(dot)(1, grad, planes, length, where + k, sums + k);
    }
}

/* Places X of a plane whose pixel stride * X + phase - pad lies in the image: from start to end. */
#define START(phase, pad, stride) ((phase) >= (pad) ? 0 : ((pad) - (phase) + (stride) - 1) / (stride))
#define END(size, phase, pad, stride) (((size) + (pad) - (phase) + (stride) - 1) / (stride))

/* One image into planes (channel, remainder of y, remainder of x), or out of them. */
static inline __attribute__((always_inline)) void N(move)(const Shape *s, const int64_t stride, REAL *planes, REAL *image,
                                                          const int64_t *first, const int out)
{
    for (int64_t rest = 0; rest < s->stride_y; rest++)
        for (int64_t phase = 0; phase < stride; phase++) {
            const int64_t top = START(rest, s->pad_y, s->stride_y), bottom = END(s->height, rest, s->pad_y, s->stride_y);
            const int64_t start = START(phase, s->pad_x, stride), end = END(s->width, phase, s->pad_x, stride);
            const int64_t shift = phase - s->pad_x, pitch = s->pitch, skip = s->stride_y * s->width, width = s->width;
            for (int64_t channel = 0; channel < s->channels; channel++) {
                const int64_t index = (channel * s->stride_y + rest) * stride + phase;
                if (!out && first[index] == first[index + 1]) continue; /* no weight looks there */
                REAL *plane = planes + index * s->plane + top * pitch;
                REAL *pixels = image + (channel * s->height + top * s->stride_y + rest - s->pad_y) * width;
                if (stride == 1 && out) N(copy_rows)(pixels, skip, plane - shift, pitch, bottom - top, width);
                else if (stride == 1) N(copy_rows)(plane - shift, pitch, pixels, skip, bottom - top, width);
                else for (int64_t Y = top; Y < bottom; Y++, plane += pitch, pixels += skip)
                    for (int64_t X = start; X < end; X++)
                        if (out) pixels[X * stride + shift] = plane[X];
                        else plane[X] = pixels[X * stride + shift];
            }
        }
}

static void N(pack)(const Shape *s, int64_t images, const REAL *x, REAL *planes, const int64_t *back_first)
{
    for (int64_t n = 0; n < images; n++) {
        REAL *to = planes + n * s->rows * s->pitch, *from = (REAL *)x + n * s->channels * s->height * s->width;
        if (s->stride_x == 1) N(move)(s, 1, to, from, back_first, 0);
        else if (s->stride_x == 2) N(move)(s, 2, to, from, back_first, 0);
        else N(move)(s, s->stride_x, to, from, back_first, 0);
    }
}

static void N(unpack)(const Shape *s, int64_t images, const REAL *planes, REAL *x)
{
    for (int64_t n = 0; n < images; n++) {
        REAL *from = (REAL *)planes + n * s->rows * s->pitch, *to = x + n * s->channels * s->height * s->width;
        if (s->stride_x == 1) N(move)(s, 1, from, to, 0, 1);
        else if (s->stride_x == 2) N(move)(s, 2, from, to, 0, 1);
        else N(move)(s, s->stride_x, from, to, 0, 1);
    }
}

/* The kept weights in the order of `index`, or where `order` is given of index[order]; null if memory ran out. */
static REAL *N(kept_of)(const REAL *weight, const int64_t *index, const int64_t *order, int64_t count)
{
    REAL *value = room(count * sizeof(REAL));
    for (int64_t k = 0; value && k < count; k++) value[k] = weight[index[order ? order[k] : k]];
    return value;
}

/* Mean and sum of squared distances of one plane, which is also copied. */
static void N(statistics_of)(const REAL *plane, REAL *copy, int64_t places, double *found, int past)
{
    double first = 0, second = 0;
    N(sums)(plane, *plane, places, &first, &second);
    int64_t p = 0;
    for (; p + LANES <= places; p += LANES) STORE(copy + p, AT(plane + p), past);
    for (; p < places; p++) copy[p] = plane[p];
    const double within = second - first * first / places;
    found[0] = *plane + first / places;
    found[1] = within > 0 || within != within ? within : 0;
}

/* y = x * w, or with a what follows; or with parts (images, outputs, 2) its statistics too. */
int N(sparse_conv)(const Shape *s, int64_t images, const REAL *x, const REAL *weight, REAL *y, const int64_t *index,
                   const int64_t *first, const int *where, const int64_t *back_first, const REAL *a, const REAL *b, const REAL *add, int64_t relu,
                   double *parts, int64_t threads)
{
    const int64_t places = s->out_height * s->out_width, result = s->outputs * places;
    const int64_t count = s->channels * s->stride_y * s->stride_x, image = s->channels * s->height * s->width;
    const int past = places % LANES == 0 && streams(y, images * result * sizeof(REAL));
    REAL *value = N(kept_of)(weight, index, 0, first[s->outputs]);
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(| : failed)
    {
        REAL *planes = cleared((count * s->plane + s->slack) * sizeof(REAL)), *out = room(s->outputs * s->plane * sizeof(REAL));
        REAL *held = room((parts ? s->stack * result : 0) * sizeof(REAL)); /* y of these images, while statistics are taken */
        failed = !value || !planes || !out || !held;
#pragma omp for schedule(static)
        for (int64_t n = 0; n < images; n += s->stack) {
            if (failed) continue;
            const int64_t here = images - n < s->stack ? images - n : s->stack;
            REAL *to = parts ? held : y + n * result;
            N(pack)(s, here, x + n * image, planes, back_first);
            if (s->out_width % 8 == 0) {
                const Ahead ahead = ahead_of(x + (n + 1) * image, n + 1 < images ? image * sizeof(REAL) : 0);
                const N(After) after = {a, b, add ? add + n * result : 0, relu};
                N(combine_tiles)(planes, s->pitch, to, s->out_height, s->out_width, s->outputs, first, where, value, after,
                                 past && !parts, ahead);
            } else {
                N(combine)(planes, out, s->plane, ((here - 1) * s->rows + s->out_height) * s->pitch, s->outputs, first, where,
                           value);
                for (int64_t at = 0; at < here * s->outputs; at++) {
                    const int64_t o = at % s->outputs, m = at / s->outputs;
                    REAL *plane = to + at * places;
                    N(copy_rows)(plane, s->out_width, out + o * s->plane + m * s->rows * s->pitch, s->pitch, s->out_height,
                                 s->out_width);
                    if (a) N(finish)(0, relu, plane, a + o, b + o, add ? add + n * result + at * places : 0, plane, places, 0);
                }
            }
            for (int64_t at = 0; parts && at < here * s->outputs; at++)
                N(statistics_of)(to + at * places, y + n * result + at * places, places, parts + 2 * (n * s->outputs + at), past);
        }
        DONE();
        free(planes);
        free(out);
        free(held);
    }
    free(value);
    return failed;
}

/* by_x (which needs the weight) or by_weight may be null; by_weight is written where weights are kept. Where BatchNorm
   followed: y that it was given, its a, b and k of `batch_norm_backward`, and whether there was a ReLU that g has not
   passed through yet; else y is null. */
int N(sparse_conv_backward)(const Shape *s, int64_t images, const REAL *x, const REAL *weight, const REAL *g, REAL *by_x,
                            REAL *by_weight, const int64_t *index, const int64_t *first, const int *where, const int64_t *order,
                            const int64_t *back_first, const int *back_where, const REAL *y, const REAL *a, const REAL *b, const REAL *k, int64_t relu,
                            int64_t threads)
{
    const N(After) nothing = {0};
    const int64_t count = s->channels * s->stride_y * s->stride_x, image = s->channels * s->height * s->width;
    const int64_t places = s->out_height * s->out_width, result = s->outputs * places;
    const int past = streams(by_x, images * image * sizeof(REAL));
    const int64_t kept = first[s->outputs];
    REAL *back_value = by_x ? N(kept_of)(weight, index, order, kept) : room(0);
    REAL *by_value = by_weight ? cleared(threads * kept * sizeof(REAL)) : room(0); /* each thread adds in its own line */
    const int straight = s->out_width % 8 == 0; /* dots with g as it is */
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(| : failed)
    {
        REAL *planes = cleared((count * s->plane + s->slack) * sizeof(REAL)), *grads = cleared(s->outputs * s->grad * sizeof(REAL));
        REAL *back = room(count * s->plane * sizeof(REAL)), *through = room((y ? s->stack * result : 0) * sizeof(REAL));
        failed = !back_value || !by_value || !planes || !grads || !back || !through;
#pragma omp for schedule(static)
        for (int64_t n = 0; n < images; n += s->stack) {
            if (failed) continue;
            const int64_t here = images - n < s->stack ? images - n : s->stack;
            const REAL *now = g + n * result; /* the gradients of these images */
            for (int64_t at = 0; y && at < here * s->outputs; at++) {
                const int64_t o = at % s->outputs, from = n * result + at * places;
                N(back)(0, relu ? N(BY_Y) : N(LINEAR), g + from, y + from, a + o, b + o, k + o, s->outputs,
                        through + at * places, places, 0);
            }
            if (y) now = through;
            if (here < s->stack) memset(grads, 0, s->outputs * s->grad * sizeof(REAL)); /* what is left of earlier images */
            for (int64_t m = 0; m < here && (by_x || !straight); m++)
                for (int64_t o = 0; o < s->outputs; o++)
                    N(copy_rows)(grads + o * s->grad + s->slack + m * s->rows * s->pitch, s->pitch,
                                 now + (m * s->outputs + o) * places, s->out_width, s->out_height, s->out_width);
            const int64_t next = n + 1 < images ? sizeof(REAL) : 0; /* bytes of a number of the next image */
            if (by_weight) {
                REAL *sums = by_value + THREAD * kept;
                N(pack)(s, here, x + n * image, planes, back_first);
                if (straight) N(dots_rows)(s, now, planes, first, where, sums, ahead_of(g + (n + 1) * result, next * result));
                else N(dots)(s, grads, planes, ((here - 1) * s->rows + s->out_height) * s->pitch, first, where, sums);
            }
            if (!by_x) continue;
            REAL *to = by_x + n * image;
            if (s->stride_y == 1 && s->stride_x == 1 && s->width % 8 == 0 && straight) {
                /* the image without its padding */
                N(combine_tiles)(grads + s->pad_y * s->pitch + s->pad_x, s->pitch, to, s->height, s->width, count,
                                 back_first, back_where, back_value, nothing, past,
                                 ahead_of(x + (n + 1) * image, next * image));
            } else {
                N(combine)(grads, back, s->plane, here * s->rows * s->pitch, count, back_first, back_where, back_value);
                N(unpack)(s, here, back, to);
            }
        }
        free(planes);
        DONE();
        free(grads);
        free(back);
        free(through);
    }
    for (int64_t j = 0; by_weight && !failed && j < kept; j++) {
        REAL sum = by_value[j];
        for (int64_t part = 1; part < threads; part++) sum += by_value[part * kept + j];
        by_weight[index[j]] = sum;
    }
    free(by_value);
    free(back_value);
    return failed;
}

#undef START
#undef END
#undef VEC
#undef LANES
#undef AT
