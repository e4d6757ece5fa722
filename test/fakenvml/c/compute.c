// SPDX-License-Identifier: Apache-2.0

// Compute instances.
#include <stdio.h>

#include "lib.h"

enum { CI_KINDS = 9 }; // NVML_COMPUTE_INSTANCE_PROFILE_COUNT

// find: the driver's ids of compute instance profiles are NVML's enum.
static enum code find(const struct call *c, u32 id, int *at) {
	*at = ci_profile_by_id(c->m, c->gi->profile, id);
	return *at < 0 ? NOT_SUPPORTED : OK;
}

static struct a_ci_profile describe(const struct call *c, int at) {
	const struct gi_model *p = &c->m->gi[c->gi->profile];
	const struct ci_model *q = &c->m->ci[at];
	return (struct a_ci_profile){.id = q->id, .slices = q->slices, .instances = ci_max(c->m, c->gi, (u32)at), .sms = p->sms * q->slices / p->slices,
		.copy = p->copy, .decoders = p->decoders, .encoders = p->encoders, .jpeg = p->jpeg, .ofa = p->ofa};
}

EXPORT enum code nvmlGpuInstanceGetComputeInstanceProfileInfo(handle instance, u32 kind, u32 engines, struct a_ci_profile *out) {
	BEGIN(nvmlGpuInstanceGetComputeInstanceProfileInfo, GPU_INSTANCE, instance);
	NEED(out && kind < CI_KINDS && engines == 0);
	int at;
	enum code code = find(&c, kind, &at);
	if (code == OK) *out = describe(&c, at);
	END(code);
}

EXPORT enum code nvmlGpuInstanceGetComputeInstanceProfileInfoV(handle instance, u32 kind, u32 engines, void *out) {
	BEGIN(nvmlGpuInstanceGetComputeInstanceProfileInfoV, GPU_INSTANCE, instance);
	NEED(out && kind < CI_KINDS && engines == 0);
	int at;
	enum code code = find(&c, kind, &at);
	if (code != OK) END(code);
	u32 version = *(u32 *)out;
	struct ci like = {.profile = (u32)at};
	struct a_ci_profile3 v = {version, describe(&c, at), "", 0};
	profile_name(c.m, c.gi, &like, v.name);
	v.capabilities = c.m->gi[c.gi->profile].gfx; // NVML_COMPUTE_INSTANCE_PROFILE_CAPS_GFX
	if (version == STRUCT_VERSION(struct a_ci_profile2, 2))
		memcpy(out, &v, sizeof(struct a_ci_profile2));
	else if (version == STRUCT_VERSION(struct a_ci_profile3, 3))
		memcpy(out, &v, sizeof v);
	else
		END(ARGUMENT_VERSION_MISMATCH);
	END(OK);
}

EXPORT enum code nvmlGpuInstanceGetComputeInstancePossiblePlacements(handle instance, u32 id, struct a_place *out, u32 *n) {
	BEGIN(nvmlGpuInstanceGetComputeInstancePossiblePlacements, GPU_INSTANCE, instance);
	NEED(n);
	int at;
	enum code code = find(&c, id, &at);
	if (code != OK) END(code);
	u32 starts[8], found = ci_places(c.m, c.gi, (u32)at, starts);
	for (u32 i = 0; out && i < found; i++) out[i] = (struct a_place){starts[i], c.m->ci[at].slices};
	*n = found;
	END(OK);
}

EXPORT enum code nvmlGpuInstanceGetComputeInstanceRemainingCapacity(handle instance, u32 id, u32 *n) {
	BEGIN(nvmlGpuInstanceGetComputeInstanceRemainingCapacity, GPU_INSTANCE, instance);
	NEED(n);
	int at;
	enum code code = find(&c, id, &at);
	if (code == OK) *n = ci_capacity(c.g, c.gi, (u32)at);
	END(code);
}

static enum code create(struct call *c, u32 id, const struct a_place *at, handle *out) {
	if (!out) return INVALID_ARGUMENT;
	int profile;
	c->log.profile = id;
	enum code code = find(c, id, &profile);
	if (code != OK) return code;
	struct ci *made = NULL;
	code = ci_create(c->s, c->g, c->gi, (u32)profile, at, &made);
	if (code != OK) return code;
	c->log.ci = made->id;
	c->log.start = made->start;
	c->log.size = made->size;
	*out = ci_handle(c->number, c->gi, made);
	return OK;
}

EXPORT enum code nvmlGpuInstanceCreateComputeInstance(handle instance, u32 id, handle *out) {
	BEGIN_CHANGE(nvmlGpuInstanceCreateComputeInstance, GPU_INSTANCE, instance);
	END(create(&c, id, NULL, out));
}

EXPORT enum code nvmlGpuInstanceCreateComputeInstanceWithPlacement(handle instance, u32 id, const struct a_place *at, handle *out) {
	BEGIN_CHANGE(nvmlGpuInstanceCreateComputeInstanceWithPlacement, GPU_INSTANCE, instance);
	NEED(at);
	END(create(&c, id, at, out));
}

EXPORT enum code nvmlComputeInstanceDestroy(handle instance) {
	BEGIN_CHANGE(nvmlComputeInstanceDestroy, COMPUTE_INSTANCE, instance);
	c.log.profile = c.m->ci[c.ci->profile].id;
	c.log.start = c.ci->start;
	c.log.size = c.ci->size;
	END(ci_destroy(c.s, c.g, c.gi, c.ci));
}

EXPORT enum code nvmlGpuInstanceGetComputeInstances(handle instance, u32 id, handle *out, u32 *n) {
	BEGIN(nvmlGpuInstanceGetComputeInstances, GPU_INSTANCE, instance);
	NEED(out && n);
	int at;
	enum code code = find(&c, id, &at);
	if (code != OK) END(code);
	*n = 0;
	for (int i = 0; i < MAX_CIS; i++)
		if (c.gi->ci[i].used && c.gi->ci[i].profile == (u32)at) out[(*n)++] = ci_handle(c.number, c.gi, &c.gi->ci[i]);
	END(OK);
}

EXPORT enum code nvmlGpuInstanceGetComputeInstanceById(handle instance, u32 id, handle *out) {
	BEGIN(nvmlGpuInstanceGetComputeInstanceById, GPU_INSTANCE, instance);
	NEED(out);
	struct ci *ci = ci_at(c.gi, id);
	if (ci) *out = ci_handle(c.number, c.gi, ci);
	END(ci ? OK : NOT_FOUND);
}

static enum code info(const struct call *c, struct a_ci_info *out) {
	if (!out) return INVALID_ARGUMENT;
	*out = (struct a_ci_info){device_handle(c->number), gi_handle(c->number, c->gi), c->ci->id, c->m->ci[c->ci->profile].id, {c->ci->start, c->ci->size}};
	return OK;
}

EXPORT enum code nvmlComputeInstanceGetInfo(handle instance, struct a_ci_info *out) {
	BEGIN(nvmlComputeInstanceGetInfo, COMPUTE_INSTANCE, instance);
	END(info(&c, out));
}

EXPORT enum code nvmlComputeInstanceGetInfo_v2(handle instance, struct a_ci_info *out) {
	BEGIN(nvmlComputeInstanceGetInfo_v2, COMPUTE_INSTANCE, instance);
	END(info(&c, out));
}
