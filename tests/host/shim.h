// What a generated CUDA source needs to compile as host C++; see tests/host_cuda.py.
#include <cmath>
#include <cstdint>
#include <cstring>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static __attribute__((section("emmy_shared")))
#define __align__(n) __attribute__((aligned(n)))
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct Index { int x, y, z; };
extern "C" {
extern Index host_thread, host_block, host_grid;
extern unsigned char shared_memory[];
const char* host_launch(void (*body)(), void* shared, long shared_bytes, int x, int y, int z, int threads);
// the linker's names for the section that holds the kernel's shared arrays, null where it has none
extern char __start_emmy_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_emmy_shared[] __attribute__((weak, visibility("hidden")));
void host_barrier();
void host_warp_sync();
void host_exchange(const void* mine, void* all, int bytes);  // all: 32 values, one a lane
void host_async_copy(void* d, const void* s, int bytes, bool full);
void host_async_commit();
void host_async_wait(int pending);
void host_ldmatrix(unsigned* r, int n, const void* s, bool trans);
void host_mma(float* d, const unsigned* a, const unsigned* b, const float* c, bool bf16);
void host_aligned(const void* p, int bytes);
float host_half_to_float(unsigned short x);
unsigned short host_float_to_half(float x);
}
#define threadIdx host_thread
#define blockIdx host_block
#define gridDim host_grid
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float __uint_as_float(unsigned x) { float r; memcpy(&r, &x, 4); return r; }
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)((((unsigned long long)high << 32) | low) >> (by & 31));
}
static inline float __int_as_float(unsigned x) { return __uint_as_float(x); }
static inline unsigned __float_as_uint(float x) { unsigned r; memcpy(&r, &x, 4); return r; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline void __syncthreads() { host_barrier(); }
static inline void __syncwarp() { host_warp_sync(); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline long long clock64() { return 0; }
template <class T> static inline T host_shuffle(T v, int from) {
    T all[32];
    host_exchange(&v, all, sizeof(T));
    return all[from];
}
static inline int host_lane() { return host_thread.x & 31; }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int m, int w = 32) {
    const int lane = host_lane(), to = lane ^ m;
    return host_shuffle(v, to / w == lane / w || to < lane ? to : lane);
}
template <class T> static inline T __shfl_up_sync(unsigned, T v, int d, int w = 32) {
    const int lane = host_lane();
    return host_shuffle(v, lane % w < d ? lane : lane - d);
}
template <class T> static inline T __shfl_down_sync(unsigned, T v, int d, int w = 32) {
    const int lane = host_lane();
    return host_shuffle(v, lane % w + d >= w ? lane : lane + d);
}
template <class T> static inline T __shfl_sync(unsigned, T v, int l, int w = 32) {
    const int lane = host_lane();
    return host_shuffle(v, lane / w * w + (l & (w - 1)));
}
template <class T> static inline T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }
template <class T> static inline T atomicMax(T* p, T v) { T old = *p; *p = old > v ? old : v; return old; }
template <class T> static inline T atomicMin(T* p, T v) { T old = *p; *p = old < v ? old : v; return old; }
