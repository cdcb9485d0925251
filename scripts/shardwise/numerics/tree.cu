// Adds 2^K consecutive rows into one, as the tree of tree.py does: left half plus right half. A thread
// an element of the result; all rows of one are in flight at once.
//
// rows  (rows of out << K, width)      out  (…, width), `total` numbers in all

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

template <int K, typename Number>
__device__ double sum(const Number* row, long long width) {
    if constexpr (K == 0)
        return widened(*row);
    else
        return sum<K - 1>(row, width) + sum<K - 1>(row + (width << (K - 1)), width);
}

template <typename Number, int K>
__global__ void fold(const Number* rows, long long total, long long width, double* out) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    const long long row = i / width;
    out[i] = sum<K>(rows + ((row * width) << K) + (i - row * width), width);
}
