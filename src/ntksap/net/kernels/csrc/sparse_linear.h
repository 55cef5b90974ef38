/* Linear layers that touch the kept weights only.

   Inputs are turned, in tiles of up to 4 vectors of the batch, so that one number of every input in the tile lies in a
   row; then a kept weight multiplies whole vectors:

       turned y[o] (tile) = bias[o] + sum over kept weights k of o: value[k] * turned x[column[k]] (tile)
       by_value[k]        = sum over the batch:                     turned g[o] * turned x[column[k]]

   Outputs of a group keep the same columns, so that they share what is loaded: masks of blocks have groups of 4, others
   mostly of 1. A group's weights lie together, value[k * size + r] for its r-th output.
   The derivative with respect to the inputs is the same product, of g with the lists the other way round.           */

#ifndef SPARSE_LINEAR_GROUPS
#define SPARSE_LINEAR_GROUPS
#define MOST_ROWS 4           /* outputs of a group */
#define MOST_VECTORS 4        /* of the batch in a tile */
#define FEW_PRODUCTS (1 << 18) /* which one thread has done before another is awake */
#define OWN_CACHE (512 << 10) /* bytes of a core's own cache that a tile of inputs may take */

typedef struct {
    int64_t inputs, outputs, groups;
    const int64_t *row;    /* (groups + 1) the first output of each group */
    const int64_t *first;  /* (groups + 1) where its columns begin in `column` */
    const int64_t *start;  /* (groups + 1) where its weights begin in `value` */
    const int *column;
} Lists;

/* Lists the kept weights of (outputs, inputs), which are `across` and `down` numbers apart. Returns through `groups` how
   many groups there are; index[k] is the place of a weight. */
int linear_plan(const char *kept, int64_t outputs, int64_t inputs, int64_t down, int64_t across, int64_t *groups, int64_t *row,
                int64_t *first, int64_t *start, int *column, int *index)
{
    int64_t found = 0, columns = 0, weights = 0;
    for (int64_t o = 0, size; o < outputs; o += size) {
        int64_t count = 0;
        for (int64_t i = 0; i < inputs; i++)
            if (kept[o * down + i * across]) column[columns + count++] = i;
        for (size = 1; size < MOST_ROWS && o + size < outputs; size++) {
            int64_t i = 0;
            while (i < inputs && !kept[o * down + i * across] == !kept[(o + size) * down + i * across]) i++;
            if (i < inputs) break;
        }
        row[found] = o, first[found] = columns, start[found] = weights, found++;
        for (int64_t k = 0; k < count; k++)
            for (int64_t r = 0; r < size; r++) index[weights++] = (o + r) * down + column[columns + k] * across;
        columns += count;
    }
    row[found] = outputs, first[found] = columns, start[found] = weights, *groups = found;
    return 0;
}
#endif

typedef REAL N(wide) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define VEC N(wide)
#define LANES ((int64_t)(BYTES / sizeof(REAL)))
#define AT(p) (*(const VEC *)(p))
#define UNROLL _Pragma("GCC unroll 16")

/* Turns a square of LANES x LANES numbers. */
static inline __attribute__((always_inline)) void N(turn)(const REAL *from, int64_t from_pitch, REAL *to, int64_t to_pitch)
{
#if defined(__GNUC__) && !defined(__clang__)
    typedef __typeof__(((VEC){0} == (VEC){0})) WHICH;
    VEC now[LANES], next[LANES];
    WHICH low, high;
    UNROLL for (int j = 0; j < LANES / 2; j++) {
        low[2 * j] = j, low[2 * j + 1] = j + LANES;
        high[2 * j] = j + LANES / 2, high[2 * j + 1] = j + LANES / 2 + LANES;
    }
    UNROLL for (int j = 0; j < LANES; j++) now[j] = AT(from + j * from_pitch);
    UNROLL for (int step = 1; step < LANES; step *= 2) { /* each interleaves the first half of the rows with the second */
        UNROLL for (int j = 0; j < LANES / 2; j++) {
            next[2 * j] = __builtin_shuffle(now[j], now[j + LANES / 2], low);
            next[2 * j + 1] = __builtin_shuffle(now[j], now[j + LANES / 2], high);
        }
        UNROLL for (int j = 0; j < LANES; j++) now[j] = next[j];
    }
    UNROLL for (int j = 0; j < LANES; j++) *(VEC *)(to + j * to_pitch) = now[j];
#else
    for (int j = 0; j < LANES; j++)
        for (int i = 0; i < LANES; i++) to[i * to_pitch + j] = from[j * from_pitch + i];
#endif
}

