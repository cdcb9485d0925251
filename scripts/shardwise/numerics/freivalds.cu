// Freivalds' check of a stack of products; freivalds.py launches these kernels.
//
// Compiled once for each element type: one of FLOAT16, FLOAT32, FLOAT64, COMPLEX64 and COMPLEX128 is
// defined. Each element is read once, widened to double, and multiplied by all vectors.
//
// A stack is n matrices of (rows, cols) elements, without gaps. Vectors are planes of float64,
// (n or 1, PLANES, length): first the real parts of VECTORS vectors, then, for complex numbers, their
// imaginary parts, and last the moduli. length is even, and elements past the end of a vector are 0,
// so that kernels can read planes in pairs.

typedef long long i64;
typedef unsigned long long u64;

#define VECTORS 4
#define BLOCK 256  // threads
#define FULL 0xffffffffu

#if defined(FLOAT16)
typedef unsigned short Real;
typedef unsigned int Pair;
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

#if defined(FLOAT16)
__device__ double wide(Real bits) {  // without cuda_fp16.h, which not every machine has
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
    return number;
}
__device__ Real first(Pair p) { return (Real)(p & 0xffffu); }
__device__ Real second(Pair p) { return (Real)(p >> 16); }
__device__ Pair pair(Real a, Real b) { return (Pair)a | ((Pair)b << 16); }
#else
#if defined(FLOAT32) || defined(COMPLEX64)
// In PTX, because cupy compiles with -ftz=true: a cast would turn subnormal numbers into zero.
__device__ double wide(Real number) {
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(number));
    return wide;
}
#else
__device__ double wide(Real number) { return number; }
#endif
__device__ Real first(Pair p) { return p.x; }
__device__ Real second(Pair p) { return p.y; }
__device__ Pair pair(Real a, Real b) {
    Pair p;
    p.x = a;
    p.y = b;
    return p;
}
#endif

__device__ u64 bits_of(double modulus) {
    // The bits of moduli, read as integers, have the order of the numbers; NaN is above infinity.
    return (u64)__double_as_longlong(modulus) & 0x7fffffffffffffffull;
}

__device__ bool is_finite(u64 bits) { return bits < 0x7ff0000000000000ull; }

// Whether the matrix can be read in pairs. If not, single numbers are read: slower, at any address.
__device__ bool in_pairs(const Real* x, i64 cols) {
    return (PARTS == 2 || cols % 2 == 0) && ((u64)x & (sizeof(Pair) - 1)) == 0;
}

// The two numbers at p; the second is 0 if there is only one.
__device__ Pair load(const Real* p, bool both, bool paired) {
    if (paired) return __ldg((const Pair*)p);
    return pair(__ldg(p), both ? __ldg(p + 1) : (Real)0);
}

// Raises *most to the largest of the values of a warp, if that is larger.
__device__ void raise(u64* most, u64 value, bool idle) {
    for (int step = 16; step > 0; step /= 2) {
        u64 other = __shfl_xor_sync(FULL, value, step);
        value = other > value ? other : value;
    }
    // Compare first: most warps have nothing to raise, and so need no atomic operation.
    if (!idle && threadIdx.x % 32 == 0 && value > *(volatile u64*)most) atomicMax(most, value);
}

// y = X v; its plane of moduli is |X| w, where w is that of v. A team of `size` threads shares ROWS rows
// of one matrix. If `where` is not null, X begins at the matrix that `take_row` wrote there; likewise in
// `columns_times`.
extern "C" __global__ void __launch_bounds__(BLOCK)
rows_times(const Real* x, i64 n, i64 rows, i64 cols, const double* v, i64 length, i64 v_stride,
           double* y, i64 y_length, int size, const i64* where) {
    if (where) x += PARTS * rows * cols * where[0];
    __shared__ double part[BLOCK / 4][ROWS * PLANES];  // the smallest team has 4 threads
    i64 groups = (rows + ROWS - 1) / ROWS;
    i64 team = (i64)blockIdx.x * (BLOCK / size) + (int)threadIdx.x / size;
    bool idle = team >= n * groups;  // but it has to reach the barrier
    i64 matrix = idle ? 0 : team / groups, top = idle ? 0 : (team - matrix * groups) * ROWS;
    int rank = (int)threadIdx.x % size;
    const Real* row[ROWS];
    for (int r = 0; r < ROWS; ++r)  // past the end the last row again
        row[r] = x + PARTS * (matrix * rows + (top + r < rows ? top + r : rows - 1)) * cols;
    bool paired = in_pairs(x, cols);
    v += matrix * v_stride;
    double sum[ROWS][PLANES];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int p = 0; p < PLANES; ++p) sum[r][p] = 0;
