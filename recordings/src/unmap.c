/* Threads that map, touch, protect, discard and unmap private memory in a loop: every step but the first
 * asks the CPUs of the other threads to flush.
 *
 * usage: unmap THREADS MILLISECONDS */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MOST_PAGES = 48 };

static volatile int stop;

static void *work(void *argument) {
    unsigned state = (unsigned)(size_t)argument * 77 + 1;
    /* Each on a CPU of its own, so that the others are there to be asked. */
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET((size_t)argument % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &own);
    pthread_setaffinity_np(pthread_self(), sizeof own, &own);
    while (!stop) {
        state = state * 1103515245 + 12345;
        size_t pages = 1 + (state >> 16) % MOST_PAGES;
        /* Mostly small, as the sizes programs flush are. */
        if ((state >> 8) & 3)
            pages = 1 + pages % 4;
        size_t length = pages * PAGE;
        char *area = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (area == MAP_FAILED)
            abort();
        memset(area, 1, length);
        mprotect(area, length, PROT_READ);
        mprotect(area, length, PROT_READ | PROT_WRITE);
        area[0] = 2;
        madvise(area, length, MADV_DONTNEED);
        area[0] = 3;
        munmap(area, length);
        for (volatile int spin = 0; spin < 20000; spin++)
            ;
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: unmap THREADS MILLISECONDS\n");
        return 2;
    }
    int threads = atoi(arguments[1]);
    pthread_t *handles = calloc((size_t)threads, sizeof *handles);
    for (int i = 0; i < threads; i++)
        pthread_create(&handles[i], NULL, work, (void *)(size_t)i);
    usleep((useconds_t)atoi(arguments[2]) * 1000);
    stop = 1;
    for (int i = 0; i < threads; i++)
        pthread_join(handles[i], NULL);
    free(handles);
    return 0;
}
