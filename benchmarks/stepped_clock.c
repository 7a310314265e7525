/* A wall clock that can be set while a process runs, for benchmarks.compound: preloaded, it adds
   the 64-bit number of seconds at the beginning of the file that HOLDFAST_BENCH_CLOCK names to
   CLOCK_REALTIME, and leaves every other clock, and every wait, alone. libfaketime 0.9.10 cannot:
   with monotonic clocks left alone its clock_nanosleep fails with EINVAL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none = 0, *offset_s = &none;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void prepare(void) {
    const char *path = getenv("HOLDFAST_BENCH_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset_s = found;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real) prepare();
    int code = real(clock, at);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset_s;
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    (void)zone;
    if (code == 0) at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return code;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
