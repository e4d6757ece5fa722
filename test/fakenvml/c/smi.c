// SPDX-License-Identifier: Apache-2.0

// The fake nvidia-smi: -L, --query-gpu, -pm, -c and --gpu-reset, with the words and exit codes of the real one
// (github.com/NVIDIA/NVSentinel/issues/1690, github.com/NVIDIA/mig-parted/issues/181).
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "state.h"

static struct state *s;
static u32 chosen[MAX_GPUS], choices;

static void address(u32 gpu, char out[32]) { snprintf(out, 32, "00000000:%02X:00.0", s->gpu[gpu].bus & 0xff); }

// find takes an index, a UUID, or an address with a domain of four or eight digits or none.
static int find(const char *name) {
	u32 domain = 0, bus, device;
	char *rest;
	u64 index = strtoull(name, &rest, 10);
	if (*name && !*rest) return index < s->gpus ? (int)index : -1;
	for (u32 i = 0; i < s->gpus; i++) {
		if (strcasecmp(name, s->gpu[i].uuid) == 0) return (int)i;
		if (sscanf(name, "%x:%x:%x", &domain, &bus, &device) == 3 ? bus == s->gpu[i].bus && domain == 0 : sscanf(name, "%x:%x", &bus, &device) == 2 && bus == s->gpu[i].bus)
			return (int)i;
	}
	return -1;
}

static int choose(const char *list) {
	char *copy = list ? strdup(list) : NULL;
	if (!copy) {
		for (u32 i = 0; i < s->gpus; i++) chosen[choices++] = i;
		return 0;
	}
	for (char *item = strtok(copy, ","); item && choices < MAX_GPUS; item = strtok(NULL, ",")) {
		int gpu = find(item);
		if (gpu < 0) {
			printf("No devices were found\n");
			return 6;
		}
		chosen[choices++] = (u32)gpu;
	}
	free(copy);
	return 0;
}

static int lost(void) {
	char at[32];
	for (u32 i = 0; i < choices; i++) {
		if (!s->gpu[chosen[i]].set.lost) continue;
		address(chosen[i], at);
		printf("Unable to determine the device handle for GPU%u: %s: GPU is lost.  Reboot the system to recover this GPU\n", chosen[i], at);
		return 15;
	}
	return 0;
}

// reset is all or nothing: GPUs joined by NVLink go together.
static int reset(void) {
	u32 busy = 0, refused = 0; // exit 3: the operation is not available on the device (nvidia-smi(1), RETURN VALUE)
	char at[32];
	int code = lost();
	if (code) return code;
	for (u32 i = 0; i < choices; i++) {
		enum code why = gpu_resettable(s, &s->gpu[chosen[i]]);
		if (why == OK) continue;
		if (!refused++) printf("\nThe following GPUs could not be reset:\n");
		busy += why == IN_USE;
		address(chosen[i], at);
		printf("  GPU %s: %s\n", at, code_words(why));
	}
	if (busy)
		printf("\n%u device%s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics application such as an X server, or a "
			   "monitoring application such as another instance of nvidia-smi). Please first kill all processes using %s and all compute applications running in the "
			   "system.\n",
			busy, busy == 1 ? " is" : "s are", busy == 1 ? "this device" : "these devices");
	if (refused) return busy ? 255 : 3;
	for (u32 i = 0; i < choices; i++) {
		gpu_reset(&s->gpu[chosen[i]]);
		s->mutations++;
		s->log[s->logged++ % MAX_LOG] =
			(struct mutation){.pid = (u32)getpid(), .call = SMI_RESET, .gpu = chosen[i], .gi = NOWHERE, .ci = NOWHERE, .profile = NOWHERE};
		address(chosen[i], at);
		printf("GPU %s was successfully reset.\n", at);
	}
	return 0;
}

static int persistence(const char *mode) {
	int code = lost();
	if (code) return code;
	for (u32 i = 0; i < choices; i++) s->gpu[chosen[i]].set.persistence = strcmp(mode, "1") == 0 || strcasecmp(mode, "ENABLED") == 0;
	printf("All done.\n");
	return 0;
}

