// SPDX-License-Identifier: Apache-2.0

// What the driver does: profiles, places, instances, modes, resets.
#include <stdio.h>
#include <string.h>

#include "state.h"

const struct model *model_of(const struct gpu *g) { return &MODELS[g->model]; }

int find_model(const char *key) {
	for (u32 i = 0; i < MODEL_COUNT; i++)
		if (strcmp(MODELS[i].key, key) == 0) return (int)i;
	return -1;
}

int gi_profile_by_id(const struct model *m, u32 id) {
	for (u32 i = 0; i < m->gis; i++)
		if (m->gi[i].id == id) return (int)i;
	return -1;
}

int gi_profile_by_kind(const struct model *m, u32 kind) {
	for (u32 i = 0; i < m->gis; i++)
		if (m->gi[i].kind == kind) return (int)i;
	return -1;
}

// The driver's ids of compute instance profiles are NVML's enum.
int ci_profile_by_id(const struct model *m, u32 gi_profile, u32 id) {
	for (u32 i = 0; i < m->cis; i++)
		if (m->ci[i].id == id && m->ci[i].offered >> gi_profile & 1) return (int)i;
	return -1;
}

// The driver numbers the nodes of a binary tree over the memory: 0 all of it, 1 and 2 the halves,
// and so on. The id is a pure function of the place (swizzId in the open kernel modules).
u32 gi_id(const struct model *m, u32 start, u32 size) {
	u32 first = 0;
	for (u32 span = m->memory_slices; span > size; span /= 2) first = 2 * first + 1;
	return first + start / size;
}

struct gi *gi_at(struct gpu *g, u32 id) {
	for (int i = 0; i < MAX_GIS; i++)
		if (g->gi[i].used && g->gi[i].id == id) return &g->gi[i];
	return NULL;
}

struct ci *ci_at(struct gi *gi, u32 id) {
	for (int i = 0; i < MAX_CIS; i++)
		if (gi->ci[i].used && gi->ci[i].id == id) return &gi->ci[i];
	return NULL;
}

u32 clients(const struct state *s, u32 gpu, u32 gi, u32 ci) {
	u32 n = 0;
	for (int i = 0; i < MAX_CLIENTS; i++) {
		const struct client *c = &s->client[i];
		n += c->pid && c->gpu == gpu && (gi == NOWHERE || c->gi == gi) && (ci == NOWHERE || c->ci == ci);
	}
	return n;
}

static u32 number(const struct state *s, const struct gpu *g) { return (u32)(g - s->gpu); }

static u32 mask(u32 start, u32 size) { return ((1u << size) - 1) << start; }

// has_me: a GPU has one set of the media engines that +me gives (JPEG, OFA): MIG user guide.
static int has_me(const struct gi_model *p) {
	size_t n = strlen(p->name);
	return n > 3 && strcmp(p->name + n - 3, "+me") == 0;
}

// gi_room: memory slices in use, or everything if the GPU cannot have another instance of the
// profile: it has as many as it may, or media engines are taken.
static u32 gi_room(const struct gpu *g, u32 profile) {
	const struct model *m = model_of(g);
	const struct gi_model *want = &m->gi[profile];
	u32 taken = 0, same = 0, whole = 0, shared = 0, me = 0;
	for (int i = 0; i < MAX_GIS; i++) {
		const struct gi *gi = &g->gi[i];
		if (!gi->used) continue;
		taken |= mask(gi->start, gi->size);
		same += gi->profile == profile;
		whole += m->gi[gi->profile].media == 2;
		shared += m->gi[gi->profile].media == 1;
		me += has_me(&m->gi[gi->profile]);
	}

	int media_taken = (want->media && whole) || (want->media == 2 && shared);
	if (same >= want->max || (me && has_me(want)) || media_taken) return ~0u;

	return taken;
}

u32 gi_capacity(struct gpu *g, u32 profile) {
	const struct gi_model *want = &model_of(g)->gi[profile];
	u32 taken = gi_room(g, profile);
	u32 same = 0;
	for (int i = 0; i < MAX_GIS; i++) same += g->gi[i].used && g->gi[i].profile == profile;
	u32 left = want->max - same;

	// Left to right packs the most: places of a profile are of one size.
	u32 n = 0;
	for (u32 start = 0; start < 32; start++) {
		for (u32 p = 0; p < want->places; p++) {
			if (want->start[p] != start || taken & mask(start, want->size)) continue;
			taken |= mask(start, want->size);
			n++;
		}
	}

	return n < left ? n : left;
}