/* (rows, columns) to (columns, wide), with zeros where there are no rows. */
static void N(turn_in)(const REAL *from, int64_t pitch, int64_t rows, int64_t columns, REAL *to, int64_t wide)
{
    for (int64_t c = 0; c < columns; c += LANES)
        for (int64_t r = 0; r < wide; r += LANES) {
            if (c + LANES <= columns && r + LANES <= rows) {
                N(turn)(from + r * pitch + c, pitch, to + c * wide + r, wide);
                continue;
            }
            for (int64_t i = c; i < c + LANES && i < columns; i++)
                for (int64_t j = r; j < r + LANES; j++) to[i * wide + j] = j < rows ? from[j * pitch + i] : 0;
        }
}

/* (rows, wide) to the first `columns` of (columns, pitch). */
static void N(turn_out)(const REAL *from, int64_t wide, int64_t rows, int64_t columns, REAL *to, int64_t pitch)
{
    for (int64_t c = 0; c < columns; c += LANES) {
        if (rows == LANES && c + LANES <= columns) {
            N(turn)(from + c, wide, to + c * pitch, pitch);
            continue;
        }
        for (int64_t j = c; j < c + LANES && j < columns; j++)
            for (int64_t i = 0; i < rows; i++) to[j * pitch + i] = from[i * wide + j];
    }
}

/* One group of `size` outputs, `vecs` vectors of the batch. */
static inline __attribute__((always_inline)) void N(group)(const int size, const int vecs, const REAL *restrict x, const int *column,
                                                           const REAL *value, int64_t count, const REAL *bias, REAL *restrict y)
{
    /* One sum waits for its last addition; so a small tile has several, that weights are added to in turn. */
    const int tile = size * vecs, turns = tile < 4 ? 4 : 1;
    VEC sum[MOST_ROWS * MOST_VECTORS];
    UNROLL for (int j = 0; j < turns * tile; j++) sum[j] = (j < tile && bias ? bias[j / vecs] : 0) - (VEC){0};
    int64_t k = 0;
#define ADD(turn)                                                                                                        \
    {                                                                                                                    \
        const REAL *at = x + column[k + turn] * (vecs * LANES);                                                          \
        UNROLL for (int r = 0; r < size; r++) {                                                                          \
            const VEC times = value[(k + turn) * size + r] - (VEC){0};                                                   \
            UNROLL for (int j = 0; j < vecs; j++) sum[turn * tile + r * vecs + j] += times * AT(at + j * LANES);         \
        }                                                                                                                \
    }
    for (; k + turns <= count; k += turns) UNROLL for (int turn = 0; turn < turns; turn++) ADD(turn)
    for (; k < count; k++) ADD(0)
#undef ADD
    UNROLL for (int j = tile; j < turns * tile; j++) sum[j % tile] += sum[j];
    UNROLL for (int j = 0; j < tile; j++) *(VEC *)(y + j * LANES) = sum[j];
}

