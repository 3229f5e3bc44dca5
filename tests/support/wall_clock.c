/* Preloaded, it sets a process's wall clock by WALL_CLOCK_OFFSET_MS: a node whose clock is wrong.
 *
 * The monotonic clocks stay as they are. Whoever waits until a time of the wall clock waits as long
 * as it would where the kernel's clock is wrong. libfaketime 0.9.10 cannot be taken: below it the
 * clock_nanosleep of Python's time.sleep fails with EINVAL. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define SECOND_NS 1000000000LL
#define UNIX_TIME_FROM 1000000000 /* seconds: of a monotonic clock they are less */

static long long offset_ns(void)
{
    static long long known;
    static int read;
    if (!read) {
        const char *text = getenv("WALL_CLOCK_OFFSET_MS");
        known = text ? atoll(text) * 1000000LL : 0;
        read = 1;
    }
    return known;
}

static struct timespec shifted(struct timespec time, long long by_ns)
{
    long long all = time.tv_sec * SECOND_NS + time.tv_nsec + by_ns;
    return (struct timespec){.tv_sec = all / SECOND_NS, .tv_nsec = all % SECOND_NS};
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t clock, struct timespec *time)
{
    REAL(clock_gettime);
    int failed = real(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *time = shifted(*time, offset_ns());
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    if (!failed)
        *time = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *place)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place)
        *place = now.tv_sec;
    return now.tv_sec;
}

static struct timespec kernels(const struct timespec *until)
{
    return until->tv_sec > UNIX_TIME_FROM ? shifted(*until, -offset_ns()) : *until;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    static __typeof__(&pthread_cond_timedwait) real;
    /* There are two of that name on x86-64, and dlsym may find the one of another layout. */
    if (!real)
        real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real)
        real = (__typeof__(real))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec time = kernels(until);
    return real(condition, mutex, &time);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    REAL(pthread_mutex_timedlock);
    struct timespec time = kernels(until);
    return real(mutex, &time);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    REAL(sem_timedwait);
    struct timespec time = kernels(until);
    return real(semaphore, &time);
}