// compute_mode: the modes are those of nvidia-smi(1), by name or number.
static int compute_mode(const char *wanted) {
	static const char *const MODES[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
	int code = lost();
	u32 mode = 0;
	char at[32];
	if (code) return code;
	while (mode < 4 && strcasecmp(wanted, MODES[mode]) != 0 && !(wanted[0] == (char)('0' + mode) && !wanted[1])) mode++;
	if (mode == 4) {
		printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
		return 2;
	}
	for (u32 i = 0; i < choices; i++) {
		s->gpu[chosen[i]].set.compute_mode = mode;
		address(chosen[i], at);
		printf("Set compute mode to %s for GPU %s.\n", MODES[mode], at);
	}
	printf("All done.\n");
	return 0;
}

static int list(void) {
	int code = lost();
	for (u32 i = 0; i < choices && !code; i++) {
		struct gpu *g = &s->gpu[chosen[i]];
		const struct model *m = model_of(g);
		int n = 0;
		printf("GPU %u: %s (UUID: %s)\n", chosen[i], m->name, g->uuid);
		for (u32 id = 0; id < 64; id++) {
			struct gi *gi = gi_at(g, id);
			for (int k = 0; gi && k < MAX_CIS; k++) {
				char name[96], uuid[48];
				if (!gi->ci[k].used) continue;
				profile_name(m, gi, &gi->ci[k], name);
				mig_uuid(g, gi->id, gi->ci[k].id, uuid);
				printf("  %-15s Device %2d: (UUID: %s)\n", name, n++, uuid);
			}
		}
	}
	return code;
}

static void field(const char *name, u32 gpu) {
	struct gpu *g = &s->gpu[gpu];
	const struct model *m = model_of(g);
	char at[32];
	address(gpu, at);
	if (strcmp(name, "index") == 0) printf("%u", gpu);
	else if (strcmp(name, "name") == 0 || strcmp(name, "gpu_name") == 0) printf("%s", m->name);
	else if (strcmp(name, "uuid") == 0 || strcmp(name, "gpu_uuid") == 0) printf("%s", g->uuid);
	else if (strcmp(name, "serial") == 0) printf("%s", g->serial);
	else if (strcmp(name, "driver_version") == 0) printf("%s", s->driver);
	else if (strcmp(name, "pci.bus_id") == 0 || strcmp(name, "gpu_bus_id") == 0) printf("%s", at);
	else if (strcmp(name, "memory.total") == 0) printf("%u MiB", m->memory);
	else if (strcmp(name, "compute_cap") == 0) printf("%u.%u", m->major, m->minor);
	else if (strcmp(name, "persistence_mode") == 0) printf("%s", g->set.persistence ? "Enabled" : "Disabled");
	else if (strcmp(name, "mig.mode.current") == 0) printf("%s", !m->gis ? "[N/A]" : g->mode ? "Enabled" : "Disabled");
	else if (strcmp(name, "mig.mode.pending") == 0) printf("%s", !m->gis ? "[N/A]" : g->pending ? "Enabled" : "Disabled");
	else printf("[N/A]");
}

static int query(const char *fields, const char *format) {
	int code = lost();
	if (code) return code;
	if (!format || !strstr(format, "noheader")) printf("%s\n", fields);
	for (u32 i = 0; i < choices; i++) {
		char *copy = strdup(fields);
		const char *between = "";
		for (char *name = strtok(copy, ", "); name; name = strtok(NULL, ", ")) {
			printf("%s", between);
			field(name, chosen[i]);
			between = ", ";
		}
		printf("\n");
		free(copy);
	}
	return 0;
}

// value of -x VALUE, --long VALUE, --long=VALUE; "" for a flag at the end; NULL if it is not there.
static const char *value(int argc, char **argv, const char *brief, const char *full) {
	size_t length = strlen(full);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], brief) == 0 || strcmp(argv[i], full) == 0) return i + 1 < argc ? argv[i + 1] : "";
		if (strncmp(argv[i], full, length) == 0 && argv[i][length] == '=') return argv[i] + length + 1;
	}
	return NULL;
}

static int act(int argc, char **argv) {
	const char *fields = value(argc, argv, "--query-gpu", "--query-gpu"), *mode = value(argc, argv, "-pm", "--persistence-mode");
	const char *compute = value(argc, argv, "-c", "--compute-mode");
	int code = choose(value(argc, argv, "-i", "--id"));
	if (code) return code;
	if (value(argc, argv, "-r", "--gpu-reset")) return reset();
	if (mode) return persistence(mode);
	if (compute) return compute_mode(compute);
	if (fields) return query(fields, value(argc, argv, "--format", "--format"));
	if (value(argc, argv, "-L", "--list-gpus")) return list();
	printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
	return 2;
}

int main(int argc, char **argv) {
	s = state_open(state_path());
	if (!s) {
		printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n\n");
		return 9;
	}
	if (s->init_code) {
		printf("Failed to initialize NVML: %s\n", code_words(s->init_code));
		return (int)s->init_code;
	}
	int changes = value(argc, argv, "-r", "--gpu-reset") || value(argc, argv, "-pm", "--persistence-mode");
	if (changes) {
		change_lock();
		usleep(s->latency_ms * 1000);
	}
	state_lock();
	int code = act(argc, argv);
	state_unlock();
	if (changes) change_unlock();
	return code;
}