// choose finds the given place, or the first free one in the driver's own order.
static enum code choose(const u32 *starts, u32 places, u32 size, u32 taken, const struct a_place *at, u32 *start) {
	enum code code = at ? INVALID_ARGUMENT : INSUFFICIENT_RESOURCES;
	for (u32 p = 0; p < places; p++) {
		if (at && (at->start != starts[p] || at->size != size)) continue;
		code = INSUFFICIENT_RESOURCES;
		if (taken & mask(starts[p], size)) continue;
		*start = starts[p];
		return OK;
	}
	return code;
}

enum code gi_create(struct state *s, struct gpu *g, u32 profile, const struct a_place *at, struct gi **made) {
	const struct model *m = model_of(g);
	const struct gi_model *want = &m->gi[profile];
	if (!g->mode) return NOT_SUPPORTED;

	u32 start = 0;
	enum code code = choose(want->start, want->places, want->size, gi_room(g, profile), at, &start);
	if (code != OK) return code;

	for (int i = 0; i < MAX_GIS; i++) {
		struct gi *gi = &g->gi[i];
		if (gi->used) continue;
		*gi = (struct gi){
			.serial = ++s->serial,
			.id = gi_id(m, start, want->size),
			.profile = profile,
			.start = start,
			.size = want->size,
		};
		gi->used = 1;
		*made = gi;
		return OK;
	}
	return INSUFFICIENT_RESOURCES;
}

enum code gi_destroy(struct state *s, struct gpu *g, struct gi *gi) {
	for (int i = 0; i < MAX_CIS; i++)
		if (gi->ci[i].used) return IN_USE;
	if (clients(s, number(s, g), gi->id, NOWHERE)) return IN_USE;
	gi->used = 0;
	return OK;
}

static u32 ci_taken(const struct gi *gi) {
	u32 taken = 0;
	for (int i = 0; i < MAX_CIS; i++)
		if (gi->ci[i].used) taken |= mask(gi->ci[i].start, gi->ci[i].size);
	return taken;
}

u32 ci_places(const struct model *m, const struct gi *gi, u32 profile, u32 out[8]) {
	const struct ci_model *want = &m->ci[profile];
	u32 n = 0;
	for (u32 p = 0; p < want->places; p++)
		if (want->start[p] + want->slices <= m->gi[gi->profile].slices) out[n++] = want->start[p];
	return n;
}

u32 ci_max(const struct model *m, const struct gi *gi, u32 profile) {
	u32 starts[8];
	return ci_places(m, gi, profile, starts);
}

u32 ci_capacity(struct gpu *g, struct gi *gi, u32 profile) {
	const struct model *m = model_of(g);
	u32 starts[8];
	u32 places = ci_places(m, gi, profile, starts);
	u32 taken = ci_taken(gi);
	u32 n = 0;
	for (u32 p = 0; p < places; p++) {
		u32 here = mask(starts[p], m->ci[profile].slices);
		if (taken & here) continue;
		taken |= here;
		n++;
	}

	return n;
}

enum code ci_create(struct state *s, struct gpu *g, struct gi *gi, u32 profile, const struct a_place *at, struct ci **made) {
	const struct model *m = model_of(g);
	u32 starts[8];
	u32 places = ci_places(m, gi, profile, starts);
	u32 size = m->ci[profile].slices;
	u32 start = 0;
	enum code code = choose(starts, places, size, ci_taken(gi), at, &start);
	if (code != OK) return code;

	for (u32 id = 0; id < MAX_CIS; id++) { // the lowest free id
		struct ci *ci = &gi->ci[id];
		if (ci->used) continue;
		*ci = (struct ci){.serial = ++s->serial, .id = id, .profile = profile, .start = start, .size = size};
		ci->used = 1;
		*made = ci;
		return OK;
	}
	return INSUFFICIENT_RESOURCES;
}

enum code ci_destroy(struct state *s, struct gpu *g, struct gi *gi, struct ci *ci) {
	if (clients(s, number(s, g), gi->id, ci->id)) return IN_USE;
	ci->used = 0;
	return OK;
}

static void drop_instances(struct gpu *g) {
	for (int i = 0; i < MAX_GIS; i++) g->gi[i].used = 0;
}

