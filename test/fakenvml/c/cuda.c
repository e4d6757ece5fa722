// SPDX-License-Identifier: Apache-2.0

// The part of libcuda.so.1 that tells whether CUDA starts. The file beside the state, its name and ".cuda", says what goes wrong:
// "init 802", "hang", "crash", "garbage", or nothing. Sources for the calls and their answers: cuda.h; "CUDA Environment Variables" of the
// CUDA programming guide, and "Device Enumeration" of the MIG user guide (R525: one MIG device, and no GPU beside it).
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { CUDA_SUCCESS = 0, CUDA_INVALID_VALUE = 1, CUDA_NOT_INITIALIZED = 3, CUDA_NO_DEVICE = 100, CUDA_SYSTEM_NOT_READY = 802, CUDA_UNKNOWN = 999 };

static int ready, devices;

static void beside(const char *suffix, char out[4096]) { snprintf(out, 4096, "%s%s", state_path(), suffix); }

// note leaves the ids of processes for the test, whole at once.
static void note(pid_t child) {
	char path[4096], whole[4096];
	beside(".cuda.pids", whole);
	snprintf(path, sizeof path, "%.4000s.new", whole);
	FILE *out = fopen(path, "we");
	if (!out) abort();
	fprintf(out, "%d %d\n", (int)getpid(), (int)child);
	fclose(out);
	rename(path, whole);
}

// hang is a driver that does not answer, in a process that has another one in its group.
static void hang(void) {
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	pid_t child = fork();
	if (child != 0) note(child);
	for (;;) pause();
}

// one says what an id in CUDA_VISIBLE_DEVICES names: 1 a GPU, 2 a MIG device, 0 nothing.
static int one(struct state *s, const char *id) {
	for (u32 i = 0; i < s->gpus; i++) {
		struct gpu *g = &s->gpu[i];
		if (g->set.lost) continue;
		if (strcmp(id, g->uuid) == 0) return g->mode ? 0 : 1;
		for (u32 n = 0; n < MAX_GIS; n++)
			for (u32 k = 0; k < MAX_CIS; k++) {
				char mig[48];
				if (!g->gi[n].used || !g->gi[n].ci[k].used) continue;
				mig_uuid(g, g->gi[n].id, g->gi[n].ci[k].id, mig);
				if (strcmp(id, mig) == 0) return 2;
			}
	}
	return 0;
}

// seen counts the devices up to the first id that names none.
static int seen(struct state *s) {
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	if (!list) return (int)s->gpus;
	char copy[8192], *rest = copy;
	snprintf(copy, sizeof copy, "%s", list);
	int count = 0;
	for (char *id; (id = strsep(&rest, ",")) != NULL;) {
		int kind = one(s, id);
		if (kind == 0) break;
		if (kind == 2) return 1;
		count++;
	}
	return count;
}

EXPORT int cuInit(unsigned flags) {
	char path[4096], what[64] = "";
	int code = CUDA_SUCCESS;
	if (flags != 0) return CUDA_INVALID_VALUE;
	beside(".cuda", path);
	FILE *in = fopen(path, "re");
	if (in) {
		if (!fgets(what, sizeof what, in)) what[0] = 0;
		fclose(in);
	}
	if (sscanf(what, "init %d", &code) == 1) return code;
	if (strncmp(what, "hang", 4) == 0) hang();
	if (strncmp(what, "crash", 5) == 0) *(volatile int *)8 = 1;
	if (strncmp(what, "garbage", 7) == 0) {
		puts("{\"code\":0,\"devices\":1}");
		exit(0);
	}
	struct state *s = state_open(state_path());
	if (!s) return CUDA_NO_DEVICE;
	state_lock();
	devices = seen(s);
	state_unlock();
	ready = devices > 0;
	return ready ? CUDA_SUCCESS : CUDA_NO_DEVICE;
}

EXPORT int cuDeviceGetCount(int *count) {
	if (!ready) return CUDA_NOT_INITIALIZED;
	*count = devices;
	return CUDA_SUCCESS;
}

EXPORT int cuGetErrorName(int code, const char **name) {
	switch (code) {
	case CUDA_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; return CUDA_SUCCESS;
	case CUDA_SYSTEM_NOT_READY: *name = "CUDA_ERROR_SYSTEM_NOT_READY"; return CUDA_SUCCESS;
	case CUDA_UNKNOWN: *name = "CUDA_ERROR_UNKNOWN"; return CUDA_SUCCESS;
	}
	return CUDA_INVALID_VALUE;
}
