// Freivalds' check of a stack of products; freivalds.py launches these kernels. Compiled after wide.cu,
// for one element type: FLOAT16, FLOAT32, FLOAT64, COMPLEX64 or COMPLEX128 is defined. Each element is
// read once, widened to double, and multiplied by all vectors.
//
// A stack is n matrices of (rows, cols) elements, without gaps. Vectors are planes of float64,
// (n or 1, PLANES, length): first the real parts of VECTORS vectors, then, for complex numbers, their
// imaginary parts, and last the moduli. length is even, and elements past the end of a vector are 0,
// so that kernels can read planes in pairs.

typedef long long i64;
typedef unsigned long long u64;

#define VECTORS 4
#define BLOCK 256  // threads

#if defined(FLOAT16)
typedef unsigned short Real;
typedef ushort2 Pair;
#elif defined(FLOAT32) || defined(COMPLEX64)
typedef float Real;
typedef float2 Pair;
#else
typedef double Real;
typedef double2 Pair;
#endif

// A load takes two columns of a real matrix, or one of a complex one.
#if defined(COMPLEX64) || defined(COMPLEX128)
#define PARTS 2   // numbers in an element
#define COLUMNS 1 // columns in a load
#define ROWS 2    // rows that share each read of the vectors; more would not fit into the registers
#else
#define PARTS 1
#define COLUMNS 2
#define ROWS 4
#endif
#define PLANES (VECTORS * PARTS + 1)

__device__ u64 bits_of(double modulus) {
    // The bits of moduli, read as integers, have the order of the numbers; NaN is above infinity.
    return (u64)__double_as_longlong(modulus) & 0x7fffffffffffffffull;
}

// Whether the matrix can be read in pairs. If not, single numbers are read: slower, at any address.
__device__ bool in_pairs(const Real* x, i64 cols) {
    return (PARTS == 2 || cols % 2 == 0) && ((u64)x & (sizeof(Pair) - 1)) == 0;
}

// The two numbers at p; the second is 0 if there is only one.
__device__ Pair load(const Real* p, bool both, bool paired) {
    if (paired) return __ldg((const Pair*)p);
    return Pair{__ldg(p), both ? __ldg(p + 1) : (Real)0};
}

// `size` threads that share the work on ROWS rows of one matrix. Every thread belongs to a team and
// reaches all barriers; a team that has no rows is idle.
struct Team {
    i64 matrix, row;
    int rank, size;
    bool idle;
};

__device__ Team my_team(i64 n, i64 rows, int size) {
    i64 groups = (rows + ROWS - 1) / ROWS;
    i64 i = (i64)blockIdx.x * (BLOCK / size) + (int)threadIdx.x / size;
    bool idle = i >= n * groups;
    if (idle) i = 0;
    i64 matrix = i / groups;
    return Team{matrix, (i - matrix * groups) * ROWS, (int)threadIdx.x % size, size, idle};
}

// Adds a thread's part of ROWS rows times the vectors; only if MODULI, also the moduli. In place of rows
// past the end it takes the last row again.
template <bool MODULI>
__device__ void multiply_rows(const Team& team, const Real* x, i64 rows, i64 cols, const double* v,
                              i64 length, double (&sum)[ROWS][PLANES]) {
    const Real* row[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        i64 i = team.row + r < rows ? team.row + r : rows - 1;
        row[r] = x + PARTS * (team.matrix * rows + i) * cols;
    }
    bool paired = in_pairs(x, cols);
    if (team.idle) return;
#pragma unroll 4
    for (i64 c = team.rank * COLUMNS; c < cols; c += team.size * COLUMNS) {
        Pair x[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            x[r] = load(row[r] + PARTS * c, PARTS == 2 || c + 1 < cols, paired);
#if PARTS == 1
        double2 w[PLANES];
#pragma unroll
        for (int p = 0; p < PLANES - !MODULI; ++p) w[p] = *(const double2*)(v + p * length + c);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            double a = wide(x[r].x), b = wide(x[r].y);
#pragma unroll
            for (int p = 0; p < VECTORS; ++p) sum[r][p] += a * w[p].x + b * w[p].y;
            if (MODULI) sum[r][VECTORS] += fabs(a) * w[VECTORS].x + fabs(b) * w[VECTORS].y;
        }
#else
        double w[PLANES];
#pragma unroll
        for (int p = 0; p < PLANES - !MODULI; ++p) w[p] = v[p * length + c];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            double a = wide(x[r].x), b = wide(x[r].y);
#pragma unroll
            for (int p = 0; p < VECTORS; ++p) {
                sum[r][p] += a * w[p] - b * w[VECTORS + p];
                sum[r][VECTORS + p] += a * w[VECTORS + p] + b * w[p];
            }
            if (MODULI) sum[r][2 * VECTORS] += (fabs(a) + fabs(b)) * w[2 * VECTORS];
        }
#endif
    }
}

typedef double Shared[BLOCK / 4][ROWS * PLANES];  // the smallest team has 4 threads