#pragma unroll 4
    for (i64 c = rank * COLUMNS; c < (idle ? 0 : cols); c += size * COLUMNS) {
        Pair x[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            x[r] = load(row[r] + PARTS * c, PARTS == 2 || c + 1 < cols, paired);
#if PARTS == 1
        double2 w[PLANES];
#pragma unroll
        for (int p = 0; p < PLANES; ++p) w[p] = *(const double2*)(v + p * length + c);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            double a = wide(first(x[r])), b = wide(second(x[r]));
#pragma unroll
            for (int p = 0; p < VECTORS; ++p) sum[r][p] += a * w[p].x + b * w[p].y;
            sum[r][VECTORS] += fabs(a) * w[VECTORS].x + fabs(b) * w[VECTORS].y;
        }
#else
        double w[PLANES];
#pragma unroll
        for (int p = 0; p < PLANES; ++p) w[p] = v[p * length + c];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            double a = wide(first(x[r])), b = wide(second(x[r]));
#pragma unroll
            for (int p = 0; p < VECTORS; ++p) {
                sum[r][p] += a * w[p] - b * w[VECTORS + p];
                sum[r][VECTORS + p] += a * w[VECTORS + p] + b * w[p];
            }
            sum[r][2 * VECTORS] += (fabs(a) + fabs(b)) * w[2 * VECTORS];
        }
#endif
    }
    // Add up the sums of each warp of the team, or of the team if it is smaller, then those of the warps.
    int unit = size < 32 ? size : 32, parts = size / unit;
    for (int step = unit / 2; step > 0; step /= 2)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int p = 0; p < PLANES; ++p) sum[r][p] += __shfl_xor_sync(FULL, sum[r][p], step);
    if (threadIdx.x % unit == 0)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int p = 0; p < PLANES; ++p) part[threadIdx.x / unit][r * PLANES + p] = sum[r][p];
    __syncthreads();
    for (int i = rank; i < ROWS * PLANES && !idle; i += size) {
        double total = 0;
        for (int k = 0; k < parts; ++k) total += part[(int)threadIdx.x / size * parts + k][i];
        i64 r = top + i / PLANES;
        if (r < rows) y[(matrix * PLANES + i % PLANES) * y_length + r] = total;
    }
}

// For each matrix, the largest |c - y| / (relative * w + absolute), by its bits; c are the planes of C v,
// y and w those of A (B v). It is infinite or NaN if anything is not finite. spot is null, or receives
// the worst row of all matrices: its upper 32 bits are those of the row's ratio, its lower ones 2^32 - 1
// minus the row's number in C, so that of rows with equal upper bits the first is the largest. One thread
// per row.
extern "C" __global__ void __launch_bounds__(BLOCK)
compare(const double* c, const double* y, i64 n, i64 rows, i64 length, double relative,
        double absolute, u64* ratio, u64* spot) {
    i64 number = (i64)blockIdx.x * BLOCK + threadIdx.x;
    bool idle = number >= n * rows;
    if (idle) number = 0;
    i64 matrix = number / rows, at = matrix * PLANES * length + number % rows;
    double bound = relative * y[at + (PLANES - 1) * length] + absolute;
    u64 worst = 0;
    for (int p = 0; p < VECTORS; ++p) {
        double gap = 0;
        for (int k = 0; k < PARTS; ++k) {
            i64 i = at + (k * VECTORS + p) * length;
            gap += fabs(c[i] - y[i]);
        }
        worst = max(worst, bits_of(gap / bound));
    }
    if (!is_finite(bits_of(bound))) worst = 0x7ff8000000000000ull;  // it would prove nothing
    if (!idle && worst > *(volatile u64*)(ratio + matrix)) atomicMax(ratio + matrix, worst);
    if (spot) raise(spot, (worst >> 32 << 32) | (0xffffffffu - number), idle);
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
    raise(ratio + where[0], value, c >= cols);
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
        p[1] = r + 1 < high ? load(x + PARTS * (r + 1) * cols, both, paired) : pair(0, 0);
        double a[2], b[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            a[k] = wide(first(p[k]));
            b[k] = wide(second(p[k]));
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
