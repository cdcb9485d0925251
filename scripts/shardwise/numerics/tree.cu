// Adds 2^K consecutive rows into one, as the tree of tree.py does: left half plus right half. Compiled after
// wide.cu. One thread per element of the result loads its 2^K numbers all at once. If Weighted, each row is
// multiplied by its weight; that product is rounded before it is added, so that a CPU gets the same bits.
//
// rows  (rows of out << K, width)      out  (…, width), `total` numbers in all
// weights  (rows of out << K,); ignored unless Weighted

template <int K, bool Weighted, typename Number>
__device__ double sum(const Number* row, const double* weight, long long width) {
    if constexpr (K > 0)
        return sum<K - 1, Weighted>(row, weight, width) +
               sum<K - 1, Weighted>(row + (width << (K - 1)), weight + (1 << (K - 1)), width);
    else if constexpr (Weighted)
        return __dmul_rn(*weight, wide(*row));
    else
        return wide(*row);
}

template <typename Number, int K, bool Weighted>
__global__ void fold(const Number* rows, const double* weights, long long total, long long width, double* out) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    const long long row = i / width;
    out[i] = sum<K, Weighted>(rows + ((row * width) << K) + (i - row * width), weights + (row << K), width);
}

// The sum of the rows of each matrix (rows, width). Eight threads add each column, in a fixed order.
template <typename Number>
__global__ void columns(const Number* block, long long rows, long long width, double* out) {
    __shared__ double part[8][32];
    const long long tiles = (width + 31) / 32, matrix = blockIdx.x / tiles;
    const long long column = 32 * (blockIdx.x % tiles) + threadIdx.x;
    double found = 0;
    if (column < width) {
        block += matrix * rows * width + column;
#pragma unroll 8
        for (long long row = threadIdx.y; row < rows; row += 8) found += wide(block[row * width]);
    }
    part[threadIdx.y][threadIdx.x] = found;
    __syncthreads();
    if (threadIdx.y || column >= width) return;
    for (int i = 1; i < 8; ++i) found += part[i][threadIdx.x];
    out[matrix * width + column] = found;
}