// Adds up the sums of a team's threads, except for the last SKIP planes of each row. Afterwards shared
// memory holds one record for each warp of the team; a team that is smaller than a warp has one.
template <int SKIP>
__device__ void gather(int size, double (&sum)[ROWS][PLANES], Shared& shared) {
    int unit = size < 32 ? size : 32;
    for (int step = unit / 2; step > 0; step /= 2)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int p = 0; p < PLANES - SKIP; ++p)
                sum[r][p] += __shfl_xor_sync(~0u, sum[r][p], step);
    if (threadIdx.x % unit == 0)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int p = 0; p < PLANES - SKIP; ++p)
                shared[threadIdx.x / unit][r * PLANES + p] = sum[r][p];
    __syncthreads();
}

// Sum number i of this thread's team, added up over its records.
__device__ double total(int size, const Shared& shared, int i) {
    int parts = size < 32 ? 1 : size / 32;
    const double(*part)[ROWS * PLANES] = shared + threadIdx.x / size * parts;
    double sum = 0;
    for (int k = 0; k < parts; ++k) sum += part[k][i];
    return sum;
}

// Raises *most to the largest of the values of `unit` neighbouring threads, if that is larger.
__device__ void raise(u64* most, u64 value, int unit, bool idle) {
    for (int step = unit / 2; step > 0; step /= 2) {
        u64 other = __shfl_xor_sync(~0u, value, step);
        value = other > value ? other : value;
    }
    // Compare first: most threads have nothing to raise, and so need no atomic operation.
    if (!idle && threadIdx.x % unit == 0 && value > *(volatile u64*)most) atomicMax(most, value);
}

// y = X v; its plane of moduli is |X| w, where w is that of v. One team for ROWS rows. If `where` is not
// null, X begins at the matrix that `take_row` wrote there; likewise in `columns_times`.
extern "C" __global__ void __launch_bounds__(BLOCK)
rows_times(const Real* x, i64 n, i64 rows, i64 cols, const double* v, i64 length, i64 v_stride,
           double* y, i64 y_length, int size, const i64* where) {
    if (where) x += PARTS * rows * cols * where[0];
    __shared__ Shared shared;
    Team team = my_team(n, rows, size);
    double sum[ROWS][PLANES] = {};
    multiply_rows<true>(team, x, rows, cols, v + team.matrix * v_stride, length, sum);
    gather<0>(size, sum, shared);
    if (team.idle) return;
    for (int i = team.rank; i < ROWS * PLANES; i += size) {
        i64 r = team.row + i / PLANES;
        if (r < rows) y[(team.matrix * PLANES + i % PLANES) * y_length + r] = total(size, shared, i);
    }
}

// For each matrix, the largest |C v - y| / (relative * w + absolute), by its bits; y and w are the
// planes of A (B v). It is infinite or NaN if anything is not finite. C times the last vector goes to
// own, (n, PARTS, y_length). spot is null, or receives the worst row of all matrices: its upper 32 bits
// are those of the row's ratio, its lower ones 2^32 - 1 minus the row's number in C, so that of rows
// with equal upper bits the first is the largest. One team for ROWS rows.
extern "C" __global__ void __launch_bounds__(BLOCK)
compare(const Real* x, i64 n, i64 rows, i64 cols, const double* v, i64 length, const double* y,
        i64 y_length, double relative, double absolute, int size, u64* ratio, double* own,
        u64* spot) {
    __shared__ Shared shared;
    Team team = my_team(n, rows, size);
    double sum[ROWS][PLANES] = {};
    multiply_rows<false>(team, x, rows, cols, v, length, sum);
    gather<1>(size, sum, shared);
    u64 worst = 0, which = 0;
    for (int i = team.rank; i < ROWS * VECTORS && !team.idle; i += size) {
        int r = i / VECTORS, p = i % VECTORS;
        if (team.row + r >= rows) break;
        const double* found = y + team.matrix * PLANES * y_length + team.row + r;
        double sums[PARTS], gap = 0;
#pragma unroll
        for (int k = 0; k < PARTS; ++k) {
            sums[k] = total(size, shared, r * PLANES + k * VECTORS + p);
            gap += fabs(sums[k] - found[(k * VECTORS + p) * y_length]);
            if (p == VECTORS - 1)
                own[(team.matrix * PARTS + k) * y_length + team.row + r] = sums[k];
        }
        double bound = relative * found[(PLANES - 1) * y_length] + absolute;
        const u64 infinity = 0x7ff0000000000000ull;  // as a bound it would prove nothing
        u64 value = bits_of(bound) < infinity ? bits_of(gap / bound) : 0x7ff8000000000000ull;
        worst = max(worst, value);
        u64 number = team.matrix * rows + team.row + r;
        which = max(which, (value >> 32 << 32) | (0xffffffffu - number));
    }
    raise(ratio + team.matrix, worst, size < 32 ? size : 32, team.idle);
    if (spot) raise(spot, which, size < 32 ? size : 32, team.idle);
}

