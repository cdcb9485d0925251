// Adds n arrays to the binned sums of binned.py: the same planes to the bit as there. docs/sums.md
// has the method and its proof. One thread an element; neighbouring threads hold neighbouring elements.
//
// stack   (n, elements), products
// heads   (width), the highest level of each element, and its flags; width is elements or more
// planes  (1 + LEVELS, width), the accumulators from the highest level after a plane unused here

typedef long long int64;
typedef unsigned long long uint64;

constexpr int BATCH = 8;  // loads of one thread in flight: one alone leaves the memory idle
constexpr int LEVEL_BITS = 0xFF, NAN_SEEN = 0x100, PLUS_SEEN = 0x200, MINUS_SEEN = 0x400;
// Moduli as the integers of the same bits, which are in the same order.
constexpr int64 ONE_EXPONENT = 1LL << 52;
constexpr int64 LIMIT = (1023 + 960) * ONE_EXPONENT;
constexpr int64 INFINITE = 2047 * ONE_EXPONENT;

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

// The largest modulus that a top allows: 2^31 units of the level, and below the limit.
__device__ int64 largest(int top) {
    const int64 modulus = (32 * top - 20) * ONE_EXPONENT;
    return modulus < LIMIT ? modulus : LIMIT - 1;
}

template <int LEVELS, typename Number>
__device__ void add_reals(
    const Number* stack, int64 n, int64 elements, int64 width, short* heads, int64* planes) {
    const int64 element = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (element >= elements) return;
    const int head = heads[element];
    const int top_before = head & LEVEL_BITS;
    int top = top_before;
    int flags = head & ~LEVEL_BITS;
    int64 allowed = largest(top);
    int64 sums[LEVELS] = {};  // of this launch; the highest level first

    for (int64 first = 0; first < n; first += BATCH) {
        Number batch[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
            if (first + i < n) batch[i] = stack[(first + i) * elements + element];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (first + i >= n) break;
            double rest = widened(batch[i]);
            const int64 modulus = __double_as_longlong(rest) & 0x7FFFFFFFFFFFFFFFLL;
            if (modulus > allowed) {
                if (modulus >= LIMIT) {
                    flags |= modulus > INFINITE ? NAN_SEEN : rest > 0 ? PLUS_SEEN : MINUS_SEEN;
                    continue;
                }
                while (modulus > allowed) {
                    allowed = largest(++top);
#pragma unroll
                    for (int level = LEVELS - 1; level > 0; --level) sums[level] = sums[level - 1];
                    sums[0] = 0;
                }
            }
#pragma unroll
            for (int level = 0; level < LEVELS; ++level) {
                // 1.5 * 2^52 units of the level: adding it rounds to whole units.
                const int64 magic = (32 * (top - level) + 1) * ONE_EXPONENT + ONE_EXPONENT / 2;
                const double shifted = rest + __longlong_as_double(magic);
                sums[level] += __double_as_longlong(shifted) - magic;
                rest -= shifted - __longlong_as_double(magic);
                if (rest == 0) break;
            }
        }
    }

    const int grown = top - top_before;
    int64* accumulators = planes + width + element;
#pragma unroll
    for (int level = LEVELS - 1; level >= 0; --level) {  // upwards, since each reads from above
        if (sums[level] == 0 && grown == 0) continue;
        const int64 before = level >= grown ? accumulators[(level - grown) * width] : 0;
        accumulators[level * width] = before + sums[level];
    }
    if ((flags | top) != head) heads[element] = (short)(flags | top);
}

#define ADD(NAME, NUMBER, LEVELS)                                                             \
    extern "C" __global__ void NAME(const NUMBER* stack, int64 n, int64 elements, int64 width, \
                                    short* heads, int64* planes) {                            \
        add_reals<LEVELS>(stack, n, elements, width, heads, planes);                          \
    }
ADD(add_float16, Half, 3)
ADD(add_float32, float, 3)
ADD(add_float64, double, 4)

// planes: (2, width), the sums of the high and of the low halves
extern "C" __global__ void add_int64(
    const int64* stack, int64 n, int64 elements, int64 width, int64* planes) {
    const int64 element = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (element >= elements) return;
    int64 high = planes[element], low = planes[width + element];
#pragma unroll 8
    for (int64 i = 0; i < n; ++i) {
        const int64 number = stack[i * elements + element];
        high += number >> 32;
        low += number & 0xFFFFFFFFLL;
    }
    planes[element] = high;
    planes[width + element] = low;
}

// What packed.py's `pack` says of planes: facts (count + 2), zeros before. Of each plane the bits
// that its numbers take in two's complement; the bits in which plane 0 differs; its first number.
extern "C" __global__ void look(const int64* planes, int64 n, int count, uint64* facts) {
    const int64 stride = (int64)gridDim.x * blockDim.x;
    for (int plane = 0; plane <= count; ++plane) {
        const int64* numbers = planes + (plane < count ? plane * n : 0);
        uint64 bits = 0;
        for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
            const int64 number = numbers[i];
            bits |= plane < count ? (uint64)(number ^ (number >> 63)) << 1 | (number != 0)
                                  : (uint64)(number ^ numbers[0]);
        }
        for (int lane = 16; lane; lane /= 2) bits |= __shfl_xor_sync(~0u, bits, lane);
        if (threadIdx.x % 32 == 0 && bits) atomicOr(facts + plane, bits);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) facts[count + 1] = planes[0];
}

// Writes the words of planes, which follow from their facts as in packed.py, to rows (words, n).
extern "C" __global__ void pack(
    const int64* planes, int64 n, int count, const uint64* facts, unsigned short* rows) {
    const int64 element = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (element >= n) return;
    bool others = false;
    for (int plane = 1; plane < count; ++plane) others |= facts[plane] != 0;
    for (int plane = 0; plane < count; ++plane) {
        int words = (64 - __clzll(facts[plane]) + 15) / 16;
        if (plane == 0) words = others && facts[count] == 0 ? 0 : words ? words : 1;
        if (words == 0) continue;
        const int64 number = planes[plane * n + element];
        for (int word = 0; word < words; ++word, rows += n)
            rows[element] = (unsigned short)(number >> 16 * word);
    }
}
