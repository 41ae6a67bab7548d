/* Preloaded into every process of a search: shifts the wall clock, and makes writes below a folder slow, stuck or
   refused and new processes and threads impossible, while the file that CAMPAIGN_CONTROL names says so. It holds six
   doubles: the clock's shift in seconds, seconds before each write, whether writes are stuck, whether they fail with
   EROFS, the number of calls that were disturbed, and whether fork and pthread_create fail. CAMPAIGN_FOLDER is the
   folder. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *control;
static const char *folder;

/* A forked process calls it again, once it has the environment of its search. */
__attribute__((constructor)) void campaign_begin(void) {
    const char *path = getenv("CAMPAIGN_CONTROL");
    folder = getenv("CAMPAIGN_FOLDER");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *shared = mmap(NULL, 6 * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) control = shared;
    close(file);
}

static int is_below(const char *path) { return folder && !strncmp(path, folder, strlen(folder)); }

/* Return whether a write may go on; if not, errno is set. */
static int may_write(int descriptor) {
    if (!control || !(control[1] || control[2] || control[3])) return 1;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 1;
    path[length] = 0;
    if (!is_below(path)) return 1;
    control[4] += 1;
    if (control[1]) usleep((useconds_t)(control[1] * 1e6));
    while (control[2]) usleep(10000);
    if (control[3]) { errno = EROFS; return 0; }
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size) {
    static __typeof__(&write) real;
    if (!real) real = REAL(write);
    return may_write(file) ? real(file, data, size) : -1;
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    static __typeof__(&pwrite) real;
    if (!real) real = REAL(pwrite);
    return may_write(file) ? real(file, data, size, at) : -1;
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    static __typeof__(&pwrite64) real;
    if (!real) real = REAL(pwrite64);
    return may_write(file) ? real(file, data, size, at) : -1;
}

int fsync(int file) {
    static __typeof__(&fsync) real;
    if (!real) real = REAL(fsync);
    return may_write(file) ? real(file) : -1;
}

int fdatasync(int file) {
    static __typeof__(&fdatasync) real;
    if (!real) real = REAL(fdatasync);
    return may_write(file) ? real(file) : -1;
}

static int opened(const char *name, const char *path, int flags, mode_t mode) {
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, name);
    if (control && control[3] && (flags & (O_WRONLY | O_RDWR | O_CREAT)) && is_below(path)) {
        control[4] += 1;
        errno = EROFS;
        return -1;
    }
    return real(path, flags, mode);
}

#define OPEN(name)                                    \
    int name(const char *path, int flags, ...) {      \
        va_list rest;                                 \
        va_start(rest, flags);                        \
        mode_t mode = va_arg(rest, mode_t);           \
        va_end(rest);                                 \
        return opened(#name, path, flags, mode);      \
    }
OPEN(open)
OPEN(open64)

static int may_start(void) {
    if (!control || !control[5]) return 1;
    control[4] += 1;
    errno = EAGAIN;
    return 0;
}

pid_t fork(void) {
    static __typeof__(&fork) real;
    if (!real) real = REAL(fork);
    return may_start() ? real() : -1;
}

pid_t vfork(void) { return fork(); } /* a wrapper cannot return twice from vfork */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
    static __typeof__(&pthread_create) real;
    if (!real) real = REAL(pthread_create);
    return may_start() ? real(thread, attributes, function, argument) : EAGAIN;
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    static __typeof__(&posix_spawnp) real;
    if (!real) real = REAL(posix_spawnp);
    return may_start() ? real(pid, file, actions, attributes, arguments, environment) : EAGAIN;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int result = real(clock, now);
    if (!result && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += (time_t)control[0];
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *restrict, void *restrict);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    if (!result && control) now->tv_sec += (time_t)control[0];
    return result;
}

time_t time(time_t *now) {
    struct timespec seconds;
    clock_gettime(CLOCK_REALTIME, &seconds);
    if (now) *now = seconds.tv_sec;
    return seconds.tv_sec;
}
