// SPDX-License-Identifier: Apache-2.0

// MIG mode and GPU instances.
#include <stdio.h>

#include "lib.h"

enum { GI_KINDS = 18 }; // NVML_GPU_INSTANCE_PROFILE_COUNT of the header that this was written from

EXPORT enum code nvmlDeviceGetMigMode(handle device, u32 *now, u32 *pending) {
	BEGIN(nvmlDeviceGetMigMode, DEVICE, device);
	NEED(now && pending);
	if (!c.m->gis || c.ci) END(NOT_SUPPORTED);
	*now = c.g->mode;
	*pending = c.g->pending;
	END(OK);
}

EXPORT enum code nvmlDeviceSetMigMode(handle device, u32 mode, u32 *activation) {
	BEGIN_CHANGE(nvmlDeviceSetMigMode, DEVICE, device);
	NEED(activation && mode <= 1);
	if (!c.m->gis || c.ci) END(NOT_SUPPORTED);
	c.log.start = mode;
	END(mode_set(c.s, c.g, mode, activation));
}

static struct a_gi_profile describe(const struct gi_model *p) {
	return (struct a_gi_profile){.id = p->id, .p2p = 0, .slices = p->slices, .instances = p->said, .sms = p->sms, .copy = p->copy,
		.decoders = p->decoders, .encoders = p->encoders, .jpeg = p->jpeg, .ofa = p->ofa, .memory = p->memory};
}

// find_kind: profiles can be read with MIG off. Past NVML's last the argument is invalid, and so a loop ends.
static enum code find_kind(const struct call *c, u32 kind, int *at) {
	if (kind >= GI_KINDS) return INVALID_ARGUMENT;
	*at = gi_profile_by_kind(c->m, kind);
	return *at < 0 || c->ci ? NOT_SUPPORTED : OK;
}

static enum code find_id(const struct call *c, u32 id, int *at) {
	*at = gi_profile_by_id(c->m, id);
	return *at < 0 || c->ci ? NOT_SUPPORTED : OK;
}

EXPORT enum code nvmlDeviceGetGpuInstanceProfileInfo(handle device, u32 kind, struct a_gi_profile *out) {
	BEGIN(nvmlDeviceGetGpuInstanceProfileInfo, DEVICE, device);
	NEED(out);
	int at;
	enum code code = find_kind(&c, kind, &at);
	if (code == OK) *out = describe(&c.m->gi[at]);
	END(code);
}

// fill writes version 2 or 3, whichever the caller's version field asks for.
static enum code fill(const struct gi_model *p, void *out) {
	struct a_gi_profile b = describe(p);
	u32 version = *(u32 *)out;
	if (version == STRUCT_VERSION(struct a_gi_profile2, 2)) {
		struct a_gi_profile2 v = {version, b.id, b.p2p, b.slices, b.instances, b.sms, b.copy, b.decoders, b.encoders, b.jpeg, b.ofa, b.memory, ""};
		snprintf(v.name, sizeof v.name, "MIG %s", p->name);
		memcpy(out, &v, sizeof v);
		return OK;
	}
	if (version == STRUCT_VERSION(struct a_gi_profile3, 3)) {
		struct a_gi_profile3 v = {version, b.id, b.slices, b.instances, b.sms, b.copy, b.decoders, b.encoders, b.jpeg, b.ofa, b.memory, "", 0};
		snprintf(v.name, sizeof v.name, "MIG %s", p->name);
		v.capabilities = p->gfx ? 2 : 0; // NVML_GPU_INSTANCE_PROFILE_CAPS_GFX
		memcpy(out, &v, sizeof v);
		return OK;
	}
	return ARGUMENT_VERSION_MISMATCH;
}

EXPORT enum code nvmlDeviceGetGpuInstanceProfileInfoV(handle device, u32 kind, void *out) {
	BEGIN(nvmlDeviceGetGpuInstanceProfileInfoV, DEVICE, device);
	NEED(out);
	int at;
	enum code code = find_kind(&c, kind, &at);
	END(code == OK ? fill(&c.m->gi[at], out) : code);
}

