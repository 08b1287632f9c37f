// Threads that share a kernel's work.
//
// They meet some hundred times a step, and one that is woken comes some 50 µs late: looking for each
// other again and again is worth half of a step. Who has looked for a while sleeps: then another
// process has the core.

#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"

enum { MOST_THREADS = 256 };
enum { LEAST = 1 << 15 };  // multiplications that are worth another thread
enum { LOOK = 600000 };    // cycles, some 0.2 ms: how long to look before one sleeps

static struct {
    pthread_mutex_t busy;
    long workers;  // that were started
    work_t work;
    void *given;
    long threads;      // of this turn, with the caller's
    uint32_t asleep;   // workers
    uint32_t awaited;  // does the caller sleep?
    cpu_set_t allowed;  // the cores that this process may use
    uint32_t since[MOST_THREADS];                // the turn before a worker's first
    struct {
        pthread_t thread;
        int core;  // where it was seen last
    } seen[MOST_THREADS];
    uint32_t turn __attribute__((aligned(64)));  // how many there were
    uint32_t left __attribute__((aligned(64)));  // workers that have not ended this turn
} team = {.busy = PTHREAD_MUTEX_INITIALIZER};

static void sleep_while(uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, MOST_THREADS, NULL, NULL, 0);
}

INLINE uint32_t read_now(uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

// Does the word change from `value` within `cycles`?
INLINE int changes(uint32_t *word, uint32_t value, int64_t cycles)
{
    const int64_t until = (int64_t)__rdtsc() + cycles;
    do {
        if (read_now(word) != value) return 1;
        _mm_pause();
    } while ((int64_t)__rdtsc() < until);
    return 0;
}

static void *be_worker(void *number)
{
    const long thread = (long)(intptr_t)number;
    uint32_t seen = team.since[thread];
    for (;;) {
        if (!changes(&team.turn, seen, LOOK)) {
            __atomic_add_fetch(&team.asleep, 1, __ATOMIC_SEQ_CST);
            while (read_now(&team.turn) == seen) sleep_while(&team.turn, seen);
            __atomic_sub_fetch(&team.asleep, 1, __ATOMIC_SEQ_CST);
        }
        seen = read_now(&team.turn);
        team.seen[thread].core = sched_getcpu();
        if (thread < team.threads) team.work(team.given, thread, team.threads);
        if (!__atomic_sub_fetch(&team.left, 1, __ATOMIC_SEQ_CST) && read_now(&team.awaited))
            wake(&team.left);
    }
    return NULL;
}

// In a child of fork() there is only the thread that called it.
static void forget_workers(void)
{
    team.workers = team.turn = team.left = team.asleep = team.awaited = 0;
    pthread_mutex_init(&team.busy, NULL);
}

static void start_workers(long threads)
{
    while (team.workers < threads - 1) {
        const long thread = team.workers + 1;
        pthread_t *started = &team.seen[thread].thread;
        team.since[thread] = team.turn;
        if (pthread_create(started, NULL, be_worker, (void *)(intptr_t)thread)) return;
        pthread_detach(*started);
        team.workers = thread;
    }
}

// The system wakes a worker on the core of the thread that woke it, and may leave both there for
// some milliseconds, in which each keeps the other from its work. Such a worker has to leave.
static void spread(void)
{
    cpu_set_t taken;
    CPU_ZERO(&taken);
    CPU_SET(sched_getcpu(), &taken);
    for (long thread = 1; thread < team.threads; thread++) {
        const int core = team.seen[thread].core;
        if (CPU_ISSET(core, &taken)) {
            cpu_set_t others;
            CPU_AND(&others, &team.allowed, &taken);
            CPU_XOR(&others, &team.allowed, &others);
            if (CPU_COUNT(&others))
                pthread_setaffinity_np(team.seen[thread].thread, sizeof others, &others);
        }
        CPU_SET(core, &taken);
    }
}

void on_threads(work_t work, void *given, long cost, long threads)
{
    threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    if (cost < LEAST || threads < 2 || pthread_mutex_trylock(&team.busy)) {
        work(given, 0, 1);  // or another engine with the same kernels has the threads
        return;
    }
    if (team.workers < threads - 1) start_workers(threads);
    team.work = work, team.given = given;
    team.threads = threads <= team.workers + 1 ? threads : team.workers + 1;
    __atomic_store_n(&team.left, team.workers, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&team.turn, 1, __ATOMIC_SEQ_CST);
    if (read_now(&team.asleep)) wake(&team.turn);
    int64_t look = (int64_t)__rdtsc();
    work(given, 0, team.threads);
    look = ((int64_t)__rdtsc() - look) / 2;  // shares of long work end further apart
    if (look < LOOK) look = LOOK;
    for (uint32_t left = read_now(&team.left); left; left = read_now(&team.left))
        if (!changes(&team.left, left, look)) {
            spread();
            __atomic_store_n(&team.awaited, 1, __ATOMIC_SEQ_CST);
            left = read_now(&team.left);
            if (left) sleep_while(&team.left, left);
            __atomic_store_n(&team.awaited, 0, __ATOMIC_SEQ_CST);
        }
    pthread_mutex_unlock(&team.busy);
}

__attribute__((constructor)) static void prepare(void)
{
    sched_getaffinity(0, sizeof team.allowed, &team.allowed);
    pthread_atfork(NULL, NULL, forget_workers);
}