static inline __attribute__((always_inline)) void N(groups)(const int vecs, const Lists *l, int64_t from, int64_t to, const REAL *x,
                                                            const REAL *value, const REAL *bias, REAL *y, int64_t count)
{
    REAL out[(2 * MOST_ROWS + LANES) * MOST_VECTORS * LANES] __attribute__((aligned(LINE))); /* turned, until there are enough rows to turn back */
    const int64_t wide = vecs * LANES;
    int64_t held = 0, row = l->row[from];
    for (int64_t at = from; at < to; at++) {
        const int64_t size = l->row[at + 1] - l->row[at], columns = l->first[at + 1] - l->first[at];
        const int *column = l->column + l->first[at];
        const REAL *weights = value + l->start[at], *biases = bias ? bias + l->row[at] : 0;
        REAL *here = out + held * wide;
        if (size == 1) N(group)(1, vecs, x, column, weights, columns, biases, here);
        else if (size == 2) N(group)(2, vecs, x, column, weights, columns, biases, here);
        else if (size == 3) N(group)(3, vecs, x, column, weights, columns, biases, here);
        else N(group)(4, vecs, x, column, weights, columns, biases, here);
        held += size;
        if (held >= LANES) {
            N(turn_out)(out, wide, LANES, count, y + row, l->outputs);
            held -= LANES, row += LANES;
            memcpy(out, out + LANES * wide, held * wide * sizeof(REAL));
        }
    }
    N(turn_out)(out, wide, held, count, y + row, l->outputs);
}

/* x (count, inputs) -> y (count, outputs); bias may be null. */
int N(sparse_linear)(const Lists *l, int64_t count, const REAL *x, REAL *y, const REAL *value, const REAL *bias, int64_t threads)
{
    if (l->start[l->groups] * count < FEW_PRODUCTS) threads = 1;
    const int64_t vectors = (count + LANES - 1) / LANES, most = l->inputs * 4 * BYTES <= OWN_CACHE ? 4 : 2;
    const int64_t vecs = vectors < most ? (vectors + 1) / 2 * 2 - (vectors == 1) : most, wide = vecs * LANES;
    const int64_t tiles = (count + wide - 1) / wide, parts = tiles % threads ? threads : 1;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(| : failed)
    {
        REAL *turned = room(l->inputs * wide * sizeof(REAL));
        int64_t inside = -1;
        failed = !turned;
#pragma omp for schedule(static)
        for (int64_t work = 0; work < tiles * parts; work++) {
            if (failed) continue;
            const int64_t tile = work / parts, part = work % parts, n = tile * wide;
            const int64_t from = l->groups * part / parts, to = l->groups * (part + 1) / parts;
            const int64_t rows = count - n < wide ? count - n : wide;
            if (tile != inside) N(turn_in)(x + n * l->inputs, l->inputs, rows, l->inputs, turned, wide);
            inside = tile;
            REAL *to_y = y + n * l->outputs;
            if (vecs == 4) N(groups)(4, l, from, to, turned, value, bias, to_y, rows);
            else if (vecs == 2) N(groups)(2, l, from, to, turned, value, bias, to_y, rows);
            else N(groups)(1, l, from, to, turned, value, bias, to_y, rows);
        }
        free(turned);
    }
    return failed;
}

/* to[k] = from[index[k]] */
int N(take)(const REAL *from, REAL *to, const int *index, int64_t count, int64_t threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1 && count > 65536) schedule(static)
    for (int64_t k = 0; k < count; k++) to[k] = from[index[k]];
    return 0;
}

/* to[index[k]] = from[k]; no index comes twice. */
int N(put)(const REAL *from, REAL *to, const int *index, int64_t count, int64_t threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1 && count > 65536) schedule(static)
    for (int64_t k = 0; k < count; k++) to[index[k]] = from[k];
    return 0;
}

static inline __attribute__((always_inline)) REAL N(across)(VEC v)
{
    typedef REAL QUARTER __attribute__((vector_size(16), may_alias));
    const QUARTER *part = (const QUARTER *)&v;
    QUARTER sum = part[0];
    UNROLL for (int j = 1; j < BYTES / 16; j++) sum += part[j];
    return sizeof(REAL) == 8 ? sum[0] + sum[1] : (sum[0] + sum[1]) + (sum[2 % (16 / sizeof(REAL))] + sum[3 % (16 / sizeof(REAL))]);
}

