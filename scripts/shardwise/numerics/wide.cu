// Numbers as double; float16 comes as its bits, without cuda_fp16.h, which not every machine has. In PTX,
// because cupy compiles with -ftz=true: a cast would turn subnormal float32 into zero.
__device__ double wide(float number) {
    double found;
    asm("cvt.f64.f32 %0, %1;" : "=d"(found) : "f"(number));
    return found;
}
__device__ double wide(unsigned short bits) {
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
    return number;  // which is never subnormal
}
__device__ double wide(double number) { return number; }

