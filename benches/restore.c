/* The floor of a restore: what brings N files back by hand. Clones each file of FROM into STAGING with mode and times, and renames it over the one of the
 * same name in TO, with THREADS threads. Prints microseconds, and those of processor time.
 *
 *   restore FROM STAGING TO NAMES THREADS      NAMES: a file with one path a line
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int from, staging, to;
static char **names;
static long count, threads;

static void fail(const char *what, const char *name) {
    fprintf(stderr, "%s %s: %s\n", what, name, strerror(errno));
    exit(1);
}

static void *work(void *first) {
    for (long at = (long)first; at < count; at += threads) {
        char temporary[32];
        struct stat stat;
        snprintf(temporary, sizeof temporary, "new-%ld", at);
        int source = openat(from, names[at], O_RDONLY | O_CLOEXEC);
        if (source < 0 || fstat(source, &stat)) fail("open", names[at]);
        int made = openat(staging, temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (made < 0) fail("create", temporary);
        if (ioctl(made, FICLONE, source)) fail("clone", names[at]);
        if (fchmod(made, stat.st_mode & 07777)) fail("chmod", temporary);
        struct timespec times[2] = {stat.st_atim, stat.st_mtim};
        if (futimens(made, times)) fail("utimens", temporary);
        close(made);
        close(source);
        if (renameat(staging, temporary, to, names[at])) fail("rename", names[at]);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    from = open(argv[1], O_PATH | O_DIRECTORY);
    staging = open(argv[2], O_PATH | O_DIRECTORY);
    to = open(argv[3], O_PATH | O_DIRECTORY);
    FILE *list = fopen(argv[4], "r");
    threads = atol(argv[5]);
    if (from < 0 || staging < 0 || to < 0 || !list || threads < 1) fail("open", "arguments");
    char *line = NULL;
    size_t room = 0;
    for (ssize_t length; (length = getline(&line, &room, list)) > 0;) {
        line[length - 1] = 0;
        names = realloc(names, (count + 1) * sizeof *names);
        names[count++] = strdup(line);
    }
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    pthread_t *all = calloc(threads, sizeof *all);
    for (long at = 0; at < threads; at++) pthread_create(&all[at], NULL, work, (void *)at);
    for (long at = 0; at < threads; at++) pthread_join(all[at], NULL);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    long cpu = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
    printf("%ld %ld\n", (ended.tv_sec - began.tv_sec) * 1000000 + (ended.tv_nsec - began.tv_nsec) / 1000, cpu);
    return 0;
}
