// SPDX-License-Identifier: Apache-2.0

// Which GPUs there are and what they are.
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "lib.h"

static enum code count(struct call *c, u32 *out) {
	if (!out) return INVALID_ARGUMENT;
	*out = c->s->gpus;
	return OK;
}

EXPORT enum code nvmlDeviceGetCount(u32 *out) {
	BEGIN_PLAIN(nvmlDeviceGetCount);
	END(count(&c, out));
}

EXPORT enum code nvmlDeviceGetCount_v2(u32 *out) {
	BEGIN_PLAIN(nvmlDeviceGetCount_v2);
	END(count(&c, out));
}

// give hands out a GPU; one that is lost is not handed out, unless it gets lost between.
static enum code give(struct call *c, u32 gpu, handle *out) {
	if (c->s->gpu[gpu].set.lost && !c->s->gpu[gpu].set.lost_late) return GPU_IS_LOST;
	attach(c->s, gpu);
	*out = device_handle(gpu);
	return OK;
}

static enum code by_index(struct call *c, u32 index, handle *out) {
	return !out || index >= c->s->gpus ? INVALID_ARGUMENT : give(c, index, out);
}

EXPORT enum code nvmlDeviceGetHandleByIndex(u32 index, handle *out) {
	BEGIN_PLAIN(nvmlDeviceGetHandleByIndex);
	END(by_index(&c, index, out));
}

EXPORT enum code nvmlDeviceGetHandleByIndex_v2(u32 index, handle *out) {
	BEGIN_PLAIN(nvmlDeviceGetHandleByIndex_v2);
	END(by_index(&c, index, out));
}

static enum code by_address(struct call *c, const char *address, handle *out) {
	u32 domain = 0, bus, device, function = 0;
	if (!address || !out) return INVALID_ARGUMENT;
	if (sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3) {
		domain = 0;
		if (sscanf(address, "%x:%x.%x", &bus, &device, &function) < 2) return INVALID_ARGUMENT;
	}
	for (u32 i = 0; i < c->s->gpus; i++)
		if (domain == 0 && device == 0 && function == 0 && c->s->gpu[i].bus == bus) return give(c, i, out);
	return NOT_FOUND;
}

EXPORT enum code nvmlDeviceGetHandleByPciBusId(const char *address, handle *out) {
	BEGIN_PLAIN(nvmlDeviceGetHandleByPciBusId);
	END(by_address(&c, address, out));
}

EXPORT enum code nvmlDeviceGetHandleByPciBusId_v2(const char *address, handle *out) {
	BEGIN_PLAIN(nvmlDeviceGetHandleByPciBusId_v2);
	END(by_address(&c, address, out));
}

EXPORT enum code nvmlDeviceGetHandleByUUID(const char *uuid, handle *out) {
	BEGIN_PLAIN(nvmlDeviceGetHandleByUUID);
	NEED(uuid && out);
	for (u32 i = 0; i < c.s->gpus; i++) {
		struct gpu *g = &c.s->gpu[i];
		if (strcasecmp(uuid, g->uuid) == 0) END(give(&c, i, out));
		for (int n = 0; n < MAX_GIS; n++)
			for (int k = 0; k < MAX_CIS; k++) {
				struct gi *gi = &g->gi[n];
				char mig[48];
				if (!gi->used || !gi->ci[k].used) continue;
				mig_uuid(g, gi->id, gi->ci[k].id, mig);
				if (strcasecmp(uuid, mig) != 0) continue;
				*out = mig_handle(i, gi, &gi->ci[k]);
				END(g->set.lost ? GPU_IS_LOST : OK);
			}
	}
	END(NOT_FOUND);
}

EXPORT enum code nvmlDeviceGetName(handle device, char *name, u32 length) {
	BEGIN(nvmlDeviceGetName, DEVICE, device);
	char text[256], profile[96];
	snprintf(text, sizeof text, "%s", c.m->name);
	if (c.ci) {
		profile_name(c.m, c.gi, c.ci, profile);
		snprintf(text, sizeof text, "%s %s", c.m->name, profile);
	}
	END(put_text(name, length, text));
}

EXPORT enum code nvmlDeviceGetUUID(handle device, char *uuid, u32 length) {
	BEGIN(nvmlDeviceGetUUID, DEVICE, device);
	char text[48];
	snprintf(text, sizeof text, "%s", c.g->uuid);
	if (c.ci) mig_uuid(c.g, c.gi->id, c.ci->id, text);
	END(put_text(uuid, length, text));
}

EXPORT enum code nvmlDeviceGetSerial(handle device, char *serial, u32 length) {
	BEGIN(nvmlDeviceGetSerial, DEVICE, device);
	if (c.ci) END(NOT_SUPPORTED);
	END(put_text(serial, length, c.g->serial));
}

EXPORT enum code nvmlDeviceGetVbiosVersion(handle device, char *version, u32 length) {
	BEGIN(nvmlDeviceGetVbiosVersion, DEVICE, device);
	if (c.ci) END(NOT_SUPPORTED);
	END(put_text(version, length, c.m->vbios));
}

EXPORT enum code nvmlDeviceGetIndex(handle device, u32 *out) {
	BEGIN(nvmlDeviceGetIndex, DEVICE, device);
	NEED(out);
	if (c.ci) END(NOT_SUPPORTED);
	*out = c.number;
	END(OK);
}