EXPORT enum code nvmlDeviceGetGpuInstanceProfileInfoByIdV(handle device, u32 id, void *out) {
	BEGIN(nvmlDeviceGetGpuInstanceProfileInfoByIdV, DEVICE, device);
	NEED(out);
	int at;
	enum code code = find_id(&c, id, &at);
	END(code == OK ? fill(&c.m->gi[at], out) : code);
}

static enum code places(const struct call *c, u32 id, struct a_place *out, u32 *n) {
	int at;
	if (!n) return INVALID_ARGUMENT;
	enum code code = find_id(c, id, &at);
	if (code != OK) return code;
	const struct gi_model *p = &c->m->gi[at];
	u32 found = 0;
	for (u32 start = 0; out && start < c->m->memory_slices; start++)
		for (u32 i = 0; i < p->places; i++)
			if (p->start[i] == start) out[found++] = (struct a_place){start, p->size};
	*n = p->places;
	return OK;
}

EXPORT enum code nvmlDeviceGetGpuInstancePossiblePlacements(handle device, u32 id, struct a_place *out, u32 *n) {
	BEGIN(nvmlDeviceGetGpuInstancePossiblePlacements, DEVICE, device);
	END(places(&c, id, out, n));
}

EXPORT enum code nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle device, u32 id, struct a_place *out, u32 *n) {
	BEGIN(nvmlDeviceGetGpuInstancePossiblePlacements_v2, DEVICE, device);
	END(places(&c, id, out, n));
}

EXPORT enum code nvmlDeviceGetGpuInstanceRemainingCapacity(handle device, u32 id, u32 *n) {
	BEGIN(nvmlDeviceGetGpuInstanceRemainingCapacity, DEVICE, device);
	NEED(n);
	int at;
	if (!c.g->mode) END(NOT_SUPPORTED);
	enum code code = find_id(&c, id, &at);
	if (code == OK) *n = gi_capacity(c.g, (u32)at);
	END(code);
}

static enum code create(struct call *c, u32 id, const struct a_place *at, handle *out) {
	if (!out) return INVALID_ARGUMENT;
	c->log.profile = id;
	if (at) {
		c->log.start = at->start;
		c->log.size = at->size;
	}
	if (!c->m->gis || c->ci || !c->g->mode) return NOT_SUPPORTED;
	int profile = gi_profile_by_id(c->m, id);
	if (profile < 0) return INVALID_ARGUMENT;
	struct gi *made = NULL;
	enum code code = gi_create(c->s, c->g, (u32)profile, at, &made);
	if (code != OK) return code;
	c->log.gi = made->id;
	c->log.start = made->start;
	c->log.size = made->size;
	*out = gi_handle(c->number, made);
	return OK;
}

EXPORT enum code nvmlDeviceCreateGpuInstance(handle device, u32 id, handle *out) {
	BEGIN_CHANGE(nvmlDeviceCreateGpuInstance, DEVICE, device);
	END(create(&c, id, NULL, out));
}

EXPORT enum code nvmlDeviceCreateGpuInstanceWithPlacement(handle device, u32 id, const struct a_place *at, handle *out) {
	BEGIN_CHANGE(nvmlDeviceCreateGpuInstanceWithPlacement, DEVICE, device);
	NEED(at);
	END(create(&c, id, at, out));
}

EXPORT enum code nvmlGpuInstanceDestroy(handle instance) {
	BEGIN_CHANGE(nvmlGpuInstanceDestroy, GPU_INSTANCE, instance);
	c.log.profile = c.m->gi[c.gi->profile].id;
	c.log.start = c.gi->start;
	c.log.size = c.gi->size;
	END(gi_destroy(c.s, c.g, c.gi));
}

// gi_after: the instance with the next id, or NULL.
static struct gi *gi_after(struct gpu *g, int id) {
	struct gi *next = NULL;
	for (int i = 0; i < MAX_GIS; i++)
		if (g->gi[i].used && (int)g->gi[i].id > id && (!next || g->gi[i].id < next->id)) next = &g->gi[i];
	return next;
}

