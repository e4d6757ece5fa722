// SPDX-License-Identifier: Apache-2.0

// A new machine.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

// set_driver: the library's version is the CUDA major and the driver's, as in 13.580.95.05.
void set_driver(struct state *s, const char *driver, const char *cuda) {
	u32 major = s->cuda / 1000;
	u32 minor = s->cuda % 1000 / 10;
	if (cuda && sscanf(cuda, "%u.%u", &major, &minor) != 2) stop("--cuda %s is not like 13.0", cuda);

	s->cuda = major * 1000 + minor * 10;
	if (driver) snprintf(s->driver, sizeof s->driver, "%s", driver);
	snprintf(s->nvml, sizeof s->nvml, "%u.%.27s", major, s->driver);
}

// identify: UUIDs and serial numbers follow from model and index, so that a machine made again is
// the same machine.
static void identify(struct gpu *g, u32 index) {
	u64 a = 0x9e3779b97f4a7c15ull * (g->model * 64 + index + 1);
	a = (a ^ a >> 30) * 0xbf58476d1ce4e5b9ull;
	u64 b = (a ^ a >> 27) * 0x94d049bb133111ebull;

	snprintf(g->uuid, sizeof g->uuid, "GPU-%08x-%04x-%04x-%04x-%012llx",
		(u32)(a >> 32), (u32)(a >> 16) & 0xffff, (u32)a & 0xffff,
		(u32)(b >> 48), b & 0xffffffffffffull);
	snprintf(g->serial, sizeof g->serial, "13%011llu", b % 100000000000ull);
}

static void add(struct state *s, const char *key) {
	int model = find_model(key);
	if (model < 0) {
		fprintf(stderr, "fakenvml: no model %s; there are:", key);
		for (u32 i = 0; i < MODEL_COUNT; i++) fprintf(stderr, " %s", MODELS[i].key);
		stop("");
	}
	if (s->gpus == MAX_GPUS) stop("more than %d GPUs", MAX_GPUS);

	struct gpu *g = &s->gpu[s->gpus];
	g->model = (u32)model;
	g->bus = 0x17 + 8 * s->gpus; // 17, 1f, 27, …: in the order of the addresses, as NVML counts
	identify(g, s->gpus);
	g->set.ecc = g->set.ecc_pending = MODELS[model].ecc;
	g->set.self_reset = MODELS[model].needs_reset; // 0: passed through to a virtual machine
	g->set.fabric_state = MODELS[model].fabric ? 3 : 0;
	s->gpus++;
}

struct state *make_state(const char *gpus, const char *driver, const char *cuda) {
	struct state *s = calloc(1, sizeof *s);
	char *spec = strdup(gpus);
	if (!s || !spec) stop("no memory");

	s->magic = STATE_MAGIC;
	s->version = STATE_VERSION;
	s->size = sizeof *s;
	set_driver(s, driver ? driver : "580.95.05", cuda ? cuda : "13.0");
	for (int i = 0; i < 16; i++) s->cluster[i] = (unsigned char)(0x5a + 7 * i);

	for (char *item = strtok(spec, ","); item; item = strtok(NULL, ",")) {
		char *colon = strchr(item, ':');
		int n = 1;
		if (colon) {
			*colon = 0;
			n = atoi(colon + 1);
		}
		if (n < 1) stop("%s:%s is not MODEL:COUNT", item, colon + 1);
		while (n-- > 0) add(s, item);
	}
	free(spec);

	return s;
}
