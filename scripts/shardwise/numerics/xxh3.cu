// The XXH3 of 128 bits, with a seed, of pieces longer than 240 bytes. One warp for each piece.
// After the specification of XXH3 (Y. Collet, xxHash 0.8).
typedef unsigned long long u64;
typedef unsigned int u32;

__constant__ u64 secret[24] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
    0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
    0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
    0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
    0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
    0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull,
};
const u64 P32_1 = 0x9E3779B1ull, P32_2 = 0x85EBCA77ull, P32_3 = 0xC2B2AE3Dull;
const u64 P64_1 = 0x9E3779B185EBCA87ull, P64_2 = 0xC2B2AE3D27D4EB4Full;
const u64 P64_3 = 0x165667B19E3779F9ull, P64_4 = 0x85EBCA77C2B2AE63ull;
const u64 P64_5 = 0x27D4EB2F165667C5ull, P_MIX = 0x165667919E3779F9ull;

// Eight bytes of the secret that follows from a seed, beginning at any byte.
__device__ __forceinline__ u64 key_at(int byte, u64 seed) {
    int word = byte >> 3, shift = (byte & 7) * 8;
    u64 low = (word & 1) ? secret[word] - seed : secret[word] + seed;
    if (!shift) return low;
    u64 high = ((word + 1) & 1) ? secret[word + 1] - seed : secret[word + 1] + seed;
    return (low >> shift) | (high << (64 - shift));
}

// Eight bytes of data from any address. It reads only the one or two aligned words that hold them.
__device__ __forceinline__ u64 load(const unsigned char* p) {
    u64 address = (u64)p;
    const u64* word = (const u64*)(address & ~7ull);
    int shift = (int)(address & 7) * 8;
    return shift ? (word[0] >> shift) | (word[1] << (64 - shift)) : word[0];
}

__device__ __forceinline__ u64 fold(u64 a, u64 b) { return (a * b) ^ __umul64hi(a, b); }

__device__ __forceinline__ u64 merged(const u64* acc, int at, u64 seed, u64 h) {
    for (int i = 0; i < 4; i++)
        h += fold(acc[2 * i] ^ key_at(at + 16 * i, seed), acc[2 * i + 1] ^ key_at(at + 16 * i + 8, seed));
    h ^= h >> 37;
    h *= P_MIX;
    return h ^ (h >> 32);
}

// What a word adds to the accumulator of its lane, plus the word of the neighbouring lane.
__device__ __forceinline__ u64 mixed(u64 word, u64 key) {
    u64 k = word ^ key;
    return (u64)(u32)k * (k >> 32) + __shfl_xor_sync(~0u, word, 1);
}

// XORs the digests of `count` pieces, from number `first` on, into the two halves at `out`. `data`
// begins at byte `base` of the elements, which have `total` bytes. PieceChecksum defines the pieces.
extern "C" __global__ void __launch_bounds__(1024) xxh3_pieces(
    const unsigned char* data, u64 base, u64 total, u64 row, u64 piece, u64 first, u64 count, u64* out
) {
    u64 number = (u64)blockIdx.x * blockDim.y + threadIdx.y;
    if (number >= count) return;
    number += first;
    u64 in_row = (row + piece - 1) / piece, seed = number;
    u64 begin = number / in_row * row + number % in_row * piece;
    u64 end = min(min(begin + piece, (number / in_row + 1) * row), total), length = end - begin;
    const unsigned char* p = data + (begin - base);
    const u64 start[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    int lane = threadIdx.x, i = lane & 7, n = lane >> 3;  // 8 accumulators, 4 stripes at once
    u64 acc = start[i], blocks = (length - 1) / 1024, scramble = key_at(128 + 8 * i, seed);
    u64 key[4], next[4];
    for (int r = 0; r < 4; r++) {
        key[r] = key_at(8 * (4 * r + n) + 8 * i, seed);
        next[r] = blocks ? load(p + 64 * (4 * r + n) + 8 * i) : 0;
    }
    for (u64 b = 0; b < blocks; b++) {
        u64 sum = 0, own[4];
        for (int r = 0; r < 4; r++) own[r] = next[r];
        if (b + 1 < blocks)
            for (int r = 0; r < 4; r++) next[r] = load(p + 1024 * (b + 1) + 64 * (4 * r + n) + 8 * i);
        for (int r = 0; r < 4; r++) sum += mixed(own[r], key[r]);
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        acc += sum;
        acc = (acc ^ (acc >> 47) ^ scramble) * P32_1;
    }
    u64 left = (length - 1 - 1024 * blocks) / 64, sum = 0;  // stripes of the last block; the last 64 bytes follow
    for (int r = 0; r < 4; r++) {
        int stripe = 4 * r + n;
        bool here = stripe < left;
        u64 part = mixed(here ? load(p + 1024 * blocks + 64 * stripe + 8 * i) : 0, key[r]);
        sum += here ? part : 0;
    }
    sum += __shfl_xor_sync(~0u, sum, 8);
    sum += __shfl_xor_sync(~0u, sum, 16);
    acc += sum + mixed(load(p + length - 64 + 8 * i), key_at(121 + 8 * i, seed));
    u64 all[8];
    for (int j = 0; j < 8; j++) all[j] = __shfl_sync(~0u, acc, j);
    if (lane == 0) {
        atomicXor(out, merged(all, 11, seed, length * P64_1));
        atomicXor(out + 1, merged(all, 117, seed, ~(length * P64_2)));
    }
}
