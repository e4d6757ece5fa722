// SPDX-License-Identifier: Apache-2.0

// The state file: mapped, and locked by open file description so that a killed process leaves no
// lock.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fd = -1;
static pthread_mutex_t threads[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};

const char *state_path(void) {
	const char *path = getenv("FAKENVML_STATE");
	return path && *path ? path : "/run/fakenvml.state";
}

struct state *state_open(const char *path) {
	int opened = open(path, O_RDWR | O_CLOEXEC);
	if (opened < 0) return NULL;

	struct stat st;
	if (fstat(opened, &st) != 0 || st.st_size != (off_t)sizeof(struct state)) {
		close(opened);
		errno = EINVAL;
		return NULL;
	}

	struct state *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
	if (s == MAP_FAILED) {
		close(opened);
		return NULL;
	}
	if (s->magic != STATE_MAGIC || s->version != STATE_VERSION || s->size != sizeof *s) {
		munmap(s, sizeof *s);
		close(opened);
		errno = EPROTO;
		return NULL;
	}

	if (fd >= 0) close(fd);
	fd = opened;
	return s;
}

int state_create(const char *path, const struct state *fresh) {
	char temporary[4096];
	int length = snprintf(temporary, sizeof temporary, "%s.new.%d", path, (int)getpid());
	if (length >= (int)sizeof temporary) {
		errno = ENAMETOOLONG;
		return -1;
	}

	int out = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (out < 0) return -1;
	fchmod(out, 0666); // each user may open the real driver's nodes, too

	const char *at = (const char *)fresh;
	size_t left = sizeof *fresh;
	while (left > 0) {
		ssize_t wrote = write(out, at, left);
		if (wrote < 0) {
			close(out);
			unlink(temporary);
			return -1;
		}
		at += wrote;
		left -= (size_t)wrote;
	}

	if (close(out) != 0 || rename(temporary, path) != 0) {
		unlink(temporary);
		return -1;
	}

	return 0;
}

// range locks one byte of the file: 0 for the state, 1 for a process that changes something.
static void range(short type, off_t byte) {
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	while (fcntl(fd, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
	}
}

static void take(int byte) {
	pthread_mutex_lock(&threads[byte]); // the lock of the file does not tell threads apart
	range(F_WRLCK, byte);
}

static void give(int byte) {
	range(F_UNLCK, byte);
	pthread_mutex_unlock(&threads[byte]);
}

void state_lock(void) { take(0); }
void state_unlock(void) { give(0); }
void change_lock(void) { take(1); }
void change_unlock(void) { give(1); }