/* The derivatives of `size` outputs and `some` columns share what is loaded of either. */
static inline __attribute__((always_inline)) void N(linear_dots)(const int size, const int some, const REAL *g, const REAL *x,
                                                                 int64_t wide, const int *column, REAL *sums)
{
    VEC sum[4 * MOST_ROWS];
    UNROLL for (int j = 0; j < some * size; j++) sum[j] = (VEC){0};
    for (int64_t n = 0; n < wide; n += LANES) {
        VEC times[MOST_ROWS];
        UNROLL for (int r = 0; r < size; r++) times[r] = AT(g + r * wide + n);
        UNROLL for (int j = 0; j < some; j++) {
            const VEC here = AT(x + column[j] * wide + n);
            UNROLL for (int r = 0; r < size; r++) sum[j * size + r] += times[r] * here;
        }
    }
    UNROLL for (int j = 0; j < some * size; j++) sums[j] += N(across)(sum[j]);
}

static inline __attribute__((always_inline)) void N(group_dots)(const int size, const REAL *g, const REAL *x, int64_t wide,
                                                                const int *column, int64_t count, REAL *sums)
{
    int64_t k = 0;
    for (; k + 4 <= count; k += 4) N(linear_dots)(size, 4, g, x, wide, column + k, sums + k * size);
    for (; k < count; k++) N(linear_dots)(size, 1, g, x, wide, column + k, sums + k * size);
}

/* x (count, inputs), g (count, outputs); by_value, in the order of the weights, is added to. */
int N(sparse_linear_by_value)(const Lists *l, int64_t count, const REAL *x, const REAL *g, REAL *by_value, int64_t threads)
{
    if (l->start[l->groups] * count < FEW_PRODUCTS) threads = 1;
    const int64_t most = 8 * LANES, vectors = (count + LANES - 1) / LANES, wide = vectors < 8 ? vectors * LANES : most;
    const int64_t squares = (l->inputs + LANES - 1) / LANES, bands = (l->groups + 15) / 16;
    REAL *turned = room(l->inputs * wide * sizeof(REAL));
    int failed = !turned;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < count && !failed; n += wide) {
        const int64_t rows = count - n < wide ? count - n : wide;
#pragma omp for schedule(static)
        for (int64_t s = 0; s < squares; s++) {
            const int64_t at = s * LANES, columns = l->inputs - at < LANES ? l->inputs - at : LANES;
            N(turn_in)(x + n * l->inputs + at, l->inputs, rows, columns, turned + at * wide, wide);
        }
#pragma omp for schedule(static)
        for (int64_t band = 0; band < bands; band++) {
            REAL gradient[16 * MOST_ROWS * 8 * LANES] __attribute__((aligned(LINE)));
            const int64_t from = band * 16, to = from + 16 < l->groups ? from + 16 : l->groups;
            N(turn_in)(g + n * l->outputs + l->row[from], l->outputs, rows, l->row[to] - l->row[from], gradient, wide);
            for (int64_t at = from; at < to; at++) {
                const int64_t size = l->row[at + 1] - l->row[at];
                const REAL *own = gradient + (l->row[at] - l->row[from]) * wide;
                const int *column = l->column + l->first[at];
                const int64_t columns = l->first[at + 1] - l->first[at];
                REAL *sums = by_value + l->start[at];
                if (size == 1) N(group_dots)(1, own, turned, wide, column, columns, sums);
                else if (size == 2) N(group_dots)(2, own, turned, wide, column, columns, sums);
                else if (size == 3) N(group_dots)(3, own, turned, wide, column, columns, sums);
                else N(group_dots)(4, own, turned, wide, column, columns, sums);
            }
        }
    }
    free(turned);
    return failed;
}

#undef VEC
#undef LANES
#undef AT
#undef UNROLL
