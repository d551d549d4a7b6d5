// Fibers, barriers, warp exchanges, asynchronous copies and matrix fragments for tests/host_cuda.py.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

struct Index { int x, y, z; };
extern "C" {
Index host_thread, host_block, host_grid;
__attribute__((aligned(1024))) unsigned char shared_memory[256 * 1024];
}

namespace {
enum State { RUN, BARRIER, WARP, DONE };
struct Copy { void* d; const void* s; int bytes; bool full; };
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    State state;
    std::vector<std::vector<Copy>> groups;  // committed and not landed, oldest first
    std::vector<Copy> open;
    unsigned char payload[32];
};
std::vector<Fiber> fibers;
ucontext_t scheduler;
int current;
void (*body_of_kernel)();
std::string failure;

void fail(const std::string& what) {
    if (failure.empty()) failure = what + " (block " + std::to_string(host_block.x) + ", thread " +
                                   std::to_string(current) + ")";
}
void enter() {
    body_of_kernel();
    fibers[current].state = DONE;
    swapcontext(&fibers[current].context, &scheduler);
}
void wait(State s) {
    fibers[current].state = s;
    swapcontext(&fibers[current].context, &scheduler);
}
void land(const Copy& c) {
    if (c.full) memcpy(c.d, c.s, c.bytes);
    else memset(c.d, 0, c.bytes);
}
bool run_block(int threads, void* shared, long shared_bytes) {
    memset(shared_memory, 0xff, sizeof shared_memory);
    if (shared_bytes) memset(shared, 0xff, shared_bytes);
    for (int t = 0; t < threads; ++t) {
        Fiber& f = fibers[t];
        f.state = RUN;
        f.groups.clear();
        f.open.clear();
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        f.context.uc_link = nullptr;
        makecontext(&f.context, enter, 0);
    }
    for (;;) {
        bool ran = false;
        for (int t = 0; t < threads; ++t) {
            if (fibers[t].state != RUN) continue;
            ran = true;
            current = t;
            host_thread = {t, 0, 0};
            swapcontext(&scheduler, &fibers[t].context);
            if (!failure.empty()) return false;
        }
        if (ran) continue;
        // nobody can run: release whole warps first, then the whole block
        bool released = false;
        for (int w = 0; w < threads; w += 32) {
            const int end = w + 32 < threads ? w + 32 : threads;
            int waiting = 0;
            for (int t = w; t < end; ++t) waiting += fibers[t].state == WARP;
            if (waiting == 0) continue;
            if (waiting != end - w) {
                current = w;
                fail("a warp operation that not all lanes reach");
                return false;
            }
            for (int t = w; t < end; ++t) fibers[t].state = RUN;
            released = true;
        }
        if (released) continue;
        int done = 0;
        for (int t = 0; t < threads; ++t) done += fibers[t].state == DONE;
        if (done == threads) return true;
        if (done) {
            fail("a barrier that not all threads reach");
            return false;
        }
        for (int t = 0; t < threads; ++t) fibers[t].state = RUN;
    }
}
float half_to_float(unsigned short h) {
    const unsigned sign = (unsigned)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 0) return (sign ? -1.0f : 1.0f) * ldexpf((float)m, -24);
    unsigned b = e == 31 ? sign | 0x7f800000u | m << 13 : sign | (e + 112) << 23 | m << 13;
    float r;
    memcpy(&r, &b, 4);
    return r;
}
float bf16_to_float(unsigned short h) {
    unsigned b = (unsigned)h << 16;
    float r;
    memcpy(&r, &b, 4);
    return r;
}
}  // namespace

