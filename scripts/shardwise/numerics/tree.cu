// Adds 2^K consecutive rows of products into one, as the tree of tree.py: left half plus right half.
// A thread an element of the result; all rows of one are in flight at once.
//
// rows  (out rows << K, width)      out  (…, width), `total` numbers in all
// overflow  set where a sum of integers does not fit

struct Half {
    unsigned short bits;
};

// In PTX, because cupy compiles with -ftz=true: a cast would turn subnormal float32 into zero.
__device__ double widened(Half number) {
    float single;
    asm("cvt.f32.f16 %0, %1;" : "=f"(single) : "h"(number.bits));
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(single));
    return wide;
}
__device__ double widened(float number) {
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(number));
    return wide;
}
__device__ double widened(double number) { return number; }
__device__ long long widened(long long number) { return number; }

__device__ double added(double left, double right, int*) { return left + right; }
__device__ long long added(long long left, long long right, int* overflow) {
    const long long total = (long long)((unsigned long long)left + (unsigned long long)right);
    if (((left ^ total) & (right ^ total)) < 0) *overflow = 1;
    return total;
}

template <int K, typename Number>
__device__ auto sum(const Number* row, long long width, int* overflow) {
    if constexpr (K == 0)
        return widened(*row);
    else
        return added(sum<K - 1>(row, width, overflow),
                     sum<K - 1>(row + (width << (K - 1)), width, overflow), overflow);
}

template <typename Number, int K, typename Wide>
__device__ void fold_into(const Number* rows, long long total, long long width, Wide* out,
                          int* overflow) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    const long long row = i / width;
    out[i] = sum<K>(rows + ((row * width) << K) + (i - row * width), width, overflow);
}

template <typename Number, int K>
__global__ void fold(const Number* rows, long long total, long long width, void* out,
                     int* overflow) {
    fold_into<Number, K>(rows, total, width, (decltype(widened(*rows))*)out, overflow);
}