// mode_set: on Ampere the new mode is pending until a reset. nvmlDeviceSetMigMode resets an idle GPU
// itself (self_reset), but not one that is passed through to a virtual machine: nvml.h. Hopper and
// later switch at once, when no process uses the GPU.
enum code mode_set(struct state *s, struct gpu *g, u32 mode, u32 *activation) {
	u32 busy = clients(s, number(s, g), NOWHERE, NOWHERE);
	*activation = OK;
	if (mode == g->mode && mode == g->pending) return OK;

	if (!model_of(g)->needs_reset) {
		for (int i = 0; i < MAX_GIS; i++) busy += g->gi[i].used;
		if (busy)
			*activation = IN_USE;
		else
			g->mode = g->pending = mode;
		return OK;
	}

	g->pending = mode;
	if (mode == g->mode) return OK;

	*activation = busy ? IN_USE : RESET_REQUIRED;
	if (!busy && g->set.self_reset) {
		drop_instances(g);
		g->mode = mode;
		*activation = OK;
	}
	return OK;
}

// renew is what both a reset and a reboot do.
static void renew(struct gpu *g) {
	drop_instances(g);
	g->set.remap_pending = g->set.retired_pending = 0;
	g->set.ecc_corrected = g->set.ecc_uncorrected = 0;
	g->set.ecc = g->set.ecc_pending;
	g->set.repair_channel = g->set.repair_tpc = 0;
}

// gpu_resettable: persistence mode holds the GPU (github.com/NVIDIA/NVSentinel/issues/1690).
enum code gpu_resettable(const struct state *s, const struct gpu *g) {
	if (g->set.lost) return GPU_IS_LOST;
	if (g->set.reset_refused) return NOT_SUPPORTED;
	if (clients(s, number(s, g), NOWHERE, NOWHERE) || g->set.persistence) return IN_USE;
	return OK;
}

// gpu_reset: on Hopper and later the mode lives as long as the driver is loaded, so a reset keeps
// it. reset_void: on some virtual machines a reset reports success and the mode stays (cse_main.sh
// in github.com/Azure/AgentBaker, and its pull 2508).
void gpu_reset(struct gpu *g) {
	if (g->set.reset_void) return;
	renew(g);
	g->mode = g->pending;
}

void reboot(struct state *s) {
	for (int i = 0; i < MAX_CLIENTS; i++) s->client[i].pid = 0;
	for (u32 i = 0; i < s->gpus; i++) {
		struct gpu *g = &s->gpu[i];
		renew(g);
		g->mode = g->pending = model_of(g)->needs_reset ? g->pending : 0;
		g->set.persistence = g->set.lost = g->set.xid_count = 0;
	}
	s->boots++;
}

void raise_event(struct state *s, u32 gpu, u64 type, u64 data, u32 gi) {
	struct event *e = &s->event[s->events % MAX_EVENTS];
	*e = (struct event){.number = s->events, .type = type, .data = data, .gpu = gpu, .gi = gi, .ci = NOWHERE};
	s->events++;
}

// mig_uuid: like the driver's, a pure function of the GPU and the ids.
void mig_uuid(const struct gpu *g, u32 gi, u32 ci, char out[48]) {
	u64 a = 1469598103934665603ull;
	for (const char *c = g->uuid; *c; c++) a = (a ^ (unsigned char)*c) * 1099511628211ull;
	a = (a ^ gi) * 1099511628211ull;
	a = (a ^ (ci + 17)) * 1099511628211ull;
	u64 b = (a ^ a >> 29) * 0xbf58476d1ce4e5b9ull;

	snprintf(out, 48, "MIG-%08x-%04x-5%03x-%04x-%012llx", (u32)(a >> 32), (u32)(a >> 16) & 0xffff, (u32)a & 0xfff,
		((u32)(b >> 48) & 0x3fff) | 0x8000, b & 0xffffffffffffull);
}

void profile_name(const struct model *m, const struct gi *gi, const struct ci *ci, char out[96]) {
	const struct gi_model *of = &m->gi[gi->profile];
	if (ci && m->ci[ci->profile].slices != of->slices)
		snprintf(out, 96, "MIG %uc.%s", m->ci[ci->profile].slices, of->name);
	else
		snprintf(out, 96, "MIG %s", of->name);
}