EXPORT enum code nvmlDeviceGetMinorNumber(handle device, u32 *out) {
	BEGIN(nvmlDeviceGetMinorNumber, DEVICE, device);
	NEED(out);
	*out = c.number;
	END(c.ci ? NOT_SUPPORTED : OK);
}

EXPORT enum code nvmlDeviceGetPciInfo_v3(handle device, struct a_pci *out) {
	BEGIN(nvmlDeviceGetPciInfo_v3, DEVICE, device);
	NEED(out);
	*out = (struct a_pci){.bus = c.g->bus, .id = c.m->pci, .subsystem = c.m->subsystem};
	snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", c.g->bus & 0xff);
	snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", c.g->bus & 0xff);
	END(OK);
}

// memory of a GPU or a MIG device: each client has half a GiB.
static struct a_memory2 memory(const struct call *c) {
	const u64 mib = 1 << 20;
	struct a_memory2 out = {.total = c->m->memory * mib, .reserved = c->m->reserved * mib};
	u32 busy = clients(c->s, c->number, NOWHERE, NOWHERE);
	if (c->ci) {
		out.total = c->m->gi[c->gi->profile].memory * mib;
		out.reserved = 0;
		busy = clients(c->s, c->number, c->gi->id, NOWHERE);
	}
	out.used = busy * 512 * mib;
	if (out.used > out.total - out.reserved) out.used = out.total - out.reserved;
	out.free = out.total - out.reserved - out.used;
	return out;
}

EXPORT enum code nvmlDeviceGetMemoryInfo(handle device, struct a_memory *out) {
	BEGIN(nvmlDeviceGetMemoryInfo, DEVICE, device);
	NEED(out);
	struct a_memory2 m = memory(&c);
	*out = (struct a_memory){.total = m.total, .free = m.free, .used = m.used + m.reserved}; // v1 counts what is reserved as used
	END(OK);
}

EXPORT enum code nvmlDeviceGetMemoryInfo_v2(handle device, struct a_memory2 *out) {
	BEGIN(nvmlDeviceGetMemoryInfo_v2, DEVICE, device);
	NEED(out);
	if (out->version != STRUCT_VERSION(struct a_memory2, 2)) END(ARGUMENT_VERSION_MISMATCH);
	u32 version = out->version;
	*out = memory(&c);
	out->version = version;
	END(OK);
}

EXPORT enum code nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor) {
	BEGIN(nvmlDeviceGetCudaComputeCapability, DEVICE, device);
	NEED(major && minor);
	*major = (int)c.m->major;
	*minor = (int)c.m->minor;
	END(OK);
}

EXPORT enum code nvmlDeviceGetArchitecture(handle device, u32 *out) {
	BEGIN(nvmlDeviceGetArchitecture, DEVICE, device);
	NEED(out);
	*out = c.m->arch;
	END(OK);
}

EXPORT enum code nvmlDeviceGetBrand(handle device, u32 *out) {
	BEGIN(nvmlDeviceGetBrand, DEVICE, device);
	NEED(out);
	*out = c.m->brand;
	END(OK);
}

EXPORT enum code nvmlDeviceGetPersistenceMode(handle device, u32 *out) {
	BEGIN(nvmlDeviceGetPersistenceMode, DEVICE, device);
	NEED(out);
	*out = c.g->set.persistence;
	END(OK);
}

EXPORT enum code nvmlDeviceSetPersistenceMode(handle device, u32 mode) {
	BEGIN_CHANGE(nvmlDeviceSetPersistenceMode, DEVICE, device);
	NEED(mode <= 1);
	if (c.ci) END(NOT_SUPPORTED);
	c.g->set.persistence = mode;
	END(OK);
}

// processes lists the clients of one type. On a GPU with MIG they carry their instances, without NVML's "none".
static enum code processes(struct call *c, u32 type, u32 *n, struct a_process *out) {
	if (!n) return INVALID_ARGUMENT;
	u32 found = 0, room = *n;
	for (int i = 0; i < MAX_CLIENTS; i++) {
		const struct client *who = &c->s->client[i];
		if (!who->pid || who->gpu != c->number || who->type != type) continue;
		if (c->ci && (who->gi != c->gi->id || who->ci != c->ci->id)) continue;
		if (found < room && out) out[found] = (struct a_process){.pid = who->pid, .memory = 512ull << 20, .gi = who->gi, .ci = who->ci};
		found++;
	}
	*n = found;
	return found > room || (found && !out) ? INSUFFICIENT_SIZE : OK;
}

EXPORT enum code nvmlDeviceGetComputeRunningProcesses_v3(handle device, u32 *n, struct a_process *out) {
	BEGIN(nvmlDeviceGetComputeRunningProcesses_v3, DEVICE, device);
	END(processes(&c, 0, n, out));
}

EXPORT enum code nvmlDeviceGetGraphicsRunningProcesses_v3(handle device, u32 *n, struct a_process *out) {
	BEGIN(nvmlDeviceGetGraphicsRunningProcesses_v3, DEVICE, device);
	END(processes(&c, 1, n, out));
}

EXPORT enum code nvmlDeviceGetMPSComputeRunningProcesses_v3(handle device, u32 *n, struct a_process *out) {
	BEGIN(nvmlDeviceGetMPSComputeRunningProcesses_v3, DEVICE, device);
	END(processes(&c, 2, n, out));
}