// Writes the row of A that `spot` names to v: as the first vector, and its moduli as the last plane. If
// `turned`, this row is a column of the stored matrix. From row `stored` on, A is all ones. `where`
// receives the numbers of the matrix and of the row. One thread for each of `inner` elements.
extern "C" __global__ void __launch_bounds__(BLOCK)
take_row(const Real* x, i64 inner, int turned, i64 rows, i64 stored, const u64* spot, double* v,
         i64 length, i64* where) {
    i64 number = 0xffffffffu - (unsigned int)*spot, matrix = number / rows, row = number % rows;
    i64 k = (i64)blockIdx.x * BLOCK + threadIdx.x;
    if (k >= inner) return;
    x += PARTS * (matrix * stored * inner + (turned ? k * stored + row : row * inner + k));
    double size = 0;
    for (int part = 0; part < PARTS; ++part) {
        double number = row < stored ? wide(x[part]) : part == 0;
        v[part * VECTORS * length + k] = number;
        size += fabs(number);
    }
    v[(PLANES - 1) * length + k] = size;
    if (k > 0) return;
    where[0] = matrix;
    where[1] = row;
}

// Raises the ratio of one matrix to the largest |c - y| / (relative * w + absolute) of the elements c of
// row `where` of C; y and w are the planes of the row of `take_row` times B. One thread per element.
extern "C" __global__ void __launch_bounds__(BLOCK)
compare_row(const Real* x, i64 rows, i64 cols, const double* y, i64 y_length, double relative,
            double absolute, const i64* where, u64* ratio) {
    i64 c = (i64)blockIdx.x * BLOCK + threadIdx.x;
    u64 value = 0;
    if (c < cols) {
        x += PARTS * ((where[0] * rows + where[1]) * cols + c);
        double gap = 0, bound = relative * y[(PLANES - 1) * y_length + c] + absolute;
        for (int part = 0; part < PARTS; ++part)
            gap += fabs(wide(x[part]) - y[part * VECTORS * y_length + c]);
        value = bits_of(gap / bound);
    }
    raise(ratio + where[0], value, 32, c >= cols);
}

// y = X^T v; its plane of moduli is |X|^T w. One thread for COLUMNS columns of `chunk` rows; `chunk` is
// even. If there are several chunks, their sums are added in any order to y, which must be 0 before:
// so the last bits may differ from run to run.
extern "C" __global__ void __launch_bounds__(BLOCK)
columns_times(const Real* x, i64 n, i64 rows, i64 cols, const double* v, i64 length,
              i64 v_stride, double* y, i64 y_length, i64 chunk, const i64* where) {
    if (where) x += PARTS * rows * cols * where[0];
    i64 packs = (cols + COLUMNS - 1) / COLUMNS, chunks = (rows + chunk - 1) / chunk;
    i64 i = (i64)blockIdx.x * BLOCK + threadIdx.x;
    i64 c = i % packs * COLUMNS, low = i / packs % chunks * chunk, matrix = i / packs / chunks;
    if (matrix >= n) return;
    i64 high = low + chunk < rows ? low + chunk : rows;
    bool paired = in_pairs(x, cols), both = PARTS == 2 || c + 1 < cols;
    double sum[COLUMNS][PLANES] = {};
    x += PARTS * (matrix * rows * cols + c);
    v += matrix * v_stride;
#pragma unroll 4
    for (i64 r = low; r < high; r += 2) {
        Pair p[2];
        p[0] = load(x + PARTS * r * cols, both, paired);
        p[1] = r + 1 < high ? load(x + PARTS * (r + 1) * cols, both, paired) : Pair{};
        double a[2], b[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            a[k] = wide(p[k].x);
            b[k] = wide(p[k].y);
        }
#pragma unroll
        for (int q = 0; q < VECTORS; ++q) {
            double2 w = *(const double2*)(v + q * length + r);
#if PARTS == 1
            sum[0][q] += a[0] * w.x + a[1] * w.y;
            sum[COLUMNS - 1][q] += b[0] * w.x + b[1] * w.y;
#else
            double2 u = *(const double2*)(v + (VECTORS + q) * length + r);
            sum[0][q] += a[0] * w.x - b[0] * u.x + a[1] * w.y - b[1] * u.y;
            sum[0][VECTORS + q] += a[0] * u.x + b[0] * w.x + a[1] * u.y + b[1] * w.y;
#endif
        }
        double2 w = *(const double2*)(v + (PLANES - 1) * length + r);
#if PARTS == 1
        sum[0][VECTORS] += fabs(a[0]) * w.x + fabs(a[1]) * w.y;
        sum[COLUMNS - 1][VECTORS] += fabs(b[0]) * w.x + fabs(b[1]) * w.y;
#else
        sum[0][PLANES - 1] += (fabs(a[0]) + fabs(b[0])) * w.x;
        sum[0][PLANES - 1] += (fabs(a[1]) + fabs(b[1])) * w.y;
#endif
    }
    y += matrix * PLANES * y_length + c;
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k)
#pragma unroll
        for (int q = 0; q < PLANES; ++q) {
            if (c + k >= cols) continue;
            if (chunks == 1) y[q * y_length + k] = sum[k][q];
            else atomicAdd(y + q * y_length + k, sum[k][q]);
        }
}