EXPORT enum code nvmlDeviceGetGpuInstances(handle device, u32 id, handle *out, u32 *n) {
	BEGIN(nvmlDeviceGetGpuInstances, DEVICE, device);
	NEED(out && n);
	int at;
	if (!c.g->mode) END(NOT_SUPPORTED);
	enum code code = find_id(&c, id, &at);
	if (code != OK) END(code);
	*n = 0;
	for (struct gi *gi = gi_after(c.g, -1); gi; gi = gi_after(c.g, (int)gi->id))
		if (gi->profile == (u32)at) out[(*n)++] = gi_handle(c.number, gi);
	END(OK);
}

EXPORT enum code nvmlDeviceGetGpuInstanceById(handle device, u32 id, handle *out) {
	BEGIN(nvmlDeviceGetGpuInstanceById, DEVICE, device);
	NEED(out);
	if (!c.g->mode || c.ci) END(NOT_SUPPORTED);
	struct gi *gi = gi_at(c.g, id);
	if (gi) *out = gi_handle(c.number, gi);
	END(gi ? OK : NOT_FOUND);
}

EXPORT enum code nvmlGpuInstanceGetInfo(handle instance, struct a_gi_info *out) {
	BEGIN(nvmlGpuInstanceGetInfo, GPU_INSTANCE, instance);
	NEED(out);
	*out = (struct a_gi_info){device_handle(c.number), c.gi->id, c.m->gi[c.gi->profile].id, {c.gi->start, c.gi->size}};
	END(OK);
}

EXPORT enum code nvmlDeviceGetMaxMigDeviceCount(handle device, u32 *n) {
	BEGIN(nvmlDeviceGetMaxMigDeviceCount, DEVICE, device);
	NEED(n);
	*n = c.g->mode ? c.m->compute_slices : 0; // "zero if MIG is not supported or enabled", says the header
	END(OK);
}

EXPORT enum code nvmlDeviceGetMigDeviceHandleByIndex(handle device, u32 index, handle *out) {
	BEGIN(nvmlDeviceGetMigDeviceHandleByIndex, DEVICE, device);
	NEED(out);
	if (!c.m->gis || c.ci) END(NOT_SUPPORTED);
	for (struct gi *gi = gi_after(c.g, -1); gi; gi = gi_after(c.g, (int)gi->id))
		for (int i = 0; i < MAX_CIS; i++)
			if (gi->ci[i].used && index-- == 0) {
				*out = mig_handle(c.number, gi, &gi->ci[i]);
				END(OK);
			}
	END(NOT_FOUND);
}

EXPORT enum code nvmlDeviceIsMigDeviceHandle(handle device, u32 *out) {
	BEGIN(nvmlDeviceIsMigDeviceHandle, DEVICE, device);
	NEED(out);
	*out = (u32)is_mig(device);
	END(OK);
}

EXPORT enum code nvmlDeviceGetGpuInstanceId(handle device, u32 *id) {
	BEGIN(nvmlDeviceGetGpuInstanceId, DEVICE, device);
	NEED(id);
	if (!c.ci) END(NOT_SUPPORTED);
	*id = c.gi->id;
	END(OK);
}

EXPORT enum code nvmlDeviceGetComputeInstanceId(handle device, u32 *id) {
	BEGIN(nvmlDeviceGetComputeInstanceId, DEVICE, device);
	NEED(id);
	if (!c.ci) END(NOT_SUPPORTED);
	*id = c.ci->id;
	END(OK);
}

EXPORT enum code nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle device, handle *out) {
	BEGIN(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, DEVICE, device);
	NEED(out && c.ci);
	*out = device_handle(c.number);
	END(OK);
}

EXPORT enum code nvmlDeviceGetAttributes_v2(handle device, struct a_attributes *out) {
	BEGIN(nvmlDeviceGetAttributes_v2, DEVICE, device);
	NEED(out);
	if (!c.ci) END(NOT_SUPPORTED);
	const struct gi_model *p = &c.m->gi[c.gi->profile];
	u32 slices = c.m->ci[c.ci->profile].slices;
	*out = (struct a_attributes){.sms = p->sms * slices / p->slices, .copy = p->copy, .decoders = p->decoders, .encoders = p->encoders,
		.jpeg = p->jpeg, .ofa = p->ofa, .gi_slices = p->slices, .ci_slices = slices, .memory = p->memory};
	END(OK);
}