extern "C" {
const char* host_launch(void (*body)(), void* shared, long shared_bytes, int x, int y, int z, int threads) {
    body_of_kernel = body;
    host_grid = {x, y, z};
    failure.clear();
    if (fibers.size() < (size_t)threads) fibers.resize(threads);
    for (auto& f : fibers)
        if (f.stack.empty()) f.stack.resize(128 * 1024);
    for (int c = 0; c < z; ++c)
        for (int b = 0; b < y; ++b)
            for (int a = 0; a < x; ++a) {
                host_block = {a, b, c};
                if (!run_block(threads, shared, shared_bytes)) return failure.c_str();
            }
    return nullptr;
}
void host_barrier() { wait(BARRIER); }
void host_warp_sync() { wait(WARP); }
void host_exchange(const void* mine, void* all, int bytes) {
    const int self = current, first = self & ~31;
    memcpy(fibers[self].payload, mine, bytes);
    wait(WARP);
    for (int l = 0; l < 32; ++l) {
        const size_t t = first + l;
        memcpy((char*)all + l * bytes, t < fibers.size() ? fibers[t].payload : fibers[self].payload, bytes);
    }
    wait(WARP);
}
void host_aligned(const void* p, int bytes) {
    if ((uintptr_t)p % bytes) fail("a vector access that is not aligned to its " + std::to_string(bytes) + " bytes");
}
void host_async_copy(void* d, const void* s, int bytes, bool full) {
    host_aligned(d, bytes);
    if (full) host_aligned(s, bytes);
    memset(d, 0xff, bytes);
    fibers[current].open.push_back({d, s, bytes, full});
}
void host_async_commit() {
    Fiber& f = fibers[current];
    f.groups.push_back(f.open);
    f.open.clear();
}
void host_async_wait(int pending) {
    Fiber& f = fibers[current];
    while ((int)f.groups.size() > pending) {
        for (const Copy& c : f.groups.front()) land(c);
        f.groups.erase(f.groups.begin());
    }
}
void host_ldmatrix(unsigned* r, int n, const void* s, bool trans) {
    const void* rows[32];
    host_exchange(&s, rows, sizeof s);
    const int lane = host_thread.x & 31;
    for (int i = 0; i < 8 * n; ++i) host_aligned(rows[i], 16);
    for (int i = 0; i < n; ++i) {
        unsigned short v[2];
        for (int e = 0; e < 2; ++e) {
            const int row = trans ? 2 * (lane % 4) + e : lane / 4, column = trans ? lane / 4 : 2 * (lane % 4) + e;
            v[e] = ((const unsigned short*)rows[8 * i + row])[column];
        }
        r[i] = v[0] | (unsigned)v[1] << 16;
    }
    host_warp_sync();
}
void host_mma(float* d, const unsigned* a, const unsigned* b, const float* c, bool bf16) {
    unsigned all_a[4][32], all_b[2][32];
    for (int i = 0; i < 4; ++i) host_exchange(&a[i], all_a[i], 4);
    for (int i = 0; i < 2; ++i) host_exchange(&b[i], all_b[i], 4);
    const int lane = host_thread.x & 31;
    auto value = [bf16](unsigned pair, int e) {
        const unsigned short h = (unsigned short)(pair >> 16 * e);
        return bf16 ? bf16_to_float(h) : half_to_float(h);
    };
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        double sum = c[i];
        for (int k = 0; k < 16; ++k) {
            // a: registers (row half) + 2 * (k half); lane row % 8 * 4 + k % 8 / 2.  b: register k half; lane column * 4
            const float x = value(all_a[row / 8 + 2 * (k / 8)][row % 8 * 4 + k % 8 / 2], k % 2);
            const float y = value(all_b[k / 8][column * 4 + k % 8 / 2], k % 2);
            sum += (double)x * y;
        }
        d[i] = (float)sum;
    }
}
float host_half_to_float(unsigned short x) { return half_to_float(x); }
unsigned short host_float_to_half(float x) {
    unsigned b;
    memcpy(&b, &x, 4);
    const unsigned sign = b >> 16 & 0x8000u, a = b & 0x7fffffffu;
    if (a > 0x7f800000u) return (unsigned short)(sign | 0x7fffu);
    if (a >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
    if (a < 0x38800000u) {
        float m;
        memcpy(&m, &a, 4);
        return (unsigned short)(sign | (unsigned)nearbyintf(ldexpf(m, 24)));
    }
    const unsigned r = a + 0xfffu + (a >> 13 & 1u);
    return (unsigned short)(sign | ((r >> 13) - (112u << 10)));
}
}
